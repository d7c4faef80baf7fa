#include "src/base/executor.h"

#include <sched.h>

#include <algorithm>

#include "src/base/error.h"
#include "src/base/thread_pool.h"

namespace kvc {

int32_t available_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return 1;
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

}  // namespace kvc
