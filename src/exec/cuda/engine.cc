#include "src/exec/cuda/engine.h"

#include <algorithm>
#include <climits>

#include "src/base/error.h"
#include "src/exec/cuda/page_copies.h"
#include "src/exec/launch.h"
#include "src/plan/layout.h"

namespace kvc {
namespace {

using cuda::AttnKernel;
using cuda::AttnLaunch;
using cuda::kSmallRows;
using kernels::AppendParams;
using kernels::AttnParams;
using kernels::Rotation;
using kernels::TokenRows;

// Keys per chunk where results may not depend on the rest of the batch.
constexpr int32_t kInvariantKeys = 1024;

// What launch.h asks for cos and sin.
struct DeviceTables {
  Forward& forward;
  CudaForward& open;

  Rotation tokens(int32_t rope) { return open.cos_sin().tokens(forward, rope, open.stream()); }
  Rotation sinks(int32_t rope) { return open.cos_sin().sinks(forward, rope, open.stream()); }
  // No sequence has a KeyLead here.
  Rotation heads(int32_t rope) { return tokens(rope); }
  void keys(int32_t rope, Rotation out[2]) {
    open.cos_sin().keys(forward, rope, open.stream(), out);
  }
};

}  // namespace

CudaEngine::CudaEngine(const Plan& plan, const PagePool* pool, const StatePool* states,
                       CudaDevice* device)
    : plan_(&plan),
      spec_(&plan.spec()),
      pool_(pool),
      device_(device),
      order_(&device->order()),
      gpu_(&order_->device()),
      clearer_(spec_, pool, states, gpu_, &device->pages()),
      open_(plan, &device->pages(), order_),
      states_(spec_, states, order_, &open_),
      metadata_(spec_, &open_.step(), gpu_),
      new_keys_(*gpu_) {}

CudaEngine::~CudaEngine() {
  try {
    order_->drain();
  } catch (...) {
    // A device that is lost does nothing any more.
  }
}

void CudaEngine::begin(Forward& forward, const ForwardMode& mode, CallStream stream) {
  open_.begin(forward, order_->stream_of(stream), mode.is_replay,
              [&](cuda::Stream on, DeviceUploads& uploads) {
                clearer_.clear(forward.batch(), on, uploads);
              });
}

void CudaEngine::close(Forward& forward, bool aborted) {
  open_.check_close(aborted);
  if (forward.written().any_state_set() && (!aborted || open_.leaves_graph()))
    states_.carry_on(forward);
  open_.close(forward, aborted);
}

// ----------------------------------------------------------------------------------------------
// rows

void CudaEngine::append_rows(const AppendParams& params, const cuda::RowStorage& k_storage,
                             const cuda::RowStorage& v_storage, int64_t num_rows,
                             const int32_t* num_rows_at) {
  const cuda::AppendLaunch launch{.params = params,
                                  .k_storage = k_storage,
                                  .v_storage = v_storage,
                                  .num_rows = num_rows,
                                  .num_rows_at = num_rows_at};
  gpu_->call("append", gpu_->table->append, launch, open_.stream());
}

void CudaEngine::append(Forward& forward, int32_t local_layer, const TokenRows& k,
                        const TokenRows& v) {
  open_.require_enqueues();
  const LayerSpec& layer = spec_->layers[local_layer];
  const bool is_cross = layer.kind == KVC_LAYER_CROSS;
  const cuda::StepState& step = open_.step().state();
  AppendParams params = append_params(*spec_, layer, k, v, DeviceTables{forward, open_});
  params.k_pages = pool_->k_rows(local_layer);
  params.v_pages = pool_->v_rows(local_layer);
  params.slots = step.slots + layer.group * step.slots_stride;
  const Batch& batch = forward.batch();
  append_rows(
      params, k_storage(*plan_, *pool_, local_layer), v_storage(*plan_, *pool_, local_layer),
      is_cross ? batch.num_cross_rows() : batch.num_rows(), step.counts + (is_cross ? 2 : 1));
  forward.written().mark_appended(local_layer);
}

void CudaEngine::gather(const RowSource& source, const kernels::GatherParams& params,
                        int64_t num_keys) {
  open_.require_enqueues();
  if (open_.is_captured())
    fail(KVC_E_UNSUPPORTED,
         "kvc_kv_gather in a forward that is captured: a graph would gather these pages for ever");
  device_->gather(source, params, 0, num_keys, open_.uploads(), open_.stream());
}

void CudaEngine::merge(const kernels::MergeParams& params, int64_t num_rows) {
  open_.require_enqueues();
  gpu_->call("merge_states", gpu_->table->merge_states, params, num_rows,
             open_.step().state().counts + 1, open_.stream());
}

void CudaEngine::write_positions(const Forward& forward, const I32Matrix& out) const {
  open_.require_enqueues();
  const int64_t bytes = forward.batch().num_rows() * static_cast<int64_t>(sizeof(int32_t));
  const DeviceCosSin& cos_sin = open_.cos_sin();
  for (int64_t row = 0; row < out.num_rows; ++row) {
    gpu_->copy(out.data + row * out.row_stride,
               cos_sin.rotary_positions() + row * cos_sin.positions_stride(), bytes,
               open_.stream());
  }
}

// ----------------------------------------------------------------------------------------------
// attention

std::vector<CudaEngine::RowClass> CudaEngine::row_classes(const Forward& forward,
                                                          const AttnLaunch& launch,
                                                          bool is_invariant) const {
  if (is_invariant) return {{invariant_attn_kernel(*gpu_, launch), {0, INT_MAX}}};
  const auto [small, large, all] = find_attn_kernels(*gpu_, launch);
  if (small == large) return {{small, {0, INT_MAX}}};
  const int64_t head_group = launch.params.num_q_heads / launch.params.num_kv_heads;
  bool has_small = false, has_large = false;
  for (const BatchEntry& entry : forward.batch().entries())
    (entry.append_length * head_group <= kSmallRows ? has_small : has_large) = true;
  std::vector<RowClass> classes;
  if (has_small) classes.push_back({small, {0, kSmallRows}});
  if (has_large) classes.push_back({large, {kSmallRows, INT_MAX}});
  return classes;
}

// A graph's sharing could not change with the batch; results of the invariant mode may not depend
// on it.
bool CudaEngine::may_cascade(const AttnCall& call, const AttnOptions& options,
                             const GroupSpec& group) const {
  return call.scope == KeyScope::kAll && !open_.is_captured() && !options.tiles_only &&
         !options.no_cascade && options.spans.empty() && options.window == 0 &&
         !group.is_windowed();
}

bool CudaEngine::may_have_sinks(const Forward& forward, const KeySelection& key,
                                const GroupSpec& group) const {
  if (group.window != 0 || key.window != 0) return false;
  // A replayed batch may have sinks where this one has none.
  if (open_.is_captured()) return key.rope >= 0;
  const std::vector<BatchEntry>& entries = forward.batch().entries();
  return std::any_of(entries.begin(), entries.end(),
                     [](const BatchEntry& entry) { return entry.sequence->sink > 0; });
}

const SharedPrefixes* CudaEngine::find_sharing(const Forward& forward, BatchMetadata& metadata,
                                               const LayerSpec& source, const AttnLaunch& launch) {
  if (forward.batch().entries().size() < 2) return nullptr;
  const AttnParams& params = launch.params;
  const AttnKernels kernels = find_attn_kernels(*gpu_, launch);
  CascadeCall call{.num_kv_heads = params.num_kv_heads,
                   .group_size = params.num_q_heads / params.num_kv_heads,
                   .k_dim = params.k_dim,
                   .v_dim = params.v_dim,
                   .key_bytes = row_bytes(source).total(),
                   .small = kernels.small,
                   .large = kernels.large,
                   .small_rows = kSmallRows,
                   .kernels = kernels.all,
                   .geometry = {}};
  for (int32_t index = 0; index < cuda::kNumAttnKernels; ++index) {
    if ((kernels.all >> index & 1u) != 0)
      call.geometry[index] = attn_geometry(*gpu_, static_cast<AttnKernel>(index), params);
  }
  return metadata_.shared_prefixes_of(forward, metadata, call, open_.uploads(), open_.stream());
}

// One memory for all schedules, which moves when a larger one asks: the last answer holds for all
// of them.
float* CudaEngine::partials_of(const Schedule& schedule, int32_t v_dim) {
  return metadata_.partials_for(
      schedule, cuda::split_floats(schedule.shape.geometry.tile_rows, v_dim), open_.stream());
}

void CudaEngine::run(const Schedule& schedule, AttnKernel kernel, float* partials,
                     AttnLaunch launch) {
  launch.schedule = schedule.lists;
  launch.schedule.partials = partials;
  gpu_->call("attention", gpu_->table->attention, kernel, launch, open_.stream());
  // A schedule without slots splits nothing, whatever the sequences are.
  if (schedule.num_slots > 0)
    gpu_->call("reduce_splits", gpu_->table->reduce_splits, launch, open_.stream());
}

void CudaEngine::attend(Forward& forward, const AttnCall& call, const AttnOptions& options,
                        const AttnTensors& tensors) {
  open_.require_enqueues();
  const LayerSpec& layer = call.layer;
  const LayerSpec& source = spec_->layers[layer.source];
  const GroupSpec& group = spec_->groups[source.group];
  const KeySelection key = key_selection(*spec_, call, options);
  check_selection(forward, key);
  if (call.scope == KeyScope::kNew && layer.is_quantised()) {
    const bool is_k = layer.k_quant != KVC_QUANT_NONE;
    const kvc_quant quant = is_k ? layer.k_quant : layer.v_quant;
    fail_with(KVC_E_UNSUPPORTED, quant,
              "kvc_attn_self: the layer is stored with %s = %s (%d), which new keys alone are not "
              "rounded to; NONE (0) is",
              is_k ? "quant" : "v_quant", quant_name(quant), quant);
  }
  const bool has_sinks = may_have_sinks(forward, key, group);
  open_.note_attention(forward, key, !options.spans.empty());
  AttnLaunch launch{};
  AttnParams& params = launch.params;
  params = attn_params(layer, group.page_size, is_causal(call.scope), options, tensors);
  set_rotations(*spec_, call, has_sinks, DeviceTables{forward, open_}, &params);
  if (call.scope == KeyScope::kNew) {
    new_keys_.secure(open_, call, tensors, &params);
  } else {
    params.k = pool_->k_rows(layer.source);
    params.v = pool_->v_rows(layer.source);
    launch.k_storage = k_storage(*plan_, *pool_, layer.source);
    launch.v_storage = v_storage(*plan_, *pool_, layer.source);
  }
  BatchMetadata& metadata =
      metadata_.metadata_of(forward, key, options.spans, open_.uploads(), open_.stream());
  params.sequences = metadata.sequences();
  const bool splits_sinks = key.rope >= 0 && has_sinks;
  const SharedPrefixes* sharing = may_cascade(call, options, group) && !splits_sinks
                                      ? find_sharing(forward, metadata, source, launch)
                                      : nullptr;
  // Schedules of all kernels, and room for their partial results, before anything is written: the
  // last that can run out of memory.
  std::vector<RowClass> classes;
  float* partials = sharing == nullptr ? nullptr : partials_of(sharing->schedule, params.v_dim);
  if (sharing == nullptr) classes = row_classes(forward, launch, options.tiles_only);
  for (RowClass& part : classes) {
    const cuda::ScheduleShape shape =
        schedule_shape(*gpu_, part.kernel, part.rows, params, splits_sinks,
                       options.tiles_only ? kInvariantKeys : 0);
    part.schedule = &metadata_.schedule_of(forward, metadata, shape, open_.stream());
    partials = partials_of(*part.schedule, params.v_dim);
  }
  if (call.scope == KeyScope::kNew) {
    const AppendParams append =
        append_params(*spec_, layer, tensors.k, tensors.v, DeviceTables{forward, open_});
    append_rows(stage_params(append, params, new_keys_.slots()), {}, {}, forward.batch().num_rows(),
                open_.step().state().counts + 1);
  } else if (tensors.k.base != nullptr) {
    append(forward, layer.source, tensors.k, tensors.v);
  }
  if (sharing != nullptr) {
    params.sequences = sharing->sequences;
    run(sharing->schedule, sharing->cascade.kernel, partials, launch);
    num_cascades_.fetch_add(sharing->cascade.entries.size(), std::memory_order_relaxed);
    return;
  }
  for (const RowClass& part : classes) run(*part.schedule, part.kernel, partials, launch);
}

}  // namespace kvc
