#include <gtest/gtest.h>

#include <random>
#include <set>

#include "src/pages/page_bitmap.h"

namespace kvc {
namespace {

PageBitmap bitmap_of(int64_t num_pages) {
  PageBitmap bitmap;
  bitmap.reserve(num_pages);
  bitmap.resize(num_pages);
  return bitmap;
}

TEST(PageBitmap, AgreesWithASet) {
  for (const int64_t size : {1, 63, 64, 65, 4096, 4097, 9000}) {
    const unsigned seed = 20261127;
    SCOPED_TRACE(testing::Message() << size << " pages, seed " << seed);
    std::mt19937 random(seed);
    PageBitmap bitmap = bitmap_of(size);
    std::set<int64_t> pages;
    for (int step = 0; step < 3000; ++step) {
      const auto page = static_cast<int64_t>(random() % static_cast<unsigned>(size));
      // Runs and empty stretches: words that are full, and summaries with gaps.
      const int64_t end = std::min<int64_t>(size, page + (random() % 8 == 0 ? 200 : 1));
      const bool adds = random() % 3 == 0;
      for (int64_t p = page; p < end; ++p) {
        if (adds) {
          bitmap.add(p);
          pages.insert(p);
        } else {
          bitmap.remove(p);
          pages.erase(p);
        }
      }
      const auto begin = static_cast<int64_t>(random() % static_cast<unsigned>(size + 1));
      const auto next = pages.lower_bound(begin);
      const int64_t first = pages.empty() ? -1 : *pages.begin();
      ASSERT_EQ(bitmap.find(begin), next == pages.end() ? -1 : *next);
      ASSERT_EQ(bitmap.find_around(begin), next == pages.end() ? first : *next);
      ASSERT_EQ(bitmap.has(page), pages.count(page) != 0);
      int64_t run = 0;
      while (pages.count(begin + run) != 0) ++run;
      for (const int64_t most : {int64_t{1}, int64_t{70}, size})
        ASSERT_EQ(bitmap.run(begin, most), std::min(run, most));
    }
  }
}

TEST(PageBitmap, GrowsShrinksAndForgets) {
  PageBitmap bitmap = bitmap_of(70);
  bitmap.add(69);
  bitmap.reserve(10000);
  bitmap.resize(10000);
  EXPECT_EQ(bitmap.find(0), 69);
  EXPECT_EQ(bitmap.find(70), -1) << "new pages are not in the set";
  bitmap.add(9999);
  EXPECT_EQ(bitmap.find(70), 9999);
  bitmap.remove(9999);
  bitmap.resize(70);
  EXPECT_EQ(bitmap.find_around(70), 69);
  bitmap.clear();
  EXPECT_EQ(bitmap.find_around(0), -1);
}

}  // namespace
}  // namespace kvc
