// kvcache.h, section "Cache".
#include <sys/resource.h>

#include <cstdlib>
#include <cstring>

#include "tests/capi/layers.h"

namespace kvc::test {
namespace {

TEST(CacheHandle, IsEmptyAtFirst) {
  Model model;
  Cache cache(model.config);
  EXPECT_EQ(kvc_cache_available_pages(cache.get()), 8);
  EXPECT_EQ(kvc_cache_total_length(cache.get()), 0);
  EXPECT_EQ(kvc_cache_is_empty(cache.get()), 1);
  expect_ok([&](kvc_error* err) { return kvc_cache_check(cache.get(), err); });
  ASSERT_EQ(kvc_seq_add(cache.get(), 0, nullptr), KVC_OK);
  EXPECT_EQ(kvc_cache_is_empty(cache.get()), 0) << "a sequence without tokens exists";
}

TEST(CacheHandle, NullIsAnsweredNotCrashed) {
  kvc_cache_destroy(nullptr);
  EXPECT_EQ(kvc_cache_available_pages(nullptr), -1);
  EXPECT_EQ(kvc_cache_total_length(nullptr), -1);
  EXPECT_EQ(kvc_cache_is_empty(nullptr), 0);
  kvc_stats stats{};
  stats.struct_size = sizeof stats;
  Model model;
  Cache cache(model.config);
  kvc_cache* made = nullptr;
  expect_error(KVC_E_INVALID_ARGUMENT, {"plan"},
               [&](kvc_error* err) { return kvc_cache_create(nullptr, &made, err); });
  expect_error(KVC_E_INVALID_ARGUMENT, {"out"},
               [&](kvc_error* err) { return kvc_cache_create(cache.plan(), nullptr, err); });
  expect_error(KVC_E_INVALID_ARGUMENT, {"cache"},
               [&](kvc_error* err) { return kvc_cache_clear(nullptr, err); });
  expect_error(KVC_E_INVALID_ARGUMENT, {"cache"},
               [&](kvc_error* err) { return kvc_cache_resize(nullptr, 4, err); });
  uint64_t released = 77;
  expect_error(KVC_E_INVALID_ARGUMENT, {"cache"},
               [&](kvc_error* err) { return kvc_cache_trim(nullptr, &released, err); });
  EXPECT_EQ(released, 77u) << "a refused call writes no output";
  expect_error(KVC_E_INVALID_ARGUMENT, {"cache"},
               [&](kvc_error* err) { return kvc_cache_check(nullptr, err); });
  expect_error(KVC_E_INVALID_ARGUMENT, {"cache"},
               [&](kvc_error* err) { return kvc_cache_stats_get(nullptr, &stats, err); });
  expect_error(KVC_E_INVALID_ARGUMENT, {"out"},
               [&](kvc_error* err) { return kvc_cache_stats_get(cache.get(), nullptr, err); });
  stats.struct_size = 4;
  expect_error(KVC_E_INVALID_ARGUMENT, {"out", "4"},
               [&](kvc_error* err) { return kvc_cache_stats_get(cache.get(), &stats, err); });
}

TEST(CacheHandle, CountsWhatHappened) {
  Model model;
  Cache cache(model.config);
  cache.fill({5, 6}, {5, 4});
  ASSERT_EQ(kvc_seq_fork(cache.get(), 5, 7, -1, nullptr), KVC_OK);
  ASSERT_EQ(cache.begin({7}, {2}), KVC_OK);
  ASSERT_EQ(kvc_forward_abort(cache.forward, nullptr), KVC_OK);
  EXPECT_EQ(cache.begin({5, 6, 7}, {20, 20, 20}), KVC_E_NO_PAGES);
  kvc_stats stats{};
  stats.struct_size = sizeof stats;
  expect_ok([&](kvc_error* err) { return kvc_cache_stats_get(cache.get(), &stats, err); });
  EXPECT_EQ(stats.num_seqs, 3);
  EXPECT_EQ(stats.total_length, 14);
  EXPECT_EQ(stats.pages_total, 8);
  EXPECT_EQ(stats.pages_used, 3);
  EXPECT_EQ(stats.pages_available, 5);
  EXPECT_EQ(stats.pages_shared, 2);
  EXPECT_EQ(stats.pages_peak, 4) << "the aborted forward copied a page";
  EXPECT_EQ(stats.page_bytes, 4u * (2 * 16 * 4 + 2 * 10 * 4));
  EXPECT_EQ(stats.pool_bytes, 8 * stats.page_bytes);
  EXPECT_EQ(stats.forwards, 1u);
  EXPECT_EQ(stats.forwards_aborted, 1u);
  EXPECT_EQ(stats.tokens_appended, 9u);
  EXPECT_EQ(stats.pages_copied, 1u);
  EXPECT_EQ(stats.no_pages, 1u);
  EXPECT_EQ(stats.step_copies, 1u);
  EXPECT_GT(stats.step_bytes, 0u);
}

TEST(CacheHandle, ASteadyDecodeStepSendsAtMost32BytesPerSequence) {
  Model model;
  model.config.page_size = 64;
  Cache cache(model.config);
  const std::vector<kvc_seq> seqs{1, 2, 3, 4, 5};
  cache.fill(seqs, {7, 9, 30, 1, 12});
  for (int step = 0; step < 10; ++step) {
    ASSERT_EQ(cache.begin(seqs, {1, 1, 1, 1, 1}), KVC_OK);
    kvc_stats stats{};
    stats.struct_size = sizeof stats;
    ASSERT_EQ(kvc_cache_stats_get(cache.get(), &stats, nullptr), KVC_OK);
    EXPECT_LE(stats.step_bytes, 32u * seqs.size());
    EXPECT_EQ(stats.step_copies, 1u);
    cache.finish();
  }
}

TEST(CacheHandle, ClearForgetsSequencesAndFreesAllPages) {
  Model model;
  Cache cache(model.config);
  cache.fill({1, 2}, {10, 3});
  ASSERT_EQ(kvc_seq_fork(cache.get(), 1, 3, 6, nullptr), KVC_OK);
  ASSERT_EQ(cache.begin({1}, {1}), KVC_OK);
  expect_refused(cache, KVC_E_BUSY, {"open"},
                 [&](kvc_error* err) { return kvc_cache_clear(cache.get(), err); });
  cache.finish();
  expect_ok([&](kvc_error* err) { return kvc_cache_clear(cache.get(), err); });
  EXPECT_EQ(kvc_cache_is_empty(cache.get()), 1);
  EXPECT_EQ(kvc_cache_available_pages(cache.get()), 8);
  EXPECT_EQ(kvc_cache_total_length(cache.get()), 0);
  EXPECT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK) << "ids are free again";
}

TEST(CacheHandle, DestroyDropsAnOpenForward) {
  Model model;
  Cache cache(model.config);
  cache.fill({1}, {3});
  ASSERT_EQ(cache.begin({1}, {2}), KVC_OK);
  cache.destroy();
}

TEST(CacheHandle, AShrunkPoolGivesItsMemoryBack) {
  for (const kvc_pool_layout layout : {KVC_POOL_LAYER_FIRST, KVC_POOL_PAGE_FIRST}) {
    Model model;
    model.config.pool_layout = layout;
    model.config.num_pages = 256;
    Cache cache(model.config);
    DLManagedTensorVersioned* pool = nullptr;
    ASSERT_EQ(kvc_export_pool(cache.get(), 0, KVC_POOL_BYTES, &pool, nullptr), KVC_OK);
    auto* const bytes = static_cast<unsigned char*>(pool->dl_tensor.data);
    const int64_t page_bytes = pool->dl_tensor.shape[1], stride = pool->dl_tensor.strides[0];
    for (int64_t page = 0; page < 256; ++page) std::memset(bytes + page * stride, 1, page_bytes);
    ASSERT_EQ(kvc_cache_resize(cache.get(), 2, nullptr), KVC_OK);
    EXPECT_EQ(bytes[2 * stride - 1 - (stride - page_bytes)], 1);
    EXPECT_EQ(bytes[128 * stride], 0) << "what the system takes back reads zero";
    pool->deleter(pool);
  }
}

class Resize : public testing::TestWithParam<std::pair<kvc_storage, kvc_pool_layout>> {
 protected:
  Resize() {
    model_.config.storage = GetParam().first;
    model_.config.pool_layout = GetParam().second;
  }
  bool has_storage() const { return model_.config.storage != KVC_STORAGE_NONE; }
  Model model_;
};

TEST_P(Resize, KeepsPagesAndContents) {
  Cache cache(model_.config);
  cache.fill({1, 2}, {9, 7}, has_storage());
  HostTensor before_k(Elem::kF32, {2, 9, 2, 8}), before_v(Elem::kF32, {2, 9, 2, 8});
  HostTensor after_k(Elem::kF32, {2, 9, 2, 8}), after_v(Elem::kF32, {2, 9, 2, 8});
  if (has_storage()) {
    ASSERT_EQ(
        kvc_debug_get_kv(cache.get(), 1, 0, 9, before_k.dl(), before_v.dl(), nullptr, nullptr),
        KVC_OK);
  }
  const std::vector<std::vector<int32_t>> pages = cache.snapshot().pages;
  // Growing beyond what was reserved moves the pool
  for (const int64_t size : {9, 100, 5, 1000, 40}) {
    expect_ok([&](kvc_error* err) { return kvc_cache_resize(cache.get(), size, err); });
    EXPECT_EQ(kvc_cache_available_pages(cache.get()), size - 5);
    EXPECT_EQ(cache.snapshot().pages, pages);
    EXPECT_EQ(kvc_cache_check(cache.get(), nullptr), KVC_OK);
    if (!has_storage()) continue;
    ASSERT_EQ(kvc_debug_get_kv(cache.get(), 1, 0, 9, after_k.dl(), after_v.dl(), nullptr, nullptr),
              KVC_OK);
    EXPECT_TRUE(before_k.same_bytes(after_k));
    EXPECT_TRUE(before_v.same_bytes(after_v));
  }
  ASSERT_EQ(kvc_seq_add(cache.get(), 3, nullptr), KVC_OK);
  EXPECT_EQ(cache.begin({3}, {35 * 4}), KVC_OK) << "all 35 free pages can be used";
}

TEST_P(Resize, MovesPagesThatItCutsOff) {
  Cache cache(model_.config);
  cache.fill({1, 2, 3}, {4, 9, 7}, has_storage());
  ASSERT_EQ(kvc_seq_fork(cache.get(), 2, 4, 5, nullptr), KVC_OK);
  ASSERT_EQ(kvc_seq_remove(cache.get(), 1, nullptr), KVC_OK);
  HostTensor before(Elem::kF32, {2, 9, 2, 8}), after(Elem::kF32, {2, 9, 2, 8});
  const auto read = [&](kvc_seq seq, int64_t count, HostTensor& k) {
    return kvc_debug_get_kv(cache.get(), seq, 0, count, k.dl(), nullptr, nullptr, nullptr);
  };
  if (!has_storage()) {
    expect_refused(cache, KVC_E_BUSY, {"cannot shrink to 5", "page "},
                   [&](kvc_error* err) { return kvc_cache_resize(cache.get(), 5, err); });
    return;
  }
  const kvc_error error =
      expect_refused(cache, KVC_E_BUSY, {"cannot shrink to 4 pages", "5 are in use"},
                     [&](kvc_error* err) { return kvc_cache_resize(cache.get(), 4, err); });
  EXPECT_EQ(error.detail, 5);
  ASSERT_EQ(read(2, 9, before), KVC_OK);
  expect_ok([&](kvc_error* err) { return kvc_cache_resize(cache.get(), 5, err); });
  EXPECT_EQ(kvc_cache_available_pages(cache.get()), 0);
  EXPECT_EQ(kvc_cache_check(cache.get(), nullptr), KVC_OK);
  for (const std::vector<int32_t>& pages : cache.snapshot().pages) {
    for (const int32_t page : pages) EXPECT_LT(page, 5);
  }
  ASSERT_EQ(read(2, 9, after), KVC_OK);
  EXPECT_TRUE(before.same_bytes(after));
  EXPECT_EQ(info_of(cache, 4).num_shared_pages, 2) << "a fork shares what has moved";
}

TEST_P(Resize, RefusesToDropPagesInUse) {
  Cache cache(model_.config);
  cache.fill({1, 2, 3}, {4, 4, 4}, has_storage());
  const int32_t last = cache.snapshot().pages[2][0];
  ASSERT_EQ(kvc_seq_remove(cache.get(), 1, nullptr), KVC_OK);
  // The host may know the page by its id.
  DLManagedTensorVersioned* pool = nullptr;
  if (has_storage()) {
    ASSERT_EQ(kvc_export_pool(cache.get(), 0, KVC_POOL_BYTES, &pool, nullptr), KVC_OK);
    pool->deleter(pool);
  }
  const kvc_error error = expect_refused(
      cache, KVC_E_BUSY, {std::to_string(last).c_str(), std::to_string(last).c_str()},
      [&](kvc_error* err) { return kvc_cache_resize(cache.get(), last, err); });
  EXPECT_EQ(error.detail, last);
  expect_ok([&](kvc_error* err) { return kvc_cache_resize(cache.get(), last + 1, err); });
  for (const int64_t size : {int64_t{0}, int64_t{-1}, int64_t{INT32_MAX}, INT64_MAX}) {
    expect_refused(cache, KVC_E_OUT_OF_RANGE, {"num_pages", std::to_string(size).c_str()},
                   [&](kvc_error* err) { return kvc_cache_resize(cache.get(), size, err); });
  }
  ASSERT_EQ(kvc_cache_resize(cache.get(), 8, nullptr), KVC_OK);
  ASSERT_EQ(cache.begin({2}, {1}), KVC_OK);
  expect_refused(cache, KVC_E_BUSY, {"open"},
                 [&](kvc_error* err) { return kvc_cache_resize(cache.get(), 20, err); });
}

INSTANTIATE_TEST_SUITE_P(Storage, Resize,
                         testing::Values(std::pair{KVC_STORAGE_OWNED, KVC_POOL_LAYER_FIRST},
                                         std::pair{KVC_STORAGE_OWNED, KVC_POOL_PAGE_FIRST},
                                         std::pair{KVC_STORAGE_NONE, KVC_POOL_LAYER_FIRST}));

TEST(CacheHandle, ResizeKeepsRoomForTheLongestSequence) {
  Model model;
  model.config.max_seq_len = 20;
  Cache cache(model.config);
  const kvc_error error =
      expect_refused(cache, KVC_E_NEVER_FITS, {"max_seq_len", "20", "4"},
                     [&](kvc_error* err) { return kvc_cache_resize(cache.get(), 4, err); });
  EXPECT_EQ(error.detail, 16);
  EXPECT_EQ(kvc_cache_resize(cache.get(), 5, nullptr), KVC_OK);
}

TEST(CacheHandle, ResizeRefusesBorrowedPools) {
  Model model;
  model.config.num_layers = 1;
  std::vector<float> memory(8 * 4 * 2 * 16);
  int64_t shape[] = {8, 4 * 2 * 16};
  DLTensor pool{memory.data(), {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, shape, nullptr, 0};
  const DLTensor* pools[] = {&pool};
  model.config.storage = KVC_STORAGE_BORROWED;
  model.config.pool_tensors = pools;
  model.config.num_pool_tensors = 1;
  model.config.num_pages = 0;
  Cache cache(model.config);
  EXPECT_EQ(kvc_cache_available_pages(cache.get()), 8) << "as many pages as the tensor has";
  expect_refused(cache, KVC_E_UNSUPPORTED, {"storage", "BORROWED"},
                 [&](kvc_error* err) { return kvc_cache_resize(cache.get(), 9, err); });
}

TEST(CacheHandle, BorrowedPoolTensorsAreChecked) {
  Model model;
  model.config.num_layers = 1;
  model.config.storage = KVC_STORAGE_BORROWED;
  std::vector<float> memory(9 * 4 * 2 * 16 + 100);
  int64_t shape[] = {8, 4, 2, 16};
  int64_t strides[] = {128, 32, 16, 1};
  DLTensor pool{memory.data(), {kDLCPU, 0}, 4, {kDLFloat, 32, 1}, shape, strides, 0};
  const DLTensor* pools[] = {&pool};
  model.config.pool_tensors = pools;
  model.config.num_pool_tensors = 1;
  EXPECT_EQ(model.plan_status(nullptr), KVC_OK);
  strides[0] = 130;
  EXPECT_EQ(model.plan_status(nullptr), KVC_OK) << "pages may lie apart";
  strides[0] = 127;
  expect_error(KVC_E_SHAPE, {"pool_tensors[0]", "508", "512"},
               [&](kvc_error* err) { return model.plan_status(err); });
  strides[0] = 128;
  strides[1] = 33;
  expect_error(KVC_E_SHAPE, {"pool_tensors[0]", "33", "32"},
               [&](kvc_error* err) { return model.plan_status(err); });
  strides[1] = 32;
  shape[3] = 15, strides[2] = 15, strides[1] = 30, strides[0] = 120;
  expect_error(KVC_E_SHAPE, {"pool_tensors[0]", "480", "512"},
               [&](kvc_error* err) { return model.plan_status(err); });
  shape[3] = 16, strides[2] = 16, strides[1] = 32, strides[0] = 128;
  shape[0] = 7;
  expect_error(KVC_E_SHAPE, {"pool_tensors[0]", "7", "8"},
               [&](kvc_error* err) { return model.plan_status(err); });
  shape[0] = 8;
  pool.byte_offset = 2;
  expect_error(KVC_E_SHAPE, {"pool_tensors[0]", "aligned"},
               [&](kvc_error* err) { return model.plan_status(err); });
  pool.byte_offset = 0;
  pool.device = {kDLCUDA, 0};
  expect_error(KVC_E_DEVICE_MISMATCH, {"pool_tensors[0]", "2"},
               [&](kvc_error* err) { return model.plan_status(err); });
  pool.device = {kDLCPU, 0};
  pool.data = nullptr;
  expect_error(KVC_E_INVALID_ARGUMENT, {"pool_tensors[0]", "NULL"},
               [&](kvc_error* err) { return model.plan_status(err); });
  pool.data = memory.data();
  model.config.num_pool_tensors = 2;
  expect_error(KVC_E_INVALID_ARGUMENT, {"num_pool_tensors", "2", "1"},
               [&](kvc_error* err) { return model.plan_status(err); });
  model.config.num_pool_tensors = 1;
  pools[0] = nullptr;
  expect_error(KVC_E_INVALID_ARGUMENT, {"pool_tensors[0]"},
               [&](kvc_error* err) { return model.plan_status(err); });
  pools[0] = &pool;
  model.config.byte_budget = 10000;
  model.config.num_pages = 0;
  expect_error(KVC_E_INVALID_ARGUMENT, {"byte_budget", "10000"},
               [&](kvc_error* err) { return model.plan_status(err); });
  model.config.byte_budget = 0;
  model.config.storage = KVC_STORAGE_OWNED;
  expect_error(KVC_E_INVALID_ARGUMENT, {"pool_tensors"},
               [&](kvc_error* err) { return model.plan_status(err); });
}

// 1 head x (5 + 4) bfloat16, page size 1: 18 bytes, beside a float32 layer. Only this layer's own
// elements decide its alignment.
TEST(CacheHandle, ABorrowedLayerNeedsTheAlignmentOfItsOwnElements) {
  Model model;
  model.config.page_size = 1;
  model.config.storage = KVC_STORAGE_BORROWED;
  model.layers[1].num_q_heads = model.layers[1].num_kv_heads = 1;
  model.layers[1].k_dim = 5;
  model.layers[1].v_dim = 4;
  model.layers[1].k_dtype = {kDLBfloat, 16, 1};
  std::vector<float> wide(8 * 32);
  std::vector<uint16_t> narrow(8 * 9);
  int64_t wide_shape[] = {8, 32}, narrow_shape[] = {8, 9};
  DLTensor first{wide.data(), {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, wide_shape, nullptr, 0};
  DLTensor second{narrow.data(), {kDLCPU, 0}, 2, {kDLBfloat, 16, 1}, narrow_shape, nullptr, 0};
  const DLTensor* pools[] = {&first, &second};
  model.config.pool_tensors = pools;
  model.config.num_pool_tensors = 2;
  kvc_error error{};
  EXPECT_EQ(model.plan_status(&error), KVC_OK) << error.message;
}

TEST(CacheHandle, BorrowedPoolTensorsServeOneCacheAtATime) {
  Model model;
  model.config.num_layers = 1;
  model.config.storage = KVC_STORAGE_BORROWED;
  std::vector<float> memory(8 * 128);
  int64_t shape[] = {8, 128};
  DLTensor pool{memory.data(), {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, shape, nullptr, 0};
  const DLTensor* pools[] = {&pool};
  model.config.pool_tensors = pools;
  model.config.num_pool_tensors = 1;
  Cache cache(model.config);
  kvc_cache* second = nullptr;
  for (int i = 0; i < 2; ++i) {
    expect_error(KVC_E_BUSY, {"pool_tensors", "another cache"},
                 [&](kvc_error* err) { return kvc_cache_create(cache.plan(), &second, err); });
    EXPECT_EQ(second, nullptr);
  }
  cache.destroy();
  ASSERT_EQ(kvc_cache_create(cache.plan(), &second, nullptr), KVC_OK);
  kvc_cache_destroy(second);
}

// 10^8 pages of 4 MiB are more than an address space. Their tables alone would take 500 MB of
// memory, and seconds.
TEST(CacheHandle, MorePagesThanMemoryAreRefusedBeforeTheirTablesAreFilled) {
  Model model;
  model.config.num_layers = 1;
  model.layers[0].num_q_heads = model.layers[0].num_kv_heads = 512;
  model.layers[0].k_dim = model.layers[0].v_dim = 256;
  model.config.num_pages = 100'000'000;
  kvc_plan* plan = nullptr;
  ASSERT_EQ(kvc_plan_create(&model.config, &plan, nullptr), KVC_OK);
  const auto peak_kib = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
  };
  const auto before = peak_kib();
  kvc_cache* cache = nullptr;
  expect_error(KVC_E_NO_MEMORY, {"bytes"},
               [&](kvc_error* err) { return kvc_cache_create(plan, &cache, err); });
  EXPECT_EQ(cache, nullptr);
  EXPECT_LT(peak_kib() - before, 100 << 10);
  kvc_plan_destroy(plan);
}

TEST(CacheHandle, UsesTheHostsAllocatorAndReturnsEveryBlock) {
  struct Counter {
    int64_t live = 0, bytes = 0, calls = 0;
  } counter;
  kvc_allocator allocator{};
  allocator.struct_size = sizeof allocator;
  allocator.user = &counter;
  allocator.alloc = [](void* user, DLDevice device, uint64_t bytes, uint64_t alignment) {
    auto* count = static_cast<Counter*>(user);
    EXPECT_EQ(device.device_type, kDLCPU);
    ++count->live, ++count->calls, count->bytes += static_cast<int64_t>(bytes);
    return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  };
  allocator.free = [](void* user, DLDevice, void* memory, uint64_t bytes) {
    auto* count = static_cast<Counter*>(user);
    --count->live, count->bytes -= static_cast<int64_t>(bytes);
    std::free(memory);
  };
  Model model;
  model.config.allocator = &allocator;
  {
    Cache cache(model.config);
    EXPECT_GE(counter.bytes, 8 * 4 * (2 * 16 * 4 + 2 * 10 * 4));
    cache.fill({1}, {9});
    ASSERT_EQ(kvc_cache_resize(cache.get(), 50, nullptr), KVC_OK);
    DLManagedTensorVersioned* exported = nullptr;
    ASSERT_EQ(kvc_export_pool(cache.get(), 0, KVC_POOL_K, &exported, nullptr), KVC_OK);
    expect_refused(cache, KVC_E_BUSY, {"60"},
                   [&](kvc_error* err) { return kvc_cache_resize(cache.get(), 60, err); });
    exported->deleter(exported);
    EXPECT_EQ(kvc_cache_resize(cache.get(), 60, nullptr), KVC_OK);
    uint64_t released = 77;
    ASSERT_EQ(kvc_seq_remove(cache.get(), 1, nullptr), KVC_OK);
    EXPECT_EQ(kvc_cache_trim(cache.get(), &released, nullptr), KVC_OK);
    EXPECT_EQ(released, 0u) << "the memory is the host program's";
  }
  EXPECT_EQ(counter.live, 0);
  EXPECT_EQ(counter.bytes, 0) << "free gets the bytes that alloc was asked for";
  EXPECT_GE(counter.calls, 3);
}

TEST(CacheHandle, RefusesAnAddressThatTheHostsAllocatorMisaligned) {
  static int64_t live = 0;
  kvc_allocator allocator{};
  allocator.struct_size = sizeof allocator;
  allocator.alloc = [](void*, DLDevice, uint64_t bytes, uint64_t alignment) -> void* {
    ++live;
    return static_cast<char*>(
               std::aligned_alloc(alignment, bytes / alignment * alignment + 2 * alignment)) +
           8;
  };
  allocator.free = [](void*, DLDevice, void* memory, uint64_t) {
    --live;
    std::free(static_cast<char*>(memory) - 8);
  };
  Model model;
  model.config.allocator = &allocator;
  kvc_plan* plan = nullptr;
  ASSERT_EQ(kvc_plan_create(&model.config, &plan, nullptr), KVC_OK);
  kvc_cache* cache = nullptr;
  expect_error(KVC_E_INVALID_ARGUMENT, {"config.allocator", "8 bytes past", "64"},
               [&](kvc_error* err) { return kvc_cache_create(plan, &cache, err); });
  EXPECT_EQ(cache, nullptr);
  EXPECT_EQ(live, 0);
  kvc_plan_destroy(plan);
}

}  // namespace
}  // namespace kvc::test
