// on_done of transfers: it runs once for each that has begun, whatever ends it.
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "tests/capi/transfers.h"
#include "tests/support/waiting.h"

namespace kvc::test {
namespace {

// What one function was told.
class Told {
 public:
  template <typename Desc>
  void listen(Desc* desc) {
    desc->on_done = [](void* user, kvc_transfer* transfer, kvc_status status) {
      static_cast<Told*>(user)->run(transfer, status);
    };
    desc->user = this;
  }

  // Runs in the function.
  std::function<void(kvc_transfer*)> then;

  int count() const {
    const std::lock_guard lock(mutex_);
    return count_;
  }
  // After the function has run.
  kvc_status status() const {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kPatience, [&] { return count_ > 0; }));
    EXPECT_EQ(count_, 1);
    return status_;
  }
  kvc_transfer* transfer() const {
    (void)status();
    return transfer_;
  }
  kvc_transfer_info info() const {
    (void)status();
    return info_;
  }
  std::thread::id thread() const {
    (void)status();
    return thread_;
  }

 private:
  void run(kvc_transfer* transfer, kvc_status status) {
    kvc_transfer_info info{};
    info.struct_size = sizeof info;
    if (transfer != nullptr) {
      EXPECT_EQ(kvc_transfer_query(transfer, &info, nullptr), KVC_OK);
    }
    if (then) then(transfer);
    const std::lock_guard lock(mutex_);
    ++count_;
    status_ = status;
    transfer_ = transfer;
    info_ = info;
    thread_ = std::this_thread::get_id();
    changed_.notify_all();
  }

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  int count_ = 0;
  kvc_status status_ = KVC_OK;
  kvc_transfer* transfer_ = nullptr;
  kvc_transfer_info info_{};
  std::thread::id thread_;
};

// Two caches, and a sequence of 30 tokens that travels from one to the other.
struct Pair {
  Pair() : net({attention_layer(), attention_layer()}, 64), first(net.config), second(net.config) {
    append_pattern(first, 1, 30, 7);
  }

  void receive(const TestTransport& transport, kvc_seq seq = 1, int64_t deadline_ns = kPatienceNs) {
    kvc_recv_desc desc = recv_desc(seq, 30);
    desc.deadline_ns = deadline_ns;
    receiver.listen(&desc);
    expect_ok([&](kvc_error* err) {
      return kvc_transfer_recv(second.get(), transport.get(), &desc, receiving.out(), err);
    });
  }
  void send(const TestTransport& transport, const Bytes& ticket, int64_t idle_ns = 0,
            kvc_send_mode mode = KVC_SEND_NOW) {
    kvc_send_desc desc = send_desc(1, ticket);
    desc.idle_ns = idle_ns;
    desc.mode = mode;
    sender.listen(&desc);
    expect_ok([&](kvc_error* err) {
      return kvc_transfer_send(first.get(), transport.get(), &desc, sending.out(), err);
    });
  }
  void begin(const TestTransport& from, const TestTransport& to) {
    receive(to);
    ASSERT_NE(receiving.get(), nullptr);
    send(from, receiving.ticket());
  }
  // The last 10 tokens are still to be computed.
  void begin_as_computed(const TestTransport& from, const TestTransport& to) {
    receive(to);
    ASSERT_NE(receiving.get(), nullptr);
    ASSERT_EQ(kvc_seq_pop(first.get(), 1, 10, nullptr), KVC_OK);
    send(from, receiving.ticket(), 0, KVC_SEND_AS_COMPUTED);
  }
  void expect_once() const {
    EXPECT_EQ(receiver.count(), 1);
    EXPECT_EQ(sender.count(), 1);
    expect_sound(first);
    expect_sound(second);
  }

  Net net;
  Cache first, second;
  Told receiver, sender;  // They outlive the transfers.
  TestTransfer receiving, sending;
};

void progress(const TestTransport& transport, int times = 20) {
  for (int i = 0; i < times; ++i)
    EXPECT_EQ(kvc_transport_progress(transport.get(), 0, nullptr), KVC_OK);
}

