// A server that fork()s after making a cache: the child's copy works, with its threads started anew.
#include <sys/wait.h>
#include <unistd.h>

#include "tests/stress/decoder.h"

#if defined(__SANITIZE_THREAD__)
#define KVC_UNDER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define KVC_UNDER_TSAN 1
#endif
#endif

namespace kvc::test {
namespace {

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
    alarm(60);  // a child that hangs must not hang the test
    const bool same = decoder.step({{1, 150}, {2, 1}}, 0) == expected;
    const bool sound = kvc_cache_check(decoder.cache(), nullptr) == KVC_OK;
    _exit(same && sound ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  EXPECT_EQ(decoder.step({{1, 150}, {2, 1}}, 0), expected) << "the parent is not disturbed";
}

}  // namespace
}  // namespace kvc::test
