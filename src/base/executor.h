// Threads for kernels: the library's own small pool, or the executor of the host. Threads never
// affect a result: work lists are cut before, and tasks may run in any order on any worker.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

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

// A few threads that take task indices from one atomic counter. They start at the first use, spin a
// short while between calls (a decode step calls once per layer), then sleep in a futex. They are
// never pinned.
class ThreadPool {
 public:
  using TaskFn = void (*)(void* arg, int64_t task, int32_t worker);

  // Needs `concurrency` >= 2 workers; the caller of parallel_for() is worker 0.
  explicit ThreadPool(int32_t concurrency) : concurrency_(concurrency) {}
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Returns when every task has run. One caller at a time.
  void parallel_for(int64_t num_tasks, TaskFn fn, void* arg) noexcept;

 private:
  // Everything that the threads touch. It is on the heap, so that a child process of fork(), which
  // has none of the threads, can drop it and start anew.
  struct Shared {
    std::atomic<uint32_t> epoch{0};  // Odd: a job is open; even: closed.
    std::atomic<int32_t> active{0};  // Threads inside the open job.
    std::atomic<bool> stop{false};
    std::atomic<int64_t> next_task{0};
    int64_t num_tasks = 0;
    TaskFn fn = nullptr;
    void* arg = nullptr;
    std::vector<std::thread> threads;
  };

  void start() noexcept;
  static void worker_loop(Shared* shared, int32_t worker) noexcept;
  static void run_tasks(Shared* shared, int32_t worker) noexcept;

  const int32_t concurrency_;
  pid_t owner_ = 0;  // Process that started the threads.
  std::unique_ptr<Shared> shared_;
};

}  // namespace kvc
