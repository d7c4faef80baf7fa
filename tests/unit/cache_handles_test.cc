// Handles of forwards: numbers that every runtime can carry, and that never come twice.
#include <gtest/gtest.h>

#include <cstdint>
#include <set>

#include "src/cache/cache_forward.h"

namespace kvc {
namespace {

// Handles are looked up and never dereferenced, so any address stands for a cache.
Cache* cache_at(int* place) { return reinterpret_cast<Cache*>(place); }

uint64_t number_of(const kvc_forward* handle) {
  return static_cast<uint64_t>(reinterpret_cast<uintptr_t>(handle));
}

constexpr uint64_t kLastCount = (uint64_t{1} << 35) - 1;

TEST(ForwardHandles, AreExactInADoubleAndNoAddress) {
  int place = 0;
  ForwardHandle handle(cache_at(&place));
  for (int i = 0; i < 1000; ++i) {
    handle.prepare();
    kvc_forward* open = handle.open();
    const uint64_t number = number_of(open);
    ASSERT_GE(number, uint64_t{1} << 51);
    ASSERT_LT(number, uint64_t{1} << 52);
    ASSERT_EQ(static_cast<uint64_t>(static_cast<double>(number)), number);
    ASSERT_EQ(ForwardHandle::find(open), cache_at(&place));
    handle.close();
    ASSERT_EQ(ForwardHandle::find(open), nullptr);
  }
}

TEST(ForwardHandles, AnEntryWhoseCountIsUsedUpIsNeverUsedAgain) {
  int place = 0;
  std::set<uint64_t> seen;
  uint64_t last = 0;
  {
    ForwardHandle handle(cache_at(&place), kLastCount - 3);
    for (int i = 0; i < 8; ++i) {
      handle.prepare();
      kvc_forward* open = handle.open();
      ASSERT_TRUE(seen.insert(number_of(open)).second) << "a number came twice";
      ASSERT_EQ(ForwardHandle::find(open), cache_at(&place));
      if (i == 2) last = number_of(open);
      handle.close();
    }
  }
  EXPECT_EQ(last >> 16 & kLastCount, kLastCount) << "the last count of the first entry";
  // Nobody gets the entry that is used up: its dead handles stay refused.
  for (int i = 0; i < 300; ++i) {
    ForwardHandle other(cache_at(&place));
    other.prepare();
    kvc_forward* open = other.open();
    ASSERT_TRUE(seen.insert(number_of(open)).second);
    ASSERT_NE(number_of(open) & 0xFFFF, last & 0xFFFF);
  }
  for (const uint64_t number : seen)
    EXPECT_EQ(ForwardHandle::find(reinterpret_cast<kvc_forward*>(static_cast<uintptr_t>(number))),
              nullptr);
}

TEST(ForwardHandles, NumbersThatNeverWereOneAreNotFound) {
  int place = 0;
  ForwardHandle handle(cache_at(&place));
  const uint64_t open = number_of(handle.open());
  for (const uint64_t number : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}, open | uint64_t{1} << 63,
                                open | uint64_t{1} << 52, open ^ uint64_t{1} << 51, open + 1}) {
    EXPECT_EQ(ForwardHandle::find(reinterpret_cast<kvc_forward*>(static_cast<uintptr_t>(number))),
              nullptr)
        << number;
  }
}

}  // namespace
}  // namespace kvc
