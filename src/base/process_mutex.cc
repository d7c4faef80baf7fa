#include "src/base/process_mutex.h"

#include <pthread.h>

namespace kvc {
namespace {

// Those that were ever taken. The list grows under `forking`, which a fork holds from its beginning
// to its end, so that it gives back the locks that it took and no others.
constinit ProcessMutex forking{AtFork::kWaits};
constinit ProcessMutex* listed = nullptr;

}  // namespace

struct ForkHandlers {
  static void prepare() noexcept {
    forking.acquire();
    for (ProcessMutex* mutex = listed; mutex != nullptr; mutex = mutex->next_) {
      if (mutex->at_fork_ == AtFork::kWaits) mutex->acquire();
    }
  }
  static void parent() noexcept {
    for (ProcessMutex* mutex = listed; mutex != nullptr; mutex = mutex->next_) {
      if (mutex->at_fork_ == AtFork::kWaits) mutex->unlock();
    }
    forking.unlock();
  }
  static void child() noexcept {
    for (ProcessMutex* mutex = listed; mutex != nullptr; mutex = mutex->next_) mutex->state_ = 0;
    forking.state_ = 0;
  }
  static void list(ProcessMutex* mutex) noexcept {
    forking.acquire();
    if (!mutex->is_listed_.load(std::memory_order_relaxed)) {
      mutex->next_ = listed;
      listed = mutex;
      mutex->is_listed_.store(true, std::memory_order_release);
    }
    forking.unlock();
  }
};

namespace {

[[maybe_unused]] const int registered =
    pthread_atfork(ForkHandlers::prepare, ForkHandlers::parent, ForkHandlers::child);

}  // namespace

void ProcessMutex::lock() noexcept {
  if (!is_listed_.load(std::memory_order_acquire)) ForkHandlers::list(this);
  acquire();
}

void ProcessMutex::acquire() noexcept {
  uint32_t seen = 0;
  if (state_.compare_exchange_strong(seen, 1, std::memory_order_acquire)) return;
  // Drepper, "Futexes Are Tricky", the second mutex.
  while (state_.exchange(2, std::memory_order_acquire) != 0)
    state_.wait(2, std::memory_order_relaxed);
}

void ProcessMutex::unlock() noexcept {
  if (state_.exchange(0, std::memory_order_release) == 2) state_.notify_one();
}

}  // namespace kvc
