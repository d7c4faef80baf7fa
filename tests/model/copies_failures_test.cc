// Copies by page ids while every single allocation fails once.
#include <gtest/gtest.h>

#include <vector>

#include "src/cache/cache_core.h"
#include "src/capi/call.h"
#include "tests/model/allocation_failures.h"
#include "tests/model/snapshot.h"

namespace kvc::test {
namespace {

kvc_layer small_layer() {
  kvc_layer layer{};
  layer.struct_size = sizeof layer;
  layer.num_q_heads = layer.num_kv_heads = 2;
  layer.k_dim = 8;
  layer.k_dtype = {kDLFloat, 32, 1};
  return layer;
}

kvc_plan* make_plan() {
  const kvc_layer layer = small_layer();
  kvc_config config{};
  EXPECT_EQ(kvc_config_init(&config, sizeof config), KVC_OK);
  config.page_size = 4;
  config.num_layers = 1;
  config.layers = &layer;
  config.num_pages = 8;
  config.host_byte_budget = 6 * 512;
  config.num_threads = 1;
  kvc_plan* plan = nullptr;
  EXPECT_EQ(kvc_plan_create(&config, &plan, nullptr), KVC_OK);
  return plan;
}

// Fails the first allocation of `call`, then the second, until it succeeds without one having
// failed. Returns how many failed.
template <typename Call, typename Check>
int64_t fail_every_allocation(const Call& call, const Check& check) {
  for (int64_t n = 1;; ++n) {
    kvc_error error{};
    arm_allocation_failure(n);
    const kvc_status status = call(&error);
    if (!disarm_allocation_failure()) {
      EXPECT_EQ(status, KVC_OK) << error.message;
      return n - 1;
    }
    EXPECT_EQ(status, KVC_E_NO_MEMORY) << "allocation " << n;
    check(n);
    if (status == KVC_OK || testing::Test::HasFailure()) return n;
  }
}

TEST(CopiesWithoutMemory, ChangeNothing) {
  kvc_plan* plan = make_plan();
  kvc_cache* cache = nullptr;
  int64_t failed =
      fail_every_allocation([&](kvc_error* err) { return kvc_cache_create(plan, &cache, err); },
                            [&](int64_t n) { EXPECT_EQ(cache, nullptr) << n; });
  EXPECT_GT(failed, 5);
  kvc_plan_destroy(plan);
  ASSERT_NE(cache, nullptr);
  const LayerPages& pages = cache->cache.core().pool.layer(0);
  const auto fill = [&](int64_t page, int value) {
    std::memset(pages.base + page * pages.page_stride, value, 512);
  };
  const auto byte_of = [&](int64_t page) {
    return std::to_integer<int>(pages.base[page * pages.page_stride + 511]);
  };
  for (int64_t page = 0; page < 8; ++page) fill(page, static_cast<int>(page) + 1);

  std::vector<int64_t> values;
  int64_t shape[] = {2, 2};
  DLTensor pairs{nullptr, {kDLCPU, 0}, 2, {kDLInt, 64, 1}, shape, nullptr, 0};
  const auto expect_no_change = [&](const std::vector<int64_t>& list, auto copy) {
    values = list;
    pairs.data = values.data();
    const Snapshot before = take_snapshot(cache, nullptr, 1);
    kvc_fence* fence = nullptr;
    failed = fail_every_allocation(
        [&](kvc_error* err) { return copy(&fence, err); },
        [&](int64_t n) {
          EXPECT_EQ(difference(before, take_snapshot(cache, nullptr, 1)), "") << n;
          EXPECT_EQ(fence, nullptr) << n;
          for (int64_t page = 0; page < 8; ++page) EXPECT_EQ(byte_of(page), page + 1) << n;
          EXPECT_EQ(cache->cache.core().host.use(), HostUse::kNone)
              << n << ": nothing has been copied to the host yet";
        });
    EXPECT_GE(failed, 3) << "the list, and the fence";
    const bool has_fence = fence != nullptr;
    kvc_fence_destroy(fence);
    return has_fence;
  };
  EXPECT_TRUE(expect_no_change({2, 5, 1, 4}, [&](kvc_fence** fence, kvc_error* err) {
    return kvc_pages_copy(cache, &pairs, nullptr, fence, err);
  }));
  EXPECT_EQ(byte_of(5), 3);
  EXPECT_EQ(byte_of(4), 2);
  fill(5, 6);
  fill(4, 5);
  EXPECT_TRUE(expect_no_change({0, 5, 7, 4}, [&](kvc_fence** fence, kvc_error* err) {
    return kvc_pages_swap(cache, &pairs, KVC_SWAP_OUT, nullptr, fence, err);
  }));
  EXPECT_EQ(cache->cache.core().host.use(), HostUse::kByPage);
  values = {5, 1, 4, 2};
  EXPECT_EQ(kvc_pages_swap(cache, &pairs, KVC_SWAP_IN, nullptr, nullptr, nullptr), KVC_OK);
  EXPECT_EQ(byte_of(1), 1);
  EXPECT_EQ(byte_of(2), 8);
  kvc_cache_destroy(cache);
}

}  // namespace
}  // namespace kvc::test
