// Threads for kernels: the library's own small pool, or the executor of the host. Threads never
// affect a result: work lists are cut before, and tasks may run in any order on any worker.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

#include "kvcache.h"

namespace kvc {

class ThreadPool;

// Owns the pool that it makes. The `user` of a host executor is borrowed until destruction. One
// caller at a time.
class Executor {
 public:
  // `num_threads` counts the thread of the caller; 0: one per core.
  explicit Executor(int32_t num_threads);
  explicit Executor(const kvc_executor& host);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Workers are numbered [0, concurrency()).
  int32_t concurrency() const { return concurrency_; }

  using TaskFn = void (*)(void* arg, int64_t task, int32_t worker);
  void run_raw(int64_t num_tasks, TaskFn fn, void* arg);

  // Calls task(int64_t index, int32_t worker), noexcept, once for each index in [0, num_tasks).
  template <typename Task>
  void run(int64_t num_tasks, Task&& task) {
    using Callable = std::remove_reference_t<Task>;
    run_raw(
        num_tasks,
        [](void* arg, int64_t index, int32_t worker) {
          (*static_cast<Callable*>(arg))(index, worker);
        },
        const_cast<void*>(static_cast<const void*>(&task)));
  }

 private:
  kvc_executor host_{};
  std::unique_ptr<ThreadPool> pool_;
  int32_t concurrency_;
};

int32_t available_cores();

}  // namespace kvc
