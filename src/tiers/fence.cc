#include "src/tiers/fence.h"

#include <chrono>

namespace kvc {

void Completion::signal() noexcept {
  {
    // Under the lock, else a waiter that has looked and does not sleep yet would miss it.
    const std::lock_guard<std::mutex> lock(mutex_);
    done_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
}

bool Completion::wait(int64_t timeout_ns) const {
  if (is_done()) return true;
  // Added to the present time it must not overflow; nobody will see these 73 years end.
  constexpr int64_t kForEver = int64_t{1} << 61;
  std::unique_lock<std::mutex> lock(mutex_);
  const auto done = [this] { return is_done(); };
  if (timeout_ns < 0 || timeout_ns >= kForEver) {
    changed_.wait(lock, done);
    return true;
  }
  return changed_.wait_for(lock, std::chrono::nanoseconds(timeout_ns), done);
}

}  // namespace kvc
