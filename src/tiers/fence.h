// Completion of copies, told to whoever holds a share of it: the caller's fence and the back end that copies. Outlives the cache.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace kvc {

// Once done, for ever done. Any thread.
class Completion {
 public:
  Completion() = default;
  Completion(const Completion&) = delete;
  Completion& operator=(const Completion&) = delete;

  // What was written before is seen by whoever has seen it done.
  void signal() noexcept;
  bool is_done() const noexcept { return done_.load(std::memory_order_acquire); }
  // Negative: for ever. False: not done by then.
  bool wait(int64_t timeout_ns) const;

 private:
  std::atomic<bool> done_{false};
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
};

}  // namespace kvc
