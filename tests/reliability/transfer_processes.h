// Transfers between processes that a test forks: what the processes tell each other, the rows that
// they send, and how a process ends.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <thread>
#include <vector>

#include "tests/capi/transfers.h"
#include "tests/support/waiting.h"

namespace kvc::test {

// The same clock in every process.
inline int64_t now_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * kSecond + time.tv_nsec;
}

inline void sleep_ns(int64_t duration) {
  std::this_thread::sleep_for(std::chrono::nanoseconds(duration));
}

// One layer, in pages of 16 tokens.
struct RowsNet : Net {
  RowsNet(int32_t kv_heads, int32_t dim, int64_t num_tokens)
      : Net({attention_layer()}, num_tokens / 16 + 1) {
    layers[0].num_q_heads = layers[0].num_kv_heads = kv_heads;
    layers[0].k_dim = dim;
    config.page_size = 16;
  }
  int64_t kv_heads() const { return layers[0].num_kv_heads; }
  int64_t dim() const { return layers[0].k_dim; }
};

// Rows of a sequence, K and V alike, by their seed.
class SeededRows {
 public:
  SeededRows(const RowsNet& net, int64_t length, uint32_t seed)
      : values_(static_cast<size_t>(length * net.kv_heads() * net.dim())),
        shape_{length, net.kv_heads(), net.dim()} {
    for (size_t i = 0; i < values_.size(); ++i)
      values_[i] = static_cast<float>((static_cast<uint32_t>(i) * 2654435761u + seed) >> 8);
  }
  DLTensor* dl() {
    tensor_ = {values_.data(), {kDLCPU, 0}, 3, {kDLFloat, 32, 1}, shape_, nullptr, 0};
    return &tensor_;
  }
  bool operator==(const SeededRows& other) const { return values_ == other.values_; }

 private:
  std::vector<float> values_;
  int64_t shape_[3];
  DLTensor tensor_{};
};

inline void fill(Cache& cache, const RowsNet& net, kvc_seq seq, int64_t length, uint32_t seed) {
  ASSERT_EQ(kvc_seq_add(cache.get(), seq, nullptr), KVC_OK);
  ASSERT_EQ(cache.begin({seq}, {length}), KVC_OK);
  SeededRows rows(net, length, seed);
  ASSERT_EQ(kvc_kv_append(cache.forward, 0, rows.dl(), rows.dl(), nullptr), KVC_OK);
  cache.end();
}

inline bool holds(Cache& cache, const RowsNet& net, kvc_seq seq, int64_t length, uint32_t seed) {
  SeededRows k(net, length, 0), v(net, length, 0);
  EXPECT_EQ(kvc_debug_get_layer(cache.get(), seq, 0, 0, length, k.dl(), v.dl(), nullptr, nullptr),
            KVC_OK);
  const SeededRows expected(net, length, seed);
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
  kCut,      // To a host: cut the cable.
  kMend,     // To a host: mend it.
  kQuit
};

struct Note {
  Word word = Word::kQuit;
  uint32_t seed = 0;
  int64_t length = 0;    // kTicket: tokens of the sequence.
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

inline kvc_transport_desc ucx_desc(uint64_t bytes_in_flight) {
  kvc_transport_desc desc{};
  desc.struct_size = sizeof desc;
  desc.engine = "ucx";
  desc.bytes_in_flight = bytes_in_flight;
  return desc;
}

inline Bytes ticket_of(const Note& note) { return {note.ticket, note.ticket + note.ticket_bytes}; }

inline Note note_of(const Bytes& ticket, Word word) {
  Note note;
  note.word = word;
  note.ticket_bytes = static_cast<uint32_t>(ticket.size());
  std::memcpy(note.ticket, ticket.data(), ticket.size());
  return note;
}

inline bool is_over(const TestTransfer& transfer) {
  const kvc_transfer_state state = transfer.info().state;
  return state == KVC_TRANSFER_ARRIVED || state >= KVC_TRANSFER_DONE;
}

// Tells a process to go, and that it has.
inline void expect_quits(pid_t process, const Line& line) {
  line.tell(kHere, Word::kQuit);
  int status = 0;
  ASSERT_EQ(waitpid(process, &status, 0), process);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
}

// For the process that was forked: its failures are those of the test.
[[noreturn]] inline void end_process() {
  std::fflush(stdout);
  _exit(testing::Test::HasFailure() ? 1 : 0);
}

constexpr uint64_t kMiB = uint64_t{1} << 20;

// How late an end may be. Builds with sanitizers take longer for everything.
inline int64_t most_until_end() {
  return environment("KVC_TEST_SCALE", 1) < 1 ? 20 * kSecond : kSecond;
}

}  // namespace kvc::test
