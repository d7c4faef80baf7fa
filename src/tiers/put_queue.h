// Values on their way to a tier: copied in by the cache's thread, digested and written by another.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "src/base/memory.h"
#include "src/tiers/tier.h"

namespace kvc {

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

}  // namespace kvc
