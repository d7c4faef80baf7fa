// Pools of the test's own memory, as an engine with kernels of its own has them.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/capi/fixture.h"

namespace kvc::test {

// Makes `config` BORROWED over config.num_pages pages. It has to outlive the cache.
class BorrowedPool {
 public:
  explicit BorrowedPool(kvc_config& config) {
    constexpr int64_t kAlignment = 64;
    const PlanHandle plan(config);
    std::vector<int64_t> bytes;
    if (config.pool_layout == KVC_POOL_PAGE_FIRST) {
      bytes.push_back(static_cast<int64_t>(plan.info().page_bytes));
    } else {
      const bool is_whole = config.layer_end == 0;
      const int32_t end = is_whole ? config.num_layers : config.layer_end;
      for (int32_t layer = config.layer_begin; layer < end; ++layer) {
        kvc_layer_info info{};
        info.struct_size = sizeof info;
        EXPECT_EQ(kvc_plan_layer_get(plan.get(), layer, &info, nullptr), KVC_OK);
        const auto region = static_cast<size_t>(info.region);
        if (info.region < 0) continue;
        if (bytes.size() <= region) bytes.resize(region + 1);
        bytes[region] = static_cast<int64_t>(info.region_bytes);
      }
    }
    for (const int64_t page : bytes) {
      shapes_.emplace_back(config.num_pages, page);
      memory_.emplace_back(static_cast<size_t>(config.num_pages * page + kAlignment));
    }
    for (size_t i = 0; i < bytes.size(); ++i) {
      const auto begin = reinterpret_cast<uintptr_t>(memory_[i].data());
      tensors_.push_back({memory_[i].data() + (kAlignment - begin % kAlignment) % kAlignment,
                          {kDLCPU, 0},
                          2,
                          {kDLUInt, 8, 1},
                          shapes_[i].extents,
                          nullptr,
                          0});
    }
    for (const DLTensor& tensor : tensors_) pointers_.push_back(&tensor);
    config.storage = KVC_STORAGE_BORROWED;
    config.num_pages = 0;
    config.pool_tensors = pointers_.data();
    config.num_pool_tensors = static_cast<int32_t>(pointers_.size());
  }
  BorrowedPool(const BorrowedPool&) = delete;
  BorrowedPool& operator=(const BorrowedPool&) = delete;

 private:
  struct Shape {
    Shape(int64_t pages, int64_t bytes) : extents{pages, bytes} {}
    int64_t extents[2];
  };
  std::vector<std::vector<uint8_t>> memory_;
  std::vector<Shape> shapes_;
  std::vector<DLTensor> tensors_;
  std::vector<const DLTensor*> pointers_;
};

}  // namespace kvc::test
