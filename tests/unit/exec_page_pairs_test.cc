#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "src/base/error.h"
#include "src/exec/page_pairs.h"
#include "tests/model/random.h"

namespace kvc {
namespace {

using test::Random;
using Pair = std::pair<int64_t, int64_t>;

// int64 [n, 2] with `gap` elements of nonsense behind each row.
class PairTensor {
 public:
  explicit PairTensor(const std::vector<Pair>& pairs, int64_t gap = 0)
      : values_(pairs.size() * static_cast<size_t>(2 + gap) + 1, INT64_MIN),
        shape_{static_cast<int64_t>(pairs.size()), 2},
        strides_{2 + gap, 1} {
    for (size_t i = 0; i < pairs.size(); ++i) {
      values_[i * static_cast<size_t>(strides_[0])] = pairs[i].first;
      values_[i * static_cast<size_t>(strides_[0]) + 1] = pairs[i].second;
    }
    tensor_ = {
        values_.data(), {kDLCPU, 0}, 2, {kDLInt, 64, 1}, shape_, gap == 0 ? nullptr : strides_, 0};
  }
  PairTensor(const PairTensor&) = delete;
  PairTensor& operator=(const PairTensor&) = delete;

  DLTensor* dl() { return &tensor_; }
  int64_t* values() { return values_.data(); }

