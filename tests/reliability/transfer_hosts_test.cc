// Transfers between two hosts: two processes, each with a network of its own, and a cable between
// them, which is cut and mended. Where this user may not make networks, both share one.
//
// The program forks both hosts. The receiver has a number of transfers on their way at once, and
// tells the sender of each ticket.
#include <sched.h>
#include <sys/mount.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>

#include "tests/reliability/times.h"
#include "tests/reliability/transfer_processes.h"

namespace kvc::test {
namespace {

constexpr int64_t kMostTokens = 4096;
constexpr kvc_seq kSpare = 1'000'000'000;  // Not an id of a sequence that travels.

// A command of the system, without its output.
bool does(const std::string& command) {
  return std::system((command + " >/dev/null 2>&1").c_str()) == 0;
}

class TwoHosts {
 public:
  using Work = std::function<void(const Line& orders, const Line& tickets)>;

  // Forks both. The receiver has the end kHere of the line for tickets, the sender kThere.
  TwoHosts(const Work& sends, const Work& receives)
      : has_cable_(does("unshare -n -m sh -c 'mount -t sysfs sysfs /sys && "
                        "ip link add kvc_a type veth peer name kvc_b'")) {
    const Work* works[] = {&sends, &receives};
    for (int number = 0; number < 2; ++number) {
      std::fflush(stdout);
      processes_[number] = fork();
      if (processes_[number] != 0) continue;
      be_host(number, *works[number]);
      end_process();
    }
    for (const Line& line : lines_) has_ucx_ &= line.hear(kHere).word == Word::kStarted;
    if (has_cable_) {
      EXPECT_TRUE(does("ip link add kvc_0 netns " + std::to_string(processes_[0]) +
                       " type veth peer name kvc_1 netns " + std::to_string(processes_[1])));
    }
    for (const Line& line : lines_) line.tell(kHere, Word::kStarted);
  }
  ~TwoHosts() {
    for (int number = 0; number < 2; ++number) expect_quits(processes_[number], lines_[number]);
  }
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;

  bool has_ucx() const { return has_ucx_; }
  bool has_cable() const { return has_cable_; }
  const Line& host(int number) const { return lines_[number]; }
  const Line& sender() const { return lines_[0]; }
  const Line& receiver() const { return lines_[1]; }

  // For a host: the address of its transports; null: one of this machine.
  static const char* address() { return address_.empty() ? nullptr : address_.c_str(); }
  static void cut_cable() { ASSERT_TRUE(does("ip link set " + end_ + " down")); }
  // For both hosts: either end says by itself that it is up again.
  static void mend_cable() {
    ASSERT_TRUE(does("ip link set " + end_ + " up"));
    ASSERT_TRUE(comes_true([] { return does("ip link show " + end_ + " | grep -q 'state UP'"); }));
  }

 private:
  void be_host(int number, const Work& work) {
    const Line& line = lines_[number];
    if (has_cable_) {
      // UCX reads of its network cards in /sys.
      ASSERT_EQ(unshare(CLONE_NEWNET | CLONE_NEWNS), 0);
      ASSERT_EQ(mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr), 0);
      ASSERT_EQ(mount("sysfs", "/sys", "sysfs", 0, nullptr), 0);
      // UCX takes both for one machine, whose shared memory does not reach across networks.
      ASSERT_EQ(setenv("UCX_TLS", "tcp", 1), 0);
    }
    const bool has_ucx = kvc_has_feature("transport.ucx") != 0;
    line.tell(kThere, has_ucx ? Word::kStarted : Word::kQuit);
    ASSERT_EQ(line.hear(kThere).word, Word::kStarted);
    if (has_cable_) {
      end_ = "kvc_" + std::to_string(number);
      address_ = "10.77.0." + std::to_string(number + 1);
      ASSERT_TRUE(does("ip link set lo up && ip address add " + address_ + "/24 dev " + end_ +
                       " && ip link set " + end_ + " up"));
      mend_cable();
    }
    if (has_ucx) work(line, tickets_);
    EXPECT_EQ(line.hear(kThere).word, Word::kQuit);
  }

  static inline std::string end_, address_;  // Of this host.

