#include "src/exec/cpu/engine.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "src/base/error.h"
#include "src/base/math.h"
#include "src/base/memory.h"
#include "src/exec/launch.h"
#include "src/exec/row_moves.h"

namespace kvc {

// LinearSequence or ConvSequence of every entry: its rows, and its state before and after.
template <typename T>
std::vector<T> CpuStates::sequences_of(const Batch& batch, const StateRef& ref) const {
  std::vector<T> sequences;
  for (const BatchEntry& entry : batch.entries())
    sequences.push_back(
        {entry.row_begin, entry.append_length, before(entry, ref), after(entry, ref)});
  return sequences;
}

void CpuStates::clear_taken(const Batch& batch) const {
  if (!spec_->clears_pages || !states_->is_used()) return;
  for (const BatchEntry& entry : batch.entries()) states_->memory().clear(entry.new_state);
}

void CpuStates::get(const Forward& forward, const StateRef& ref, const StateRows& out) const {
  const StateSpec& spec = spec_of(ref);
  std::byte* row = out.base;
  for (const BatchEntry& entry : forward.batch().entries()) {
    device_->convert({row, out.dtype}, {before(entry, ref), spec.dtype}, spec.num_elements,
                     kOwnStream);
    row += out.row_stride;
  }
}

void CpuStates::set(const Forward& forward, const StateRef& ref, const StateRows& value) const {
  const StateSpec& spec = spec_of(ref);
  std::byte* row = value.base;
  for (const BatchEntry& entry : forward.batch().entries()) {
    device_->convert({after(entry, ref), spec.dtype}, {row, value.dtype}, spec.num_elements,
                     kOwnStream);
    row += value.row_stride;
  }
}

void CpuStates::carry_on(const Forward& forward) const noexcept {
  for (size_t layer = 0; layer < spec_->layers.size(); ++layer) {
    const auto count = static_cast<int32_t>(spec_->layers[layer].states.size());
    for (int32_t state = 0; state < count; ++state) {
      const StateRef ref{static_cast<int32_t>(layer), state};
      if (forward.written().is_state_set(ref.local_layer, state)) continue;
      for (const BatchEntry& entry : forward.batch().entries())
        std::memcpy(after(entry, ref), before(entry, ref),
                    static_cast<size_t>(spec_of(ref).bytes()));
    }
  }
}

void CpuStates::linear(const Forward& forward, const StateRef& ref, kernels::LinearParams params) {
  const auto sequences = sequences_of<kernels::LinearSequence>(forward.batch(), ref);
  params.sequences = sequences.data();
  run_linear(device_->kernels(), device_->executor(), workspace_, params,
             static_cast<int64_t>(sequences.size()));
}

void CpuStates::conv(const Forward& forward, const StateRef& ref, kernels::ConvParams params) {
  const auto sequences = sequences_of<kernels::ConvSequence>(forward.batch(), ref);
  params.sequences = sequences.data();
  run_conv(device_->kernels(), device_->executor(), workspace_, params,
           static_cast<int64_t>(sequences.size()));
}

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
  HostCosSin& cos_sin;
  Forward& forward;

  Rotation tokens(int32_t rope) { return cos_sin.tokens(forward, rope); }
  Rotation sinks(int32_t rope) { return cos_sin.sinks(forward, rope); }
  Rotation heads(int32_t rope) { return cos_sin.heads(forward, rope); }
  void keys(int32_t rope, Rotation out[2]) { cos_sin.keys(forward, rope, out); }
};

}  // namespace

int64_t CpuEngine::CachedBatch::host_bytes() const {
  int64_t bytes = set.host_bytes() + kvc::host_bytes(lists);
  for (const std::unique_ptr<List>& list : lists)
    bytes += static_cast<int64_t>(sizeof(List)) + list->host_bytes();
  return bytes;
}

int64_t CpuEngine::host_bytes() const {
  int64_t bytes = static_cast<int64_t>(sizeof *this) + cos_sin_.host_bytes() +
                  recurrent_.host_bytes() + runner_.host_bytes() + kvc::host_bytes(cached_) +
                  kvc::host_bytes(identity_slots_) + new_k_.host_bytes() + new_v_.host_bytes() +
                  kept_k_.host_bytes() + kept_v_.host_bytes() + kvc::host_bytes(candidates_) +
                  kvc::host_bytes(prefixes_);
  for (const std::unique_ptr<CachedBatch>& cached : cached_)
    bytes += static_cast<int64_t>(sizeof(CachedBatch)) + cached->host_bytes();
  for (const CommonPrefix& prefix : prefixes_) bytes += kvc::host_bytes(prefix.sequences);
  return bytes;
}

