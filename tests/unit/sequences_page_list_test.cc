// The places of a page table, against a plain vector.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "src/sequences/page_list.h"

namespace kvc {
namespace {

void expect_same(const PageList& list, const std::vector<PageId>& expected) {
  const auto size = static_cast<int64_t>(expected.size());
  ASSERT_EQ(list.size(), size);
  EXPECT_EQ(list.empty(), expected.empty());
  EXPECT_EQ(list.num_dropped(), std::count(expected.begin(), expected.end(), kNoPage));
  EXPECT_EQ(list.num_held(), size - list.num_dropped());
  std::vector<int32_t> all;
  list.append_to(0, size, &all);
  EXPECT_EQ(all, expected);
  std::vector<PageId> held(expected.size(), kNoPage);
  int64_t before = -1;
  list.for_each([&](int64_t place, PageId page) {
    EXPECT_GT(place, before);
    held[place] = page;
    before = place;
  });
  EXPECT_EQ(held, expected);
  for (int64_t place = 0; place < size; ++place)
    EXPECT_EQ(kernels::page_at(list.data(), list.gap(), place), expected[place]);
  if (size != 0) {
    EXPECT_EQ(list.back(), expected.back());
  }
}

TEST(PageList, AStreamTakesTheRoomOfWhatItKeeps) {
  constexpr int64_t kSinks = 2, kWindow = 70, kPlaces = 1'000'000;
  PageList list;
  for (int64_t place = 0; place < kPlaces; ++place) {
    list.make_room(place + 1);
    list.push_back(static_cast<PageId>(place % 100));
    const int64_t end = place + 1 - kWindow;
    if (end <= kSinks) continue;
    list.set(end - 1, kNoPage);
    list.close_up(kSinks, end);
    ASSERT_LE(list.size() - (list.gap().end - list.gap().begin), 2 * (kSinks + kWindow) + 8);
  }
  EXPECT_EQ(list.size(), kPlaces);
  EXPECT_EQ(list.num_held(), kSinks + kWindow);
  EXPECT_EQ(list[1], 1);
  EXPECT_EQ(list[kSinks], kNoPage);
  EXPECT_EQ(list[kPlaces - kWindow - 1], kNoPage);
  EXPECT_EQ(list[kPlaces - kWindow], (kPlaces - kWindow) % 100);
}

// Windows drop behind sinks, pops cut anywhere, forks copy a part, shifts rotate.
TEST(PageList, AgreesWithAVector) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto below = [&](int64_t count) { return static_cast<int64_t>(random() % count); };
    PageList list;
    std::vector<PageId> expected;
    const int64_t sinks = below(4);
    int64_t dropped_end = sinks;
    for (int step = 0; step < 300; ++step) {
      const auto size = static_cast<int64_t>(expected.size());
      switch (below(8)) {
        case 0:
        case 1:
        case 2: {
          const int64_t count = below(6);
          list.make_room(size + count);
          for (int64_t i = 0; i < count; ++i) {
            list.push_back(static_cast<PageId>(below(50)));
            expected.push_back(list.back());
          }
          break;
        }
        case 3:
        case 4: {
          const int64_t end = std::max(dropped_end, size - below(12));
          for (; dropped_end < std::min(end, size); ++dropped_end) {
            list.set(dropped_end, kNoPage);
            expected[dropped_end] = kNoPage;
          }
          if (size > sinks) list.close_up(sinks, std::min(dropped_end, size));
          break;
        }
        case 5: {
          if (below(4) != 0) break;
          // Into what is kept, or in front of what was dropped.
          const int64_t keep = below(3) == 0 ? std::min(sinks, size)
                                             : size - below(size - std::min(size, dropped_end) + 1);
          std::vector<PageId> gone;
          list.truncate(keep, [&](PageId page) { gone.push_back(page); });
          std::vector<PageId> removed(expected.begin() + keep, expected.end());
          std::erase(removed, kNoPage);
          std::reverse(removed.begin(), removed.end());
          EXPECT_EQ(gone, removed);
          expected.resize(keep);
          if (keep <= sinks) dropped_end = sinks;
          break;
        }
        case 6: {
          PageList part;
          const int64_t count = below(size + 1);
          part.assign(list, count);
          expect_same(part, {expected.begin(), expected.begin() + count});
          list.map_pages([](PageId page) { return (page + 7) % 50; });
          for (PageId& page : expected) page = page == kNoPage ? page : (page + 7) % 50;
          break;
        }
        default: {
          if (below(6) != 0 || size == 0) break;
          list.open_up();
          EXPECT_EQ(list.gap().end, list.gap().begin);
          const int64_t first = below(size), middle = first + below(size - first);
          list.rotate(first, middle);
          std::rotate(expected.begin() + first, expected.begin() + middle, expected.end());
          list.rotate(first, size - (middle - first));
          std::rotate(expected.begin() + first, expected.end() - (middle - first), expected.end());
        }
      }
      expect_same(list, expected);
      if (testing::Test::HasFailure()) return;
    }
    list.clear();
    expect_same(list, {});
    list.assign_dropped(5);
    expect_same(list, std::vector<PageId>(5, kNoPage));
  }
}

}  // namespace
}  // namespace kvc