  const bool has_cable_;
  bool has_ucx_ = true;
  Line lines_[2], tickets_;
  pid_t processes_[2] = {-1, -1};
};

// What a host has, and the transfers that it has begun.
struct Site {
  struct One {
    kvc_seq seq = 0;
    int64_t length = 0;
    uint32_t seed = 0;
    TestTransfer transfer;
  };

  Site(int32_t kv_heads, int32_t dim, int64_t num_tokens, int64_t idle_ns = 0)
      : net(kv_heads, dim, num_tokens), cache(net.config), transport(desc_of(idle_ns)) {}

  static kvc_transport_desc desc_of(int64_t idle_ns) {
    kvc_transport_desc desc = ucx_desc(0);
    desc.address = TwoHosts::address();
    desc.idle_ns = idle_ns;
    desc.beat_ns = desc.drain_ns = idle_ns * 2 / 5;
    return desc;
  }

  void receive(const Line& tickets, kvc_seq seq, int64_t length, uint32_t seed) {
    One& one = *open.emplace_back(std::make_unique<One>());
    one.seq = seq;
    one.length = length;
    one.seed = seed;
    kvc_recv_desc desc = recv_desc(seq, length);
    desc.deadline_ns = deadline_ns;
    kvc_error error{};
    ASSERT_EQ(kvc_transfer_recv(cache.get(), transport.get(), &desc, one.transfer.out(), &error),
              KVC_OK)
        << error.message;
    Note note = note_of(one.transfer.ticket(), Word::kTicket);
    note.length = length;
    note.seed = seed;
    tickets.tell(kHere, note);
  }

  void send(const Note& note, kvc_seq seq) {
    One& one = *open.emplace_back(std::make_unique<One>());
    one.seq = seq;
    one.length = note.length;
    one.seed = note.seed;
    fill(cache, net, seq, note.length, note.seed);
    const Bytes ticket = ticket_of(note);
    const kvc_send_desc desc = send_desc(seq, ticket);
    kvc_error error{};
    ASSERT_EQ(kvc_transfer_send(cache.get(), transport.get(), &desc, one.transfer.out(), &error),
              KVC_OK)
        << error.message;
  }

  // Of a transfer that is over. The sequence goes, after its rows were compared.
  kvc_status end(const One& one, bool must_arrive) {
    kvc_error error{};
    const kvc_status status = one.transfer.wait(0, &error);
    EXPECT_TRUE(status == KVC_OK || !must_arrive)
        << "sequence " << one.seq << ": " << error.message;
    const bool is_there = one.transfer.info().is_receiving == 0 || status == KVC_OK;
    int64_t length = 0;
    EXPECT_EQ(kvc_seq_length(cache.get(), one.seq, &length, nullptr),
              is_there ? KVC_OK : KVC_E_NOT_FOUND);
    if (is_there) {
      EXPECT_TRUE(holds(cache, net, one.seq, one.length, one.seed)) << "sequence " << one.seq;
      EXPECT_EQ(kvc_seq_remove(cache.get(), one.seq, nullptr), KVC_OK);
    }
    return status;
  }

  void expect_empty() {
    EXPECT_EQ(stats_of(cache).pages_used, 0);
    EXPECT_EQ(transport.stats().transfers_open, 0);
    expect_sound(cache);
  }