CpuEngine::CpuEngine(const Spec& spec, const PagePool* pool, const StatePool* states,
                     CpuDevice* device)
    : spec_(&spec),
      pool_(pool),
      device_(device),
      cos_sin_(&spec, &device->executor()),
      recurrent_(&spec, states, device),
      runner_(&device->kernels(), &device->executor()) {}

void CpuEngine::check_begin(const Batch&, const ForwardMode& mode, CallStream) const {
  if (!mode.is_replay) return;
  fail_with(KVC_E_UNSUPPORTED, KVC_FORWARD_REPLAY,
            "desc->flags has KVC_FORWARD_REPLAY (%d): the CPU has no graphs",
            static_cast<int>(KVC_FORWARD_REPLAY));
}

void CpuEngine::begin(Forward& forward, const ForwardMode&, CallStream) {
  device_->clear_pages(forward.batch().taken_pages());
  recurrent_.clear_taken(forward.batch());
  device_->copy_group_pages(forward.batch().copies(), kOwnStream);
}

void CpuEngine::close(Forward& forward, bool aborted) {
  if (!aborted && forward.written().any_state_set()) recurrent_.carry_on(forward);
  cos_sin_.closed();
}

void CpuEngine::append(Forward& forward, int32_t local_layer, const TokenRows& k,
                       const TokenRows& v) {
  const LayerSpec& layer = spec_->layers[local_layer];
  const Batch& batch = forward.batch();
  const auto store = [&](int32_t local) {
    AppendParams params =
        append_params(*spec_, spec_->layers[local], k, v, HostTables{cos_sin_, forward});
    params.k_pages = pool_->k_rows(local);
    params.v_pages = pool_->v_rows(local);
    params.slots = forward.slots(spec_->layers[local].group);
    const uint64_t saturated =
        run_append(device_->kernels(), device_->executor(), params,
                   layer.kind == KVC_LAYER_CROSS ? batch.num_cross_rows() : batch.num_rows());
    values_saturated_.fetch_add(saturated, std::memory_order_relaxed);
  };
  store(local_layer);
  // Most forwards add nothing to what is kept.
  const auto adds_kept = [&](const BatchEntry& entry) {
    return entry.old_stored(false) < layer.keep_tokens;
  };
  if (layer.kept_rows >= 0 &&
      std::any_of(batch.entries().begin(), batch.entries().end(), adds_kept))
    store(layer.kept_rows);
  forward.written().mark_appended(local_layer);
}

CpuEngine::CachedBatch& CpuEngine::batch_of(Forward& forward, const KeySelection& selection,
                                            const std::vector<Span>* spans) {
  CachedBatch* reusable = nullptr;
  for (const std::unique_ptr<CachedBatch>& cached : cached_) {
    if (cached->step != forward.step()) {
      reusable = cached.get();
    } else if (spans == nullptr && cached->selection == selection) {
      return *cached;
    }
  }
  if (reusable == nullptr) {
    cached_.push_back(std::make_unique<CachedBatch>());
    reusable = cached_.back().get();
  }
  reusable->step = 0;  // Stays stale when building throws.
  reusable->num_lists = 0;
  reusable->set.build(forward, *spec_, selection, spans, cos_sin_);
  reusable->selection = selection;
  if (spans == nullptr) reusable->step = forward.step();
  return *reusable;
}

