#include "src/exec/cpu/engine.h"

#include <algorithm>

#include "src/base/error.h"
#include "src/base/math.h"
#include "src/exec/launch.h"
#include "src/exec/row_moves.h"

namespace kvc {
namespace {

using kernels::AppendParams;
using kernels::AttnParams;
using kernels::Rotation;
using kernels::TokenRows;

constexpr int64_t kGatherKeys = 128;
// One thread on shared prefixes with bf16 dot products, packing aside; see CascadeCosts.
constexpr double kBf16TileFlopsPerSecond = 160e9;
// The kernel for latents, shared or not.
constexpr double kLatentFlopsPerSecond = 200e9;

// What launch.h asks for cos and sin.
struct HostTables {
  Forward& forward;
  Executor& executor;

  Rotation tokens(int32_t rope) { return forward.rotation(rope, executor); }
  Rotation sinks(int32_t rope) { return forward.sink_rotation(rope, executor); }
  void keys(int32_t rope, Rotation out[2]) { forward.key_rotations(rope, executor, out); }
};

}  // namespace

CpuEngine::CpuEngine(const Spec& spec, const PagePool* pool, const StatePool* states)
    : spec_(&spec),
      pool_(pool),
      states_(states),
      kernels_(choose_kernels(spec.cpu_isa, "config.cpu_isa")),
      executor_(spec.has_executor ? Executor(spec.executor) : Executor(spec.num_threads)),
      runner_(kernels_, &executor_) {}

void CpuEngine::append(Forward& forward, int32_t local_layer, const TokenRows& k,
                       const TokenRows& v) {
  const LayerSpec& layer = spec_->layers[static_cast<size_t>(local_layer)];
  AppendParams params = append_params(*spec_, layer, k, v, HostTables{forward, executor_});
  params.k_pages = pool_->k_rows(local_layer);
  params.v_pages = pool_->v_rows(local_layer);
  params.slots = forward.slots(layer.group);
  const Batch& batch = forward.batch();
  run_append(*kernels_, executor_, params,
             layer.kind == KVC_LAYER_CROSS ? batch.num_cross_rows() : batch.num_rows());
  forward.written().mark_appended(local_layer);
}

CpuEngine::CachedView& CpuEngine::view_of(Forward& forward, const KeyView& view,
                                          const std::vector<Span>* spans) {
  CachedView* reusable = nullptr;
  for (const std::unique_ptr<CachedView>& cached : views_) {
    if (cached->step != forward.step()) {
      reusable = cached.get();
    } else if (spans == nullptr && cached->view == view) {
      return *cached;
    }
  }
  if (reusable == nullptr) {
    views_.push_back(std::make_unique<CachedView>());
    reusable = views_.back().get();
  }
  reusable->step = 0;  // stays stale when building throws
  reusable->num_lists = 0;
  reusable->set.build(forward, *spec_, view, spans);
  reusable->view = view;
  if (spans == nullptr) reusable->step = forward.step();
  return *reusable;
}

void CpuEngine::share_prefixes(Forward& forward, const CachedView& view, const LayerSpec& layer,
                               const WorkShape& shape, CachedView::List& list) {
  const std::vector<BatchEntry>& entries = forward.batch().entries();
  const std::vector<kernels::AttnSequence>& sequences = view.set.sequences();
  candidates_.clear();
  for (size_t i = 0; i < entries.size(); ++i) {
    const kernels::AttnSequence& sequence = sequences[i];
    // Equal pages are equal keys only where positions are places and all keys turn alike.
    const bool is_alike = sequence.key_begins == nullptr && sequence.k_rotation_index == 0 &&
                          (!view.view.needs_positions || entries[i].sequence->segments.empty());
    if (!is_alike || !runs_on_decode(shape, sequence.num_rows)) continue;
    candidates_.push_back(
        {.sequence = static_cast<int32_t>(i),
         .pages = sequence.pages,
         .num_keys = sequence.tree_mask != nullptr ? sequence.tree_begin : sequence.first_key_end,
         .num_rows = sequence.num_rows});
  }
  if (candidates_.size() < 2) return;
  const bool is_bf16 = kernels_->isa == kernels::cpu::Isa::kAvx512Bf16 &&
                       layer.k_dtype == kernels::DType::kBF16 &&
                       layer.v_dtype == kernels::DType::kBF16;
  CascadeCosts costs;
  if (is_bf16) costs.tile_flops_per_second = kBf16TileFlopsPerSecond;
  if (shape.is_latent)
    costs.decode_flops_per_second = costs.tile_flops_per_second = kLatentFlopsPerSecond;
  find_shared_prefixes(
      candidates_.data(), static_cast<int64_t>(candidates_.size()),
      {.page_size = spec_->groups[static_cast<size_t>(view.view.group)].page_size,
       .num_q_heads = layer.num_q_heads,
       .num_kv_heads = layer.num_kv_heads,
       .k_dim = layer.k_dim,
       .v_dim = layer.v_dim,
       .key_bytes = layer.k_dim * kernels::dtype_bytes(layer.k_dtype) +
                    (layer.v_in_k ? 0 : layer.v_dim * kernels::dtype_bytes(layer.v_dtype))},
      costs, &prefixes_);
  if (prefixes_.empty()) return;
  list.sequences = sequences;
  list.shared.build(prefixes_, &list.sequences);
}

const CpuEngine::CachedView::List& CpuEngine::work_list(Forward& forward, CachedView& view,
                                                        const LayerSpec& layer,
                                                        const WorkShape& shape, bool may_cascade) {
  for (size_t i = 0; i < view.num_lists; ++i) {
    if (view.lists[i]->shape == shape && view.lists[i]->cascades == may_cascade)
      return *view.lists[i];
  }
  if (view.num_lists == view.lists.size())
    view.lists.push_back(std::make_unique<CachedView::List>());
  CachedView::List& fresh = *view.lists[view.num_lists];
  fresh.sequences.clear();
  if (may_cascade) share_prefixes(forward, view, layer, shape, fresh);
  if (fresh.sequences.empty()) {
    const std::vector<kernels::AttnSequence>& sequences = view.set.sequences();
    schedule_work(sequences.data(), static_cast<int64_t>(sequences.size()), shape, {}, &fresh.list);
  } else {
    schedule_work(fresh.sequences.data(), static_cast<int64_t>(fresh.sequences.size()), shape,
                  fresh.shared.prefixes(), &fresh.list);
  }
  fresh.shape = shape;
  fresh.cascades = may_cascade;
  ++view.num_lists;
  return fresh;
}

// The new keys as if they had been appended.
void CpuEngine::stage_new_keys(Forward& forward, const AttnCall& call, const AttnTensors& tensors,
                               AttnParams* params) {
  const LayerSpec& layer = call.layer;
  const int64_t rows = forward.batch().num_rows();
  const NewKeyBytes bytes = new_key_bytes(layer);
  const bool has_v = tensors.v.base != nullptr;
  new_k_.ensure(static_cast<size_t>(rows * bytes.k_token));
  if (has_v) new_v_.ensure(static_cast<size_t>(rows * bytes.v_token));
  identity_slots_.reserve(static_cast<size_t>(rows));
  for (auto slot = static_cast<int64_t>(identity_slots_.size()); slot < rows; ++slot)
    identity_slots_.push_back(slot);
  place_new_keys(layer, new_k_.data(), has_v ? new_v_.data() : nullptr, params);
  const AppendParams append =
      append_params(*spec_, layer, tensors.k, tensors.v, HostTables{forward, executor_});
  run_append(*kernels_, executor_, stage_params(append, *params, identity_slots_.data()), rows);
}

void CpuEngine::attend(Forward& forward, const AttnCall& call, const AttnOptions& options,
                       const AttnTensors& tensors) {
  const LayerSpec& layer = call.layer;
  const LayerSpec& source = spec_->layers[static_cast<size_t>(layer.source)];
  CachedView& view = view_of(forward, key_view(*spec_, call, options),
                             options.spans.empty() ? nullptr : &options.spans);
  const bool has_sinks = view.set.has_sinks();
  const bool may_cascade =
      call.scope == KeyScope::kAll && !options.tiles_only && !options.no_cascade;
  AttnParams params = attn_params(layer, spec_->groups[static_cast<size_t>(source.group)].page_size,
                                  is_causal(call.scope), options, tensors);
  set_rotations(*spec_, call, has_sinks, HostTables{forward, executor_}, &params);
  if (call.scope == KeyScope::kNew) {
    stage_new_keys(forward, call, tensors, &params);
  } else {
    params.k = pool_->k_rows(layer.source);
    params.v = pool_->v_rows(layer.source);
  }
  const bool splits_sinks = has_sinks && spec_->rotates_on_read(layer.rope);
  const WorkShape shape =
      work_shape(*kernels_, params, options.tiles_only, splits_sinks, executor_.concurrency());
  const CachedView::List& planned = work_list(forward, view, layer, shape, may_cascade);
  const WorkList& list = planned.list;
  params.sequences =
      planned.sequences.empty() ? view.set.sequences().data() : planned.sequences.data();
  runner_.secure(list, params);
  if (call.scope != KeyScope::kNew && tensors.k.base != nullptr)
    append(forward, layer.source, tensors.k, tensors.v);
  runner_.run(list, params);
  if (!planned.sequences.empty())
    num_cascades_.fetch_add(planned.shared.prefixes().size(), std::memory_order_relaxed);
}

void CpuEngine::merge(const kernels::MergeParams& params, int64_t num_rows) {
  run_merge(*kernels_, executor_, params, num_rows);
}

void CpuEngine::gather(const RowSource&, const kernels::GatherParams& params, int64_t num_keys) {
  const double bytes = 8.0 * static_cast<double>(num_keys) * params.num_heads * params.dim;
  if (bytes / kCopyBytesPerSecond < kWorthThreads) {
    kernels_->gather(params, 0, num_keys);
    return;
  }
  executor_.run(ceil_div(num_keys, kGatherKeys), [&](int64_t task, int32_t) {
    kernels::GatherParams part = params;
    part.out.base += task * kGatherKeys * part.out.token_stride;
    kernels_->gather(part, task * kGatherKeys, std::min(num_keys, (task + 1) * kGatherKeys));
  });
}

void CpuEngine::copy_pages(const std::vector<PageCopy>& copies) noexcept {
  if (copies.empty() || !pool_->has_storage()) return;
  // One task per page and layer of its group; groups have at most longest_group layers.
  const auto num_slots = static_cast<int64_t>(spec_->longest_group());
  int64_t most_bytes = 0;
  const auto copy_one = [&](int64_t task, int32_t) {
    const PageCopy& copy = copies[static_cast<size_t>(task / num_slots)];
    const std::vector<int32_t>& layers = spec_->groups[static_cast<size_t>(copy.group)].layers;
    if (task % num_slots >= static_cast<int64_t>(layers.size())) return;
    const int32_t layer = layers[static_cast<size_t>(task % num_slots)];
    const LayerPages& pages = pool_->layer(layer);
    kernels_->copy(pages.base + copy.to * pages.page_stride,
                   pages.base + copy.from * pages.page_stride, pool_->layer_page_bytes(layer));
  };
  for (const int32_t layer : spec_->groups[static_cast<size_t>(copies.front().group)].layers)
    most_bytes += static_cast<int64_t>(pool_->layer_page_bytes(layer));
  const int64_t num_tasks = static_cast<int64_t>(copies.size()) * num_slots;
  const double bytes = static_cast<double>(most_bytes) * static_cast<double>(copies.size());
  if (bytes / kCopyBytesPerSecond >= kWorthThreads) {
    try {
      executor_.run(num_tasks, copy_one);
      return;
    } catch (...) {
      // A host's executor that throws although it must not. Sources do not change: copying once
      // more is right, whatever it has done.
    }
  }
  for (int64_t task = 0; task < num_tasks; ++task) copy_one(task, 0);
}

}  // namespace kvc
