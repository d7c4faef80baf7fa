#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "src/capi/fence.h"
#include "src/tiers/fence.h"

namespace kvc {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int64_t kMillisecond = 1000000;

TEST(Completion, IsDoneWhenItWasSignalled) {
  Completion completion;
  EXPECT_FALSE(completion.is_done());
  EXPECT_FALSE(completion.wait(0));
  completion.signal();
  EXPECT_TRUE(completion.is_done());
  EXPECT_TRUE(completion.wait(0));
  EXPECT_TRUE(completion.wait(-1));
  completion.signal();
  EXPECT_TRUE(completion.is_done()) << "a second signal is harmless";
}

TEST(Completion, WaitsAsLongAsItWasTold) {
  const Completion completion;
  const auto start = Clock::now();
  EXPECT_FALSE(completion.wait(20 * kMillisecond));
  EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(20));
}

TEST(Completion, WakesEveryWaiterAndShowsWhatWasWrittenBefore) {
  // INT64_MAX must not wrap into the past.
  for (const int64_t timeout : {int64_t{-1}, INT64_MIN, INT64_MAX, (int64_t{1} << 61) - 1, int64_t{1} << 61,
                                int64_t{60} * 1000 * kMillisecond}) {
    Completion completion;
    int copied = 0;
    std::vector<std::thread> waiters;
    std::vector<int> seen(4, -1);
    for (int& value : seen) {
      waiters.emplace_back([&] {
        if (completion.wait(timeout)) value = copied;
      });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    copied = 77;
    completion.signal();
    for (std::thread& waiter : waiters) waiter.join();
    EXPECT_EQ(seen, std::vector<int>(4, 77)) << timeout;
  }
}

TEST(Completion, IsNeverMissedHoweverSignalAndWaitMeet) {
  for (int round = 0; round < 500; ++round) {
    Completion completion;
    std::thread signaller([&] { completion.signal(); });
    EXPECT_TRUE(completion.wait(-1));
    signaller.join();
  }
}

// The C functions over a fence whose copies are not done, as a device's may be.
TEST(Fence, ThatIsNotDoneSaysSoUntilItIs) {
  const auto completion = std::make_shared<Completion>();
  auto* fence = new kvc_fence{completion};
  int32_t done = 7;
  EXPECT_EQ(kvc_fence_query(fence, &done, nullptr), KVC_OK);
  EXPECT_EQ(done, 0);
  kvc_error error{};
  EXPECT_EQ(kvc_fence_wait(fence, kMillisecond, &error), KVC_E_TIMEOUT);
  EXPECT_STREQ(error.message, "the copies before fence are not done after timeout_ns = 1000000");
  EXPECT_EQ(kvc_fence_wait(fence, 0, nullptr), KVC_E_TIMEOUT);

  std::thread device([completion] {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    completion->signal();
  });
  EXPECT_EQ(kvc_fence_wait_on_stream(fence, nullptr, nullptr), KVC_OK) << "on the CPU it waits";
  EXPECT_EQ(kvc_fence_query(fence, &done, nullptr), KVC_OK);
  EXPECT_EQ(done, 1);
  EXPECT_EQ(kvc_fence_wait(fence, -1, nullptr), KVC_OK);
  device.join();
  kvc_fence_destroy(fence);
}

TEST(Fence, MayBeDestroyedBeforeItsCopiesAreDone) {
  const auto completion = std::make_shared<Completion>();
  kvc_fence_destroy(new kvc_fence{completion});
  completion->signal();
  EXPECT_TRUE(completion->is_done());
}

}  // namespace
}  // namespace kvc
