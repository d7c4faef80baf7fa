// One side of a transfer between two processes is killed or stopped at random: the other side ends
// in time, whole or without a trace, and serves the next transfer.
//
// The program forks a survivor, which keeps its cache and its transport for all rounds, and a
// victim per round. It never loads UCX itself: threads do not outlive a fork.
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <random>
#include <thread>

#include "tests/capi/transfers.h"
#include "tests/reliability/times.h"
#include "tests/support/waiting.h"

namespace kvc::test {
namespace {

constexpr kvc_seq kSeq = 1, kOther = 2;
constexpr int64_t kLength = 4096, kKvHeads = 8, kRowDim = 128;  // 32 MiB of K and V.
constexpr size_t kFloats = static_cast<size_t>(kLength * kKvHeads * kRowDim);

// The same clock in every process.
int64_t now_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * kSecond + time.tv_nsec;
}

void sleep_ns(int64_t duration) { std::this_thread::sleep_for(std::chrono::nanoseconds(duration)); }

struct WideNet : Net {
  WideNet() : Net({attention_layer()}, kLength / 16 + 1) {
    layers[0].num_q_heads = layers[0].num_kv_heads = static_cast<int32_t>(kKvHeads);
    layers[0].k_dim = static_cast<int32_t>(kRowDim);
    config.page_size = 16;
  }
};

class Tensor {
 public:
  explicit Tensor(uint32_t seed) : values_(kFloats) {
    for (size_t i = 0; i < kFloats; ++i)
      values_[i] = static_cast<float>((static_cast<uint32_t>(i) * 2654435761u + seed) >> 8);
  }
  DLTensor* dl() {
    tensor_ = {values_.data(), {kDLCPU, 0}, 3, {kDLFloat, 32, 1}, shape_, nullptr, 0};
    return &tensor_;
  }
  bool operator==(const Tensor& other) const { return values_ == other.values_; }

 private:
  std::vector<float> values_;
  int64_t shape_[3] = {kLength, kKvHeads, kRowDim};
  DLTensor tensor_{};
};

void fill(Cache& cache, kvc_seq seq, uint32_t seed) {
  ASSERT_EQ(kvc_seq_add(cache.get(), seq, nullptr), KVC_OK);
  ASSERT_EQ(cache.begin({seq}, {kLength}), KVC_OK);
  Tensor rows(seed);
  ASSERT_EQ(kvc_kv_append(cache.forward, 0, rows.dl(), rows.dl(), nullptr), KVC_OK);
  cache.end();
}

bool holds(Cache& cache, kvc_seq seq, uint32_t seed) {
  Tensor k(0), v(0);
  EXPECT_EQ(kvc_debug_get_layer(cache.get(), seq, 0, 0, kLength, k.dl(), v.dl(), nullptr, nullptr),
            KVC_OK);
  const Tensor expected(seed);
  return k == expected && v == expected;
}

// ---- What the processes tell each other

enum class Word : int32_t {
  kReceive,  // To the survivor; the answer is a ticket.
  kSend,     // To the survivor, with a ticket.
  kTicket,
  kStarted,  // The other side has answered.
  kStruck,   // To the survivor: the victim was killed or stopped, at `time`.
  kReused,   // The survivor has given the pages to another sequence.
  kWoken,    // To the survivor: the victim runs again.
  kEnded,    // The survivor's part is over.
  kQuit
};

struct Note {
  Word word = Word::kQuit;
  uint32_t seed = 0;
  uint32_t cancels = 0;  // kStruck: a transfer that nobody has begun is given up.
  int32_t status = 0;    // kEnded.
  int64_t time = 0;      // kStruck; kEnded: nanoseconds from then to the end.
  uint32_t ticket_bytes = 0;
  uint8_t ticket[4096];
};

class Line {
 public:
  Line() {
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends_) != 0) std::perror("socketpair");
  }
  ~Line() {
    for (const int end : ends_) close(end);
  }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  void tell(int end, const Note& note) const {
    ASSERT_EQ(write(ends_[end], &note, sizeof note), static_cast<ssize_t>(sizeof note));
  }
  void tell(int end, Word word) const {
    Note note;
    note.word = word;
    tell(end, note);
  }
  bool has_news(int end, int64_t for_ns) const {
    pollfd entry{ends_[end], POLLIN, 0};
    return poll(&entry, 1, static_cast<int>(for_ns / 1'000'000)) > 0;
  }
  // The test has failed where nothing comes.
  Note hear(int end) const {
    Note note;
    const bool came = has_news(end, std::chrono::nanoseconds(kPatience).count()) &&
                      read(ends_[end], &note, sizeof note) == static_cast<ssize_t>(sizeof note);
    EXPECT_TRUE(came) << "the other process says nothing";
    return came ? note : Note{};
  }

 private:
  int ends_[2] = {-1, -1};
};

