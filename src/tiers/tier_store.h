// One attached tier of one cache: its queue of puts, its breakers, its counters.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "kvcache.h"
#include "src/base/memory.h"
#include "src/tiers/tier.h"
#include "src/tiers/value.h"

namespace kvc {

// What fails again and again in a tier is left alone for a while, longer each time. Any thread may
// call it.
class Breaker {
 public:
  // For the log, borrowed: the tier ("file", "Redis") and what it does ("reads", "writes").
  Breaker(const char* tier, const char* what) : tier_(tier), what_(what) {}

  // False: the tier is left alone now.
  bool allows() noexcept;
  void succeeded() noexcept;
  void failed(const TierFailure& failure) noexcept;

 private:
  static constexpr int32_t kFailures = 3;  // In a row.
  static constexpr std::chrono::seconds kFirst{1}, kLongest{60};

  const char* tier_;
  const char* what_;
  std::mutex mutex_;
  int32_t failures_ = 0;
  std::chrono::seconds pause_{0};
  TierTime closed_until_{};
};

// Values on their way to a tier: copied in by the cache's thread, digested and written by another.
class PutQueue {
 public:
  // Takes values out of the queue, in order. Their memory is theirs until it returns.
  using Writer = std::function<void(std::span<TierPut>)>;

  // Room for `bytes`, at least two values of `value_bytes`. Throws Error or std::bad_alloc.
  PutQueue(size_t value_bytes, uint64_t bytes, Writer writer);
  // Writes what waits.
  ~PutQueue();
  PutQueue(const PutQueue&) = delete;
  PutQueue& operator=(const PutQueue&) = delete;

  // False in a forked child: neither the thread nor connections are its own.
  bool is_owner() const noexcept;
  // Memory for one value; null: the queue is full. Nothing is taken before push().
  std::byte* take() noexcept;
  // Queues the value that take() gave memory for.
  void push(const TierKey& key, size_t size, bool replaces) noexcept;

  // Waits until all that was pushed is written. False: the deadline came first.
  bool wait(TierTime deadline) noexcept;
  uint64_t waiting_bytes() const noexcept;
  int64_t host_bytes() const { return memory_.bytes() + kvc::host_bytes(ring_); }

 private:
  std::byte* slot(size_t index) const { return memory_.data() + index * slot_bytes_; }
  void gather(std::unique_lock<std::mutex>& lock) noexcept;
  void work() noexcept;

  const size_t slot_bytes_, num_slots_;
  const Writer writer_;
  const pid_t owner_;
  ReservedMemory memory_;
  std::vector<TierPut> ring_;  // [slot]; those of [begin_, end_) wait or are being written.

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t begin_ = 0, end_ = 0;  // Numbers of values; slots are taken in turn.
  uint64_t bytes_ = 0;
  bool stops_ = false;
  std::thread thread_;
};

// put() is called by one thread at a time, everything else by any.
class TierStore {
 public:
  // `name` for the log, borrowed; `shape` is borrowed too. Throws Error or std::bad_alloc.
  TierStore(std::unique_ptr<Tier> tier, const char* name, const ValueShape& shape,
            uint64_t queue_bytes, int32_t get_ms);
  // Writes what waits.
  ~TierStore();

  // ---- Puts

  // Memory for the next value, whose head is started; null: the tier has it already, or there is no
  // room, which is counted.
  std::byte* start_put(const TierKey& key, bool has_state) noexcept;
  // Queues the value that start_put() gave memory for.
  void finish_put(const TierKey& key) noexcept;
  // Bytes that could not be read from the cache.
  void fail_put(const TierKey& key) noexcept;
  // False: the time ran out.
  bool flush(TierTime deadline) noexcept { return queue_->wait(deadline); }

  // ---- Gets

  // When a call has to be over that reads so many bytes.
  TierTime deadline(uint64_t bytes) const noexcept;
  // The leading keys that are there, all heads checked.
  size_t find(std::span<const TierKey> keys, std::byte* heads, TierTime deadline) noexcept;
  // Values of known heads; checks them. What is not kOk is counted.
  void get(std::span<TierGet> gets, TierTime deadline) noexcept;

  void fill(kvc_tier_stats* stats) const noexcept;
  int64_t host_bytes() const;

 private:
  struct Counters {
    std::atomic<uint64_t> puts{0}, puts_dropped{0}, puts_failed{0}, bytes_put{0};
    std::atomic<uint64_t> lookups{0}, blocks_found{0};
    std::atomic<uint64_t> gets{0}, gets_missed{0}, gets_corrupt{0}, gets_timed_out{0},
        gets_failed{0}, bytes_got{0};
  };

  void write(std::span<TierPut> puts) noexcept;
  std::atomic<uint64_t>& known_at(const TierKey& key) const noexcept;
  static uint64_t tag(const TierKey& key, bool has_state) noexcept;
  void forget(const TierKey& key) noexcept { known_at(key) = 0; }

  const std::unique_ptr<Tier> tier_;
  const ValueShape* shape_;
  const int32_t get_ms_;
  // A full disk takes no writes, and can still be read.
  Breaker puts_breaker_, gets_breaker_;
  Counters counters_;
  // Tags of values that the tier is known to have, so that they are not copied for nothing.
  const std::unique_ptr<std::atomic<uint64_t>[]> known_;
  // Last of all: its thread uses the rest.
  std::unique_ptr<PutQueue> queue_;
};

}  // namespace kvc
