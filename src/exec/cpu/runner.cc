#include "src/exec/cpu/runner.h"

#include <algorithm>

namespace kvc {

using kernels::AttnItem;
using kernels::AttnParams;

WorkShape work_shape(const kernels::cpu::KernelTable& kernels, const AttnParams& params,
                     bool tiles_only, int32_t concurrency) {
  return {.num_q_heads = params.num_q_heads,
          .num_kv_heads = params.num_kv_heads,
          .k_dim = params.k_dim,
          .v_dim = params.v_dim,
          .causal = params.causal != 0,
          .tiles_only = tiles_only,
          .is_latent = kernels.reads_latents != nullptr && kernels.reads_latents(params),
          .concurrency = concurrency};
}

ItemRunner::ItemRunner(const kernels::cpu::KernelTable* kernels, Executor* executor)
    : kernels_(kernels),
      executor_(executor),
      scratch_(static_cast<size_t>(executor->concurrency())) {}

void ItemRunner::secure(const WorkList& list, const AttnParams& params) {
  size_t bytes = 0;
  if (list.num_tile_items > 0)
    bytes = kernels_->attn_tile_scratch_bytes(params, list.max_tile_rows);
  if (list.max_decode_rows > 0)
    bytes = std::max(bytes, kernels_->attn_decode_scratch_bytes(params, list.max_decode_rows));
  for (AlignedBuffer& scratch : scratch_) scratch.ensure(bytes);
  partials_.ensure(static_cast<size_t>(list.partial_floats) * sizeof(float));
  if (list.groups.size() > finished_capacity_) {
    const size_t capacity = list.groups.size() * 2;
    finished_ = std::make_unique<std::atomic<int32_t>[]>(capacity);
    finished_capacity_ = capacity;
  }
}

void ItemRunner::run_item(const WorkList& list, const AttnParams& params, int64_t index,
                          int32_t worker) {
  const AttnItem& item = list.items[index];
  std::byte* scratch = scratch_[worker].data();
  if (index < list.num_tile_items) {
    kernels_->attn_tile(params, item, scratch);
  } else {
    kernels_->attn_decode(params, item, scratch);
  }
  if (item.merge_group < 0) return;
  // The last split of a group to finish merges all of them, in index order: who that is does not
  // matter.
  const auto first = static_cast<size_t>(item.merge_group);
  for (size_t group = first; group < first + static_cast<size_t>(item.num_merge_groups); ++group) {
    const int32_t done = finished_[group].fetch_add(1, std::memory_order_acq_rel) + 1;
    if (done == list.groups[group].num_splits)
      kernels_->attn_merge_splits(params, list.groups[group]);
  }
}

void ItemRunner::run(const WorkList& list, const AttnParams& params) noexcept {
  for (size_t group = 0; group < list.groups.size(); ++group)
    finished_[group].store(0, std::memory_order_relaxed);
  AttnParams own = params;
  own.partials = reinterpret_cast<float*>(partials_.data());
  own.split_offsets = list.split_offsets.data();
  const auto num_items = static_cast<int64_t>(list.items.size());
  if (list.seconds < kWorthThreads) {
    for (int64_t index = 0; index < num_items; ++index) run_item(list, own, index, 0);
  } else {
    executor_->run(num_items,
                   [&](int64_t index, int32_t worker) { run_item(list, own, index, worker); });
  }
}

}  // namespace kvc
