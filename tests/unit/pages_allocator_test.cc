#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

#include "src/pages/allocator.h"

namespace kvc {
namespace {

TEST(PageAllocator, GivesTheNextPageOfTheSameSequenceWhenItIsFree) {
  PageAllocator allocator(1000);
  const PageId first = allocator.take(kNoPage, 0);
  const PageId second = allocator.take(first, 0);
  const PageId third = allocator.take(second, 0);
  EXPECT_EQ(second, first + 1);
  EXPECT_EQ(third, second + 1);
}

TEST(PageAllocator, LeavesRoomBehindARunSoThatSequencesGrowInPlace) {
  PageAllocator allocator(10000);
  PageId a = allocator.take(kNoPage, 0);
  PageId b = allocator.take(kNoPage, 0);
  const PageId a_first = a, b_first = b;
  for (int i = 1; i < 10; ++i) {  // two sequences decode in turns
    a = allocator.take(a, 0);
    b = allocator.take(b, 0);
  }
  EXPECT_EQ(a, a_first + 9);
  EXPECT_EQ(b, b_first + 9);
}

TEST(PageAllocator, HandsOutEveryPageOnceAndCountsHolders) {
  for (const int64_t size : {1, 2, 63, 64, 65, 130, 4097}) {
    PageAllocator allocator(size);
    std::set<PageId> taken;
    while (allocator.num_free() > 0) {
      const PageId page = allocator.take(taken.size() % 3 == 0 ? kNoPage : *taken.rbegin(), 2);
      ASSERT_GE(page, 0);
      ASSERT_LT(page, size);
      ASSERT_TRUE(taken.insert(page).second)
          << "page " << page << " given twice in a pool of " << size;
      ASSERT_EQ(allocator.refs(page), 1);
    }
    EXPECT_EQ(static_cast<int64_t>(taken.size()), size);
    for (const PageId page : taken) allocator.drop_holder(page);
    EXPECT_EQ(allocator.num_free(), size);
  }
}

TEST(PageAllocator, AgreesWithASetUnderRandomTakesAndDrops) {
  const unsigned seed = 20240607;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  PageAllocator allocator(777);
  std::vector<int32_t> holders(777, 0);
  for (int step = 0; step < 200000; ++step) {
    const auto page = static_cast<PageId>(random() % 777);
    const int32_t held = holders[static_cast<size_t>(page)];
    switch (random() % 3) {
      case 0:
        if (allocator.num_free() > 0) {
          const PageId taken = allocator.take(random() % 2 ? page : kNoPage, random() % 4);
          ASSERT_EQ(holders[static_cast<size_t>(taken)]++, 0);
        }
        break;
      case 1:
        if (held > 0) allocator.add_holder(page), ++holders[static_cast<size_t>(page)];
        break;
      default:
        if (held > 0) allocator.drop_holder(page), --holders[static_cast<size_t>(page)];
    }
    int64_t free = 0, shared = 0;
    if (step % 100 != 0) continue;
    for (size_t i = 0; i < holders.size(); ++i) {
      free += holders[i] == 0;
      shared += holders[i] > 1;
      ASSERT_EQ(allocator.refs(static_cast<PageId>(i)), holders[i]);
      ASSERT_EQ(allocator.is_marked_free(static_cast<PageId>(i)), holders[i] == 0);
    }
    ASSERT_EQ(allocator.num_free(), free);
    ASSERT_EQ(allocator.num_shared(), shared);
  }
}

TEST(PageAllocator, ClearForgetsHoldersAndWhatIsCached) {
  PageAllocator allocator(10);
  const PageId cached = allocator.take(kNoPage, 0), held = allocator.take(cached, 0);
  allocator.cache(cached);
  allocator.drop_holder(cached);
  allocator.add_holder(held);
  allocator.withhold(3);
  allocator.clear();
  EXPECT_EQ(allocator.num_vacant(), 10);
  EXPECT_EQ(allocator.first_cached(0), kNoPage);
  EXPECT_EQ(allocator.first_used(0), kNoPage);
  EXPECT_EQ(allocator.num_cached() + allocator.num_evictable() + allocator.num_shared(), 0);
}

TEST(PageAllocator, GrowsAndShrinksAroundUsedPages) {
  PageAllocator allocator(10);
  const PageId page = allocator.take(kNoPage, 0);
  allocator.grow(200);
  EXPECT_EQ(allocator.num_pages(), 200);
  EXPECT_EQ(allocator.num_free(), 199);
  EXPECT_EQ(allocator.first_used(page + 1), kNoPage);
  EXPECT_EQ(allocator.first_used(0), page);
  allocator.shrink(page + 1);
  EXPECT_EQ(allocator.num_pages(), page + 1);
  EXPECT_EQ(allocator.num_free(), page);
  EXPECT_EQ(allocator.refs(page), 1);
}

}  // namespace
}  // namespace kvc
