// A cache whose pages can be told apart, and the calls that copy them by their ids.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/capi/ops_fixture.h"

namespace kvc::test {

using Pairs = std::vector<std::pair<int64_t, int64_t>>;

inline std::unique_ptr<Indices<int64_t>> tensor_of(const Pairs& pairs) {
  std::vector<int64_t> values;
  for (const auto& [from, to] : pairs) values.insert(values.end(), {from, to});
  return std::make_unique<Indices<int64_t>>(
      values, std::vector<int64_t>{static_cast<int64_t>(pairs.size()), 2});
}

struct PoolsOptions {
  kvc_storage storage = KVC_STORAGE_OWNED;
  kvc_pool_layout layout = KVC_POOL_LAYER_FIRST;
  int64_t gap = 0;  // floats between borrowed pages
  int64_t pages = 8, host_pages = 6;
  int32_t threads = 1;
};

// A cache with a host pool, and what each page of either pool should hold. Per page 128 floats of
// layer 0 and 80 of layer 1.
class Pools {
 public:
  explicit Pools(const PoolsOptions& options) : options_(options) {
    Model model;
    model.config.num_pages = options.pages;
    model.config.storage = options.storage;
    model.config.pool_layout = options.layout;
    model.config.num_threads = options.threads;
    if (options.host_pages != 0)
      model.config.host_byte_budget =
          static_cast<uint64_t>(options.host_pages) * kPageBytes + kPageBytes / 2;
    const DLTensor* pools[] = {&tensors_[0], &tensors_[1]};
    if (options.storage == KVC_STORAGE_BORROWED) {
      const bool page_first = options.layout == KVC_POOL_PAGE_FIRST;
      for (size_t i = 0; i < (page_first ? 1u : 2u); ++i) borrow(i, page_first ? 208 : kFloats[i]);
      model.config.pool_tensors = pools;
      model.config.num_pool_tensors = page_first ? 1 : 2;
    }
    cache_ = std::make_unique<Cache>(model.config);
    device.assign(static_cast<size_t>(options.pages), 0);
    host.assign(static_cast<size_t>(options.host_pages), 0);
    if (options.storage != KVC_STORAGE_NONE) {
      for (int64_t page = 0; page < options.pages; ++page) write(page, 1000 + page);
    }
  }

  kvc_cache* get() const { return cache_->get(); }
  Cache& cache() { return *cache_; }
  const PoolsOptions& options() const { return options_; }

  kvc_status swap(const Pairs& pairs, kvc_swap_direction direction, kvc_error* err = nullptr) {
    return kvc_pages_swap(get(), tensor_of(pairs)->dl(), direction, nullptr, nullptr, err);
  }
  kvc_status copy(const Pairs& pairs, kvc_error* err = nullptr) {
    return kvc_pages_copy(get(), tensor_of(pairs)->dl(), nullptr, nullptr, err);
  }

  void write(int64_t page, int64_t tag) {
    device[static_cast<size_t>(page)] = tag;
    visit(page, [&](float* data, int64_t count, int64_t part) {
      for (int64_t i = 0; i < count; ++i) data[i] = value_of(tag, part, i);
    });
  }
  bool holds(int64_t page, int64_t tag) {
    bool same = true;
    visit(page, [&](const float* data, int64_t count, int64_t part) {
      for (int64_t i = 0; i < count; ++i) same = same && data[i] == value_of(tag, part, i);
    });
    return same;
  }
  void expect_device(const std::string& what) {
    for (size_t page = 0; page < device.size(); ++page)
      ASSERT_TRUE(holds(static_cast<int64_t>(page), device[page])) << what << ": page " << page;
    for (size_t i = 0; i < 2; ++i) {
      const int64_t stride = strides_[i][0];
      for (size_t at = 0; at < memory_[i].size(); ++at) {
        const bool is_gap = static_cast<int64_t>(at) % stride >= shapes_[i][1];
        if (!is_gap) continue;
        ASSERT_EQ(memory_[i][at], kGap) << what << ": written between the pages";
      }
    }
  }

  std::vector<int64_t> device, host;  // tags

 private:
  static constexpr int64_t kFloats[2] = {128, 80};
  static constexpr int64_t kPageBytes = 208 * 4;
  static constexpr float kGap = -12345;

  static float value_of(int64_t tag, int64_t part, int64_t i) {
    return static_cast<float>(tag * 1024 + part * 256 + i);
  }
  void borrow(size_t i, int64_t content) {
    shapes_[i][0] = options_.pages;
    shapes_[i][1] = content;
    strides_[i][0] = content + options_.gap;
    strides_[i][1] = 1;
    memory_[i].assign(static_cast<size_t>(options_.pages * strides_[i][0]), kGap);
    tensors_[i] = {memory_[i].data(), {kDLCPU, 0}, 2, {kDLFloat, 32, 1},
                   shapes_[i],        strides_[i], 0};
  }
  template <typename Visit>
  void visit(int64_t page, const Visit& visit) {
    for (int32_t layer = 0; layer < 2; ++layer) {
      for (const kvc_pool_kind kind : {KVC_POOL_K, KVC_POOL_V}) {
        DLManagedTensorVersioned* pool = nullptr;
        ASSERT_EQ(kvc_export_pool(get(), layer, kind, &pool, nullptr), KVC_OK);
        const DLTensor& t = pool->dl_tensor;
        auto* base = reinterpret_cast<float*>(static_cast<std::byte*>(t.data) + t.byte_offset);
        visit(base + page * t.strides[0], t.shape[1] * t.shape[2] * t.shape[3], 2 * layer + kind);
        pool->deleter(pool);
      }
    }
  }

  PoolsOptions options_;
  std::vector<float> memory_[2];
  int64_t shapes_[2][2] = {};
  int64_t strides_[2][2] = {};
  DLTensor tensors_[2]{};
  std::unique_ptr<Cache> cache_;
};

inline kvc_stats stats_of(const kvc_cache* cache) {
  kvc_stats stats{};
  stats.struct_size = sizeof stats;
  EXPECT_EQ(kvc_cache_stats_get(cache, &stats, nullptr), KVC_OK);
  return stats;
}

using CopyCall = std::function<kvc_status(const DLTensor*, kvc_fence**, kvc_error*)>;

// Refused, nothing changed, the caller's fence not touched. Returns the detail.
inline int64_t expect_copy_refused(Pools& pools, const CopyCall& call, const DLTensor* pairs,
                                   kvc_status status, std::initializer_list<const char*> parts) {
  auto* const untouched = reinterpret_cast<kvc_fence*>(&pools);
  kvc_fence* fence = untouched;
  const kvc_error error = expect_refused(pools.cache(), status, parts,
                                         [&](kvc_error* err) { return call(pairs, &fence, err); });
  EXPECT_EQ(fence, untouched);
  return error.detail;
}

inline CopyCall swap_call(Pools& pools, kvc_swap_direction direction) {
  return [&pools, direction](const DLTensor* pairs, kvc_fence** fence, kvc_error* err) {
    return kvc_pages_swap(pools.get(), pairs, direction, nullptr, fence, err);
  };
}
inline CopyCall copy_call(Pools& pools) {
  return [&pools](const DLTensor* pairs, kvc_fence** fence, kvc_error* err) {
    return kvc_pages_copy(pools.get(), pairs, nullptr, fence, err);
  };
}

}  // namespace kvc::test
