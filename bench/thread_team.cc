#include "bench/thread_team.h"

namespace kvc::bench {

ThreadTeam::ThreadTeam(int threads) {
  for (int thread = 1; thread < threads; ++thread)
    helpers_.emplace_back([this, thread] { help(thread); });
}

ThreadTeam::~ThreadTeam() {
  stop_.store(true);
  round_.fetch_add(1);
  round_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void ThreadTeam::run_on_all(const std::function<void(int)>& work) {
  work_ = &work;
  unfinished_.store(static_cast<uint32_t>(helpers_.size()));
  round_.fetch_add(1);
  round_.notify_all();
  work(0);
  for (uint32_t left = unfinished_.load(); left != 0; left = unfinished_.load())
    unfinished_.wait(left);
}

void ThreadTeam::run_tasks(int64_t num_tasks, const std::function<void(int64_t, int)>& work) {
  std::atomic<int64_t> next{0};
  run_on_all([&](int thread) {
    for (int64_t task = next.fetch_add(1); task < num_tasks; task = next.fetch_add(1))
      work(task, thread);
  });
}

void ThreadTeam::help(int thread) {
  uint32_t seen = 0;
  while (true) {
    round_.wait(seen);
    seen = round_.load();
    if (stop_.load()) return;
    (*work_)(thread);
    if (unfinished_.fetch_sub(1) == 1) unfinished_.notify_one();
  }
}

}  // namespace kvc::bench
