#include <gtest/gtest.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "src/base/executor.h"

namespace kvc {
namespace {

TEST(Executor, RunsEveryTaskOnceWithAWorkerOfItsOwn) {
  for (const int32_t threads : {1, 2, 3, 7}) {
    Executor executor(threads);
    EXPECT_EQ(executor.concurrency(), threads);
    std::vector<std::atomic<int>> busy(static_cast<size_t>(threads));
    for (int round = 0; round < 300; ++round) {
      const int64_t num_tasks = round % 41;
      std::vector<std::atomic<int>> runs(static_cast<size_t>(num_tasks));
      std::atomic<bool> clash{false};
      executor.run(num_tasks, [&](int64_t task, int32_t worker) {
        if (worker < 0 || worker >= threads || busy[static_cast<size_t>(worker)].fetch_add(1) != 0)
          clash = true;
        runs[static_cast<size_t>(task)].fetch_add(1);
        busy[static_cast<size_t>(worker)].fetch_sub(1);
      });
      ASSERT_FALSE(clash) << "two tasks ran on one worker at once, or a worker is out of range";
      for (const auto& count : runs) ASSERT_EQ(count.load(), 1);
    }
  }
}

// A thread that wakes up late finds the next call. The thread sanitizer sees it touch that one's
// job.
TEST(Executor, ShortCallsRunTheirOwnTasksOnly) {
  Executor executor(3);
  std::array<std::array<std::atomic<int>, 64>, 2> runs{};
  for (size_t round = 0; round < 100000; ++round) {
    auto& mine = runs[round % 2];
    const int64_t num_tasks = round % 2 == 0 ? 64 : 2;
    executor.run(num_tasks,
                 [&mine](int64_t task, int32_t) { mine[static_cast<size_t>(task)].fetch_add(1); });
    for (size_t task = 0; task < mine.size(); ++task)
      ASSERT_EQ(mine[task].exchange(0), static_cast<int64_t>(task) < num_tasks ? 1 : 0);
  }
}

TEST(Executor, WorksAgainAfterItsThreadsFellAsleep) {
  Executor executor(3);
  for (int round = 0; round < 5; ++round) {
    std::atomic<int64_t> sum{0};
    executor.run(100, [&](int64_t task, int32_t) { sum += task; });
    EXPECT_EQ(sum.load(), 4950);
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
  }
}

// A signal that the host program has not blocked runs its handler on a thread of the host's.
TEST(Executor, ItsThreadsTakeNoSignalsAndHaveNames) {
  sigset_t none, before;
  sigemptyset(&none);
  ASSERT_EQ(pthread_sigmask(SIG_SETMASK, &none, &before), 0);
  Executor executor(3);
  std::array<std::atomic<bool>, 3> is_blocked{};
  std::array<std::string, 3> names;
  std::atomic<int> arrived{0};
  executor.run(3, [&](int64_t, int32_t worker) {
    // All three at once, so that each thread has one.
    arrived.fetch_add(1);
    while (arrived.load() < 3) std::this_thread::yield();
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    const auto at = static_cast<size_t>(worker);
    is_blocked[at] = sigismember(&mask, SIGTERM) == 1 && sigismember(&mask, SIGUSR1) == 1;
    char name[16] = "";
    pthread_getname_np(pthread_self(), name, sizeof name);
    names[at] = name;
  });
  EXPECT_FALSE(is_blocked[0]) << "the caller's thread stays as it is";
  EXPECT_TRUE(is_blocked[1] && is_blocked[2]);
  EXPECT_EQ(names[1], "kvc-worker-1");
  EXPECT_EQ(names[2], "kvc-worker-2");
  ASSERT_EQ(pthread_sigmask(SIG_SETMASK, &before, nullptr), 0);
}

TEST(Executor, UsesTheHostsThreads) {
  struct Host {
    int64_t calls = 0;
    static int32_t concurrency(void*) { return 2; }
    static void parallel_for(void* user, int64_t num_tasks, void (*fn)(void*, int64_t, int32_t),
                             void* arg) {
      ++static_cast<Host*>(user)->calls;
      for (int64_t task = num_tasks; task-- > 0;) fn(arg, task, static_cast<int32_t>(task % 2));
    }
  } host;
  kvc_executor hooks{};
  hooks.struct_size = sizeof hooks;
  hooks.user = &host;
  hooks.concurrency = Host::concurrency;
  hooks.parallel_for = Host::parallel_for;
  Executor executor(hooks);
  int64_t sum = 0;
  executor.run(10, [&](int64_t task, int32_t) { sum += task; });
  EXPECT_EQ(sum, 45);
  EXPECT_EQ(host.calls, 1);
}

}  // namespace
}  // namespace kvc
