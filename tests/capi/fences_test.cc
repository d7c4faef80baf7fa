#include "kvcache_api.h"
#include "tests/capi/copies_support.h"

namespace kvc::test {
namespace {

TEST(Fences, AreDoneOnReturnAndOutliveTheCache) {
  Pools pools({});
  const auto pairs = tensor_of({{1, 2}});
  for (const CopyCall& call :
       {swap_call(pools, KVC_SWAP_OUT), swap_call(pools, KVC_SWAP_IN), copy_call(pools)}) {
    kvc_fence* fence = nullptr;
    ASSERT_EQ(call(pairs->dl(), &fence, nullptr), KVC_OK);
    ASSERT_NE(fence, nullptr);
    int32_t done = -1;
    expect_ok([&](kvc_error* err) { return kvc_fence_query(fence, &done, err); });
    EXPECT_EQ(done, 1);
    for (const int64_t timeout : {int64_t{0}, int64_t{-1}, INT64_MAX, INT64_MIN})
      expect_ok([&](kvc_error* err) { return kvc_fence_wait(fence, timeout, err); });
    expect_ok([&](kvc_error* err) { return kvc_fence_wait_on_stream(fence, nullptr, err); });
    expect_ok([&](kvc_error* err) { return kvc_fence_wait_on_stream(fence, &done, err); });
    kvc_fence_destroy(fence);
  }
  kvc_fence* last = nullptr;
  ASSERT_EQ(copy_call(pools)(tensor_of({})->dl(), &last, nullptr), KVC_OK);
  pools.cache().destroy();
  int32_t done = 0;
  EXPECT_EQ(kvc_fence_query(last, &done, nullptr), KVC_OK);
  EXPECT_EQ(done, 1) << "of no copies at all";
  EXPECT_EQ(kvc_fence_wait(last, 0, nullptr), KVC_OK);
  kvc_fence_destroy(last);
  kvc_fence_destroy(nullptr);
}

TEST(Fences, RefuseNull) {
  Pools pools({});
  kvc_fence* fence = nullptr;
  ASSERT_EQ(copy_call(pools)(tensor_of({})->dl(), &fence, nullptr), KVC_OK);
  int32_t done = 5;
  expect_error(KVC_E_INVALID_ARGUMENT, {"fence is NULL"},
               [&](kvc_error* err) { return kvc_fence_query(nullptr, &done, err); });
  expect_error(KVC_E_INVALID_ARGUMENT, {"out_done is NULL"},
               [&](kvc_error* err) { return kvc_fence_query(fence, nullptr, err); });
  expect_error(KVC_E_INVALID_ARGUMENT, {"fence is NULL"},
               [](kvc_error* err) { return kvc_fence_wait(nullptr, 0, err); });
  expect_error(KVC_E_INVALID_ARGUMENT, {"fence is NULL"},
               [](kvc_error* err) { return kvc_fence_wait_on_stream(nullptr, nullptr, err); });
  EXPECT_EQ(done, 5);
  kvc_fence_destroy(fence);
}

TEST(Fences, AreReachedThroughTheFunctionTable) {
  const kvc_api* api = kvc_get_api(KVC_ABI_VERSION);
  ASSERT_NE(api, nullptr);
  Pools pools({});
  kvc_fence* fence = nullptr;
  const auto pairs = tensor_of({{7, 0}});
  ASSERT_EQ(api->pages_swap(pools.get(), pairs->dl(), KVC_SWAP_OUT, nullptr, &fence, nullptr),
            KVC_OK);
  int32_t done = 0;
  EXPECT_EQ(api->fence_query(fence, &done, nullptr), KVC_OK);
  EXPECT_EQ(done, 1);
  EXPECT_EQ(api->fence_wait(fence, 0, nullptr), KVC_OK);
  EXPECT_EQ(api->fence_wait_on_stream(fence, nullptr, nullptr), KVC_OK);
  api->fence_destroy(fence);
  EXPECT_EQ(api->pages_copy(pools.get(), pairs->dl(), nullptr, nullptr, nullptr), KVC_OK);
}

}  // namespace
}  // namespace kvc::test
