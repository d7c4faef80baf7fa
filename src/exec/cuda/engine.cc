#include "src/exec/cuda/engine.h"

#include <algorithm>
#include <climits>
#include <numeric>

#include "src/base/error.h"
#include "src/base/math.h"
#include "src/exec/cuda/storage.h"
#include "src/plan/rows.h"

namespace kvc {
namespace {

using cuda::AttnKernel;
using cuda::AttnLaunch;
using cuda::kSmallRows;
using cuda::ScheduleShape;
using kernels::AppendParams;
using kernels::AttnParams;
using kernels::dtype_bytes;
using kernels::Rotation;
using kernels::TokenRows;

// Keys of one piece where results may not depend on the rest of the batch.
constexpr int32_t kInvariantKeys = 1024;

}  // namespace

CudaEngine::CudaEngine(const Plan& plan, const PagePool* pool, const StatePool* states,
                       const Device* device)
    : plan_(&plan),
      spec_(&plan.spec()),
      pool_(pool),
      states_(states),
      device_(device),
      name_(device_info(*device).name),
      scratch_trim_(*device),
      own_stream_(*device),
      order_(*device),
      uploads_(*device),
      outside_uploads_(*device),
      copy_uploads_(*device),
      move_uploads_(*device),
      step_(plan, pool, device),
      angles_(spec_, &step_, device),
      views_(spec_, &step_, device),
      new_k_(*device),
      new_v_(*device),
      identity_slots_(*device),
      state_sequences_(*device),
      carried_states_(*device),
      moves_(spec_->groups.size()) {
  stream_ = own_stream_.get();
  if (spec_->clears_pages) make_zeros();
}

AppendParams CudaEngine::append_params(Forward& forward, const LayerSpec& layer, const TokenRows& k,
                                       const TokenRows& v) {
  AppendParams params{};
  params.k = k;
  params.v = v;
  if (!spec_->rotates_on_read(layer.rope))
    params.k_rotation =
        angles_.tokens(forward, layer.rope, forward_stream_).from(layer.rotation_begin());
  params.page_size = spec_->groups[static_cast<size_t>(layer.group)].page_tokens;
  params.num_kv_heads = layer.num_kv_heads;
  params.k_dim = layer.k_dim;
  params.v_dim = layer.v_dim;
  return params;
}

void CudaEngine::append_rows(const AppendParams& params, const cuda::RowStorage& k_storage,
                             const cuda::RowStorage& v_storage, int64_t num_rows,
                             const int32_t* num_rows_at) {
  const cuda::AppendLaunch launch{.params = params,
                                  .k_storage = k_storage,
                                  .v_storage = v_storage,
                                  .num_rows = num_rows,
                                  .num_rows_at = num_rows_at};
  device_->call("append", device_->table->append, launch, forward_stream_);
}

void CudaEngine::append(Forward& forward, int32_t local_layer, const TokenRows& k,
                        const TokenRows& v) {
  require_stream();
  const LayerSpec& layer = spec_->layers[static_cast<size_t>(local_layer)];
  const bool is_cross = layer.kind == KVC_LAYER_CROSS;
  AppendParams params = append_params(forward, layer, k, v);
  params.k_pages = pool_->k_rows(local_layer);
  params.v_pages = pool_->v_rows(local_layer);
  params.slots = step_.state().slots + layer.group * step_.state().slots_stride;
  const Batch& batch = forward.batch();
  append_rows(params, k_storage(*plan_, *pool_, local_layer),
              v_storage(*plan_, *pool_, local_layer),
              is_cross ? batch.num_cross_rows() : batch.num_rows(),
              step_.state().counts + (is_cross ? 2 : 1));
  forward.mark_appended(local_layer);
}

// Room for the new keys in rows of their own: one "page" per sequence that starts at its first row.
void CudaEngine::secure_new_keys(const AttnCall& call, const AttnTensors& tensors,
                                 AttnParams* params) {
  const LayerSpec& layer = call.layer;
  const int64_t rows = step_.max_rows();
  const int64_t k_row = layer.k_dim * dtype_bytes(layer.k_dtype);
  const int64_t v_row = layer.v_dim * dtype_bytes(layer.v_dtype);
  const int64_t k_token = layer.num_kv_heads * k_row;
  const int64_t v_token = layer.num_kv_heads * v_row;
  new_k_.ensure(rows * k_token, forward_stream_);
  params->k = {new_k_.data(), k_token, k_row, k_token, layer.k_dtype};
  params->v = params->k;
  if (tensors.v.base != nullptr) {
    new_v_.ensure(rows * v_token, forward_stream_);
    params->v = {new_v_.data(), v_token, v_row, v_token, layer.v_dtype};
  }
  params->page_size = INT_MAX;
  if (is_captured_) identity_slots_.ensure(identity_slots_.bytes(), forward_stream_);
  if (num_identity_slots_ >= rows) return;
  if (is_captured_) {
    fail(KVC_E_INVALID_STATE,
         "kvc_attn_self of up to %lld tokens: before the capture, run a forward with it",
         static_cast<long long>(rows));
  }
  std::vector<int64_t> slots(static_cast<size_t>(rows));
  std::iota(slots.begin(), slots.end(), 0);
  const auto bytes = static_cast<int64_t>(slots.size() * sizeof(int64_t));
  identity_slots_.ensure(bytes, forward_stream_);
  device_->copy(identity_slots_.data(), uploads_.put(slots, forward_stream_), bytes,
                forward_stream_);
  num_identity_slots_ = rows;
}

void CudaEngine::stage_new_keys(Forward& forward, const AttnCall& call, const AttnTensors& tensors,
                                const AttnParams& params) {
  AppendParams append = append_params(forward, call.layer, tensors.k, tensors.v);
  append.k_rotation.begin = params.q_rotation.begin;
  append.k_pages = params.k;
  append.v_pages = params.v;
  append.slots = reinterpret_cast<const int64_t*>(identity_slots_.data());
  append.page_size = INT_MAX;
  append_rows(append, {}, {}, forward.batch().num_rows(), step_.state().counts + 1);
}

void CudaEngine::set_rotations(Forward& forward, const AttnCall& call, bool may_have_sinks,
                               AttnParams* params) {
  const LayerSpec& layer = call.layer;
  const int32_t begin =
      call.is_mla_self ? layer.k_dim - layer.latent_rope_dim : layer.rotation_begin();
  params->q_rotation = params->sink_q_rotation =
      angles_.tokens(forward, layer.rope, forward_stream_).from(begin);
  if (!spec_->rotates_on_read(layer.rope)) return;
  if (may_have_sinks)
    params->sink_q_rotation = angles_.sinks(forward, layer.rope, forward_stream_).from(begin);
  angles_.keys(forward, layer.rope, forward_stream_, params->k_rotations);
  params->k_rotations[0].begin = params->k_rotations[1].begin = begin;
}

// A kernel is asked about the launch as it would get it: cut into tiles of its own.
bool CudaEngine::fits(AttnKernel kernel, AttnLaunch launch) const {
  launch.schedule.tile_rows =
      device_->table
          ->attention_geometry(device_->id, kernel, launch.params.k_dim, launch.params.v_dim)
          .tile_rows;
  return device_->table->attention_fits(device_->id, kernel, launch, nullptr);
}

CudaEngine::Fitting CudaEngine::fitting_kernels(const AttnLaunch& launch) const {
  constexpr auto bit = [](AttnKernel kernel) { return 1u << static_cast<uint32_t>(kernel); };
  if (fits(AttnKernel::kLatent, launch))
    return {AttnKernel::kLatent, AttnKernel::kLatent, bit(AttnKernel::kLatent)};
  Fitting fitting{AttnKernel::kSimt, AttnKernel::kSimt, 0};
  if (fits(AttnKernel::kMma16, launch)) fitting.small = AttnKernel::kMma16;
  for (const AttnKernel kernel : {AttnKernel::kMma64, AttnKernel::kWgmma}) {
    if (!fits(kernel, launch)) continue;
    fitting.large = kernel;
    fitting.all |= bit(kernel);
  }
  fitting.all |= bit(fitting.small) | bit(fitting.large);
  return fitting;
}

std::vector<CudaEngine::RowClass> CudaEngine::row_classes(const Forward& forward,
                                                          const AttnLaunch& launch,
                                                          bool is_invariant) const {
  if (is_invariant)
    return {
        {fits(AttnKernel::kMma64, launch) ? AttnKernel::kMma64 : AttnKernel::kSimt, 0, INT_MAX}};
  const auto [small, large, all] = fitting_kernels(launch);
  if (small == large) return {{small, 0, INT_MAX}};
  const int64_t group = launch.params.num_q_heads / launch.params.num_kv_heads;
  bool has_small = false, has_large = false;
  for (const BatchEntry& entry : forward.batch().entries())
    (entry.append_length * group <= kSmallRows ? has_small : has_large) = true;
  std::vector<RowClass> classes;
  if (has_small) classes.push_back({small, 0, kSmallRows});
  if (has_large) classes.push_back({large, kSmallRows, INT_MAX});
  return classes;
}

// A graph's sharing could not change with the batch; results of the invariant mode may not depend
// on it.
bool CudaEngine::may_cascade(const AttnCall& call, const AttnOptions& options,
                             const GroupSpec& group) const {
  return call.scope == KeyScope::kAll && !is_captured_ && !options.tiles_only &&
         !options.no_cascade && options.spans.empty() && options.window == 0 &&
         !group.is_windowed();
}

const DeviceSharing* CudaEngine::find_sharing(const Forward& forward, DeviceView& view,
                                              const LayerSpec& source, const AttnLaunch& launch) {
  if (forward.batch().entries().size() < 2) return nullptr;
  const AttnParams& params = launch.params;
  const Fitting fitting = fitting_kernels(launch);
  CascadeCall call{.num_kv_heads = params.num_kv_heads,
                   .group_size = params.num_q_heads / params.num_kv_heads,
                   .k_dim = params.k_dim,
                   .v_dim = params.v_dim,
                   .key_bytes = row_bytes(source).total(),
                   .small = fitting.small,
                   .large = fitting.large,
                   .small_rows = kSmallRows,
                   .kernels = fitting.all,
                   .geometry = {}};
  for (int32_t index = 0; index < cuda::kNumAttnKernels; ++index) {
    if ((fitting.all >> index & 1u) == 0) continue;
    call.geometry[index] = device_->table->attention_geometry(
        device_->id, static_cast<AttnKernel>(index), params.k_dim, params.v_dim);
  }
  return views_.sharing_of(forward, view, call, uploads_, forward_stream_);
}

const DevicePlan& CudaEngine::plan_class(const Forward& forward, DeviceView& view,
                                         const RowClass& rows, bool is_invariant, bool splits_sinks,
                                         const AttnParams& params) {
  const ScheduleShape shape{.num_kv_heads = params.num_kv_heads,
                            .group_size = params.num_q_heads / params.num_kv_heads,
                            .causal = params.causal,
                            .split_sinks = splits_sinks ? 1 : 0,
                            .fixed_keys = is_invariant ? kInvariantKeys : 0,
                            .min_rows = rows.min_rows,
                            .max_rows = rows.max_rows,
                            .geometry = device_->table->attention_geometry(
                                device_->id, rows.kernel, params.k_dim, params.v_dim)};
  return views_.plan_of(forward, view, shape, forward_stream_);
}

// One memory for all plans, which moves when a larger one asks: the last answer holds for all of
// them.
float* CudaEngine::partials_of(const DevicePlan& plan, int32_t v_dim) {
  return views_.partials_for(plan, cuda::split_floats(plan.shape.geometry.tile_rows, v_dim),
                             forward_stream_);
}

void CudaEngine::run(const DevicePlan& plan, AttnKernel kernel, float* partials,
                     AttnLaunch launch) {
  launch.schedule = plan.plan;
  launch.schedule.partials = partials;
  device_->call("attention", device_->table->attention, kernel, launch, forward_stream_);
  // A plan without slots cuts nothing, whatever the sequences are.
  if (plan.num_slots > 0)
    device_->call("reduce_splits", device_->table->reduce_splits, launch, forward_stream_);
}

void CudaEngine::attend(Forward& forward, const AttnCall& call, const AttnOptions& options,
                        const AttnTensors& tensors) {
  require_stream();
  const LayerSpec& layer = call.layer;
  const LayerSpec& source = spec_->layers[static_cast<size_t>(layer.source)];
  const GroupSpec& group = spec_->groups[static_cast<size_t>(source.group)];
  const bool on_read = spec_->rotates_on_read(layer.rope);
  const KeyView key{.scope = call.scope,
                    .group = source.group,
                    .window = options.window,
                    .needs_positions = on_read || options.has_alibi(),
                    .rope = on_read ? layer.rope : -1};
  check_view(forward, key);
  if (call.scope == KeyScope::kNew && layer.is_quantised()) {
    fail_with(KVC_E_UNSUPPORTED, layer.quant,
              "kvc_attn_self: the layer is stored with quant = %d, which new keys alone are not "
              "rounded to; "
              "NONE (0) is",
              layer.quant);
  }
  bool has_sinks = false;
  for (const BatchEntry& entry : forward.batch().entries())
    has_sinks |= entry.sequence->sink > 0 && group.window == 0 && options.window == 0;
  if (is_captured_) {
    // A replayed batch may have sinks where this one has none.
    has_sinks = on_read && group.window == 0 && options.window == 0;
    if (key.needs_positions) {
      require_unmoved(forward.batch());
      captured_.back().needs_positions = true;
    }
    captured_.back().call_window = std::max(captured_.back().call_window, options.window);
    if (!options.spans.empty())
      fail(KVC_E_UNSUPPORTED, "opt.spans is set in a forward that is captured: a graph has none");
  }
  AttnLaunch launch{};
  AttnParams& params = launch.params;
  params.q = tensors.q;
  set_rotations(forward, call, has_sinks, &params);
  params.page_size = group.page_tokens;
  params.num_q_heads = layer.num_q_heads;
  params.num_kv_heads = layer.num_kv_heads;
  params.k_dim = layer.k_dim;
  params.v_dim = layer.v_dim;
  params.causal = call.scope == KeyScope::kAll || call.scope == KeyScope::kNew ? 1 : 0;
  apply_options(options, &params);
  params.out = tensors.out;
  params.lse = tensors.lse;
  params.lse_token_stride = tensors.lse_token_stride;
  if (call.scope == KeyScope::kNew) {
    secure_new_keys(call, tensors, &params);
  } else {
    params.k = pool_->k_rows(layer.source);
    params.v = pool_->v_rows(layer.source);
    launch.k_storage = k_storage(*plan_, *pool_, layer.source);
    launch.v_storage = v_storage(*plan_, *pool_, layer.source);
  }
  DeviceView& view = views_.view_of(forward, key, options.spans, uploads_, forward_stream_);
  params.sequences = view.sequences();
  const bool splits_sinks = on_read && has_sinks;
  const DeviceSharing* sharing = may_cascade(call, options, group) && !splits_sinks
                                     ? find_sharing(forward, view, source, launch)
                                     : nullptr;
  // Plans of all kernels, and room for their partial results, before anything is written: the last
  // that can run out of memory.
  std::vector<RowClass> classes;
  float* partials = sharing == nullptr ? nullptr : partials_of(sharing->plan, params.v_dim);
  if (sharing == nullptr) classes = row_classes(forward, launch, options.tiles_only);
  for (RowClass& rows : classes) {
    rows.plan = &plan_class(forward, view, rows, options.tiles_only, splits_sinks, params);
    partials = partials_of(*rows.plan, params.v_dim);
  }
  if (call.scope == KeyScope::kNew) {
    stage_new_keys(forward, call, tensors, params);
  } else if (tensors.k.base != nullptr) {
    append(forward, layer.source, tensors.k, tensors.v);
  }
  if (sharing != nullptr) {
    params.sequences = sharing->sequences;
    run(sharing->plan, sharing->cascade.kernel, partials, launch);
    num_cascades_.fetch_add(sharing->cascade.entries.size(), std::memory_order_relaxed);
    return;
  }
  for (const RowClass& rows : classes) run(*rows.plan, rows.kernel, partials, launch);
}

void CudaEngine::merge(const kernels::MergeParams& params, int64_t num_rows) {
  require_stream();
  device_->call("merge_states", device_->table->merge_states, params, num_rows,
                step_.state().counts + 1, forward_stream_);
}

void CudaEngine::write_positions(const Forward& forward, const I32Matrix& out) const {
  require_stream();
  const int64_t bytes = forward.batch().num_rows() * static_cast<int64_t>(sizeof(int32_t));
  for (int64_t row = 0; row < out.num_rows; ++row) {
    device_->copy(out.data + row * out.row_stride,
                  angles_.rotary_positions() + row * angles_.positions_stride(), bytes,
                  forward_stream_);
  }
}

}  // namespace kvc
