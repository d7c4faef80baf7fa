#include "src/tiers/cuda_copies.h"

#include "src/tiers/page_pairs.h"

namespace kvc {

void CudaPageCopier::copy(CopyDirection direction, const PageId* from, const PageId* to,
                          int64_t count) noexcept {
  const bool is_whole = plan_->spec().pool_layout == KVC_POOL_PAGE_FIRST;
  const size_t num_slots = is_whole ? 1 : plan_->layout().slots.size();
  if (count == 0 || plan_->layout().slots.empty() || !device_pool_->has_storage()) return;
  const PagePool& source = direction == CopyDirection::kHostToDevice ? *host_pool_ : *device_pool_;
  const PagePool& target = direction == CopyDirection::kDeviceToHost ? *host_pool_ : *device_pool_;
  enqueue_([&](cuda::Stream stream) {
    targets_.clear(), sources_.clear(), sizes_.clear();
    for (size_t slot = 0; slot < num_slots; ++slot) {
      const LayerPages& a = source.slots()[slot];
      const LayerPages& b = target.slots()[slot];
      const int64_t bytes = is_whole ? plan_->layout().page_bytes : plan_->layout().slots[slot].bytes;
      const bool is_dense = a.page_stride == bytes && b.page_stride == bytes;
      for (int64_t i = 0; i < count;) {
        const PageRun run = run_at(from, to, i, is_dense ? count : i + 1);
        i += run.count;
        if (&source == &target && run.from == run.to) continue;
        if (slot == 0) ++num_runs_;
        targets_.push_back(b.base + run.to * b.page_stride);
        sources_.push_back(a.base + run.from * a.page_stride);
        sizes_.push_back(static_cast<size_t>(bytes * run.count));
      }
    }
    if (targets_.empty()) return;
    device_->call("copy_many", device_->table->copy_many, targets_.data(), sources_.data(), sizes_.data(),
                  static_cast<int64_t>(targets_.size()), stream);
  });
}

}  // namespace kvc