  const RowsNet net;
  Cache cache;
  TestTransport transport;
  std::vector<std::unique_ptr<One>> open;
  int64_t deadline_ns = 0;  // Of what is received; 0: the default.
};

// ---- Many that nobody disturbs

constexpr int64_t kAtOnce = 8;

// Ends what is over. Returns how many that were, all of them well.
int64_t end_those_over(Site& site) {
  return static_cast<int64_t>(std::erase_if(site.open, [&](const auto& one) {
    if (!is_over(one->transfer)) return false;
    (void)site.end(*one, true);
    return true;
  }));
}

void send_all(const Line& tickets, int64_t count) {
  Site site(2, 16, kAtOnce * (kMostTokens + 16));
  for (int64_t begun = 0, ended = 0; ended < count && !testing::Test::HasFailure();) {
    // The receiver may have the next ticket ready before the end of the last one is known here.
    const bool has_pages = static_cast<int64_t>(site.open.size()) < kAtOnce;
    if (has_pages && tickets.has_news(kThere, 0)) site.send(tickets.hear(kThere), begun++);
    const int64_t over = end_those_over(site);
    ended += over;
    if (over == 0) sleep_ns(kSecond / 20'000);
  }
  site.expect_empty();
}

void receive_all(const Line& tickets, int64_t count) {
  Site site(2, 16, kAtOnce * (kMostTokens + 16));
  std::mt19937_64 random(20261130);
  const int64_t start = now_ns();
  int64_t tokens = 0;
  for (int64_t begun = 0, ended = 0; ended < count && !testing::Test::HasFailure();) {
    for (; begun < count && static_cast<int64_t>(site.open.size()) < kAtOnce; ++begun) {
      const uint64_t most = random() % 4 == 0 ? 40 : kMostTokens;
      const auto length = static_cast<int64_t>(1 + random() % most);
      tokens += length;
      site.receive(tickets, begun, length, static_cast<uint32_t>(random()));
    }
    const int64_t over = end_those_over(site);
    ended += over;
    if (over == 0) sleep_ns(kSecond / 20'000);
  }
  site.expect_empty();
  std::printf("%lld transfers of %lld tokens, %lld at once, in %.1f s\n",
              static_cast<long long>(count), static_cast<long long>(tokens),
              static_cast<long long>(kAtOnce), static_cast<double>(now_ns() - start) / 1e9);
}

TEST(TransfersBetweenHosts, AllArriveWithTheirBits) {
  const int64_t count = times(2'000, 100'000);
  const TwoHosts hosts([&](const Line&, const Line& tickets) { send_all(tickets, count); },
                       [&](const Line&, const Line& tickets) { receive_all(tickets, count); });
  if (!hosts.has_ucx()) GTEST_SKIP() << "this build has no libkvcache_transport_ucx.so";
  if (!hosts.has_cable()) std::printf("no networks of their own here: both hosts are this one\n");
}

// ---- A cable that is cut

constexpr int64_t kIdle = kSecond / 2;
constexpr int64_t kAtOnceWhenCut = 3;

// What both hosts do, order by order. `begin` starts their transfers. Of kStruck, seed 1 means that
// all arrive.
template <typename Begin>
void follow(const Line& orders, Site& site, bool receives, const Begin& begin) {
  for (;;) {
    Note order = orders.hear(kThere);
    switch (order.word) {
      case Word::kReceive: begin(order.seed); break;
      case Word::kCut:
        TwoHosts::cut_cable();
        order.time = now_ns();
        break;
      case Word::kMend: TwoHosts::mend_cable(); break;
      case Word::kStruck: {
        // Waits for the end of all.
        int64_t ended = 0;
        for (const auto& one : site.open) {
          ASSERT_TRUE(comes_true([&] { return is_over(one->transfer); }));
          ended = now_ns();
        }
        order.word = Word::kEnded;
        order.time = std::max<int64_t>(0, ended - order.time);
        for (const auto& one : site.open)
          order.status += site.end(*one, order.seed != 0) != KVC_OK ? 1 : 0;
        site.open.clear();
        site.expect_empty();
        // Pages that transfers had go to another sequence: nothing lands in them any more.
        if (receives) fill(site.cache, site.net, kSpare, kMostTokens * kAtOnceWhenCut, 77);
        break;
      }
      case Word::kWoken:
        if (!receives) break;
        EXPECT_TRUE(holds(site.cache, site.net, kSpare, kMostTokens * kAtOnceWhenCut, 77))
            << "late bytes";
        EXPECT_EQ(kvc_seq_remove(site.cache.get(), kSpare, nullptr), KVC_OK);
        break;
      default: return;
    }
    if (testing::Test::HasFailure()) return;
    orders.tell(kThere, order);
  }
}

void send_through_cuts(const Line& orders, const Line& tickets) {
  Site site(8, 128, kAtOnceWhenCut * kMostTokens, kIdle);
  follow(orders, site, false, [&](uint32_t) {
    for (int64_t i = 0; i < kAtOnceWhenCut; ++i) site.send(tickets.hear(kThere), i);
    // A receiver that no sender has met waits for its deadline.
    while (std::any_of(site.open.begin(), site.open.end(), [](const auto& one) {
      return one->transfer.info().state == KVC_TRANSFER_WAITING;
    }))
      sleep_ns(kSecond / 20'000);
  });
}

void receive_through_cuts(const Line& orders, const Line& tickets) {
  Site site(8, 128, kAtOnceWhenCut * kMostTokens, kIdle);
  site.deadline_ns = 5 * kSecond;  // A sender whose connection breaks at once never comes.
  follow(orders, site, true, [&](uint32_t seed) {
    for (int64_t i = 0; i < kAtOnceWhenCut; ++i)
      site.receive(tickets, i, kMostTokens - i, seed + static_cast<uint32_t>(i));
  });
}

TEST(CutTransfers, BothSidesEndAndGoOnWhenTheCableIsMended) {
  const TwoHosts hosts(send_through_cuts, receive_through_cuts);
  const auto order = [&](int host, Word word, int64_t time = 0, uint32_t seed = 0) {
    Note note;
    note.word = word;
    note.time = time;
    note.seed = seed;
    hosts.host(host).tell(kHere, note);
  };
  const auto answer = [&](int host) { return hosts.host(host).hear(kHere); };
  const auto both = [&](Word word, int64_t time = 0, uint32_t seed = 0) {
    order(0, word, time, seed);
    order(1, word, time, seed);
    return std::pair(answer(0), answer(1));
  };
  const int64_t count = hosts.has_cable() ? times(3, 500) : 0;
  std::mt19937_64 random(20261201);
  int64_t cuts = 0, broken = 0, repeated = 0, latest = 0;
  const auto is_enough = [&] { return cuts >= count && (broken > 0 || cuts >= 20 * count); };
  for (; !is_enough() && hosts.has_ucx() && !HasFailure(); ++cuts) {
    const int cut = static_cast<int>(cuts % 2);
    (void)both(Word::kReceive, 0, static_cast<uint32_t>(cuts * 100));
    sleep_ns(static_cast<int64_t>(random() % (kSecond / 100)));
    order(cut, Word::kCut);
    const auto [sender, receiver] = both(Word::kStruck, answer(cut).time);
    for (const Note& ended : {sender, receiver}) {
      ASSERT_EQ(ended.word, Word::kEnded);
      EXPECT_LE(ended.time, kIdle + most_until_end()) << "cut " << cuts;
      latest = std::max(latest, ended.time);
    }
    broken += receiver.status;
    sleep_ns(static_cast<int64_t>(random() % (cuts % 8 == 7 ? 8 * kSecond : kSecond / 2)));
    (void)both(Word::kMend);
    sleep_ns(kSecond / 5);
    (void)both(Word::kWoken);
    // The next ones that nobody disturbs arrive. What is left of a connection may yet be found
    // broken, and then those after them do.
    for (int attempt = 0, failed = 1; attempt < 3 && failed != 0; ++attempt) {
      (void)both(Word::kReceive, 0, static_cast<uint32_t>(cuts * 100 + 50));
      const auto [sent, received] = both(Word::kStruck, now_ns(), attempt == 2 ? 1 : 0);
      failed = sent.status + received.status;
      repeated += failed != 0 ? 1 : 0;
      (void)both(Word::kWoken);
    }
  }
  for (int host = 0; host < 2 && hosts.has_ucx(); ++host) order(host, Word::kEnded);
  if (!hosts.has_ucx()) GTEST_SKIP() << "this build has no libkvcache_transport_ucx.so";
  if (!hosts.has_cable())
    GTEST_SKIP() << "this user may not make networks with a cable between them";
  std::printf(
      "%lld cuts of the cable, %lld of %lld transfers broken: both sides ended after %.3f s; %lld "
      "times the first ones afterwards failed as well\n",
      static_cast<long long>(cuts), static_cast<long long>(broken),
      static_cast<long long>(cuts * kAtOnceWhenCut), static_cast<double>(latest) / 1e9,
      static_cast<long long>(repeated));
  EXPECT_GT(broken, 0);
}

}  // namespace
}  // namespace kvc::test