 private:
  std::vector<int64_t> values_;
  int64_t shape_[2];
  int64_t strides_[2];
  DLTensor tensor_{};
};

constexpr PairedPool kDevice{"device pool", 20};
constexpr PairedPool kHost{"host pool", 10};

Error error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return {KVC_OK, 0};
}

Error swap_error(const std::vector<Pair>& pairs) {
  PairTensor tensor(pairs);
  return error_of([&] { (void)read_page_pairs(tensor.dl(), kDevice, kHost); });
}

Error copy_error(const std::vector<Pair>& pairs) {
  PairTensor tensor(pairs);
  return error_of([&] { (void)read_page_pairs(tensor.dl(), kDevice); });
}

std::vector<PageRun> runs_of(const PagePairs& pairs) {
  std::vector<PageRun> runs;
  for (int64_t i = 0; i < pairs.size(); i += runs.back().count)
    runs.push_back(run_at(pairs.from.data(), pairs.to.data(), i, pairs.size()));
  return runs;
}

std::vector<PageRun> runs_of(const std::vector<Pair>& pairs) {
  PairTensor tensor(pairs);
  return runs_of(read_page_pairs(tensor.dl(), kDevice, kDevice));
}

void expect_run(const PageRun& run, PageId from, PageId to, int64_t count) {
  EXPECT_EQ(run.from, from);
  EXPECT_EQ(run.to, to);
  EXPECT_EQ(run.count, count);
}

TEST(PagePairs, ComeOutByDestinationWhateverTheirOrder) {
  for (const int64_t gap : {0, 1, 5}) {
    PairTensor tensor({{7, 3}, {0, 9}, {19, 0}}, gap);
    const PagePairs pairs = read_page_pairs(tensor.dl(), kDevice, kHost);
    EXPECT_EQ(pairs.from, (std::vector<PageId>{19, 7, 0}));
    EXPECT_EQ(pairs.to, (std::vector<PageId>{0, 3, 9}));
  }
}

TEST(PagePairs, MayBeNone) {
  PairTensor tensor({});
  EXPECT_EQ(read_page_pairs(tensor.dl(), kDevice, kHost).size(), 0);
  tensor.dl()->data = nullptr;
  EXPECT_EQ(read_page_pairs(tensor.dl(), kDevice).size(), 0);
}

TEST(PagePairs, MayShareASource) {
  PairTensor tensor({{4, 1}, {4, 0}, {4, 2}});
  EXPECT_EQ(read_page_pairs(tensor.dl(), kDevice, kHost).from, (std::vector<PageId>{4, 4, 4}));
  EXPECT_EQ(read_page_pairs(tensor.dl(), kDevice).from, (std::vector<PageId>{4, 4, 4}));
}

TEST(PagePairs, OfTwoPoolsMayHaveTheSameNumbers) {
  PairTensor tensor({{1, 2}, {2, 1}});
  EXPECT_EQ(read_page_pairs(tensor.dl(), kDevice, kHost).size(), 2);
}

TEST(PagePairs, NameTheRowOfAPageThatIsNotThere) {
  struct Case {
    std::vector<Pair> pairs;
    int64_t row;
    const char* message;
  };
  const Case cases[] = {
      {{{20, 0}}, 0, "pairs[0][0] = 20 out of range: the device pool has 20 pages"},
      {{{0, 0}, {19, 10}}, 1, "pairs[1][1] = 10 out of range: the host pool has 10 pages"},
      {{{0, 0}, {-1, 1}}, 1, "pairs[1][0] = -1 out of range: the device pool has 20 pages"},
      {{{0, 0}, {1, -7}}, 1, "pairs[1][1] = -7 out of range: the host pool has 10 pages"},
      {{{0, int64_t{1} << 32}},
       0,
       "pairs[0][1] = 4294967296 out of range: the host pool has 10 pages"},
      {{{INT64_MAX, 0}},
       0,
       "pairs[0][0] = 9223372036854775807 out of range: the device pool has 20 pages"},
      {{{INT64_MIN, 0}},
       0,
       "pairs[0][0] = -9223372036854775808 out of range: the device pool has 20 pages"},
  };
  for (const Case& c : cases) {
    const Error error = swap_error(c.pairs);
    EXPECT_EQ(error.status(), KVC_E_OUT_OF_RANGE) << c.message;
    EXPECT_EQ(error.detail(), c.row) << c.message;
    EXPECT_STREQ(error.what(), c.message);
  }
}

TEST(PagePairs, RefuseTheFirstDestinationThatComesAgain) {
  const Error adjacent = swap_error({{1, 5}, {2, 5}});
  EXPECT_EQ(adjacent.status(), KVC_E_INVALID_ARGUMENT);
  EXPECT_EQ(adjacent.detail(), 1);
  EXPECT_STREQ(adjacent.what(), "pairs[1][1] = 5 is the destination of pairs[0] already");
  // Page 2 comes again in row 4, page 9 in row 3 already, and a third time in row 5.
  const Error first = swap_error({{1, 9}, {2, 2}, {3, 4}, {4, 9}, {5, 2}, {6, 9}});
  EXPECT_EQ(first.detail(), 3);
  EXPECT_STREQ(first.what(), "pairs[3][1] = 9 is the destination of pairs[0] already");
  EXPECT_EQ(swap_error({{1, 5}, {1, 5}}).status(), KVC_E_INVALID_ARGUMENT) << "the same pair twice";
  EXPECT_EQ(copy_error({{5, 5}, {6, 5}}).detail(), 1);
}

TEST(PagePairs, MoreThanThereAreDestinationsAreRefusedWithoutReadingThemAll) {
  PairTensor tensor({{3, 4}});
  int64_t shape[] = {int64_t{1} << 55, 2};  // one row again and again
  int64_t strides[] = {0, 1};
  tensor.dl()->shape = shape;
  tensor.dl()->strides = strides;
  const Error error = error_of([&] { (void)read_page_pairs(tensor.dl(), kDevice, kHost); });
  EXPECT_EQ(error.status(), KVC_E_INVALID_ARGUMENT);
  EXPECT_EQ(error.detail(), 1);
}

TEST(PagePairs, MayComeBackwardsThroughMemory) {
  PairTensor tensor({{1, 2}, {3, 4}, {5, 6}});
  int64_t strides[] = {-2, 1};
  tensor.dl()->strides = strides;
  tensor.dl()->data = tensor.values() + 4;
  const PagePairs pairs = read_page_pairs(tensor.dl(), kDevice, kHost);
  EXPECT_EQ(pairs.from, (std::vector<PageId>{1, 3, 5}));
}

TEST(PagePairs, InsideOnePoolRefuseAPageThatIsReadAndWritten) {
  const Error chain = copy_error({{1, 2}, {2, 3}});
  EXPECT_EQ(chain.status(), KVC_E_INVALID_ARGUMENT);
  EXPECT_EQ(chain.detail(), 1);
  EXPECT_STREQ(
      chain.what(),
      "pairs[1][0] = 2 is the destination of another pair: the result would depend on the order");
  EXPECT_EQ(copy_error({{1, 2}, {2, 1}}).detail(), 0) << "an exchange";
  EXPECT_EQ(copy_error({{5, 5}, {5, 6}}).detail(), 1)
      << "a page copied to itself is written all the same";
}

TEST(PagePairs, InsideOnePoolAPageMayGoToItself) {
  PairTensor tensor({{5, 5}, {7, 6}});
  EXPECT_EQ(read_page_pairs(tensor.dl(), kDevice).size(), 2);
}

TEST(PagePairs, AreCheckedAsATensor) {
  PairTensor tensor({{1, 2}, {3, 4}});
  const DLTensor good = *tensor.dl();
  const auto refused = [&](kvc_status status, const char* part,
                           const std::function<void(DLTensor&)>& edit) {
    DLTensor bad = good;
    edit(bad);
    const Error error = error_of([&] { (void)read_page_pairs(&bad, kDevice, kHost); });
    EXPECT_EQ(error.status(), status) << error.what();
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  };
  int64_t wide[] = {2, 3}, negative[] = {-1, 2}, apart[] = {4, 2};
  refused(KVC_E_SHAPE, "pairs has 1 dimensions, expected 2", [](DLTensor& t) { t.ndim = 1; });
  refused(KVC_E_DTYPE, "pairs is int32, expected int64", [](DLTensor& t) { t.dtype.bits = 32; });
  refused(KVC_E_DTYPE, "expected int64", [](DLTensor& t) { t.dtype.code = kDLUInt; });
  refused(KVC_E_DEVICE_MISMATCH, "pairs lives on device type CUDA (2)", [](DLTensor& t) {
    t.device = {kDLCUDA, 0};
  });
  refused(KVC_E_SHAPE, ", 3], expected [any, 2]", [&](DLTensor& t) { t.shape = wide; });
  refused(KVC_E_SHAPE, "pairs has shape [-1, 2]", [&](DLTensor& t) { t.shape = negative; });
  refused(KVC_E_SHAPE, "pairs has stride 2 in its last dimension",
          [&](DLTensor& t) { t.strides = apart; });
  refused(KVC_E_SHAPE, "pairs is misaligned", [](DLTensor& t) { t.byte_offset = 4; });
  refused(KVC_E_INVALID_ARGUMENT, "pairs.data is NULL", [](DLTensor& t) { t.data = nullptr; });
  refused(KVC_E_INVALID_ARGUMENT, "pairs.shape is NULL", [](DLTensor& t) { t.shape = nullptr; });
  const Error null = error_of([&] { (void)read_page_pairs(nullptr, kDevice, kHost); });
  EXPECT_STREQ(null.what(), "pairs is NULL");
}

TEST(PageRuns, JoinNeighboursThatAreAdjacentInBothPools) {
  const auto ascending = runs_of({{4, 11}, {5, 12}, {6, 13}});
  ASSERT_EQ(ascending.size(), 1u);
  expect_run(ascending[0], 4, 11, 3);
  const auto descending = runs_of({{6, 13}, {5, 12}, {4, 11}});
  ASSERT_EQ(descending.size(), 1u);
  expect_run(descending[0], 4, 11, 3);
}

TEST(PageRuns, AreFoundInAnyOrder) {
  const auto interleaved = runs_of({{0, 10}, {5, 15}, {1, 11}, {6, 16}, {2, 12}});
  ASSERT_EQ(interleaved.size(), 2u);
  expect_run(interleaved[0], 0, 10, 3);
  expect_run(interleaved[1], 5, 15, 2);
  // One source goes to two places: the pages of both runs alternate by source.
  EXPECT_EQ(runs_of({{1, 10}, {1, 15}, {2, 11}, {2, 16}}).size(), 2u);
}

TEST(PageRuns, AreNotMadeOfWhatIsAdjacentInOnePoolAlone) {
  EXPECT_EQ(runs_of({{4, 11}, {6, 12}, {8, 13}}).size(), 3u);
  EXPECT_EQ(runs_of({{4, 11}, {5, 13}, {6, 15}}).size(), 3u);
  EXPECT_EQ(runs_of({{6, 11}, {5, 12}, {4, 13}}).size(), 3u) << "against each other";
}

TEST(PageRuns, OfAListInEitherDirectionNeedNoSorting) {
  const PageId from[] = {9, 8, 7, 3, 4, 5, 6, 5}, to[] = {5, 4, 3, 10, 11, 12, 13, 14};
  expect_run(run_at(from, to, 0, 8), 7, 3, 3);
  expect_run(run_at(from, to, 3, 8), 3, 10, 4);
  expect_run(run_at(from, to, 7, 8), 5, 14, 1);
  expect_run(run_at(from, to, 0, 2), 8, 4, 2);
}

TEST(PageRuns, TurnAroundNowhere) {
  // Not a valid list to copy, and still no run of three
  const PageId from[] = {3, 4, 3}, to[] = {5, 6, 5};
  EXPECT_EQ(run_at(from, to, 0, 3).count, 2);
}

// Against a naive count: every pair whose predecessor (from - 1, to - 1) is not in the list begins
// a run.
TEST(PageRuns, OfRandomListsCoverEveryPairOnceInAsFewRunsAsThereAre) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const int64_t pages = random.range(1, 40);
    std::map<int64_t, int64_t> source_of;  // by destination
    for (int64_t tries = random.range(0, 12); tries > 0; --tries) {
      const int64_t length = random.range(1, 6), from = random.range(0, pages - 1),
                    to = random.range(0, pages - 1);
      for (int64_t i = 0; i < length && from + i < pages && to + i < pages; ++i)
        source_of[to + i] = from + i;
    }
    std::vector<Pair> list;
    size_t expected = 0;
    for (const auto& [to, from] : source_of) {
      list.emplace_back(from, to);
      const auto before = source_of.find(to - 1);
      expected += before == source_of.end() || before->second != from - 1 ? 1 : 0;
    }
    if (random.chance(0.3)) {
      std::reverse(list.begin(), list.end());
    } else if (random.chance(0.7)) {
      random.shuffle(list);
    }
    PairTensor tensor(list, random.range(0, 2));
    const PagePairs pairs = read_page_pairs(tensor.dl(), {"a", pages}, {"b", pages});
    const std::vector<PageRun> runs = runs_of(pairs);
    EXPECT_EQ(runs.size(), expected);
    for (const PageRun& run : runs) {
      for (int64_t i = 0; i < run.count; ++i) {
        const auto found = source_of.find(run.to + i);
        ASSERT_NE(found, source_of.end());
        EXPECT_EQ(found->second, run.from + i);
        source_of.erase(found);
      }
    }
    EXPECT_TRUE(source_of.empty());
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace kvc
