#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/model/random.h"
#include "tests/unit/exec_copies_support.h"

namespace kvc {
namespace {

using kernels::DType;
using test::PoolsShape;
using test::Random;
using test::TwoPools;

struct NamedShape {
  std::string name;
  PoolsShape shape;
};

std::vector<NamedShape> shapes() {
  const std::vector<LayerSpec> plain(3, attention_layer(2, 2, 8, 8));
  // 90, 42 and 156 bytes: nothing is a multiple of a cache line, not even of 4.
  const std::vector<LayerSpec> odd = {attention_layer(1, 1, 9, 6, DType::kF16, DType::kF16),
                                      attention_layer(1, 1, 7, 0, DType::kF16, DType::kF16),
                                      attention_layer(1, 2, 5, 3, DType::kF32, DType::kF16)};
  // Streamed, and cut into parts: 75,264 and 589,824 bytes per page.
  const std::vector<LayerSpec> large = {attention_layer(2, 2, 49, 49),
                                        attention_layer(6, 6, 128, 128)};
  std::vector<NamedShape> all;
  for (const kvc_pool_layout layout : {KVC_POOL_LAYER_FIRST, KVC_POOL_PAGE_FIRST}) {
    const std::string suffix = layout == KVC_POOL_LAYER_FIRST ? ", layer first" : ", page first";
    all.push_back({"plain" + suffix, {.layers = plain, .layout = layout}});
    all.push_back({"odd" + suffix, {.layers = odd, .page_size = 3, .layout = layout}});
    all.push_back(
        {"large" + suffix,
         {.layers = large, .page_size = 96, .layout = layout, .device_pages = 5, .host_pages = 4}});
    all.push_back({"borrowed" + suffix,
                   {.layers = odd, .page_size = 3, .layout = layout, .is_borrowed = true}});
    all.push_back(
        {"borrowed apart" + suffix,
         {.layers = odd, .page_size = 3, .layout = layout, .is_borrowed = true, .gap = 12}});
  }
  return all;
}

// What every page of both pools should hold.
struct Tags {
  std::vector<uint64_t> device, host;
};

void expect_tags(TwoPools& pools, const Tags& tags, const std::string& what) {
  for (size_t page = 0; page < tags.device.size(); ++page) {
    ASSERT_TRUE(pools.holds(pools.device(), static_cast<int64_t>(page), tags.device[page]))
        << what << ": device page " << page;
  }
  for (size_t page = 0; page < tags.host.size(); ++page) {
    ASSERT_TRUE(pools.holds(pools.host().pool(), static_cast<int64_t>(page), tags.host[page]))
        << what << ": host page " << page;
  }
  ASSERT_TRUE(pools.gaps_untouched()) << what;
}

Tags fill_all(TwoPools& pools, const PoolsShape& shape) {
  Tags tags;
  for (int64_t page = 0; page < shape.device_pages; ++page) {
    tags.device.push_back(1000 + static_cast<uint64_t>(page));
    pools.fill(pools.device(), page, tags.device.back());
  }
  for (int64_t page = 0; page < shape.host_pages; ++page) {
    tags.host.push_back(2000 + static_cast<uint64_t>(page));
    pools.fill(pools.host().pool(), page, tags.host.back());
  }
  return tags;
}

std::vector<PageId> all_pages(int64_t count) {
  std::vector<PageId> pages(static_cast<size_t>(count));
  std::iota(pages.begin(), pages.end(), 0);
  return pages;
}

// A valid list: distinct destinations, in runs and alone, none of them a source inside one pool.
void random_pairs(Random& random, CopyDirection direction, const PoolsShape& shape,
                  std::vector<PageId>* from, std::vector<PageId>* to) {
  const int64_t sources =
      direction == CopyDirection::kHostToDevice ? shape.host_pages : shape.device_pages;
  const int64_t targets =
      direction == CopyDirection::kDeviceToHost ? shape.host_pages : shape.device_pages;
  std::vector<PageId> source_pages = all_pages(sources), target_pages = all_pages(targets);
  if (direction == CopyDirection::kInsideDevice) {
    const int64_t border = random.range(1, sources - 1);
    source_pages.resize(static_cast<size_t>(border));
    target_pages.erase(target_pages.begin(), target_pages.begin() + border);
  }
  if (random.chance(0.5)) random.shuffle(target_pages);
  if (random.chance(0.3)) std::reverse(target_pages.begin(), target_pages.end());
  if (random.chance(0.3)) random.shuffle(source_pages);
  if (random.chance(0.3)) std::reverse(source_pages.begin(), source_pages.end());
  const bool repeats = random.chance(0.3);
  const auto count =
      static_cast<size_t>(random.range(0, static_cast<int64_t>(target_pages.size())));
  for (size_t i = 0; i < count && (repeats || i < source_pages.size()); ++i) {
    from->push_back(repeats ? random.pick(source_pages) : source_pages[i]);
    to->push_back(target_pages[i]);
  }
}

void copy_at_random(TwoPools& pools, const PoolsShape& shape, Executor& executor, uint64_t seed,
                    int rounds) {
  Random random(seed);
  Tags tags = fill_all(pools, shape);
  CpuPageCopies copier = pools.copier(executor);
  for (int round = 0; round < rounds; ++round) {
    const auto direction = static_cast<CopyDirection>(random.range(0, 2));
    std::vector<PageId> from, to;
    random_pairs(random, direction, shape, &from, &to);
    copier.copy(direction, from.data(), to.data(), static_cast<int64_t>(from.size()));
    const Tags before = tags;
    const auto& sources = direction == CopyDirection::kHostToDevice ? before.host : before.device;
    auto& targets = direction == CopyDirection::kDeviceToHost ? tags.host : tags.device;
    for (size_t i = 0; i < from.size(); ++i)
      targets[static_cast<size_t>(to[i])] = sources[static_cast<size_t>(from[i])];
    expect_tags(pools, tags, "seed " + std::to_string(seed) + ", round " + std::to_string(round));
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(PageCopies, BringEveryByteOfEveryPageInEitherLayoutWithAnyThreads) {
  for (const NamedShape& named : shapes()) {
    const bool is_large = named.shape.page_size > 50;
    for (const int threads : {1, 3}) {
      SCOPED_TRACE(named.name + ", threads " + std::to_string(threads));
      Executor executor(threads);
      for (uint64_t seed = 1; seed <= (is_large ? 1u : 4u); ++seed) {
        TwoPools pools(named.shape);
        copy_at_random(pools, named.shape, executor, seed, is_large ? 5 : 20);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(PageCopies, OfManySmallPagesOnSeveralThreadsAreCutAnywhere) {
  PoolsShape shape{.layers = std::vector<LayerSpec>(2, attention_layer(2, 2, 64, 64)),
                   .page_size = 16,
                   .device_pages = 300,
                   .host_pages = 257};  // 16 KiB per slot
  for (const kvc_pool_layout layout : {KVC_POOL_LAYER_FIRST, KVC_POOL_PAGE_FIRST}) {
    shape.layout = layout;
    TwoPools pools(shape);
    Executor executor(3);
    copy_at_random(pools, shape, executor, 11, 6);
    if (HasFatalFailure()) return;
  }
}

TEST(PageCopies, CountTheRunsTheyWereMergedInto) {
  const PoolsShape shape{.layers = std::vector<LayerSpec>(3, attention_layer(2, 2, 8, 8))};
  for (const int64_t gap : {-1, 0, 8}) {  // -1: owned
    PoolsShape here = shape;
    here.is_borrowed = gap >= 0;
    here.gap = std::max<int64_t>(gap, 0);
    TwoPools pools(here);
    Executor executor(1);
    CpuPageCopies copier = pools.copier(executor);
    const auto runs = [&](CopyDirection direction, const std::vector<PageId>& from,
                          const std::vector<PageId>& to) {
      const uint64_t before = copier.num_runs();
      copier.copy(direction, from.data(), to.data(), static_cast<int64_t>(from.size()));
      return copier.num_runs() - before;
    };
    const bool merges = gap <= 0;  // pages that stand apart are copied one by one
    EXPECT_EQ(runs(CopyDirection::kDeviceToHost, {}, {}), 0u);
    EXPECT_EQ(runs(CopyDirection::kDeviceToHost, {4, 5, 6, 7}, {0, 1, 2, 3}), merges ? 1u : 4u)
        << gap;
    EXPECT_EQ(runs(CopyDirection::kHostToDevice, {8, 7, 6}, {3, 2, 1}), merges ? 1u : 3u) << gap;
    EXPECT_EQ(runs(CopyDirection::kInsideDevice, {1, 2, 9}, {4, 5, 7}), merges ? 2u : 3u) << gap;
    EXPECT_EQ(runs(CopyDirection::kInsideDevice, {1, 2, 3}, {1, 2, 3}), 0u) << "onto themselves";
    EXPECT_EQ(runs(CopyDirection::kDeviceToHost, {1, 2, 3}, {1, 2, 3}), merges ? 1u : 3u)
        << "the same numbers in two pools";
  }
}

TEST(PageCopies, FollowADevicePoolThatWasResized) {
  const PoolsShape shape{.layers = {attention_layer(2, 2, 8, 8)}};
  TwoPools pools(shape);
  Executor executor(1);
  CpuPageCopies copier = pools.copier(executor);
  pools.device().resize(400);  // beyond the reserved addresses: the pool moves
  pools.fill(pools.device(), 399, 5);
  const PageId from = 399, to = 8;
  copier.copy(CopyDirection::kDeviceToHost, &from, &to, 1);
  EXPECT_TRUE(pools.holds(pools.host().pool(), 8, 5));
}

// A host's threads: every task once, in reverse; or an error after some of them.
struct HostThreads {
  bool throws = false;
  int64_t tasks = 0;
  kvc_executor c() {
    kvc_executor executor{};
    executor.struct_size = sizeof executor;
    executor.user = this;
    executor.concurrency = [](void*) { return 4; };
    executor.parallel_for = [](void* user, int64_t num_tasks, void (*fn)(void*, int64_t, int32_t),
                               void* arg) {
      auto& self = *static_cast<HostThreads*>(user);
      self.tasks += num_tasks;
      for (int64_t task = num_tasks - 1; task >= 0; --task) {
        if (self.throws && task == num_tasks / 2) throw std::runtime_error("no threads left");
        fn(arg, task, 0);
      }
    };
    return executor;
  }
};

TEST(PageCopies, AreWholeEvenWhenTheHostsThreadsFail) {
  for (const bool throws : {false, true}) {
    HostThreads threads{.throws = throws};
    Executor executor(threads.c());
    PoolsShape shape{.layers = std::vector<LayerSpec>(2, attention_layer(8, 8, 128, 128)),
                     .page_size = 64,
                     .device_pages = 6,
                     .host_pages = 5};
    TwoPools pools(shape);
    copy_at_random(pools, shape, executor, 3, 5);
    EXPECT_GT(threads.tasks, 0);
  }
}

TEST(PageCopies, OfSmallSizeStayOnTheCallersThread) {
  HostThreads threads;
  Executor executor(threads.c());
  const PoolsShape shape{.layers = {attention_layer(2, 2, 8, 8)}};
  TwoPools pools(shape);
  const PageId from = 1, to = 2;
  pools.copier(executor).copy(CopyDirection::kInsideDevice, &from, &to, 1);
  EXPECT_EQ(threads.tasks, 0);
}

TEST(PageCopies, WithoutTensorMemoryDoNothing) {
  Spec spec = spec_of({attention_layer(2, 2, 8, 8)}, 4);
  spec.storage = KVC_STORAGE_NONE;
  spec.num_pages = 4;
  const auto plan = std::make_shared<const Plan>(std::move(spec));
  const PagePool device(plan, 4);
  const HostPool host(plan, 3);
  Executor executor(1);
  CpuPageCopies copier(plan.get(), &device, &host.pool(),
                       kernels::cpu::kernel_table(kernels::cpu::Isa::kAuto), &executor);
  const PageId from = 1, to = 2;
  copier.copy(CopyDirection::kDeviceToHost, &from, &to, 1);
  EXPECT_EQ(copier.num_runs(), 0u);
}

}  // namespace
}  // namespace kvc
