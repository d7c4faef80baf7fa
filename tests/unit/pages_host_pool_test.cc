#include <gtest/gtest.h>

#include <cstdlib>

#include "src/base/error.h"
#include "tests/unit/exec_copies_support.h"

namespace kvc {
namespace {

using test::PoolsShape;
using test::TwoPools;

std::shared_ptr<const Plan> plan_of(kvc_storage storage, uint64_t host_bytes = 0) {
  Spec spec = spec_of({attention_layer(2, 2, 8, 8), attention_layer(2, 2, 8, 8)}, 4);
  spec.storage = storage;
  spec.num_pages = 4;
  spec.host_byte_budget = host_bytes;
  return std::make_shared<const Plan>(std::move(spec));
}

kvc_status use_status(const HostPool& pool, HostUse use, std::string* message = nullptr) {
  try {
    pool.check_use(use, "kvc_something");
    return KVC_OK;
  } catch (const Error& error) {
    if (message != nullptr) *message = error.what();
    return error.status();
  }
}

TEST(HostPool, HasTheDevicesFormatInItsOwnMemory) {
  for (const kvc_pool_layout layout : {KVC_POOL_LAYER_FIRST, KVC_POOL_PAGE_FIRST}) {
    for (const bool is_borrowed : {false, true}) {
      PoolsShape shape{.layers = {attention_layer(2, 2, 8, 8), attention_layer(2, 2, 3, 5)},
                       .layout = layout,
                       .is_borrowed = is_borrowed,
                       .gap = is_borrowed ? 64 : 0};
      TwoPools pools(shape);
      const Layout& planned = pools.plan()->layout();
      const std::vector<LayerPages>& regions = pools.host().pool().regions();
      ASSERT_EQ(regions.size(), 2u);
      for (size_t i = 0; i < regions.size(); ++i) {
        EXPECT_EQ(regions[i].page_stride,
                  layout == KVC_POOL_PAGE_FIRST ? planned.page_bytes : planned.regions[i].bytes);
      }
      if (layout == KVC_POOL_PAGE_FIRST) {
        EXPECT_EQ(regions[1].base - regions[0].base, planned.regions[1].offset);
      }
      for (int64_t page = 0; page < 9; ++page) pools.fill(pools.host().pool(), page, 7 + page);
      for (int64_t page = 0; page < 9; ++page)
        EXPECT_TRUE(pools.holds(pools.host().pool(), page, 7 + page));
      EXPECT_TRUE(pools.gaps_untouched());
    }
  }
}

TEST(HostPool, IsNotTakenFromTheAllocatorOfTheDevicePool) {
  static int64_t calls = 0;
  calls = 0;
  Spec spec = spec_of({attention_layer(2, 2, 8, 8)}, 4);
  spec.num_pages = 4;
  spec.has_allocator = true;
  spec.allocator.struct_size = sizeof spec.allocator;
  spec.allocator.alloc = [](void*, DLDevice, uint64_t bytes, uint64_t alignment) {
    ++calls;
    return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  };
  spec.allocator.free = [](void*, DLDevice, void* memory, uint64_t) { std::free(memory); };
  const auto plan = std::make_shared<const Plan>(std::move(spec));
  const PagePool device(plan, 4);
  EXPECT_EQ(calls, 1);
  const HostPool host(plan, 3);
  EXPECT_EQ(calls, 1);
  EXPECT_NE(host.pool().regions()[0].base, nullptr);
}

TEST(HostPool, WithoutStorageKeepsBooksOnly) {
  HostPool pool(plan_of(KVC_STORAGE_NONE), 5);
  EXPECT_EQ(pool.num_pages(), 5);
  EXPECT_FALSE(pool.pool().has_storage());
  EXPECT_EQ(pool.allocator().num_free(), 5);
  EXPECT_EQ(use_status(pool, HostUse::kManaged), KVC_OK);
}

TEST(HostPool, WithoutPagesServesNobody) {
  const HostPool pool(plan_of(KVC_STORAGE_OWNED, 0), 0);
  std::string message;
  EXPECT_EQ(use_status(pool, HostUse::kManaged, &message), KVC_E_UNSUPPORTED);
  EXPECT_EQ(
      message,
      "kvc_something needs a host pool: config.host_byte_budget = 0 holds no page of 1024 bytes");
  EXPECT_EQ(use_status(pool, HostUse::kByPage), KVC_E_UNSUPPORTED);
}

TEST(HostPool, ServesWhoeverComesFirstUntilItIsCleared) {
  HostPool pool(plan_of(KVC_STORAGE_OWNED, 8000), 5);
  for (const HostUse first : {HostUse::kManaged, HostUse::kByPage}) {
    const HostUse other = first == HostUse::kManaged ? HostUse::kByPage : HostUse::kManaged;
    EXPECT_EQ(use_status(pool, other), KVC_OK) << "nothing has been used yet";
    pool.start_use(first);
    EXPECT_EQ(use_status(pool, first), KVC_OK);
    std::string message;
    EXPECT_EQ(use_status(pool, other, &message), KVC_E_INVALID_STATE);
    EXPECT_NE(message.find("kvc_something"), std::string::npos) << message;
    EXPECT_NE(message.find("page ids (kvc_pages_swap)"), std::string::npos) << message;
    EXPECT_NE(message.find("sequences and the prefix index"), std::string::npos) << message;
    (void)pool.allocator().take(kNoPage, 0);
    pool.clear();
    EXPECT_EQ(pool.use(), HostUse::kNone);
    EXPECT_EQ(pool.allocator().num_used(), 0);
  }
}

}  // namespace
}  // namespace kvc