TEST(TransferCallbacks, BothSidesAreToldByTheirTransportsThreads) {
  const TestTransport from, to;
  Pair pair;
  pair.begin(from, to);
  EXPECT_EQ(pair.sender.status(), KVC_OK);
  EXPECT_EQ(pair.receiver.status(), KVC_OK);
  EXPECT_EQ(pair.sender.transfer(), pair.sending.get());
  EXPECT_EQ(pair.receiver.transfer(), pair.receiving.get());
  EXPECT_EQ(pair.sender.info().state, KVC_TRANSFER_DONE);
  EXPECT_EQ(pair.receiver.info().state, KVC_TRANSFER_ARRIVED);
  EXPECT_NE(pair.sender.thread(), std::this_thread::get_id());
  EXPECT_NE(pair.receiver.thread(), std::this_thread::get_id());
  EXPECT_NE(pair.receiver.thread(), pair.sender.thread());
  EXPECT_EQ(pair.receiving.wait(0), KVC_OK) << "what has arrived becomes a sequence";
  EXPECT_EQ(file_difference(pair.first, pair.second, 1), "");
  pair.receiving.destroy();
  pair.sending.destroy();
  pair.expect_once();
}

TEST(TransferCallbacks, ACancelledOneIsToldOnBothSides) {
  for (const bool by_sender : {false, true}) {
    SCOPED_TRACE(by_sender);
    TestTransport from(transport_desc(KVC_TRANSPORT_MANUAL_PROGRESS));
    TestTransport to(transport_desc(KVC_TRANSPORT_MANUAL_PROGRESS));
    Pair pair;
    pair.begin(from, to);
    const TestTransfer& one = by_sender ? pair.sending : pair.receiving;
    ASSERT_EQ(kvc_transfer_cancel(one.get(), nullptr), KVC_OK);
    EXPECT_EQ(pair.receiver.count() + pair.sender.count(), 0) << "not in the call";
    EXPECT_TRUE(comes_true([&] {
      progress(from, 1);
      progress(to, 1);
      return pair.receiver.count() + pair.sender.count() == 2;
    }));
    EXPECT_EQ(pair.receiver.status(), KVC_E_CANCELLED);
    EXPECT_EQ(pair.sender.status(), KVC_E_CANCELLED);
    for (const Told* told : {&pair.receiver, &pair.sender}) {
      EXPECT_EQ(told->info().state, KVC_TRANSFER_FAILED);
      EXPECT_EQ(told->thread(), std::this_thread::get_id());
    }
    pair.receiving.destroy();
    pair.sending.destroy();
    pair.expect_once();
  }
}

TEST(TransferCallbacks, DeadlinesAreTold) {
  const TestTransport to;
  const TestTransport silent(transport_desc(KVC_TRANSPORT_MANUAL_PROGRESS));
  kvc_transport_desc quick = transport_desc();
  quick.drain_ns = kSecond / 50;
  const TestTransport from(quick);
  Pair pair;
  pair.receive(to, 2, kSecond / 50);
  EXPECT_EQ(pair.receiver.status(), KVC_E_TIMEOUT);
  TestTransfer other;
  const kvc_recv_desc desc = recv_desc(1, 30);
  ASSERT_EQ(kvc_transfer_recv(pair.second.get(), silent.get(), &desc, other.out(), nullptr),
            KVC_OK);
  pair.send(from, other.ticket(), kSecond / 50);
  EXPECT_EQ(pair.sender.status(), KVC_E_TIMEOUT);
  EXPECT_EQ(pair.sender.info().state, KVC_TRANSFER_FAILED);
  pair.expect_once();
}

