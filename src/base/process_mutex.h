// Locks of what a process has once. A child of fork() has one thread: a lock that another thread
// held would stay taken in it for ever.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

namespace kvc {

enum class AtFork {
  // fork() waits until the lock is free, so that the child finds what it guards whole. Only for
  // sections that are short and call nothing of the host program.
  kWaits,
  // The lock is free in the child, whoever held it. What it guards is whole at any moment.
  kForgets,
};

// Constant-initialised, never destroyed. To be used with std::lock_guard.
class ProcessMutex {
 public:
  explicit constexpr ProcessMutex(AtFork at_fork) noexcept : at_fork_(at_fork) {}
  ProcessMutex(const ProcessMutex&) = delete;
  ProcessMutex& operator=(const ProcessMutex&) = delete;

  void lock() noexcept;
  void unlock() noexcept;

 private:
  friend struct ForkHandlers;

  void acquire() noexcept;

  const AtFork at_fork_;
  std::atomic<uint32_t> state_{0};  // 0: free; 1: taken; 2: taken, and somebody waits.
  std::atomic<bool> is_listed_{false};
  ProcessMutex* next_ = nullptr;
};

// A value of the process that the first caller makes, as a static of a function does, whose lock a
// forked child could find taken. `T` is trivial.
template <typename T>
class ProcessOnce {
 public:
  template <typename Make>
  const T& get(Make make) {
    if (!is_made_.load(std::memory_order_acquire)) {
      const std::lock_guard lock(mutex_);
      if (!is_made_.load(std::memory_order_relaxed)) {
        value_ = make();
        is_made_.store(true, std::memory_order_release);
      }
    }
    return value_;
  }

 private:
  ProcessMutex mutex_{AtFork::kWaits};
  std::atomic<bool> is_made_{false};
  T value_{};
};

}  // namespace kvc
