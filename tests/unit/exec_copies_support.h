// Two pools whose bytes can be told apart: every byte of every page says whose it is.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/base/executor.h"
#include "src/exec/cpu/device.h"
#include "src/pages/pool.h"
#include "tests/unit/spec_support.h"

namespace kvc::test {

struct PoolsShape {
  std::vector<LayerSpec> layers;
  int32_t page_size = 4;
  kvc_pool_layout layout = KVC_POOL_LAYER_FIRST;
  bool is_borrowed = false;
  int64_t gap = 0;  // bytes between borrowed pages
  int64_t device_pages = 12, host_pages = 9;
};

constexpr std::byte kGapByte{0xA5};

class TwoPools {
 public:
  explicit TwoPools(const PoolsShape& shape) {
    Spec spec = spec_of(shape.layers, shape.page_size);
    spec.pool_layout = shape.layout;
    spec.num_pages = shape.device_pages;
    if (shape.is_borrowed) {
      spec.storage = KVC_STORAGE_BORROWED;
      const Layout layout = make_layout(spec);
      if (shape.layout == KVC_POOL_PAGE_FIRST) {
        spec.pool_tensors.push_back(borrowed(layout.page_bytes, shape));
      } else {
        for (const RegionLayout& region : layout.regions)
          spec.pool_tensors.push_back(borrowed(region.bytes, shape));
      }
    }
    plan_ = std::make_shared<const Plan>(std::move(spec));
    device_ = std::make_unique<PagePool>(plan_, shape.device_pages);
    host_ = std::make_unique<HostPool>(plan_, shape.host_pages);
  }

  const std::shared_ptr<const Plan>& plan() const { return plan_; }
  PagePool& device() { return *device_; }
  HostPool& host() { return *host_; }
  CpuPageCopies copier(Executor& executor) const {
    return {plan_.get(), device_.get(), &host_->pool(),
            kernels::cpu::kernel_table(kernels::cpu::Isa::kAuto), &executor};
  }

  // Writes what only a page with this tag holds.
  void fill(const PagePool& pool, int64_t page, uint64_t tag) const {
    for_each_part(pool, page, [&](std::byte* data, int64_t bytes, uint64_t slot) {
      for (int64_t i = 0; i < bytes; ++i) data[i] = byte_of(tag, slot, i);
    });
  }
  bool holds(const PagePool& pool, int64_t page, uint64_t tag) const {
    bool same = true;
    for_each_part(pool, page, [&](const std::byte* data, int64_t bytes, uint64_t slot) {
      for (int64_t i = 0; i < bytes; ++i) same = same && data[i] == byte_of(tag, slot, i);
    });
    return same;
  }
  // What lies between borrowed pages is as it was.
  bool gaps_untouched() const {
    for (const Region& region : regions_) {
      for (size_t i = 0; i < region.memory.size(); ++i) {
        const auto place = static_cast<int64_t>(i) % region.stride;
        if (place >= region.content && region.memory[i] != kGapByte) return false;
      }
    }
    return true;
  }

 private:
  struct Region {
    std::vector<std::byte> memory;
    int64_t content, stride;
  };

  PoolTensor borrowed(int64_t content, const PoolsShape& shape) {
    const int64_t stride = content + shape.gap;
    regions_.push_back(
        {std::vector<std::byte>(static_cast<size_t>(stride * shape.device_pages), kGapByte),
         content, stride});
    return {regions_.back().memory.data(), shape.device_pages, stride, content};
  }
  template <typename Visit>
  void for_each_part(const PagePool& pool, int64_t page, const Visit& visit) const {
    const std::vector<RegionLayout>& regions = plan_->layout().regions;
    for (size_t i = 0; i < regions.size(); ++i) {
      const LayerPages& pages = pool.regions()[i];
      visit(pages.base + page * pages.page_stride, regions[i].bytes, i);
    }
  }
  static std::byte byte_of(uint64_t tag, uint64_t slot, int64_t offset) {
    uint64_t x = tag * 0x9E3779B97F4A7C15ull + slot * 0xBF58476D1CE4E5B9ull +
                 static_cast<uint64_t>(offset) * 0x94D049BB133111EBull;
    x ^= x >> 29;
    return static_cast<std::byte>(x * 0xD6E8FEB86659FD93ull >> 56);
  }

  std::vector<Region> regions_;
  std::shared_ptr<const Plan> plan_;
  std::unique_ptr<PagePool> device_;
  std::unique_ptr<HostPool> host_;
};

}  // namespace kvc::test
