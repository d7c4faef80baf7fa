#include "src/base/executor.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <string>
#include <system_error>

#include "src/base/cpu_quota.h"
#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/thread.h"

namespace kvc {

int32_t available_cores() {
  cpu_set_t set;
  const int32_t cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  // Threads beyond the quota of a container run until it is spent, and then all of them wait.
  const int32_t quota = cores_by_quota();
  return std::max(1, quota == 0 ? cores : std::min(cores, quota));
}

Executor::Executor(int32_t num_threads)
    : concurrency_(num_threads > 0 ? num_threads : available_cores()) {
  if (concurrency_ > 1) pool_ = std::make_unique<ThreadPool>(concurrency_);
}

Executor::Executor(const kvc_executor& host)
    : host_(host), concurrency_(host.concurrency(host.user)) {
  if (concurrency_ < 1) {
    fail_with(KVC_E_INVALID_ARGUMENT, concurrency_,
              "the executor reports a concurrency of %d, expected at least 1", concurrency_);
  }
}

Executor::~Executor() = default;

void Executor::run_raw(int64_t num_tasks, TaskFn fn, void* arg) {
  if (num_tasks <= 1 || concurrency_ == 1) {
    for (int64_t task = 0; task < num_tasks; ++task) fn(arg, task, 0);
  } else if (pool_ != nullptr) {
    pool_->parallel_for(num_tasks, fn, arg);
  } else {
    host_.parallel_for(host_.user, num_tasks, fn, arg);
  }
}

namespace {

// Between two layers of a decode step the host program does a few matrix products: longer than
// this, so spinning on would only burn a core; shorter gaps (append then attend) are caught.
constexpr auto kSpin = std::chrono::microseconds(20);

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Waits until `value` differs from `seen`.
uint32_t wait_for_change(const std::atomic<uint32_t>& value, uint32_t seen) {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  for (int round = 0;; ++round) {
    const uint32_t now = value.load(std::memory_order_acquire);
    if (now != seen) return now;
    cpu_relax();
    if ((round & 63) == 63 && std::chrono::steady_clock::now() > deadline) break;
  }
  value.wait(seen, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

}  // namespace

void ThreadPool::start() noexcept {
  const pid_t process = getpid();
  if (shared_ != nullptr && owner_ == process) return;
  if (shared_ != nullptr)
    // Forked child: the threads stayed in the parent, joining them would hang
    (void)shared_.release();
  owner_ = process;
  try {
    shared_ = std::make_unique<Shared>();
    shared_->threads.reserve(concurrency_ - 1);
    for (int32_t worker = 1; worker < concurrency_; ++worker) {
      shared_->threads.push_back(
          start_thread("kvc-worker-" + std::to_string(worker),
                       [shared = shared_.get(), worker] { worker_loop(shared, worker); }));
    }
  } catch (const std::exception& error) {
    // The caller's thread does the work of those that could not start; results are the same.
    log(KVC_LOG_WARNING, "started %d of %d worker threads: %s",
        shared_ != nullptr ? static_cast<int>(shared_->threads.size()) : 0, concurrency_ - 1,
        error.what());
  }
}

ThreadPool::~ThreadPool() {
  if (shared_ == nullptr) return;
  if (owner_ != getpid()) {
    (void)shared_.release();
    return;
  }
  shared_->stop.store(true);
  shared_->epoch.fetch_add(2);
  shared_->epoch.notify_all();
  for (std::thread& thread : shared_->threads) thread.join();
}

void ThreadPool::run_tasks(Shared* shared, int32_t worker) noexcept {
  for (;;) {
    const int64_t task = shared->next_task.fetch_add(1, std::memory_order_relaxed);
    if (task >= shared->num_tasks) return;
    shared->fn(shared->arg, task, worker);
  }
}

void ThreadPool::worker_loop(Shared* shared, int32_t worker) noexcept {
  uint32_t seen = 0;
  for (;;) {
    seen = wait_for_change(shared->epoch, seen);
    if (shared->stop.load()) return;
    if ((seen & 1) == 0) continue;
    // Enter, then look again: the caller closes the job before it waits for `active` to reach zero,
    // so either this thread finds the job closed or the caller finds this thread inside.
    shared->active.fetch_add(1);
    if (shared->epoch.load() == seen) run_tasks(shared, worker);
    if (shared->active.fetch_sub(1) == 1) shared->active.notify_all();
  }
}

void ThreadPool::parallel_for(int64_t num_tasks, TaskFn fn, void* arg) noexcept {
  start();
  if (shared_ == nullptr) {
    for (int64_t task = 0; task < num_tasks; ++task) fn(arg, task, 0);
    return;
  }
  Shared* shared = shared_.get();
  shared->num_tasks = num_tasks;
  shared->fn = fn;
  shared->arg = arg;
  shared->next_task.store(0, std::memory_order_relaxed);
  shared->epoch.fetch_add(1);  // open
  shared->epoch.notify_all();
  run_tasks(shared, 0);
  shared->epoch.fetch_add(1);  // close: threads that come late leave without touching the job
  int32_t inside = shared->active.load();
  while (inside != 0) {
    for (int round = 0; round < 4096 && inside != 0; ++round) {
      cpu_relax();
      inside = shared->active.load();
    }
    if (inside != 0) {
      shared->active.wait(inside);
      inside = shared->active.load();
    }
  }
}

}  // namespace kvc
