#include "src/exec/cuda/taken_clearer.h"

#include <algorithm>

namespace kvc {

TakenClearer::TakenClearer(const Spec* spec, const PagePool* pool, const StatePool* states,
                           const Gpu* gpu, DevicePages* pages)
    : spec_(spec), pool_(pool), states_(states), gpu_(gpu), pages_(pages) {
  if (spec_->clears_pages) make_zeros();
}

void TakenClearer::make_zeros() {
  std::vector<cuda::PageRegion> parts;
  int64_t largest = 1;
  for (const GroupSpec& group : spec_->groups) {
    for (const int32_t layer : group.layers) {
      const auto bytes = static_cast<int64_t>(pool_->layer_page_bytes(layer));
      parts.push_back(
          {.base = nullptr, .page_stride = 0, .bytes = bytes, .group = -1, .reserved = 0});
      largest = std::max(largest, bytes);
    }
  }
  if (parts.empty()) return;
  zeros_ = DeviceMemory(*gpu_, largest);
  for (cuda::PageRegion& part : parts) part.base = zeros_.data();
  const auto bytes = static_cast<int64_t>(parts.size() * sizeof(cuda::PageRegion));
  zero_slots_ = DeviceMemory(*gpu_, bytes);
  const DeviceStream stream(*gpu_);
  gpu_->fill(zeros_.data(), 0, largest, stream.get());
  gpu_->copy(zero_slots_.data(), parts.data(), bytes, stream.get());
  stream.synchronize();
}

void TakenClearer::clear(const Batch& batch, cuda::Stream stream, DeviceUploads& uploads) {
  if (!spec_->clears_pages) return;
  const std::vector<PageId>& pages = batch.taken_pages();
  if (!pages.empty() && zero_slots_.data() != nullptr) {
    zero_pages_.assign(pages.size(), 0);
    cuda::PageCopyParams params{};
    params.from_layers = reinterpret_cast<const cuda::PageRegion*>(zero_slots_.data());
    params.to_layers = pages_->get().layers;
    params.num_layers = pages_->get().num_layers;
    params.from = uploads.put(zero_pages_, stream);
    params.to = uploads.put(pages, stream);
    params.num_pairs = static_cast<int64_t>(pages.size());
    params.group = -1;
    gpu_->call("copy_pages", gpu_->table->copy_pages, params, stream);
    uploads.finish(stream);
  }
  if (!states_->is_used()) return;
  for (const BatchEntry& entry : batch.entries()) states_->memory().clear(entry.new_state, stream);
}

}  // namespace kvc