TEST(TransferCallbacks, ARefusedLayoutIsToldOnBothSides) {
  const TestTransport from, to;
  Pair pair;
  Net other({attention_layer(), attention_layer()}, 64);
  for (kvc_layer& layer : other.layers) layer.k_dtype = layer.v_dtype = {kDLFloat, 16, 1};
  Cache another(other.config);
  kvc_recv_desc desc = recv_desc(1, 30);
  pair.receiver.listen(&desc);
  ASSERT_EQ(kvc_transfer_recv(another.get(), to.get(), &desc, pair.receiving.out(), nullptr),
            KVC_OK);
  pair.send(from, pair.receiving.ticket());
  EXPECT_EQ(pair.receiver.status(), KVC_E_UNSUPPORTED);
  EXPECT_EQ(pair.sender.status(), KVC_E_UNSUPPORTED);
  pair.receiving.destroy();
  pair.sending.destroy();
  pair.expect_once();
  expect_sound(another);
}

// The other side goes: its own transfers have been told when kvc_transport_destroy returns.
TEST(TransferCallbacks, TheEndOfATransportIsTold) {
  for (const bool is_sender : {false, true}) {
    SCOPED_TRACE(is_sender);
    TestTransport from, to;
    Pair pair;
    if (is_sender) {
      const TestTransport silent(transport_desc(KVC_TRANSPORT_MANUAL_PROGRESS));
      pair.begin(from, silent);
      from.destroy();
      EXPECT_EQ(pair.sender.count(), 1);
      EXPECT_EQ(pair.sender.status(), KVC_E_CANCELLED);
      EXPECT_EQ(pair.sender.info().state, KVC_TRANSFER_FAILED);
      EXPECT_EQ(pair.sender.thread(), std::this_thread::get_id());
    } else {
      const TestTransport silent(transport_desc(KVC_TRANSPORT_MANUAL_PROGRESS));
      pair.begin(silent, to);
      to.destroy();
      EXPECT_EQ(pair.receiver.count(), 1);
      EXPECT_EQ(pair.receiver.status(), KVC_E_CANCELLED);
      EXPECT_EQ(pair.receiver.thread(), std::this_thread::get_id());
    }
    // The other transport goes last, and tells as well.
    EXPECT_EQ(pair.receiver.count() + pair.sender.count(), 2);
  }
}

TEST(TransferCallbacks, APeerThatIsGoneIsTold) {
  const TestTransport from;
  TestTransport to;
  Pair pair;
  pair.begin_as_computed(from, to);
  to.destroy();
  const kvc_status status = pair.sender.status();
  EXPECT_TRUE(status == KVC_E_PEER || status == KVC_E_CANCELLED) << kvc_status_name(status);
  EXPECT_EQ(pair.receiver.status(), KVC_E_CANCELLED);
  pair.receiving.destroy();
  pair.sending.destroy();
  pair.expect_once();
}

// The forward that is aborted waits for no function.
TEST(TransferCallbacks, AnAbortedForwardIsTold) {
  const TestTransport from, to;
  Pair pair;
  pair.begin_as_computed(from, to);
  ASSERT_EQ(pair.first.begin_with({{1}, {10}}, nullptr), KVC_OK);
  expect_ok([&](kvc_error* err) { return kvc_forward_abort(pair.first.forward, err); });
  EXPECT_EQ(pair.sender.status(), KVC_E_CANCELLED);
  EXPECT_EQ(pair.receiver.status(), KVC_E_CANCELLED);
  EXPECT_NE(pair.sender.thread(), std::this_thread::get_id());
  pair.expect_once();
}

TEST(TransferCallbacks, ACallThatFailsTellsNothing) {
  const TestTransport from, to;
  Pair pair;
  Told told;
  TestTransfer out;
  kvc_recv_desc large = recv_desc(5, 1'000'000);
  told.listen(&large);
  EXPECT_EQ(kvc_transfer_recv(pair.second.get(), to.get(), &large, out.out(), nullptr),
            KVC_E_NEVER_FITS);
  pair.receive(to);
  Bytes ticket = pair.receiving.ticket();
  kvc_send_desc missing = send_desc(9, ticket);
  told.listen(&missing);
  EXPECT_EQ(kvc_transfer_send(pair.first.get(), from.get(), &missing, out.out(), nullptr),
            KVC_E_NOT_FOUND);
  Bytes damaged = ticket;
  damaged.back() ^= 1;
  kvc_send_desc bad = send_desc(1, damaged);
  told.listen(&bad);
  EXPECT_EQ(kvc_transfer_send(pair.first.get(), from.get(), &bad, out.out(), nullptr),
            KVC_E_CORRUPT);
  pair.send(from, ticket);
  EXPECT_EQ(pair.sender.status(), KVC_OK);
  EXPECT_EQ(pair.receiver.status(), KVC_OK);
  EXPECT_EQ(kvc_transport_close(from.get(), -1, nullptr), KVC_OK);
  kvc_send_desc late = send_desc(1, ticket);
  told.listen(&late);
  EXPECT_EQ(kvc_transfer_send(pair.first.get(), from.get(), &late, out.out(), nullptr),
            KVC_E_INVALID_STATE);
  EXPECT_EQ(told.count(), 0);
}

