// Pages as bytes to the host and into another cache, and sequences with room for them.
#include "tests/capi/state_files.h"

namespace kvc::test {
namespace {

// int64 [n] and uint8 [n, bytes] on the host.
struct Ids {
  explicit Ids(std::vector<int64_t> ids)
      : values(std::move(ids)), shape{static_cast<int64_t>(values.size())} {
    tensor = {values.data(), {kDLCPU, 0}, 1, {kDLInt, 64, 1}, shape, nullptr, 0};
  }
  Ids(const Ids&) = delete;
  Ids& operator=(const Ids&) = delete;
  std::vector<int64_t> values;
  int64_t shape[1];
  DLTensor tensor;
};

struct Rows {
  Rows(int64_t rows, uint64_t row_bytes)
      : bytes(static_cast<size_t>(rows) * row_bytes, 0xFF),
        shape{rows, static_cast<int64_t>(row_bytes)} {
    tensor = {bytes.data(), {kDLCPU, 0}, 2, {kDLUInt, 8, 1}, shape, nullptr, 0};
  }
  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;
  Bytes bytes;
  int64_t shape[2];
  DLTensor tensor;
};

std::vector<int64_t> page_ids_of(const Cache& cache, kvc_seq seq, int32_t layer) {
  DLManagedTensorVersioned* pages = nullptr;
  EXPECT_EQ(kvc_export_seq_pages(cache.get(), seq, layer_of(cache, layer).group, &pages, nullptr),
            KVC_OK);
  const auto* ids = static_cast<const int32_t*>(pages->dl_tensor.data);
  std::vector<int64_t> found(ids, ids + pages->dl_tensor.shape[0]);
  pages->deleter(pages);
  return found;
}

TEST(PageBytes, MoveASequenceToAnotherCacheLayerByLayer) {
  for (const kvc_pool_layout layout : {KVC_POOL_LAYER_FIRST, KVC_POOL_PAGE_FIRST}) {
    const std::vector<kvc_layer> layers{attention_layer(), attention_layer(8), mla_layer(),
                                        joint_layer()};
    Net from(layers), to(layers);
    to.config.pool_layout = layout;
    Cache first(from.config), second(to.config);
    append_pattern(first, 1, 13, 7);
    ASSERT_EQ(fingerprint(first.plan()), fingerprint(second.plan()));
    append_pattern(second, 9, 5, 8);
    ASSERT_EQ(kvc_seq_add(second.get(), 2, nullptr), KVC_OK);
    expect_ok([&](kvc_error* err) { return kvc_seq_reserve(second.get(), 2, 13, err); });
    EXPECT_EQ(length_of(second, 2), 13);
    for (int32_t layer = 0; layer < static_cast<int32_t>(layers.size()); ++layer) {
      const Ids sources(page_ids_of(first, 1, layer)), targets(page_ids_of(second, 2, layer));
      ASSERT_EQ(sources.values.size(), targets.values.size());
      Rows rows(sources.shape[0], layer_of(first, layer).page_bytes);
      expect_ok([&](kvc_error* err) {
        return kvc_pages_export(first.get(), layer, &sources.tensor, &rows.tensor, nullptr, err);
      });
      expect_ok([&](kvc_error* err) {
        return kvc_pages_import(second.get(), layer, &targets.tensor, &rows.tensor, nullptr, err);
      });
    }
    EXPECT_EQ(pattern_difference(second, 2, 7), "");
    EXPECT_EQ(pattern_difference(second, 9, 8), "");
    append_pattern(second, 2, 6, 7);
    EXPECT_EQ(pattern_difference(second, 2, 7), "") << "and grows as ever";
    expect_sound(second);
  }
}

TEST(PageBytes, NoPagesAreMovedToo) {
  Net net({attention_layer()});
  Cache cache(net.config);
  const Ids none({});
  Rows rows(0, layer_of(cache, 0).page_bytes);
  expect_ok([&](kvc_error* err) {
    return kvc_pages_export(cache.get(), 0, &none.tensor, &rows.tensor, nullptr, err);
  });
  expect_ok([&](kvc_error* err) {
    return kvc_pages_import(cache.get(), 0, &none.tensor, &rows.tensor, nullptr, err);
  });
}

TEST(PageBytes, BadIdsAndTensorsAreRefusedBeforeAnythingIsWritten) {
  std::vector<int64_t> shape{2, 3};
  std::vector<kvc_state_spec> specs{state_spec(shape)};
  Net net({attention_layer(), state_layer(specs)}, 8);
  Cache cache(net.config);
  append_pattern(cache, 1, 10, 7);
  const uint64_t bytes = layer_of(cache, 0).page_bytes;
  const auto import = [&](int32_t layer, const Ids& ids, const Rows& rows) {
    return [&cache, layer, &ids, &rows](kvc_error* err) {
      return kvc_pages_import(cache.get(), layer, &ids.tensor, &rows.tensor, nullptr, err);
    };
  };
  const Ids good({0, 1}), outside({0, 8}), negative({-1, 2}), twice({3, 4, 3});
  const Rows two(2, bytes), three(3, bytes), narrow(2, bytes - 1);
  expect_error(KVC_E_OUT_OF_RANGE, {"layer 2", "2 layers"}, import(2, good, two));
  expect_error(KVC_E_UNSUPPORTED, {"layer 1", "STATE", "keeps no pages"}, import(1, good, two));
  const kvc_error error =
      expect_error(KVC_E_OUT_OF_RANGE, {"ids[1] = 8", "8 pages"}, import(0, outside, two));
  EXPECT_EQ(error.detail, 1);
  expect_error(KVC_E_OUT_OF_RANGE, {"ids[0] = -1"}, import(0, negative, two));
  expect_error(KVC_E_INVALID_ARGUMENT, {"ids[2] = 3", "ids[0]"}, import(0, twice, three));
  expect_error(KVC_E_SHAPE, {"in"}, import(0, good, three));
  expect_error(KVC_E_SHAPE, {"in"}, import(0, good, narrow));
  Ids floats({0, 1});
  floats.tensor.dtype = {kDLFloat, 64, 1};
  expect_error(KVC_E_DTYPE, {"ids"}, import(0, floats, two));
  Rows wide(2, bytes);
  wide.tensor.dtype = {kDLInt, 8, 1};
  expect_error(KVC_E_DTYPE, {"in"}, import(0, good, wide));
  expect_error(KVC_E_DTYPE, {"out"}, [&](kvc_error* err) {
    return kvc_pages_export(cache.get(), 0, &good.tensor, &wide.tensor, nullptr, err);
  });
  EXPECT_EQ(pattern_difference(cache, 1, 7), "");
  Net counted({attention_layer()});
  counted.config.storage = KVC_STORAGE_NONE;
  Cache none(counted.config);
  expect_error(KVC_E_UNSUPPORTED, {"kvc_pages_export", "storage"}, [&](kvc_error* err) {
    return kvc_pages_export(none.get(), 0, &good.tensor, nullptr, nullptr, err);
  });
}

TEST(Reserve, IsRefusedLikeAForwardAndChangesNothing) {
  Net net({attention_layer()}, 4);
  Cache cache(net.config);
  append_pattern(cache, 1, 10, 7);  // 3 pages
  ASSERT_EQ(kvc_seq_add(cache.get(), 2, nullptr), KVC_OK);
  const Snapshot before = take_snapshot(cache.get(), nullptr, 1);
  const auto reserve = [&](kvc_seq seq, int64_t n) {
    return [&cache, seq, n](kvc_error* err) { return kvc_seq_reserve(cache.get(), seq, n, err); };
  };
  expect_error(KVC_E_NOT_FOUND, {"77"}, reserve(77, 1));
  expect_error(KVC_E_INVALID_ARGUMENT, {"0"}, reserve(2, 0));
  const kvc_error error = expect_error(KVC_E_NO_PAGES, {}, reserve(2, 8));
  EXPECT_EQ(error.detail, 1);
  expect_error(KVC_E_NEVER_FITS, {}, reserve(2, 1000));
  EXPECT_EQ(difference(before, take_snapshot(cache.get(), nullptr, 1)), "");
  ASSERT_EQ(cache.begin({1}, {1}), KVC_OK);
  expect_error(KVC_E_BUSY, {"open"}, reserve(2, 1));
  cache.abort();
  expect_ok(reserve(2, 4));
  EXPECT_EQ(length_of(cache, 2), 4);
  EXPECT_EQ(kvc_cache_available_pages(cache.get()), 0);
  expect_sound(cache);
}

TEST(Reserve, WhatWasNeverComputedIsNotPublished) {
  Net net({attention_layer()});
  Cache cache(net.config);
  ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  expect_ok([&](kvc_error* err) { return kvc_seq_reserve(cache.get(), 1, 8, err); });
  const std::vector<int32_t> tokens(8, 5);
  kvc_prefix_query query{};
  query.struct_size = sizeof query;
  query.tokens = tokens.data();
  query.num_tokens = 8;
  int64_t kept = -1, hit = -1;
  ASSERT_EQ(kvc_prefix_insert(cache.get(), 1, &query, &kept, nullptr), KVC_OK);
  EXPECT_EQ(kept, 0);
  query.flags = KVC_PREFIX_ALL_TOKENS;
  ASSERT_EQ(kvc_prefix_match(cache.get(), &query, &hit, nullptr), KVC_OK);
  EXPECT_EQ(hit, 0);
  expect_sound(cache);
}

}  // namespace
}  // namespace kvc::test
