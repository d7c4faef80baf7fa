#include "src/exec/cuda/device_pages.h"

#include <algorithm>

namespace kvc {

DevicePages::DevicePages(const Plan& plan, const PagePool* pool, const Gpu* gpu)
    : plan_(&plan), pool_(pool), gpu_(gpu), stream_(*gpu) {
  for (const GroupSpec& group : plan.spec().groups)
    parts_.resize(parts_.size() + group.layers.size());
  const auto bytes = static_cast<int64_t>(parts_.size() * sizeof(cuda::PageRegion));
  memory_ = DeviceMemory(*gpu, std::max<int64_t>(bytes, 1));
  pages_ = {.layers = reinterpret_cast<const cuda::PageRegion*>(memory_.data()),
            .num_layers = static_cast<int32_t>(parts_.size())};
  upload();
}

bool DevicePages::is_current() const {
  const auto is_same = [](const LayerPages& a, const LayerPages& b) {
    return a.base == b.base && a.page_stride == b.page_stride;
  };
  return std::equal(regions_.begin(), regions_.end(), pool_->regions().begin(),
                    pool_->regions().end(), is_same);
}

// Waits: nothing that reads the old regions runs while the pool moves, and nothing that follows may
// read them.
void DevicePages::upload() {
  size_t index = 0;
  const std::vector<GroupSpec>& groups = plan_->spec().groups;
  for (size_t group = 0; group < groups.size(); ++group) {
    for (const int32_t layer : groups[group].layers) {
      const LayerPages pages = pool_->layer(layer);
      parts_[index++] = {.base = pages.base,
                         .page_stride = pages.page_stride,
                         .bytes = static_cast<int64_t>(pool_->layer_page_bytes(layer)),
                         .group = static_cast<int32_t>(group),
                         .reserved = 0};
    }
  }
  gpu_->copy(memory_.data(), parts_.data(),
             static_cast<int64_t>(parts_.size() * sizeof(cuda::PageRegion)), stream_.get());
  stream_.synchronize();
  regions_ = pool_->regions();
  ++generation_;
}

}  // namespace kvc
