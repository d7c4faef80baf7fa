// kvcache.h, section "Zero-copy export".
#include <thread>

#include "tests/capi/borrowed.h"
#include "tests/capi/fixture.h"

namespace kvc::test {
namespace {

struct Deleter {
  void operator()(DLManagedTensorVersioned* tensor) const { tensor->deleter(tensor); }
};
using Exported = std::unique_ptr<DLManagedTensorVersioned, Deleter>;

std::vector<int64_t> shape_of(const Exported& exported) {
  return {exported->dl_tensor.shape, exported->dl_tensor.shape + exported->dl_tensor.ndim};
}

template <typename T>
std::vector<T> values_of(const Exported& exported) {
  const DLTensor& tensor = exported->dl_tensor;
  int64_t count = 1;
  for (int32_t d = 0; d < tensor.ndim; ++d) count *= tensor.shape[d];
  const auto* data = reinterpret_cast<const T*>(
      static_cast<const std::byte*>(exported->dl_tensor.data) + exported->dl_tensor.byte_offset);
  return {data, data + count};
}

float element(const DLTensor& tensor, std::initializer_list<int64_t> index) {
  int64_t offset = 0;
  int d = 0;
  for (const int64_t i : index) offset += i * tensor.strides[d++];
  return reinterpret_cast<const float*>(static_cast<const std::byte*>(tensor.data) +
                                        tensor.byte_offset)[offset];
}

class Export : public testing::TestWithParam<kvc_pool_layout> {
 protected:
  Export() {
    model_.config.pool_layout = GetParam();
    cache_ = std::make_unique<Cache>(model_.config);
    cache_->fill({1, 2}, {10, 3});
  }
  kvc_cache* get() const { return cache_->get(); }
  Exported pool(int32_t layer, kvc_pool_kind kind) {
    DLManagedTensorVersioned* tensor = nullptr;
    expect_ok([&](kvc_error* err) {
      if (tensor != nullptr) tensor->deleter(tensor);
      return kvc_export_pool(get(), layer, kind, &tensor, err);
    });
    return Exported(tensor);
  }
  Exported table(kvc_table_kind kind) {
    DLManagedTensorVersioned* tensor = nullptr;
    expect_ok([&](kvc_error* err) {
      return kvc_export_page_table(cache_->forward, 0, kind, &tensor, err);
    });
    return Exported(tensor);
  }
  Model model_;
  std::unique_ptr<Cache> cache_;
};

TEST_P(Export, ThePoolIsSharedAndStrided) {
  const std::vector<int32_t> pages = cache_->snapshot().pages[0];
  HostTensor k(Elem::kF32, {2, 10, 2, 8}), v(Elem::kF32, {2, 10, 2, 8});
  ASSERT_EQ(kvc_debug_get_kv(get(), 1, 0, 10, k.dl(), v.dl(), nullptr, nullptr), KVC_OK);
  for (int32_t layer = 0; layer < 2; ++layer) {
    const int64_t k_dim = layer == 0 ? 8 : 6, v_dim = layer == 0 ? 8 : 4;
    const Exported k_pool = pool(layer, KVC_POOL_K), v_pool = pool(layer, KVC_POOL_V);
    EXPECT_EQ(shape_of(k_pool), (std::vector<int64_t>{8, 2, 4, k_dim}));
    EXPECT_EQ(shape_of(v_pool), (std::vector<int64_t>{8, 2, 4, v_dim}));
    EXPECT_EQ(k_pool->flags & DLPACK_FLAG_BITMASK_READ_ONLY, 0u) << "writable";
    EXPECT_EQ(k_pool->dl_tensor.device.device_type, kDLCPU);
    EXPECT_EQ(k_pool->dl_tensor.dtype.code, kDLFloat);
    EXPECT_EQ(k_pool->dl_tensor.dtype.bits, 32);
    EXPECT_EQ(k_pool->version.major, static_cast<uint32_t>(DLPACK_MAJOR_VERSION));
    for (int64_t t = 0; t < 10; ++t) {
      for (int64_t h = 0; h < 2; ++h) {
        const int64_t page = pages[static_cast<size_t>(t / 4)];
        EXPECT_EQ(element(k_pool->dl_tensor, {page, h, t % 4, k_dim - 1}),
                  k.get(layer, t, h, k_dim - 1));
        EXPECT_EQ(element(v_pool->dl_tensor, {page, h, t % 4, 2}), v.get(layer, t, h, 2));
      }
    }
    const Exported bytes = pool(layer, KVC_POOL_BYTES);
    EXPECT_EQ(shape_of(bytes), (std::vector<int64_t>{8, 2 * 4 * (k_dim + v_dim) * 4}));
    EXPECT_EQ(bytes->dl_tensor.dtype.code, kDLUInt);
    EXPECT_EQ(bytes->dl_tensor.dtype.bits, 8);
  }
  const Exported both = pool(0, KVC_POOL_KV);
  EXPECT_EQ(shape_of(both), (std::vector<int64_t>{8, 2, 2, 4, 8}));
  EXPECT_EQ(element(both->dl_tensor, {pages[1], 0, 1, 2, 3}), k.get(0, 6, 1, 3));
  EXPECT_EQ(element(both->dl_tensor, {pages[1], 1, 1, 2, 3}), v.get(0, 6, 1, 3));
  const Exported k_pool = pool(0, KVC_POOL_K);
  const DLTensor& tensor = k_pool->dl_tensor;
  reinterpret_cast<float*>(tensor.data)[pages[0] * tensor.strides[0]] = 123;
  ASSERT_EQ(kvc_debug_get_kv(get(), 1, 0, 10, k.dl(), nullptr, nullptr, nullptr), KVC_OK);
  EXPECT_EQ(k.get(0, 0, 0, 0), 123) << "it is the pool itself";
}

TEST_P(Export, ThePoolOutlivesTheCacheAndIsReleasedOnAnyThread) {
  const std::vector<int32_t> pages = cache_->snapshot().pages[0];
  HostTensor k(Elem::kF32, {2, 10, 2, 8});
  ASSERT_EQ(kvc_debug_get_kv(get(), 1, 0, 10, k.dl(), nullptr, nullptr, nullptr), KVC_OK);
  Exported exported = pool(1, KVC_POOL_K), another = pool(0, KVC_POOL_BYTES);
  DLManagedTensorVersioned* seq_pages = nullptr;
  ASSERT_EQ(kvc_export_seq_pages(get(), 1, 0, &seq_pages, nullptr), KVC_OK);
  cache_.reset();
  EXPECT_EQ(element(exported->dl_tensor, {pages[2], 1, 1, 5}), k.get(1, 9, 1, 5));
  EXPECT_EQ(static_cast<const int32_t*>(seq_pages->dl_tensor.data)[2], pages[2]);
  std::thread([&] {
    exported.reset();
    seq_pages->deleter(seq_pages);
  }).join();
}

TEST_P(Export, PoolRefusesBadArguments) {
  DLManagedTensorVersioned* out = nullptr;
  for (const int32_t layer : {-1, 2}) {
    expect_refused(
        *cache_, KVC_E_OUT_OF_RANGE, {"layer", std::to_string(layer).c_str()},
        [&](kvc_error* err) { return kvc_export_pool(get(), layer, KVC_POOL_K, &out, err); });
  }
  for (const kvc_pool_kind kind : {-1, 4}) {
    expect_refused(*cache_, KVC_E_INVALID_ARGUMENT, {"kind", std::to_string(kind).c_str()},
                   [&](kvc_error* err) { return kvc_export_pool(get(), 0, kind, &out, err); });
  }
  expect_refused(*cache_, KVC_E_UNSUPPORTED, {"6", "4"},
                 [&](kvc_error* err) { return kvc_export_pool(get(), 1, KVC_POOL_KV, &out, err); });
  expect_refused(*cache_, KVC_E_INVALID_ARGUMENT, {"cache"}, [&](kvc_error* err) {
    return kvc_export_pool(nullptr, 0, KVC_POOL_K, &out, err);
  });
  expect_refused(*cache_, KVC_E_INVALID_ARGUMENT, {"out"}, [&](kvc_error* err) {
    return kvc_export_pool(get(), 0, KVC_POOL_K, nullptr, err);
  });
  EXPECT_EQ(out, nullptr);
}

TEST_P(Export, PageTablesDescribeTheOpenForward) {
  ASSERT_EQ(kvc_seq_add(get(), 3, nullptr), KVC_OK);
  ASSERT_EQ(cache_->begin({2, 3, 1}, {2, 4, 1}), KVC_OK);
  const Snapshot now = cache_->snapshot();
  const Exported indptr = table(KVC_TABLE_INDPTR);
  EXPECT_EQ(values_of<int32_t>(indptr), (std::vector<int32_t>{0, 2, 3, 6}));
  const Exported indices = table(KVC_TABLE_INDICES);
  const std::vector<int32_t> ids = values_of<int32_t>(indices);
  ASSERT_EQ(ids.size(), 6u);
  EXPECT_EQ(ids[0], now.pages[1][0]);
  EXPECT_EQ((std::vector<int32_t>{ids[3], ids[4], ids[5]}), now.pages[0]);
  EXPECT_EQ(values_of<int32_t>(table(KVC_TABLE_LAST_PAGE_LEN)), (std::vector<int32_t>{1, 4, 3}));
  EXPECT_EQ(values_of<int32_t>(table(KVC_TABLE_SEQ_LENS)), (std::vector<int32_t>{5, 4, 11}));
  EXPECT_EQ(values_of<int32_t>(table(KVC_TABLE_QO_INDPTR)), (std::vector<int32_t>{0, 2, 6, 7}));
  const Exported padded = table(KVC_TABLE_BLOCK_TABLE);
  EXPECT_EQ(shape_of(padded), (std::vector<int64_t>{3, 3}));
  EXPECT_EQ(values_of<int32_t>(padded),
            (std::vector<int32_t>{ids[0], ids[1], -1, ids[2], -1, -1, ids[3], ids[4], ids[5]}));
  const Exported slots = table(KVC_TABLE_SLOT_MAPPING);
  EXPECT_EQ(slots->dl_tensor.dtype.bits, 64);
  const int64_t a = ids[0], b = ids[1], c = ids[2], d = ids[5];
  EXPECT_EQ(values_of<int64_t>(slots), (std::vector<int64_t>{4 * a + 3, 4 * b, 4 * c, 4 * c + 1,
                                                             4 * c + 2, 4 * c + 3, 4 * d + 2}));
  EXPECT_NE(indptr->flags & DLPACK_FLAG_BITMASK_READ_ONLY, 0u);
  cache_->finish();
  ASSERT_EQ(kvc_cache_clear(get(), nullptr), KVC_OK);
  EXPECT_EQ(values_of<int32_t>(indices), ids) << "a snapshot";
}

TEST_P(Export, PageTablesRefuseBadArguments) {
  ASSERT_EQ(cache_->begin({1}, {1}), KVC_OK);
  DLManagedTensorVersioned* out = nullptr;
  for (const kvc_table_kind kind : {-1, 8}) {
    expect_refused(
        *cache_, KVC_E_INVALID_ARGUMENT, {"kind", std::to_string(kind).c_str()},
        [&](kvc_error* err) { return kvc_export_page_table(cache_->forward, 0, kind, &out, err); });
  }
  for (const int32_t group : {-1, 1}) {
    const std::string text = std::to_string(group);
    expect_refused(*cache_, KVC_E_OUT_OF_RANGE, {"group", text.c_str()}, [&](kvc_error* err) {
      return kvc_export_page_table(cache_->forward, group, KVC_TABLE_INDPTR, &out, err);
    });
    expect_refused(*cache_, KVC_E_OUT_OF_RANGE, {"group", text.c_str()}, [&](kvc_error* err) {
      return kvc_export_seq_pages(get(), 1, group, &out, err);
    });
  }
  expect_refused(*cache_, KVC_E_NOT_FOUND, {"sequence", "8"},
                 [&](kvc_error* err) { return kvc_export_seq_pages(get(), 8, 0, &out, err); });
  expect_refused(*cache_, KVC_E_INVALID_ARGUMENT, {"out"}, [&](kvc_error* err) {
    return kvc_export_page_table(cache_->forward, 0, 0, nullptr, err);
  });
  expect_refused(*cache_, KVC_E_INVALID_ARGUMENT, {"out"},
                 [&](kvc_error* err) { return kvc_export_seq_pages(get(), 1, 0, nullptr, err); });
  expect_refused(*cache_, KVC_E_INVALID_ARGUMENT, {"cache"},
                 [&](kvc_error* err) { return kvc_export_seq_pages(nullptr, 1, 0, &out, err); });
  EXPECT_EQ(out, nullptr);
}

TEST_P(Export, SeqPagesAreThoseOfTheCommittedTokens) {
  ASSERT_EQ(kvc_seq_add(get(), 3, nullptr), KVC_OK);
  DLManagedTensorVersioned* out = nullptr;
  expect_ok([&](kvc_error* err) { return kvc_export_seq_pages(get(), 3, 0, &out, err); });
  Exported none(out);
  EXPECT_EQ(shape_of(none), std::vector<int64_t>{0});
  ASSERT_EQ(cache_->begin({3, 2}, {9, 2}), KVC_OK);
  ASSERT_EQ(kvc_export_seq_pages(get(), 2, 0, &out, nullptr), KVC_OK);
  Exported one(out);
  EXPECT_EQ(shape_of(one), std::vector<int64_t>{1}) << "the new tokens' page is not committed";
}

INSTANTIATE_TEST_SUITE_P(Layouts, Export,
                         testing::Values(KVC_POOL_LAYER_FIRST, KVC_POOL_PAGE_FIRST));

TEST(ExportQuantised, TheViewIsOfTheStoredTypeAndStaysInsideTheLayersPart) {
  const struct {
    kvc_quant quant;
    DLDataType type;
  } kinds[] = {{KVC_QUANT_PER_TENSOR, {kDLFloat8_e4m3fn, 8, 1}},
               {KVC_QUANT_PER_TOKEN_HEAD, {kDLInt, 4, 1}},
               {KVC_QUANT_BLOCK16, {kDLFloat4_e2m1fn, 4, 1}}};
  for (const auto& [quant, type] : kinds) {
    Model model;
    for (kvc_layer& layer : model.layers) {
      layer.quant = quant;
      layer.k_dtype = type;
      layer.v_dtype = {};
      layer.k_dim = layer.v_dim = 32;
    }
    const BorrowedPool pool(model.config);
    Cache cache(model.config);
    DLManagedTensorVersioned* out = nullptr;
    ASSERT_EQ(kvc_export_pool(cache.get(), 1, KVC_POOL_BYTES, &out, nullptr), KVC_OK);
    const Exported bytes(out);
    for (const kvc_pool_kind kind : {KVC_POOL_K, KVC_POOL_V, KVC_POOL_KV}) {
      SCOPED_TRACE("quant " + std::to_string(quant) + ", kind " + std::to_string(kind));
      ASSERT_EQ(kvc_export_pool(cache.get(), 1, kind, &out, nullptr), KVC_OK);
      const Exported view(out);
      const DLTensor& tensor = view->dl_tensor;
      EXPECT_EQ(tensor.dtype.code, type.code);
      EXPECT_EQ(tensor.dtype.bits, type.bits);
      EXPECT_EQ(tensor.strides[0] * type.bits, bytes->dl_tensor.strides[0] * 8) << "the same pages";
      int64_t last = 0;  // element of the first page
      for (int32_t d = 1; d < tensor.ndim; ++d) last += (tensor.shape[d] - 1) * tensor.strides[d];
      const int64_t begin = static_cast<const std::byte*>(tensor.data) -
                            static_cast<const std::byte*>(bytes->dl_tensor.data);
      EXPECT_GE(begin, 0);
      EXPECT_LE(begin * 8 + (last + 1) * type.bits, bytes->dl_tensor.shape[1] * 8);
    }
  }
}

TEST(ExportWithoutStorage, HasTablesButNoPool) {
  Model model;
  model.config.storage = KVC_STORAGE_NONE;
  Cache cache(model.config);
  cache.fill({1}, {3}, false);
  DLManagedTensorVersioned* out = nullptr;
  expect_refused(cache, KVC_E_UNSUPPORTED, {"storage"}, [&](kvc_error* err) {
    return kvc_export_pool(cache.get(), 0, KVC_POOL_K, &out, err);
  });
  ASSERT_EQ(kvc_export_seq_pages(cache.get(), 1, 0, &out, nullptr), KVC_OK);
  Exported pages(out);
  EXPECT_EQ(shape_of(pages), std::vector<int64_t>{1});
}

}  // namespace
}  // namespace kvc::test
