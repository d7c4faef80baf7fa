// A server that fork()s after making a cache: the child's copy works, with its threads started
// anew.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "src/base/executor.h"
#include "tests/stress/decoder.h"
#include "tests/support/sanitizers.h"
#include "tests/support/waiting.h"

namespace kvc::test {
namespace {

// Whether two tasks run at the same time: each waits for the other, at most two minutes.
bool runs_two_at_once(Executor& executor) {
  std::atomic<int> arrived{0};
  std::atomic<bool> met{true};
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  executor.run(2, [&](int64_t, int32_t) {
    arrived.fetch_add(1);
    while (arrived.load() < 2 && met.load()) {
      if (std::chrono::steady_clock::now() > deadline) met = false;
    }
  });
  return met.load();
}

// Outputs alone would not tell: the caller's thread does what no other thread does.
TEST(ForkedProcess, StartsThreadsOfItsOwn) {
#ifdef KVC_UNDER_TSAN
  GTEST_SKIP() << "ThreadSanitizer does not follow threads that start in a forked child";
#endif
  Executor executor(2);
  ASSERT_TRUE(runs_two_at_once(executor)) << "the parent's own threads";
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(600);  // a child that hangs must not hang the test
    _exit(runs_two_at_once(executor) ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  EXPECT_TRUE(runs_two_at_once(executor)) << "the parent is not disturbed";
}

TEST(ForkedProcess, GoesOnWithItsCopyOfACache) {
#ifdef KVC_UNDER_TSAN
  GTEST_SKIP() << "ThreadSanitizer does not follow threads that start in a forked child";
#endif
  DecoderShape shape;
  shape.num_threads = 3;
  Decoder expected_decoder(shape), decoder(shape);
  expected_decoder.step({{1, 200}, {2, 50}}, 0);
  decoder.step({{1, 200}, {2, 50}}, 0);  // the threads are running
  const std::vector<TokenOutput> expected = expected_decoder.step({{1, 150}, {2, 1}}, 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(600);  // a child that hangs must not hang the test
    const bool same = decoder.step({{1, 150}, {2, 1}}, 0) == expected;
    const bool sound = kvc_cache_check(decoder.cache(), nullptr) == KVC_OK;
    _exit(same && sound ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  EXPECT_EQ(decoder.step({{1, 150}, {2, 1}}, 0), expected) << "the parent is not disturbed";
}

// Locks that belong to the process are free in a child, whatever other threads did when it was
// made.
TEST(ForkedProcess, MakesCachesWhateverOtherThreadsOfItsParentWereDoing) {
#ifdef KVC_UNDER_TSAN
  GTEST_SKIP() << "ThreadSanitizer does not follow threads that start in a forked child";
#elif defined(KVC_UNDER_ASAN)
  GTEST_SKIP() << "AddressSanitizer's allocator of GCC 12 and clang 14 leaves its own locks taken "
                  "in a child";
#endif
  const auto live_once = [] {
    DecoderShape shape;
    shape.num_threads = 1;
    Decoder decoder(shape);
    decoder.step({{1, 3}}, 0);
  };
  const auto look_for_modules = [] {
    kvc_set_logger([](void*, kvc_log_level, const char*) {}, nullptr, KVC_LOG_DEBUG, nullptr);
    (void)kvc_module_path_set("/nowhere", nullptr);
    (void)kvc_has_feature("cuda");
  };
  std::atomic<bool> stops{false};
  std::vector<std::thread> others;
  for (int i = 0; i < 2; ++i)
    others.emplace_back([&] {
      while (!stops) live_once();
    });
  others.emplace_back([&] {
    while (!stops) look_for_modules();
  });
  int hung = 0;
  for (int i = 0; i < 300 && hung == 0; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(60);
      look_for_modules();
      live_once();
      _exit(0);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) ++hung;
  }
  stops = true;
  for (std::thread& other : others) other.join();
  (void)kvc_module_path_set(nullptr, nullptr);
  (void)kvc_set_logger(nullptr, nullptr, KVC_LOG_INFO, nullptr);
  EXPECT_EQ(hung, 0) << "a child hung, and an alarm ended it";
}

}  // namespace
}  // namespace kvc::test
