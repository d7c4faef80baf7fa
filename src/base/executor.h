// Threads for kernels: the library's own small pool, or the host's executor. Never decides a
// result: work lists are cut by the planner, tasks may run in any order on any worker.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

#include "kvcache.h"

namespace kvc {

class ThreadPool;

// Owns the pool it makes; a host executor's `user` is borrowed until destruction. One caller at a
// time.
class Executor {
 public:
  // num_threads counts the caller's thread; 0: one per core.
  explicit Executor(int32_t num_threads);
  explicit Executor(const kvc_executor& host);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Workers are numbered [0, concurrency()).
  int32_t concurrency() const { return concurrency_; }

  using TaskFn = void (*)(void* arg, int64_t task, int32_t worker);
  void run_raw(int64_t num_tasks, TaskFn fn, void* arg);

  // task(int64_t index, int32_t worker), noexcept, once for each index in [0, num_tasks).
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