// A send that fails after the transport knows its ticket.
TEST(TransferCallbacks, ATicketInUseTellsNothing) {
  const TestTransport from(transport_desc(KVC_TRANSPORT_MANUAL_PROGRESS)), to;
  Pair pair;
  pair.begin(from, to);
  Told told;
  TestTransfer again;
  const Bytes ticket = pair.receiving.ticket();
  kvc_send_desc desc = send_desc(1, ticket);
  told.listen(&desc);
  EXPECT_EQ(kvc_transfer_send(pair.first.get(), from.get(), &desc, again.out(), nullptr),
            KVC_E_BUSY);
  EXPECT_EQ(pair.sending.wait(), KVC_OK);
  EXPECT_EQ(pair.sender.count(), 1) << "kvc_transfer_wait drives this transport";
  EXPECT_EQ(pair.receiver.status(), KVC_OK);
  EXPECT_EQ(told.count(), 0);
}

TEST(TransferCallbacks, AHandleThatGoesBeforeTheEndTells) {
  const TestTransport from(transport_desc(KVC_TRANSPORT_MANUAL_PROGRESS)), to;
  Pair pair;
  pair.begin(from, to);
  for (const bool is_sender : {false, true}) {
    (is_sender ? pair.sending : pair.receiving).destroy();
    const Told& told = is_sender ? pair.sender : pair.receiver;
    EXPECT_EQ(told.count(), 1);
    EXPECT_EQ(told.status(), KVC_E_CANCELLED);
    EXPECT_EQ(told.transfer(), nullptr) << "it cannot be asked any more";
    EXPECT_EQ(told.thread(), std::this_thread::get_id());
  }
  progress(from);
  EXPECT_EQ(kvc_transport_close(to.get(), -1, nullptr), KVC_OK);
  pair.expect_once();
}

// It has ended, and nobody has driven the transport since.
TEST(TransferCallbacks, AHandleThatGoesBeforeItWasToldTellsHowItEnded) {
  const TestTransport from(transport_desc(KVC_TRANSPORT_MANUAL_PROGRESS)), to;
  Pair pair;
  pair.receive(to);
  const Bytes ticket = pair.receiving.ticket();
  pair.receiving.destroy();
  EXPECT_EQ(pair.receiver.status(), KVC_E_CANCELLED);
  pair.send(from, ticket);
  kvc_transfer* const sending = pair.sending.get();
  pair.sender.then = [&](kvc_transfer*) { EXPECT_NE(sending, nullptr); };
  EXPECT_EQ(kvc_transfer_cancel(sending, nullptr), KVC_OK);
  EXPECT_EQ(pair.sender.count(), 0);
  pair.sending.destroy();
  EXPECT_EQ(pair.sender.status(), KVC_E_CANCELLED);
  EXPECT_EQ(pair.sender.transfer(), nullptr);
  progress(from);
  pair.expect_once();
}

