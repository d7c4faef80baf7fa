// kvcache.h, section "Debug".
#include <cmath>

#include "tests/capi/fixture.h"

namespace kvc::test {
namespace {

class Debug : public testing::Test {
 protected:
  Debug() { cache_.fill({1, 2}, {10, 3}); }
  kvc_cache* get() const { return cache_.get(); }
  Model model_;
  Cache cache_{model_.config};
};

TEST_F(Debug, GetsAndSetsCommittedTokens) {
  HostTensor k(Elem::kF32, {2, 4, 2, 8}), v(Elem::kF32, {2, 4, 2, 8});
  expect_ok([&](kvc_error* err) {
    return kvc_debug_get_kv(get(), 1, 3, 7, k.dl(), v.dl(), nullptr, err);
  });
  EXPECT_TRUE(std::isfinite(k.get(1, 3, 1, 5)));
  EXPECT_TRUE(std::isnan(k.get(1, 3, 1, 6)))
      << "layer 1 has 6 elements per K head: the rest is left as it is";
  EXPECT_TRUE(std::isnan(v.get(1, 0, 0, 4)));
  HostTensor new_k(Elem::kBF16, {2, 4, 2, 8}), new_v(Elem::kF16, {2, 4, 2, 8});
  Random random(5);
  new_k.fill_random(random);
  new_v.fill_random(random);
  ASSERT_EQ(kvc_seq_fork(get(), 1, 3, -1, nullptr), KVC_OK);
  expect_ok([&](kvc_error* err) {
    return kvc_debug_set_kv(get(), 3, 3, new_k.dl(), new_v.dl(), nullptr, err);
  });
  HostTensor after(Elem::kF32, {2, 4, 2, 8}), sibling(Elem::kF32, {2, 4, 2, 8});
  ASSERT_EQ(kvc_debug_get_kv(get(), 3, 3, 7, after.dl(), nullptr, nullptr, nullptr), KVC_OK);
  ASSERT_EQ(kvc_debug_get_kv(get(), 1, 3, 7, sibling.dl(), nullptr, nullptr, nullptr), KVC_OK);
  EXPECT_TRUE(sibling.same_bytes(k)) << "the sibling keeps its own";
  for (int t = 0; t < 4; ++t) EXPECT_EQ(after.get(0, t, 1, 7), new_k.get(0, t, 1, 7));
  ASSERT_EQ(kvc_debug_get_kv(get(), 3, 3, 7, nullptr, after.dl(), nullptr, nullptr), KVC_OK);
  for (int t = 0; t < 4; ++t) EXPECT_EQ(after.get(1, t, 0, 3), new_v.get(1, t, 0, 3));
  EXPECT_EQ(kvc_cache_check(get(), nullptr), KVC_OK);
}

TEST_F(Debug, EmptyRangesAreLegal) {
  int64_t shape[] = {2, 0, 2, 8};
  DLTensor empty{nullptr, {kDLCPU, 0}, 4, {kDLFloat, 32, 1}, shape, nullptr, 0};
  for (const int64_t at : {0, 10}) {
    expect_ok([&](kvc_error* err) {
      return kvc_debug_get_kv(get(), 1, at, at, &empty, &empty, nullptr, err);
    });
    expect_ok([&](kvc_error* err) {
      return kvc_debug_set_kv(get(), 1, at, &empty, &empty, nullptr, err);
    });
  }
}

TEST_F(Debug, RefusesBadRangesAndTensors) {
  HostTensor k(Elem::kF32, {2, 4, 2, 8});
  const auto get_refused = [&](kvc_status status, std::initializer_list<const char*> parts,
                               kvc_seq seq, int64_t begin, int64_t end, DLTensor* to) {
    expect_refused(cache_, status, parts, [&](kvc_error* err) {
      return kvc_debug_get_kv(get(), seq, begin, end, to, nullptr, nullptr, err);
    });
    expect_refused(cache_, status, {}, [&](kvc_error* err) {
      return kvc_debug_get_kv(get(), seq, begin, end, nullptr, to, nullptr, err);
    });
    EXPECT_TRUE(k.is_untouched());
  };
  get_refused(KVC_E_NOT_FOUND, {"sequence", "9"}, 9, 0, 1, k.dl());
  get_refused(KVC_E_OUT_OF_RANGE, {"-1", "2", "10"}, 1, -1, 2, k.dl());
  get_refused(KVC_E_OUT_OF_RANGE, {"8", "11", "10"}, 1, 8, 11, k.dl());
  get_refused(KVC_E_OUT_OF_RANGE, {"5", "4"}, 1, 5, 4, k.dl());
  get_refused(KVC_E_OUT_OF_RANGE, {}, 1, INT64_MIN, INT64_MAX, k.dl());
  get_refused(KVC_E_SHAPE, {"4", "5"}, 1, 0, 5, k.dl());
  get_refused(KVC_E_INVALID_ARGUMENT, {"k", "v"}, 1, 0, 1, nullptr);
  HostTensor rank(Elem::kF32, {4, 2, 8}), layers(Elem::kF32, {1, 4, 2, 8}),
      heads(Elem::kF32, {2, 4, 1, 8}), dims(Elem::kF32, {2, 4, 2, 7});
  HostTensor integers(Elem::kI32, {2, 4, 2, 8});
  get_refused(KVC_E_SHAPE, {"k", "3", "4"}, 1, 0, 4, rank.dl());
  get_refused(KVC_E_SHAPE, {"k", "1", "2"}, 1, 0, 4, layers.dl());
  get_refused(KVC_E_SHAPE, {"k", "1", "2"}, 1, 0, 4, heads.dl());
  get_refused(KVC_E_SHAPE, {"k", "7", "8"}, 1, 0, 4, dims.dl());
  get_refused(KVC_E_DTYPE, {"k", "int32"}, 1, 0, 4, integers.dl());
  expect_error(KVC_E_INVALID_ARGUMENT, {"cache"}, [&](kvc_error* err) {
    return kvc_debug_get_kv(nullptr, 1, 0, 1, k.dl(), nullptr, nullptr, err);
  });

  const auto set_refused = [&](kvc_status status, std::initializer_list<const char*> parts,
                               kvc_seq seq, int64_t begin, const DLTensor* from) {
    expect_refused(cache_, status, parts, [&](kvc_error* err) {
      return kvc_debug_set_kv(get(), seq, begin, from, nullptr, nullptr, err);
    });
    expect_refused(cache_, status, {}, [&](kvc_error* err) {
      return kvc_debug_set_kv(get(), seq, begin, nullptr, from, nullptr, err);
    });
  };
  set_refused(KVC_E_NOT_FOUND, {"9"}, 9, 0, k.dl());
  set_refused(KVC_E_OUT_OF_RANGE, {"[7, 11)", "10"}, 1, 7, k.dl());
  set_refused(KVC_E_OUT_OF_RANGE, {"-1"}, 1, -1, k.dl());
  set_refused(KVC_E_OUT_OF_RANGE, {}, 1, INT64_MAX, k.dl());
  set_refused(KVC_E_OUT_OF_RANGE, {}, 1, INT64_MIN, k.dl());
  set_refused(KVC_E_INVALID_ARGUMENT, {"k", "v"}, 1, 0, nullptr);
  set_refused(KVC_E_SHAPE, {"k", "3", "4"}, 1, 0, rank.dl());
  set_refused(KVC_E_SHAPE, {"k", "1", "2"}, 1, 0, layers.dl());
  set_refused(KVC_E_DTYPE, {"k", "int32"}, 1, 0, integers.dl());
  int64_t negative_shape[] = {2, -1, 2, 8};
  DLTensor negative = *k.dl();
  negative.shape = negative_shape;
  set_refused(KVC_E_SHAPE, {"k", "-1"}, 1, 0, &negative);
  HostTensor five(Elem::kF32, {2, 5, 2, 8});
  expect_refused(cache_, KVC_E_SHAPE, {"v", "5", "4"}, [&](kvc_error* err) {
    return kvc_debug_set_kv(get(), 1, 0, k.dl(), five.dl(), nullptr, err);
  });
  expect_error(KVC_E_INVALID_ARGUMENT, {"cache"}, [&](kvc_error* err) {
    return kvc_debug_set_kv(nullptr, 1, 0, k.dl(), nullptr, nullptr, err);
  });
}

TEST_F(Debug, SettingSharedPagesNeedsPagesForTheCopies) {
  cache_.fill({5}, {13});  // 3 + 1 + 4 of 8 pages
  ASSERT_EQ(kvc_seq_fork(get(), 1, 3, -1, nullptr), KVC_OK);
  HostTensor k(Elem::kF32, {2, 5, 2, 8});
  Random random(6);
  k.fill_random(random);
  const kvc_error error = expect_refused(
      cache_, KVC_E_NO_PAGES, {"2 missing"},
      [&](kvc_error* err) { return kvc_debug_set_kv(get(), 3, 3, k.dl(), nullptr, nullptr, err); });
  EXPECT_EQ(error.detail, 2);
  ASSERT_EQ(kvc_seq_remove(get(), 1, nullptr), KVC_OK);
  EXPECT_EQ(kvc_debug_set_kv(get(), 3, 3, k.dl(), nullptr, nullptr, nullptr), KVC_OK)
      << "nobody shares any more";
}

TEST_F(Debug, SetIsRefusedInTheOpenForwardAndGetIsNot) {
  HostTensor k(Elem::kF32, {2, 1, 2, 8});
  Random random(7);
  k.fill_random(random);
  ASSERT_EQ(cache_.begin({1}, {2}), KVC_OK);
  expect_refused(cache_, KVC_E_BUSY, {"sequence", "1"}, [&](kvc_error* err) {
    return kvc_debug_set_kv(get(), 1, 0, k.dl(), nullptr, nullptr, err);
  });
  EXPECT_EQ(kvc_debug_set_kv(get(), 2, 0, k.dl(), nullptr, nullptr, nullptr), KVC_OK);
  HostTensor out(Elem::kF32, {2, 10, 2, 8});
  EXPECT_EQ(kvc_debug_get_kv(get(), 1, 0, 10, out.dl(), nullptr, nullptr, nullptr), KVC_OK);
  HostTensor longer(Elem::kF32, {2, 11, 2, 8});
  expect_refused(cache_, KVC_E_OUT_OF_RANGE, {"11", "10"}, [&](kvc_error* err) {
    return kvc_debug_get_kv(get(), 1, 0, 11, longer.dl(), nullptr, nullptr, err);
  });
}

TEST(DebugWithoutStorage, IsRefusedByName) {
  Model model;
  model.config.storage = KVC_STORAGE_NONE;
  Cache cache(model.config);
  cache.fill({1}, {3}, false);
  HostTensor k(Elem::kF32, {2, 3, 2, 8});
  expect_refused(cache, KVC_E_UNSUPPORTED, {"storage"}, [&](kvc_error* err) {
    return kvc_debug_get_kv(cache.get(), 1, 0, 3, k.dl(), nullptr, nullptr, err);
  });
  expect_refused(cache, KVC_E_UNSUPPORTED, {"storage"}, [&](kvc_error* err) {
    return kvc_debug_set_kv(cache.get(), 1, 0, k.dl(), nullptr, nullptr, err);
  });
}

}  // namespace
}  // namespace kvc::test
