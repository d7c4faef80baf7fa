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

// Takes so many pages as one page table does.
std::vector<PageId> take_run(PageAllocator& allocator, int64_t count) {
  std::vector<PageId> pages;
  for (int64_t i = 0; i < count; ++i)
    pages.push_back(allocator.take(i == 0 ? kNoPage : pages.back(), count - i - 1));
  return pages;
}

void drop(PageAllocator& allocator, const std::vector<PageId>& pages) {
  for (const PageId page : pages) allocator.drop_ref(page);
}

TEST(PageAllocator, HandsOutFreedPagesBeforeFreshOnes) {
  PageAllocator allocator(10000);
  const std::vector<PageId> first = take_run(allocator, 3);
  const std::vector<PageId> held = take_run(allocator, 5);
  drop(allocator, first);
  for (int i = 0; i < 400; ++i) {
    const std::vector<PageId> pages = take_run(allocator, 3);
    ASSERT_EQ(pages, first) << "request " << i;
    drop(allocator, pages);
  }
  std::set<PageId> touched;
  std::vector<std::vector<PageId>> live;
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) {  // Up to 20 requests of up to 10 pages at a time.
    if (live.size() == 20 || (!live.empty() && random() % 2 == 0)) {
      std::swap(live[random() % live.size()], live.back());
      drop(allocator, live.back());
      live.pop_back();
    } else {
      live.push_back(take_run(allocator, 1 + static_cast<int64_t>(random() % 10)));
      touched.insert(live.back().begin(), live.back().end());
    }
  }
  EXPECT_LE(touched.size(), 2u * 20 * 10);
}

TEST(PageAllocator, KeepsRunsOfFreedPagesTogether) {
  PageAllocator allocator(10000);
  std::vector<std::vector<PageId>> runs;
  for (const int64_t count : {2, 40, 3, 130, 2}) runs.push_back(take_run(allocator, count));
  for (const auto& run : runs) drop(allocator, run);
  const std::vector<PageId> long_run = take_run(allocator, 130);
  EXPECT_EQ(long_run, runs[3]) << "the run that is long enough";
  EXPECT_EQ(take_run(allocator, 40), runs[1]);
  // None is long enough: the longest is used up first, then others.
  drop(allocator, long_run);
  const std::vector<PageId> longer = take_run(allocator, 200);
  EXPECT_EQ(longer.front(), runs[3].front());
}

TEST(PageAllocator, HandsOutEveryPageOnceAndCountsReferences) {
  for (const int64_t size : {1, 2, 63, 64, 65, 130, 4097}) {
    PageAllocator allocator(size);
    std::set<PageId> taken;
    while (allocator.num_available() > 0) {
      const PageId page = allocator.take(taken.size() % 3 == 0 ? kNoPage : *taken.rbegin(), 2);
      ASSERT_GE(page, 0);
      ASSERT_LT(page, size);
      ASSERT_TRUE(taken.insert(page).second)
          << "page " << page << " given twice in a pool of " << size;
      ASSERT_EQ(allocator.refs(page), 1);
    }
    EXPECT_EQ(static_cast<int64_t>(taken.size()), size);
    for (const PageId page : taken) allocator.drop_ref(page);
    EXPECT_EQ(allocator.num_available(), size);
  }
}

TEST(PageAllocator, AgreesWithASetUnderRandomTakesAndDrops) {
  const unsigned seed = 20240607;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  PageAllocator allocator(777);
  std::vector<int32_t> refs(777, 0);
  for (int step = 0; step < 200000; ++step) {
    const auto page = static_cast<PageId>(random() % 777);
    const int32_t held = refs[static_cast<size_t>(page)];
    switch (random() % 3) {
      case 0:
        if (allocator.num_available() > 0) {
          const PageId taken = allocator.take(random() % 2 ? page : kNoPage, random() % 4);
          ASSERT_EQ(refs[static_cast<size_t>(taken)]++, 0);
        }
        break;
      case 1:
        if (held > 0) allocator.add_ref(page), ++refs[static_cast<size_t>(page)];
        break;
      default:
        if (held > 0) allocator.drop_ref(page), --refs[static_cast<size_t>(page)];
    }
    int64_t free = 0, shared = 0;
    if (step % 100 != 0) continue;
    for (size_t i = 0; i < refs.size(); ++i) {
      free += refs[i] == 0;
      shared += refs[i] > 1;
      ASSERT_EQ(allocator.refs(static_cast<PageId>(i)), refs[i]);
      ASSERT_EQ(allocator.is_free(static_cast<PageId>(i)), refs[i] == 0);
    }
    ASSERT_EQ(allocator.num_available(), free);
    ASSERT_EQ(allocator.counts().shared, shared);
  }
}

TEST(PageAllocator, ClearForgetsReferencesAndWhatIsCached) {
  PageAllocator allocator(10);
  const PageId cached = allocator.take(kNoPage, 0), held = allocator.take(cached, 0);
  allocator.mark_indexed(cached);
  allocator.drop_ref(cached);
  allocator.add_ref(held);
  allocator.withhold(3, 0);
  allocator.clear();
  EXPECT_EQ(allocator.num_free(), 10);
  EXPECT_EQ(allocator.first_indexed(0), kNoPage);
  EXPECT_EQ(allocator.first_used(0), kNoPage);
  EXPECT_EQ(allocator.counts().indexed + allocator.num_cached() + allocator.counts().shared, 0);
}

TEST(PageAllocator, GrowsAndShrinksAroundUsedPages) {
  PageAllocator allocator(10);
  const PageId page = allocator.take(kNoPage, 0);
  allocator.grow(200);
  EXPECT_EQ(allocator.num_pages(), 200);
  EXPECT_EQ(allocator.num_available(), 199);
  EXPECT_EQ(allocator.first_used(page + 1), kNoPage);
  EXPECT_EQ(allocator.first_used(0), page);
  allocator.shrink(page + 1);
  EXPECT_EQ(allocator.num_pages(), page + 1);
  EXPECT_EQ(allocator.num_available(), page);
  EXPECT_EQ(allocator.refs(page), 1);
}

}  // namespace
}  // namespace kvc
