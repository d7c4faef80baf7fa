// The threads that measure the limits: as many as the library is given, asleep while the library
// runs.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace kvc::bench {

class ThreadTeam {
 public:
  explicit ThreadTeam(int threads);  // The caller is one of them.
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const { return static_cast<int>(helpers_.size()) + 1; }

  // Calls work(thread) on every thread, thread in [0, size()), and returns when all are done.
  void run_on_all(const std::function<void(int)>& work);

  // Calls work(task, thread) once for each task in [0, num_tasks), in order of the tasks, on
  // whichever thread is free.
  void run_tasks(int64_t num_tasks, const std::function<void(int64_t, int)>& work);

 private:
  void help(int thread);

  std::vector<std::thread> helpers_;
  const std::function<void(int)>* work_ = nullptr;  // Valid while unfinished_ > 0.
  std::atomic<uint32_t> round_{0};
  std::atomic<uint32_t> unfinished_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace kvc::bench
