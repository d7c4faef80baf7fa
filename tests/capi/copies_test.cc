// Copies by page ids between and inside the pools.
#include <cstdlib>

#include "tests/capi/copies_support.h"

namespace kvc::test {
namespace {

TEST(PagesSwap, BringsPagesToTheHostAndBack) {
  Pools pools({});
  ASSERT_EQ(pools.swap({{0, 3}, {1, 4}, {2, 5}, {7, 0}}, KVC_SWAP_OUT), KVC_OK);
  for (int64_t page = 0; page < 8; ++page) pools.write(page, 50 + page);
  pools.expect_device("overwritten");
  ASSERT_EQ(pools.swap({{5, 1}, {0, 6}}, KVC_SWAP_IN), KVC_OK);
  pools.device[1] = 1002, pools.device[6] = 1007;
  pools.expect_device("swapped in");
  ASSERT_EQ(pools.swap({{5, 0}}, KVC_SWAP_IN), KVC_OK);
  pools.device[0] = 1002;
  pools.expect_device("a host page stays after it was swapped in");
}

TEST(PagesSwap, TellsHowManyPagesInHowManyRuns) {
  Pools pools({});
  EXPECT_EQ(stats_of(pools.get()).host_pages_total, 6) << "half a page is none";
  ASSERT_EQ(pools.swap({{4, 0}, {5, 1}, {6, 2}}, KVC_SWAP_OUT), KVC_OK);
  kvc_stats stats = stats_of(pools.get());
  EXPECT_EQ(stats.pages_swapped_out, 3u);
  EXPECT_EQ(stats.copy_runs, 1u);
  ASSERT_EQ(pools.swap({{2, 7}, {0, 3}, {1, 6}}, KVC_SWAP_IN), KVC_OK);
  stats = stats_of(pools.get());
  EXPECT_EQ(stats.pages_swapped_in, 3u);
  EXPECT_EQ(stats.copy_runs, 3u);
  ASSERT_EQ(pools.copy({{0, 4}, {1, 5}, {3, 3}}), KVC_OK);
  EXPECT_EQ(stats_of(pools.get()).copy_runs, 4u) << "a page copied to itself is none";
}

// A naive copy: one page after the other, from what was there before.
void apply(const Pairs& pairs, const std::vector<int64_t>& from, std::vector<int64_t>* to) {
  const std::vector<int64_t> before = from;
  for (const auto& [source, target] : pairs)
    (*to)[static_cast<size_t>(target)] = before[static_cast<size_t>(source)];
}

enum Move { kOut, kIn, kInside };

// Any list at all: pages that are not there, destinations that come twice, pages that are read and
// written.
Pairs random_pairs(Random& random, int64_t sources, int64_t targets) {
  Pairs pairs;
  const bool hostile = random.chance(0.2);
  for (int64_t tries = random.range(0, 4); tries > 0; --tries) {
    const int64_t from = random.range(hostile ? -1 : 0, sources - 1);
    const int64_t to = random.range(hostile ? -1 : 0, targets - 1);
    const int64_t step = random.chance(0.5) ? 1 : -1;
    for (int64_t i = 0; i < random.range(1, 4); ++i)
      pairs.emplace_back(from + step * i, to + step * i);
  }
  if (random.chance(0.5)) random.shuffle(pairs);
  return pairs;
}

kvc_status expected_status(const Pairs& pairs, int64_t sources, int64_t targets, bool is_inside) {
  for (const auto& [from, to] : pairs)
    if (from < 0 || from >= sources || to < 0 || to >= targets) return KVC_E_OUT_OF_RANGE;
  for (size_t i = 0; i < pairs.size(); ++i) {
    for (size_t j = 0; j < pairs.size(); ++j) {
      if (i == j) continue;
      if (pairs[i].second == pairs[j].second) return KVC_E_INVALID_ARGUMENT;
      if (is_inside && pairs[i].first == pairs[j].second) return KVC_E_INVALID_ARGUMENT;
    }
  }
  return KVC_OK;
}

void run_at_random(const PoolsOptions& options, uint64_t seed, int rounds, int* good,
                   int* refused) {
  SCOPED_TRACE("KVC_TEST_SEED=" + std::to_string(seed));
  Random random(seed);
  Pools pools(options);
  int64_t next_tag = 2000;
  // What a host page holds before is of no concern
  std::vector<bool> written(pools.host.size(), false);
  for (int round = 0; round < rounds; ++round) {
    const std::string what = "round " + std::to_string(round);
    if (random.chance(0.3)) pools.write(random.range(0, options.pages - 1), next_tag++);
    const auto move = static_cast<Move>(random.range(0, 2));
    const int64_t sources = move == kIn ? options.host_pages : options.pages;
    const int64_t targets = move == kOut ? options.host_pages : options.pages;
    const Pairs pairs = random_pairs(random, sources, targets);
    const kvc_status expected = expected_status(pairs, sources, targets, move == kInside);
    if (expected == KVC_OK && move == kIn) {
      bool known = true;
      for (const auto& pair : pairs) known = known && written[static_cast<size_t>(pair.first)];
      if (!known) continue;
    }
    const Snapshot before = pools.cache().snapshot();
    kvc_error error{};
    const kvc_status status =
        move == kInside ? pools.copy(pairs, &error)
                        : pools.swap(pairs, move == kOut ? KVC_SWAP_OUT : KVC_SWAP_IN, &error);
    if (expected == KVC_E_OUT_OF_RANGE && status == KVC_E_INVALID_ARGUMENT) {
      ASSERT_GT(static_cast<int64_t>(pairs.size()), targets) << what << ": the first rows decide";
    } else {
      ASSERT_STREQ(kvc_status_name(status), kvc_status_name(expected))
          << what << ": " << error.message;
    }
    ++*(status == KVC_OK ? good : refused);
    if (status == KVC_OK) {
      apply(pairs, move == kIn ? pools.host : pools.device,
            move == kOut ? &pools.host : &pools.device);
      for (const auto& pair : pairs)
        if (move == kOut) written[static_cast<size_t>(pair.second)] = true;
    } else {
      ASSERT_EQ(difference(before, pools.cache().snapshot()), "") << what;
    }
    pools.expect_device(what);
    if (testing::Test::HasFatalFailure()) return;
  }
  ASSERT_EQ(kvc_cache_check(pools.get(), nullptr), KVC_OK);
}

TEST(PagesSwap, RandomSwapsAndCopiesLeaveEveryPageWhatItShouldBe) {
  const char* only = std::getenv("KVC_TEST_SEED");
  int good = 0, refused = 0;
  uint64_t seed = 1;
  for (const kvc_storage storage : {KVC_STORAGE_OWNED, KVC_STORAGE_BORROWED}) {
    for (const kvc_pool_layout layout : {KVC_POOL_LAYER_FIRST, KVC_POOL_PAGE_FIRST}) {
      for (const int64_t gap : {0, 7}) {
        if (gap != 0 && storage == KVC_STORAGE_OWNED) continue;
        for (int i = 0; i < 5; ++i, ++seed) {
          if (only != nullptr && std::strtoull(only, nullptr, 10) != seed) continue;
          const PoolsOptions options{.storage = storage,
                                     .layout = layout,
                                     .gap = gap,
                                     .pages = 8 + i,
                                     .host_pages = 3 + 2 * i,
                                     .threads = 1 + i % 2};
          run_at_random(options, seed, 120, &good, &refused);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
  if (only == nullptr) {
    EXPECT_GT(good, 1000);
    EXPECT_GT(refused, 500);
  }
}

TEST(PagesSwap, LooksAtNoSequence) {
  Pools pools({});
  pools.cache().fill({1, 2}, {10, 6});
  ASSERT_EQ(pools.cache().begin({1}, {3}), KVC_OK);
  const Snapshot before = pools.cache().snapshot();
  Pairs all;
  for (int64_t page = 0; page < 6; ++page) all.emplace_back(page, page);
  EXPECT_EQ(pools.swap(all, KVC_SWAP_OUT), KVC_OK) << "pages in use, beside an open forward";
  EXPECT_EQ(pools.swap({{0, 7}}, KVC_SWAP_IN), KVC_OK);
  EXPECT_EQ(pools.copy({{0, 7}, {1, 6}}), KVC_OK);
  const Snapshot after = pools.cache().snapshot();
  EXPECT_EQ(before.pages, after.pages);
  EXPECT_EQ(before.available_pages, after.available_pages);
  EXPECT_EQ(stats_of(pools.get()).host_pages_used, 0) << "by sequences and by the index";
  pools.cache().finish();
  EXPECT_EQ(kvc_cache_check(pools.get(), nullptr), KVC_OK);
}

TEST(PagesSwap, TakesPairsOfAnyRowStrideAndNone) {
  Pools pools({});
  std::vector<int64_t> values = {-99, 6, 0, -99, 5, 1, -99};
  int64_t shape[] = {2, 2}, strides[] = {3, 1};
  DLTensor pairs{values.data(), {kDLCPU, 0}, 2, {kDLInt, 64, 1}, shape, strides, 8};
  expect_ok([&](kvc_error* err) {
    return kvc_pages_swap(pools.get(), &pairs, KVC_SWAP_OUT, nullptr, nullptr, err);
  });
  ASSERT_EQ(pools.swap({{0, 0}, {1, 1}}, KVC_SWAP_IN), KVC_OK);
  pools.device[0] = 1006, pools.device[1] = 1005;
  pools.expect_device("strided pairs");
  shape[0] = 0;
  pairs.data = nullptr;
  const kvc_stats before = stats_of(pools.get());
  for (const kvc_swap_direction direction : {KVC_SWAP_OUT, KVC_SWAP_IN}) {
    expect_ok([&](kvc_error* err) {
      return kvc_pages_swap(pools.get(), &pairs, direction, nullptr, nullptr, err);
    });
  }
  expect_ok(
      [&](kvc_error* err) { return kvc_pages_copy(pools.get(), &pairs, nullptr, nullptr, err); });
  EXPECT_EQ(stats_of(pools.get()).copy_runs, before.copy_runs);
}

TEST(PagesSwap, RefusesPairsThatAreNoSuchTensor) {
  Pools pools({});
  const auto good = tensor_of({{1, 2}, {3, 4}});
  int64_t wide[] = {2, 3}, flat[] = {4}, negative[] = {-2, 2}, strides[] = {4, 2};
  for (const CopyCall& call :
       {swap_call(pools, KVC_SWAP_OUT), swap_call(pools, KVC_SWAP_IN), copy_call(pools)}) {
    const auto refused = [&](kvc_status status, std::initializer_list<const char*> parts,
                             const std::function<void(DLTensor&)>& edit) {
      DLTensor bad = *good->dl();
      edit(bad);
      expect_copy_refused(pools, call, &bad, status, parts);
    };
    expect_copy_refused(pools, call, nullptr, KVC_E_INVALID_ARGUMENT, {"pairs is NULL"});
    refused(KVC_E_SHAPE, {"pairs has 1 dimensions, expected 2"},
            [&](DLTensor& t) { t.ndim = 1, t.shape = flat; });
    refused(KVC_E_DTYPE, {"pairs is int32, expected int64"},
            [](DLTensor& t) { t.dtype.bits = 32; });
    refused(KVC_E_DTYPE, {"pairs is float64"}, [](DLTensor& t) { t.dtype.code = kDLFloat; });
    refused(KVC_E_DEVICE_MISMATCH, {"pairs lives on device type CUDA (2)", "CPU (1)"},
            [](DLTensor& t) {
              t.device = {kDLCUDA, 0};
            });
    refused(KVC_E_SHAPE, {", 3], expected [any, 2]"}, [&](DLTensor& t) { t.shape = wide; });
    refused(KVC_E_SHAPE, {"pairs has shape [-2, 2]"}, [&](DLTensor& t) { t.shape = negative; });
    refused(KVC_E_SHAPE, {"stride 2 in its last dimension, expected 1"},
            [&](DLTensor& t) { t.strides = strides; });
    refused(KVC_E_SHAPE, {"pairs is misaligned", "4"}, [](DLTensor& t) { t.byte_offset = 4; });
    refused(KVC_E_INVALID_ARGUMENT, {"pairs.data is NULL"}, [](DLTensor& t) { t.data = nullptr; });
    refused(KVC_E_INVALID_ARGUMENT, {"pairs.shape is NULL"},
            [](DLTensor& t) { t.shape = nullptr; });
  }
}

TEST(PagesSwap, NamesTheRowThatIsWrong) {
  Pools pools({});
  struct Case {
    CopyCall call;
    Pairs pairs;
    kvc_status status;
    int64_t row;
    const char* message;
  };
  const CopyCall out = swap_call(pools, KVC_SWAP_OUT), in = swap_call(pools, KVC_SWAP_IN),
                 copy = copy_call(pools);
  const char* kOrder = "the result would depend on the order";
  const Case cases[] = {
      {out,
       {{0, 0}, {8, 1}},
       KVC_E_OUT_OF_RANGE,
       1,
       "pairs[1][0] = 8 out of range: the device pool has 8 pages"},
      {out,
       {{0, 6}},
       KVC_E_OUT_OF_RANGE,
       0,
       "pairs[0][1] = 6 out of range: the host pool has 6 pages"},
      {out, {{0, 0}, {1, 1}, {-1, 2}}, KVC_E_OUT_OF_RANGE, 2, "pairs[2][0] = -1 out of range"},
      {in,
       {{6, 0}},
       KVC_E_OUT_OF_RANGE,
       0,
       "pairs[0][0] = 6 out of range: the host pool has 6 pages"},
      {in,
       {{5, 8}},
       KVC_E_OUT_OF_RANGE,
       0,
       "pairs[0][1] = 8 out of range: the device pool has 8 pages"},
      {copy,
       {{7, 8}},
       KVC_E_OUT_OF_RANGE,
       0,
       "pairs[0][1] = 8 out of range: the device pool has 8 pages"},
      {copy,
       {{int64_t{1} << 32, 3}},
       KVC_E_OUT_OF_RANGE,
       0,
       "pairs[0][0] = 4294967296 out of range"},
      {out,
       {{0, 3}, {1, 2}, {2, 3}},
       KVC_E_INVALID_ARGUMENT,
       2,
       "pairs[2][1] = 3 is the destination of pairs[0] already"},
      {in,
       {{0, 3}, {0, 3}},
       KVC_E_INVALID_ARGUMENT,
       1,
       "pairs[1][1] = 3 is the destination of pairs[0] already"},
      {copy,
       {{0, 3}, {1, 3}},
       KVC_E_INVALID_ARGUMENT,
       1,
       "pairs[1][1] = 3 is the destination of pairs[0] already"},
      {copy, {{0, 3}, {3, 4}}, KVC_E_INVALID_ARGUMENT, 1, kOrder},
      {copy, {{3, 4}, {0, 3}}, KVC_E_INVALID_ARGUMENT, 0, kOrder},
      {copy, {{6, 7}, {3, 4}, {4, 3}}, KVC_E_INVALID_ARGUMENT, 1, kOrder},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.message);
    EXPECT_EQ(expect_copy_refused(pools, c.call, tensor_of(c.pairs)->dl(), c.status, {c.message}),
              c.row);
    pools.expect_device("refused");
  }
  EXPECT_EQ(pools.swap({{0, 1}, {1, 0}}, KVC_SWAP_OUT), KVC_OK)
      << "between pools there is no order";
  EXPECT_EQ(pools.copy({{2, 2}, {3, 4}}), KVC_OK);
}

TEST(PagesSwap, RefusesByNameWhatIsNotServed) {
  Pools pools({});
  const auto pairs = tensor_of({{1, 2}});
  EXPECT_EQ(expect_copy_refused(pools, swap_call(pools, 2), pairs->dl(), KVC_E_UNSUPPORTED,
                                {"direction = 2 is not supported", "OUT (0)", "IN (1)"}),
            2);
  expect_copy_refused(pools, swap_call(pools, -1), pairs->dl(), KVC_E_UNSUPPORTED,
                      {"direction = -1"});

  Pools books({.storage = KVC_STORAGE_NONE, .host_pages = 0});
  expect_copy_refused(books, swap_call(books, KVC_SWAP_OUT), pairs->dl(), KVC_E_UNSUPPORTED,
                      {"kvc_pages_swap", "config.storage = NONE (2)"});
  expect_copy_refused(books, copy_call(books), pairs->dl(), KVC_E_UNSUPPORTED,
                      {"kvc_pages_copy", "config.storage = NONE (2)"});

  Pools alone({.host_pages = 0});
  expect_copy_refused(alone, swap_call(alone, KVC_SWAP_IN), pairs->dl(), KVC_E_UNSUPPORTED,
                      {"kvc_pages_swap", "config.host_byte_budget = 0", "832 bytes"});
  EXPECT_EQ(alone.copy({{1, 2}}), KVC_OK) << "the host pool has no part in it";

  for (kvc_error* err : {static_cast<kvc_error*>(nullptr)}) {
    EXPECT_EQ(kvc_pages_swap(nullptr, pairs->dl(), KVC_SWAP_OUT, nullptr, nullptr, err),
              KVC_E_INVALID_ARGUMENT);
    EXPECT_EQ(kvc_pages_copy(nullptr, pairs->dl(), nullptr, nullptr, err), KVC_E_INVALID_ARGUMENT);
  }
  expect_error(KVC_E_INVALID_ARGUMENT, {"cache is NULL"}, [&](kvc_error* err) {
    return kvc_pages_swap(nullptr, pairs->dl(), KVC_SWAP_OUT, nullptr, nullptr, err);
  });
  expect_error(KVC_E_INVALID_ARGUMENT, {"cache is NULL"}, [&](kvc_error* err) {
    return kvc_pages_copy(nullptr, pairs->dl(), nullptr, nullptr, err);
  });
}

TEST(PagesSwap, ACacheOfOnePoolIsNotReachedByTheOther) {
  Pools pools({.pages = 4, .host_pages = 20});
  EXPECT_EQ(pools.swap({{3, 19}}, KVC_SWAP_OUT), KVC_OK) << "a host pool may be the larger one";
  EXPECT_EQ(pools.swap({{19, 3}}, KVC_SWAP_IN), KVC_OK);
  EXPECT_EQ(pools.swap({{19, 4}}, KVC_SWAP_IN), KVC_E_OUT_OF_RANGE);
  ASSERT_EQ(kvc_cache_resize(pools.get(), 6, nullptr), KVC_OK);
  EXPECT_EQ(pools.swap({{19, 4}}, KVC_SWAP_IN), KVC_OK) << "the device pool has grown";
}

}  // namespace
}  // namespace kvc::test
