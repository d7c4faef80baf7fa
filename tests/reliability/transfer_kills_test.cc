// One side of a transfer between two processes is killed or stopped at random: the other side ends
// in time, whole or without a trace, and serves the next transfer.
//
// The program forks a survivor, which keeps its cache and its transport for all rounds, and a
// victim per round. It never loads UCX itself: threads do not outlive a fork.
#include <signal.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <random>

#include "tests/reliability/times.h"
#include "tests/reliability/transfer_processes.h"

namespace kvc::test {
namespace {

constexpr kvc_seq kSeq = 1, kOther = 2;
constexpr int64_t kLength = 4096;

// 32 MiB of K and V.
struct WideNet : RowsNet {
  WideNet() : RowsNet(8, 128, kLength) {}
};

// ---- The victim

[[noreturn]] void be_victim(const Line& line, const Note& order, uint64_t bytes_in_flight) {
  const WideNet net;
  Cache cache(net.config);
  const TestTransport transport(ucx_desc(bytes_in_flight));
  TestTransfer transfer;
  if (order.word == Word::kSend) {
    fill(cache, net, kSeq, kLength, order.seed);
    const Bytes ticket = ticket_of(order);
    const kvc_send_desc send = send_desc(kSeq, ticket);
    (void)kvc_transfer_send(cache.get(), transport.get(), &send, transfer.out(), nullptr);
  } else {
    const kvc_recv_desc recv = recv_desc(kSeq, kLength);
    (void)kvc_transfer_recv(cache.get(), transport.get(), &recv, transfer.out(), nullptr);
    line.tell(kThere, note_of(transfer.ticket(), Word::kTicket));
  }
  if (transfer.get() == nullptr) _exit(1);
  while (transfer.info().state == KVC_TRANSFER_WAITING) sleep_ns(100'000);
  if (order.word == Word::kSend) line.tell(kThere, Word::kStarted);
  while (transfer.get() != nullptr) {
    (void)transfer.wait();
    sleep_ns(kSecond / 100);
  }
  _exit(1);
}

// ---- The survivor

struct Survivor {
  explicit Survivor(const Line& its_line, const kvc_transport_desc& desc)
      : line(its_line), cache(net.config), transport(desc) {}

  void run() {
    for (Note order = line.hear(kThere); order.word != Word::kQuit; order = line.hear(kThere)) {
      if (testing::Test::HasFailure()) return;
      order.word == Word::kReceive ? receive(order) : send(order);
      ASSERT_EQ(stats_of(cache).pages_used, 0);
      ASSERT_EQ(transport.stats().transfers_open, 0);
      expect_sound(cache);
    }
  }

  void receive(const Note& order) {
    TestTransfer transfer;
    const kvc_recv_desc recv = recv_desc(kSeq, kLength);
    ASSERT_EQ(kvc_transfer_recv(cache.get(), transport.get(), &recv, transfer.out(), nullptr),
              KVC_OK);
    line.tell(kThere, note_of(transfer.ticket(), Word::kTicket));
    finish(transfer, order);
  }

  void send(const Note& order) {
    fill(cache, net, kSeq, kLength, order.seed);
    TestTransfer transfer;
    const Bytes ticket = ticket_of(order);
    const kvc_send_desc desc = send_desc(kSeq, ticket);
    ASSERT_EQ(kvc_transfer_send(cache.get(), transport.get(), &desc, transfer.out(), nullptr),
              KVC_OK);
    while (transfer.info().state == KVC_TRANSFER_WAITING) sleep_ns(100'000);
    line.tell(kThere, Word::kStarted);
    finish(transfer, order);
    EXPECT_TRUE(holds(cache, net, kSeq, kLength, order.seed)) << "the sender's own rows";
    ASSERT_EQ(kvc_seq_remove(cache.get(), kSeq, nullptr), KVC_OK);
  }

  // Waits for the blow and for the end, whichever is first.
  void finish(TestTransfer& transfer, const Note& order) {
    int64_t ended = 0, struck = 0;
    bool is_stopped = false;
    while (ended == 0 || struck == 0) {
      if (ended == 0 && is_over(transfer)) ended = now_ns();
      if (struck == 0 && line.has_news(kThere, 0)) {
        const Note note = line.hear(kThere);
        ASSERT_EQ(note.word, Word::kStruck);
        struck = note.time;
        is_stopped = note.seed != 0;
        if (note.cancels != 0 && transfer.info().state == KVC_TRANSFER_WAITING) {
          ASSERT_EQ(kvc_transfer_cancel(transfer.get(), nullptr), KVC_OK);
        }
      }
      sleep_ns(200'000);
      ASSERT_LT(struck == 0 ? 0 : now_ns() - struck, 60 * kSecond) << "it does not end";
    }
    Note answer;
    answer.word = Word::kEnded;
    kvc_error error{};
    answer.status = transfer.wait(0, &error);
    answer.time = std::max<int64_t>(0, ended - struck);
    const bool receives = order.word == Word::kReceive;
    int64_t length = 0;
    if (answer.status == KVC_OK && receives) {
      EXPECT_TRUE(holds(cache, net, kSeq, kLength, order.seed)) << "arrived with other rows";
      ASSERT_EQ(kvc_seq_remove(cache.get(), kSeq, nullptr), KVC_OK);
    } else if (receives) {
      EXPECT_EQ(kvc_seq_length(cache.get(), kSeq, &length, nullptr), KVC_E_NOT_FOUND);
    }
    if (answer.status != KVC_OK) {
      EXPECT_TRUE(answer.status == KVC_E_PEER || answer.status == KVC_E_CANCELLED ||
                  (is_stopped && answer.status == KVC_E_TIMEOUT))
          << error.message;
    }
    if (is_stopped && receives) reuse_pages();
    line.tell(kThere, answer);
  }

  // The pages are another sequence's before the victim wakes: nothing of the victim lands in them.
  void reuse_pages() {
    fill(cache, net, kOther, kLength, 77);
    line.tell(kThere, Word::kReused);
    ASSERT_EQ(line.hear(kThere).word, Word::kWoken);
    EXPECT_TRUE(holds(cache, net, kOther, kLength, 77)) << "late bytes";
    ASSERT_EQ(kvc_seq_remove(cache.get(), kOther, nullptr), KVC_OK);
  }

  const Line& line;
  const WideNet net;
  Cache cache;
  TestTransport transport;
};

pid_t fork_survivor(const Line& line, const kvc_transport_desc& desc) {
  std::fflush(stdout);
  const pid_t survivor = fork();
  if (survivor != 0) return survivor;
  if (kvc_has_feature("transport.ucx") == 0) {
    line.tell(kThere, Word::kQuit);
    _exit(0);
  }
  {
    Survivor one(line, desc);
    line.tell(kThere, Word::kStarted);
    one.run();
  }
  end_process();
}

// Whether its build has no UCX; then it has ended.
bool is_skipped(pid_t survivor, const Line& line) {
  if (line.hear(kHere).word == Word::kStarted) return false;
  (void)waitpid(survivor, nullptr, 0);
  return true;
}

pid_t fork_victim(const Line& line, const Note& order, uint64_t bytes_in_flight) {
  std::fflush(stdout);
  const pid_t victim = fork();
  if (victim == 0) be_victim(line, order, bytes_in_flight);
  return victim;
}

// Starts a transfer between the survivor and a new victim, and returns when both have heard of each
// other, or at once where `is_early`.
pid_t start(const Line& survivor, const Line& victim, bool victim_sends, uint32_t seed,
            uint64_t bytes_in_flight, bool is_early) {
  Note order;
  order.seed = seed;
  order.word = Word::kReceive;
  if (victim_sends) {
    survivor.tell(kHere, order);
    order = survivor.hear(kHere);
    order.word = Word::kSend;
    order.seed = seed;
    const pid_t child = fork_victim(victim, order, bytes_in_flight);
    if (!is_early) {
      EXPECT_EQ(victim.hear(kHere).word, Word::kStarted);
    }
    return child;
  }
  const pid_t child = fork_victim(victim, order, bytes_in_flight);
  order = victim.hear(kHere);
  order.word = Word::kSend;
  order.seed = seed;
  if (is_early) kill(child, SIGKILL);
  survivor.tell(kHere, order);
  EXPECT_EQ(survivor.hear(kHere).word, Word::kStarted);
  return child;
}

// Kills a victim, in whatever state it is.
void finish_off(pid_t victim) {
  ASSERT_EQ(kill(victim, SIGKILL), 0);
  int status = 0;
  ASSERT_EQ(waitpid(victim, &status, 0), victim);
  ASSERT_TRUE(WIFSIGNALED(status)) << "the victim failed by itself";
}

// How victims are struck, each in a transfer of its own.
struct Blows {
  int64_t count;
  uint32_t seed;
  uint64_t most_in_flight;  // Of a victim, in MiB: a power of two.
  int64_t most_delay;       // Nanoseconds from the start of the transfer to the blow.
  bool may_be_early;        // One in five strikes before the victim has answered.
  int64_t most_until_end;   // Nanoseconds until the survivor's part is over.
};

// `strike` gets the victim and what to tell the survivor of it, and returns what that one says of
// its end.
template <typename Strike>
void strike_victims(const Line& survivor, const Blows& blows, const Strike& strike) {
  std::mt19937_64 random(blows.seed);
  const auto num_sizes = static_cast<uint64_t>(std::bit_width(blows.most_in_flight));
  int64_t done = 0, broken = 0, latest = 0;
  // A fast machine may be done before the blow each time: then some more.
  const auto is_enough = [&] {
    return done >= blows.count && (broken > 0 || done >= 20 * blows.count);
  };
  for (; !is_enough() && !testing::Test::HasFailure(); ++done) {
    const bool is_early = blows.may_be_early && random() % 5 == 0;
    const Line to_victim;
    const pid_t victim = start(survivor, to_victim, done % 2 == 0, static_cast<uint32_t>(done),
                               (uint64_t{1} << (random() % num_sizes)) * kMiB, is_early);
    sleep_ns(static_cast<int64_t>(random() % static_cast<uint64_t>(blows.most_delay)));
    Note struck;
    struck.word = Word::kStruck;
    struck.time = now_ns();
    const Note ended = strike(victim, struck);
    ASSERT_EQ(ended.word, Word::kEnded);
    EXPECT_LE(ended.time, blows.most_until_end) << "blow " << done;
    latest = std::max(latest, ended.time);
    broken += ended.status != KVC_OK ? 1 : 0;
  }
  std::printf("%lld blows, %lld in the middle of a transfer: the other side ended after %.3f s\n",
              static_cast<long long>(done), static_cast<long long>(broken),
              static_cast<double>(latest) / 1e9);
  EXPECT_GT(broken, 0);
}

TEST(KilledTransfers, TheOtherSideEndsWholeOrWithoutATrace) {
  const Line line;
  const pid_t survivor = fork_survivor(line, ucx_desc(8 * kMiB));
  if (is_skipped(survivor, line)) GTEST_SKIP() << "this build has no libkvcache_transport_ucx.so";
  const Blows kills{times(6, 5000), 20261128, 64, kSecond / 50, true, most_until_end()};
  strike_victims(line, kills, [&](pid_t victim, Note struck) {
    finish_off(victim);
    struck.cancels = 1;
    line.tell(kHere, struck);
    return line.hear(kHere);
  });
  // And then one that nobody disturbs.
  for (const bool victim_sends : {true, false}) {
    const Line to_victim;
    const pid_t victim = start(line, to_victim, victim_sends, 99, 8 * kMiB, false);
    sleep_ns(kSecond);
    Note struck;
    struck.word = Word::kStruck;
    struck.time = now_ns();
    line.tell(kHere, struck);
    EXPECT_EQ(line.hear(kHere).status, KVC_OK);
    finish_off(victim);
  }
  expect_quits(survivor, line);
}

// A process that hangs is noticed by the time limit alone. When it wakes, its pages have gone.
TEST(StoppedTransfers, TheOtherSideEndsAndNothingLandsLate) {
  const Line line;
  kvc_transport_desc desc = ucx_desc(8 * kMiB);
  desc.idle_ns = kSecond / 2;
  desc.beat_ns = desc.drain_ns = kSecond / 5;
  const pid_t survivor = fork_survivor(line, desc);
  if (is_skipped(survivor, line)) GTEST_SKIP() << "this build has no libkvcache_transport_ucx.so";
  const Blows stops{times(4, 1000), 20261129, 8,
                    kSecond / 125,  false,    desc.idle_ns + most_until_end()};
  strike_victims(line, stops, [&](pid_t victim, Note struck) {
    EXPECT_EQ(kill(victim, SIGSTOP), 0);
    struck.seed = 1;
    line.tell(kHere, struck);
    Note news = line.hear(kHere);
    if (news.word == Word::kReused) {
      EXPECT_EQ(kill(victim, SIGCONT), 0);
      sleep_ns(3 * kSecond / 10);
      line.tell(kHere, Word::kWoken);
      news = line.hear(kHere);
    }
    finish_off(victim);
    return news;
  });
  expect_quits(survivor, line);
}

}  // namespace
}  // namespace kvc::test