void CpuEngine::share_prefixes(Forward& forward, const CachedBatch& cached, const LayerSpec& layer,
                               const WorkShape& shape, CachedBatch::List& list) {
  const std::vector<BatchEntry>& entries = forward.batch().entries();
  const std::vector<kernels::AttnSequence>& sequences = cached.set.sequences();
  candidates_.clear();
  for (size_t i = 0; i < entries.size(); ++i) {
    const kernels::AttnSequence& sequence = sequences[i];
    // Sequences with equal pages have equal keys only where a key's position is its place in the
    // table, and where one rotation serves all keys.
    const bool is_alike =
        sequence.key_begins == nullptr && sequence.k_rotation_index == 0 &&
        sequence.own_k_rotation == nullptr && sequence.sink_q_end == 0 && sequence.gap.end == 0 &&
        (!cached.selection.needs_positions || entries[i].sequence->segments.empty());
    if (!is_alike || !runs_on_decode(shape, sequence.num_rows)) continue;
    candidates_.push_back(
        {.sequence = static_cast<int32_t>(i),
         .pages = sequence.pages,
         .num_keys = sequence.tree_mask != nullptr ? sequence.tree_begin : sequence.first_key_end,
         .num_rows = sequence.num_rows});
  }
  if (candidates_.size() < 2) return;
  const auto is_bf16_or_shorter = [](kernels::DType dtype) {
    return dtype == kernels::DType::kBF16 || kernels::is_quantised(dtype);
  };
  const bool is_bf16 = device_->kernels().isa == kernels::cpu::Isa::kAvx512Bf16 &&
                       is_bf16_or_shorter(layer.k_dtype) && is_bf16_or_shorter(layer.v_dtype);
  CascadeCosts costs;
  if (is_bf16) costs.tile_flops_per_second = kBf16TileFlopsPerSecond;
  if (shape.is_latent)
    costs.decode_flops_per_second = costs.tile_flops_per_second = kLatentFlopsPerSecond;
  find_shared_prefixes(candidates_.data(), static_cast<int64_t>(candidates_.size()),
                       {.page_size = spec_->groups[cached.selection.group].page_size,
                        .num_q_heads = layer.num_q_heads,
                        .num_kv_heads = layer.num_kv_heads,
                        .k_dim = layer.k_dim,
                        .v_dim = layer.v_dim,
                        .key_bytes = row_bytes(layer).total()},
                       costs, &prefixes_);
  if (prefixes_.empty()) return;
  list.sequences = sequences;
  list.shared.build(prefixes_, &list.sequences);
}

const CpuEngine::CachedBatch::List& CpuEngine::work_list(Forward& forward, CachedBatch& cached,
                                                         const LayerSpec& layer,
                                                         const WorkShape& shape, bool may_cascade) {
  for (size_t i = 0; i < cached.num_lists; ++i) {
    if (cached.lists[i]->shape == shape && cached.lists[i]->cascades == may_cascade)
      return *cached.lists[i];
  }
  if (cached.num_lists == cached.lists.size())
    cached.lists.push_back(std::make_unique<CachedBatch::List>());
  CachedBatch::List& fresh = *cached.lists[cached.num_lists];
  fresh.sequences.clear();
  if (may_cascade) share_prefixes(forward, cached, layer, shape, fresh);
  if (fresh.sequences.empty()) {
    const std::vector<kernels::AttnSequence>& sequences = cached.set.sequences();
    schedule_work(sequences.data(), static_cast<int64_t>(sequences.size()), shape, {}, &fresh.list);
  } else {
    schedule_work(fresh.sequences.data(), static_cast<int64_t>(fresh.sequences.size()), shape,
                  fresh.shared.prefixes(), &fresh.list);
  }
  fresh.shape = shape;
  fresh.cascades = may_cascade;
  ++cached.num_lists;
  return fresh;
}

// The new keys as if they had been appended. K and V of MLA's ragged form are no rows of the pool:
// where latents are quantised, bfloat16 has them.
void CpuEngine::stage_new_keys(Forward& forward, const AttnCall& call, const AttnTensors& tensors,
                               AttnParams* params, AttnParams* kept) {
  LayerSpec layer = call.layer;
  if (call.is_mla_self && layer.is_quantised()) {
    layer.k_quant = layer.v_quant = KVC_QUANT_NONE;
    layer.k_scale = layer.v_scale = 1;
    layer.k_dtype = layer.v_dtype = kernels::DType::kBF16;
  }
  stage_rows(forward, layer, tensors, new_k_, new_v_, params);
  if (kept != nullptr)
    stage_rows(forward, kept_rows_of(call.layer), tensors, kept_k_, kept_v_, kept);
}

void CpuEngine::stage_rows(Forward& forward, const LayerSpec& layer, const AttnTensors& tensors,
                           AlignedBuffer& new_k, AlignedBuffer& new_v, AttnParams* params) {
  const int64_t rows = forward.batch().num_rows();
  const NewKeyBytes bytes = new_key_bytes(layer);
  const bool has_v = tensors.v.base != nullptr;
  new_k.ensure(static_cast<size_t>(bytes.k_bytes(rows)));
  if (has_v) new_v.ensure(static_cast<size_t>(bytes.v_bytes(rows)));
  identity_slots_.reserve(rows);
  for (auto slot = static_cast<int64_t>(identity_slots_.size()); slot < rows; ++slot)
    identity_slots_.push_back(slot);
  place_new_keys(layer, rows, new_k.data(), has_v ? new_v.data() : nullptr, params);
  const AppendParams append =
      append_params(*spec_, layer, tensors.k, tensors.v, HostTables{cos_sin_, forward});
  run_append(device_->kernels(), device_->executor(),
             stage_params(append, *params, identity_slots_.data()), rows);
}