constexpr int kHere = 0, kThere = 1;  // Ends of a line: of the program, of a process that it forks.

kvc_transport_desc ucx_desc(uint64_t bytes_in_flight) {
  kvc_transport_desc desc{};
  desc.struct_size = sizeof desc;
  desc.engine = "ucx";
  desc.bytes_in_flight = bytes_in_flight;
  return desc;
}

Bytes ticket_of(const Note& note) { return {note.ticket, note.ticket + note.ticket_bytes}; }

Note note_of(const Bytes& ticket, Word word) {
  Note note;
  note.word = word;
  note.ticket_bytes = static_cast<uint32_t>(ticket.size());
  std::memcpy(note.ticket, ticket.data(), ticket.size());
  return note;
}

bool is_over(const TestTransfer& transfer) {
  const kvc_transfer_state state = transfer.info().state;
  return state == KVC_TRANSFER_ARRIVED || state >= KVC_TRANSFER_DONE;
}

// ---- The victim

[[noreturn]] void be_victim(const Line& line, const Note& order, uint64_t bytes_in_flight) {
  const WideNet net;
  Cache cache(net.config);
  const TestTransport transport(ucx_desc(bytes_in_flight));
  TestTransfer transfer;
  if (order.word == Word::kSend) {
    fill(cache, kSeq, order.seed);
    const Bytes ticket = ticket_of(order);
    const kvc_send_desc send = send_desc(kSeq, ticket);
    (void)kvc_transfer_send(cache.get(), transport.get(), &send, transfer.out(), nullptr);
  } else {
    const kvc_recv_desc recv = recv_desc(kSeq, kLength);
    (void)kvc_transfer_recv(cache.get(), transport.get(), &recv, transfer.out(), nullptr);
    line.tell(kThere, note_of(transfer.ticket(), Word::kTicket));
  }
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
    fill(cache, kSeq, order.seed);
    TestTransfer transfer;
    const Bytes ticket = ticket_of(order);
    const kvc_send_desc desc = send_desc(kSeq, ticket);
    ASSERT_EQ(kvc_transfer_send(cache.get(), transport.get(), &desc, transfer.out(), nullptr),
              KVC_OK);
    while (transfer.info().state == KVC_TRANSFER_WAITING) sleep_ns(100'000);
    line.tell(kThere, Word::kStarted);
    finish(transfer, order);
    EXPECT_TRUE(holds(cache, kSeq, order.seed)) << "the sender's own rows";
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
      EXPECT_TRUE(holds(cache, kSeq, order.seed)) << "arrived with other rows";
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
    fill(cache, kOther, 77);
    line.tell(kThere, Word::kReused);
    ASSERT_EQ(line.hear(kThere).word, Word::kWoken);
    EXPECT_TRUE(holds(cache, kOther, 77)) << "late bytes";
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
  std::fflush(stdout);
  _exit(testing::Test::HasFailure() ? 1 : 0);
}

// Tells the survivor to go, and that it has.
void expect_survived(pid_t survivor, const Line& line) {
  line.tell(kHere, Word::kQuit);
  int status = 0;
  ASSERT_EQ(waitpid(survivor, &status, 0), survivor);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
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

constexpr uint64_t kMebibyte = uint64_t{1} << 20;

// How late the end may be. Builds with sanitizers take longer for everything.
int64_t most_after_kill() { return environment("KVC_TEST_SCALE", 1) < 1 ? 20 * kSecond : kSecond; }

TEST(KilledTransfers, TheOtherSideEndsWholeOrWithoutATrace) {
  const Line line;
  const pid_t survivor = fork_survivor(line, ucx_desc(8 * kMebibyte));
  if (is_skipped(survivor, line)) GTEST_SKIP() << "this build has no libkvcache_transport_ucx.so";
  std::mt19937_64 random(20261128);
  int64_t kills = 0, broken = 0, latest = 0;
  for (const int64_t end = times(6, 50); kills < end; ++kills) {
    const bool victim_sends = kills % 2 == 0, is_early = random() % 5 == 0;
    const Line to_victim;
    const pid_t victim = start(line, to_victim, victim_sends, static_cast<uint32_t>(kills),
                               (uint64_t{1} << (random() % 7)) * kMebibyte, is_early);
    sleep_ns(static_cast<int64_t>(random() % 20'000'000));
    Note struck;
    struck.word = Word::kStruck;
    struck.time = now_ns();
    struck.cancels = 1;
    ASSERT_EQ(kill(victim, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(waitpid(victim, &status, 0), victim);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the victim failed by itself";
    line.tell(kHere, struck);
    const Note ended = line.hear(kHere);
    ASSERT_EQ(ended.word, Word::kEnded);
    EXPECT_LE(ended.time, most_after_kill()) << "kill " << kills;
    latest = std::max(latest, ended.time);
    broken += ended.status != KVC_OK ? 1 : 0;
    if (testing::Test::HasFailure()) break;
  }
  // And then one that nobody disturbs.
  for (const bool victim_sends : {true, false}) {
    const Line to_victim;
    const pid_t victim = start(line, to_victim, victim_sends, 99, 8 * kMebibyte, false);
    sleep_ns(kSecond);
    Note struck;
    struck.word = Word::kStruck;
    struck.time = now_ns();
    line.tell(kHere, struck);
    EXPECT_EQ(line.hear(kHere).status, KVC_OK);
    ASSERT_EQ(kill(victim, SIGKILL), 0);
    ASSERT_EQ(waitpid(victim, nullptr, 0), victim);
  }
  expect_survived(survivor, line);
  std::printf("%lld kills, %lld in the middle of a transfer: the other side ended after %.3f s\n",
              static_cast<long long>(kills), static_cast<long long>(broken),
              static_cast<double>(latest) / 1e9);
  EXPECT_GT(broken, 0);
}

// A process that hangs is noticed by the time limit alone. When it wakes, its pages have gone.
TEST(StoppedTransfers, TheOtherSideEndsAndNothingLandsLate) {
  const Line line;
  kvc_transport_desc desc = ucx_desc(8 * kMebibyte);
  desc.idle_ns = kSecond / 2;
  desc.beat_ns = desc.drain_ns = kSecond / 5;
  const pid_t survivor = fork_survivor(line, desc);
  if (is_skipped(survivor, line)) GTEST_SKIP() << "this build has no libkvcache_transport_ucx.so";
  std::mt19937_64 random(20261129);
  int64_t stops = 0, broken = 0, latest = 0;
  for (const int64_t end = times(4, 20); stops < end; ++stops) {
    const bool victim_sends = stops % 2 == 0;
    const Line to_victim;
    const pid_t victim = start(line, to_victim, victim_sends, static_cast<uint32_t>(stops),
                               (uint64_t{1} << (random() % 4)) * kMebibyte, false);
    sleep_ns(static_cast<int64_t>(random() % 8'000'000));
    Note struck;
    struck.word = Word::kStruck;
    struck.time = now_ns();
    struck.seed = 1;
    ASSERT_EQ(kill(victim, SIGSTOP), 0);
    line.tell(kHere, struck);
    Note news = line.hear(kHere);
    if (news.word == Word::kReused) {
      ASSERT_EQ(kill(victim, SIGCONT), 0);
      sleep_ns(3 * kSecond / 10);
      line.tell(kHere, Word::kWoken);
      news = line.hear(kHere);
    }
    ASSERT_EQ(news.word, Word::kEnded);
    EXPECT_LE(news.time, desc.idle_ns + most_after_kill()) << "stop " << stops;
    latest = std::max(latest, news.time);
    broken += news.status != KVC_OK ? 1 : 0;
    ASSERT_EQ(kill(victim, SIGKILL), 0);
    ASSERT_EQ(waitpid(victim, nullptr, 0), victim);
    if (testing::Test::HasFailure()) break;
  }
  expect_survived(survivor, line);
  std::printf("%lld stops, %lld in the middle of a transfer: the other side ended after %.3f s\n",
              static_cast<long long>(stops), static_cast<long long>(broken),
              static_cast<double>(latest) / 1e9);
}

}  // namespace
}  // namespace kvc::test
