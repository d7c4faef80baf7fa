// The threads of the demo: the model's matrix products, the contiguous baseline's attention and,
// through kvc_executor, the library's attention all run on the same ones.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "kvcache.h"

namespace kvc::llm {

// One caller at a time; tasks must not throw and must not start further tasks.
class WorkerPool {
 public:
  using TaskFn = void (*)(void* arg, int64_t task, int32_t worker);

  explicit WorkerPool(int threads);  // the calling thread is one of them
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  int size() const { return static_cast<int>(helpers_.size()) + 1; }

  // Calls fn(arg, task, worker) once for each task in [0, num_tasks); returns when all are done.
  void run(int64_t num_tasks, TaskFn fn, void* arg);

  // The same for a callable taking (task, worker).
  template <class Callable>
  void for_each(int64_t num_tasks, Callable&& callable) {
    using Plain = std::remove_reference_t<Callable>;
    run(
        num_tasks,
        [](void* arg, int64_t task, int32_t worker) { (*static_cast<Plain*>(arg))(task, worker); },
        std::addressof(callable));
  }

  // This pool for the library; borrows *this.
  kvc_executor executor();

 private:
  void help(int32_t worker);
  void take_tasks(int32_t worker);

  std::vector<std::thread> helpers_;
  TaskFn fn_ = nullptr;
  void* arg_ = nullptr;
  int64_t num_tasks_ = 0;
  std::atomic<int64_t> next_task_{0};
  std::atomic<uint32_t> round_{0};       // a new value starts the helpers
  std::atomic<uint32_t> unfinished_{0};  // helpers still inside the round
  std::atomic<bool> stop_{false};
};

}  // namespace kvc::llm