void CpuEngine::attend(Forward& forward, const AttnCall& call, const AttnOptions& options,
                       const AttnTensors& tensors) {
  const LayerSpec& layer = call.layer;
  const LayerSpec& source = spec_->layers[layer.source];
  KeySelection wanted = key_selection(*spec_, call, options);
  wanted.has_leads = layer.rope >= 0 && wanted.rope < 0 && cos_sin_.has_leads(forward);
  const bool reads_kept =
      source.kept_rows >= 0 && call.scope != KeyScope::kCross && !call.is_mla_self;
  if (reads_kept) wanted.kept_group = spec_->layers[source.kept_rows].group;
  CachedBatch& cached = batch_of(forward, wanted, options.spans.empty() ? nullptr : &options.spans);
  const bool may_cascade =
      call.scope == KeyScope::kAll && !options.tiles_only && !options.no_cascade;
  AttnParams params = attn_params(layer, spec_->groups[source.group].page_size,
                                  is_causal(call.scope), options, tensors);
  set_rotations(*spec_, call, cached.set.has_two_q_rotations(), HostTables{cos_sin_, forward},
                &params);
  std::optional<AttnParams> kept;
  if (reads_kept) kept = params;
  AttnParams* const kept_params = reads_kept ? &*kept : nullptr;
  if (call.scope == KeyScope::kNew) {
    stage_new_keys(forward, call, tensors, &params, kept_params);
  } else {
    params.k = pool_->k_rows(layer.source);
    params.v = pool_->v_rows(layer.source);
    if (reads_kept) {
      kept->k = pool_->k_rows(source.kept_rows);
      kept->v = pool_->v_rows(source.kept_rows);
      kept->page_size = spec_->layer_page_size(source.kept_rows);
    }
  }
  const WorkShape shape =
      work_shape(device_->kernels(), params, options.tiles_only, device_->executor().concurrency());
  const CachedBatch::List& planned = work_list(forward, cached, layer, shape, may_cascade);
  const WorkList& list = planned.list;
  params.sequences =
      planned.sequences.empty() ? cached.set.sequences().data() : planned.sequences.data();
  if (reads_kept) kept->sequences = cached.set.kept_sequences().data();
  runner_.secure(list, params, kept_params);
  if (call.scope != KeyScope::kNew && tensors.k.base != nullptr)
    append(forward, layer.source, tensors.k, tensors.v);
  runner_.run(list, params, kept_params);
  if (!planned.sequences.empty())
    num_cascades_.fetch_add(planned.shared.prefixes().size(), std::memory_order_relaxed);
}

void CpuEngine::merge(const kernels::MergeParams& params, int64_t num_rows) {
  run_merge(device_->kernels(), device_->executor(), params, num_rows);
}

void CpuEngine::gather(const RowSource&, const kernels::GatherParams& params, int64_t num_keys) {
  const double bytes = 8.0 * static_cast<double>(num_keys) * params.num_heads * params.dim;
  if (bytes / kCopyBytesPerSecond < kWorthThreads) {
    device_->kernels().gather(params, 0, num_keys);
    return;
  }
  device_->executor().run(ceil_div(num_keys, kGatherKeys), [&](int64_t task, int32_t) {
    kernels::GatherParams part = params;
    part.out.base += task * kGatherKeys * part.out.token_stride;
    device_->kernels().gather(part, task * kGatherKeys,
                              std::min(num_keys, (task + 1) * kGatherKeys));
  });
}

void CpuEngine::write_positions(const Forward& forward, const I32Matrix& out) const {
  const int64_t num_rows = forward.batch().num_rows();
  const int32_t* given = forward.given_positions();
  if (given == nullptr) return forward.write_token_positions(out.data);
  for (int64_t row = 0; row < out.num_rows; ++row)
    std::copy_n(given + row * num_rows, num_rows, out.data + row * out.row_stride);
}

}  // namespace kvc
