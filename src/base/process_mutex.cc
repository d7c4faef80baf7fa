#include "src/base/process_mutex.h"

#include <pthread.h>

namespace kvc {
namespace {

// Those that were ever taken.
constinit std::atomic<ProcessMutex*> listed{nullptr};

}  // namespace

struct ForkHandlers {
  static void prepare() noexcept {
    for (ProcessMutex* mutex = listed; mutex != nullptr; mutex = mutex->next_) {
      if (mutex->at_fork_ == AtFork::kWaits) mutex->lock();
    }
  }
  static void parent() noexcept {
    for (ProcessMutex* mutex = listed; mutex != nullptr; mutex = mutex->next_) {
      if (mutex->at_fork_ == AtFork::kWaits) mutex->unlock();
    }
  }
  static void child() noexcept {
    for (ProcessMutex* mutex = listed; mutex != nullptr; mutex = mutex->next_) mutex->state_ = 0;
  }
  static void list(ProcessMutex* mutex) noexcept {
    if (mutex->is_listed_.exchange(true)) return;
    ProcessMutex* first = listed;
    do {
      mutex->next_ = first;
    } while (!listed.compare_exchange_weak(first, mutex));
  }
};

namespace {

[[maybe_unused]] const int registered =
    pthread_atfork(ForkHandlers::prepare, ForkHandlers::parent, ForkHandlers::child);

}  // namespace

void ProcessMutex::lock() noexcept {
  ForkHandlers::list(this);
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
