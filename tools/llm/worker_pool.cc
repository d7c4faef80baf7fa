#include "tools/llm/worker_pool.h"

namespace kvc::llm {

WorkerPool::WorkerPool(int threads) {
  for (int32_t worker = 1; worker < threads; ++worker) {
    helpers_.emplace_back([this, worker] { help(worker); });
  }
}

WorkerPool::~WorkerPool() {
  stop_.store(true, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void WorkerPool::run(int64_t num_tasks, TaskFn fn, void* arg) {
  if (num_tasks <= 1 || helpers_.empty()) {
    for (int64_t task = 0; task < num_tasks; ++task) fn(arg, task, 0);
    return;
  }
  fn_ = fn;
  arg_ = arg;
  num_tasks_ = num_tasks;
  next_task_.store(0, std::memory_order_relaxed);
  unfinished_.store(static_cast<uint32_t>(helpers_.size()), std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  take_tasks(0);
  // Every helper checks out of the round, so that none can meet the next one's tasks half way.
  for (uint32_t left = unfinished_.load(std::memory_order_acquire); left != 0;
       left = unfinished_.load(std::memory_order_acquire)) {
    unfinished_.wait(left, std::memory_order_acquire);
  }
}

void WorkerPool::help(int32_t worker) {
  uint32_t seen = 0;
  for (;;) {
    round_.wait(seen, std::memory_order_acquire);
    seen = round_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_relaxed)) return;
    take_tasks(worker);
    if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished_.notify_one();
  }
}

void WorkerPool::take_tasks(int32_t worker) {
  for (;;) {
    const int64_t task = next_task_.fetch_add(1, std::memory_order_relaxed);
    if (task >= num_tasks_) return;
    fn_(arg_, task, worker);
  }
}

kvc_executor WorkerPool::executor() {
  kvc_executor executor{};
  executor.struct_size = sizeof(executor);
  executor.user = this;
  executor.concurrency = [](void* user) -> int32_t {
    return static_cast<WorkerPool*>(user)->size();
  };
  executor.parallel_for = [](void* user, int64_t num_tasks, void (*fn)(void*, int64_t, int32_t),
                             void* arg) {
    static_cast<WorkerPool*>(user)->run(num_tasks, fn, arg);
  };
  return executor;
}

}  // namespace kvc::llm