TEST(TransferCallbacks, AHandleThatGoesWaitsForTheFunction) {
  const TestTransport from, to;
  Pair pair;
  std::atomic<bool> runs{false}, may_return{false}, is_gone{false};
  pair.receiver.then = [&](kvc_transfer*) {
    runs = true;
    EXPECT_TRUE(comes_true([&] { return may_return.load(); }));
    EXPECT_FALSE(is_gone);
  };
  pair.begin(from, to);
  EXPECT_TRUE(comes_true([&] { return runs.load(); }));
  std::thread other([&] {
    pair.receiving.destroy();
    is_gone = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(is_gone);
  may_return = true;
  other.join();
  EXPECT_EQ(pair.receiver.status(), KVC_OK);
  EXPECT_EQ(pair.sender.status(), KVC_OK);
  pair.expect_once();
}

// Handles that nobody keeps.
TEST(TransferCallbacks, TheFunctionMayDestroyItsTransfer) {
  const TestTransport from, to;
  Pair pair;
  kvc_transfer *receiving = nullptr, *sending = nullptr;
  pair.receiver.then = pair.sender.then = kvc_transfer_destroy;
  kvc_recv_desc recv = recv_desc(1, 30);
  pair.receiver.listen(&recv);
  ASSERT_EQ(kvc_transfer_recv(pair.second.get(), to.get(), &recv, &receiving, nullptr), KVC_OK);
  size_t len = 4096;
  Bytes ticket(len);
  ASSERT_EQ(kvc_transfer_ticket(receiving, ticket.data(), &len, nullptr), KVC_OK);
  ticket.resize(len);
  kvc_send_desc send = send_desc(1, ticket);
  pair.sender.listen(&send);
  ASSERT_EQ(kvc_transfer_send(pair.first.get(), from.get(), &send, &sending, nullptr), KVC_OK);
  EXPECT_EQ(pair.sender.status(), KVC_OK);
  EXPECT_EQ(pair.receiver.status(), KVC_OK);
  ASSERT_EQ(kvc_cache_trim(pair.second.get(), nullptr, nullptr), KVC_OK);
  EXPECT_EQ(file_difference(pair.first, pair.second, 1), "");
  pair.expect_once();
}

// The receiver's transport has gone as soon as all had arrived: its last word may be lost.
void expect_ends(const Told& sender) {
  const kvc_status status = sender.status();
  EXPECT_TRUE(status == KVC_OK || status == KVC_E_PEER) << kvc_status_name(status);
}

// Transport and caches go in the function, on the transport's own thread.
TEST(TransferCallbacks, TheFunctionMayDestroyWhatItLikes) {
  for (int what = 0; what < 3; ++what) {
    SCOPED_TRACE(what);
    Told waiting;
    TestTransfer open;
    Pair pair;
    TestTransport from, to;
    kvc_recv_desc desc = recv_desc(5, 3);
    waiting.listen(&desc);
    ASSERT_EQ(kvc_transfer_recv(pair.second.get(), to.get(), &desc, open.out(), nullptr), KVC_OK);
    pair.receiver.then = [&](kvc_transfer* transfer) {
      if (what == 0) to.destroy();
      if (what == 1) pair.second.destroy();
      if (what == 2) {
        EXPECT_EQ(kvc_transport_close(to.get(), 0, nullptr), KVC_E_TIMEOUT);
        EXPECT_EQ(kvc_transfer_wait(open.get(), -1, nullptr), KVC_E_CANCELLED);
        EXPECT_EQ(kvc_transfer_cancel(transfer, nullptr), KVC_OK);
      }
    };
    pair.begin(from, to);
    EXPECT_EQ(pair.receiver.status(), KVC_OK);
    EXPECT_EQ(waiting.status(), KVC_E_CANCELLED);
    EXPECT_EQ(waiting.thread(), pair.receiver.thread());
    expect_ends(pair.sender);
  }
}

// A transport whose handles are all gone when its function returns.
TEST(TransferCallbacks, NothingOfATransportNeedBeLeft) {
  for (int round = 0; round < 20; ++round) {
    Pair pair;
    TestTransport from;
    auto to = std::make_unique<TestTransport>();
    pair.receiver.then = [&](kvc_transfer*) {
      pair.receiving.destroy();
      to.reset();
    };
    pair.begin(from, *to);
    EXPECT_EQ(pair.receiver.status(), KVC_OK);
    expect_ends(pair.sender);
    ASSERT_EQ(kvc_cache_trim(pair.second.get(), nullptr, nullptr), KVC_OK);
    EXPECT_EQ(file_difference(pair.first, pair.second, 1), "");
    pair.expect_once();
  }
}

TEST(TransferCallbacks, SeveralSendersAreToldOfOnce) {
  const TestTransport from, to;
  Net net({attention_layer()}, 64);
  net.layers[0].num_kv_heads = net.layers[0].num_q_heads = 2;
  Cache second(net.config);
  Told told;
  TestTransfer receiving;
  kvc_recv_desc desc = recv_desc(1, 12);
  desc.sender_tp_size = 2;
  told.listen(&desc);
  expect_ok([&](kvc_error* err) {
    return kvc_transfer_recv(second.get(), to.get(), &desc, receiving.out(), err);
  });
  ASSERT_EQ(kvc_transfer_cancel(receiving.get(), nullptr), KVC_OK);
  EXPECT_EQ(told.status(), KVC_E_CANCELLED);
  EXPECT_EQ(told.info().state, KVC_TRANSFER_FAILED);
  EXPECT_EQ(receiving.wait(), KVC_E_CANCELLED);
  EXPECT_EQ(kvc_cache_is_empty(second.get()), 1);
  receiving.destroy();
  EXPECT_EQ(told.count(), 1);
}

// Programs that were built before the function existed have shorter structs.
TEST(TransferCallbacks, ShorterStructsHaveNone) {
  const TestTransport from, to;
  Pair pair;
  kvc_recv_desc recv = recv_desc(1, 30);
  recv.struct_size = offsetof(kvc_recv_desc, on_done);
  recv.on_done = [](void*, kvc_transfer*, kvc_status) { ADD_FAILURE(); };
  ASSERT_EQ(kvc_transfer_recv(pair.second.get(), to.get(), &recv, pair.receiving.out(), nullptr),
            KVC_OK);
  const Bytes ticket = pair.receiving.ticket();
  kvc_send_desc send = send_desc(1, ticket);
  send.struct_size = offsetof(kvc_send_desc, on_done);
  send.on_done = recv.on_done;
  ASSERT_EQ(kvc_transfer_send(pair.first.get(), from.get(), &send, pair.sending.out(), nullptr),
            KVC_OK);
  EXPECT_EQ(pair.sending.wait(), KVC_OK);
  EXPECT_EQ(pair.receiving.wait(), KVC_OK);
}

// Ends of every kind, on several threads at once: each is told of once.
TEST(TransferCallbacks, EachIsToldOnceWhoeverComesFirst) {
  const TestTransport from, to;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      Pair pair;
      for (int round = 0; round < 60; ++round) {
        Told receiver, sender;
        TestTransfer receiving, sending;
        kvc_recv_desc recv = recv_desc(1, 30);
        receiver.listen(&recv);
        ASSERT_EQ(kvc_transfer_recv(pair.second.get(), to.get(), &recv, receiving.out(), nullptr),
                  KVC_OK);
        const Bytes ticket = receiving.ticket();
        kvc_send_desc send = send_desc(1, ticket);
        sender.listen(&send);
        ASSERT_EQ(kvc_transfer_send(pair.first.get(), from.get(), &send, sending.out(), nullptr),
                  KVC_OK);
        std::this_thread::sleep_for(std::chrono::microseconds(10 * round));
        if (round % 4 == thread) (void)kvc_transfer_cancel(sending.get(), nullptr);
        if (round % 3 == 0) receiving.destroy();
        if (round % 3 == 1) sending.destroy();
        if (sending.get() != nullptr) (void)sending.wait();
        if (receiving.get() != nullptr) (void)receiving.wait();
        receiving.destroy();
        sending.destroy();
        EXPECT_EQ(receiver.count(), 1);
        EXPECT_EQ(sender.count(), 1);
        // Without its handle a receiving one ends when its messages have.
        EXPECT_TRUE(comes_true([&] {
          (void)kvc_cache_trim(pair.second.get(), nullptr, nullptr);
          return kvc_seq_remove(pair.second.get(), 1, nullptr) != KVC_E_BUSY;
        }));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace kvc::test
