#include "src/ops/cuda_operators.h"

#include <algorithm>
#include <climits>

#include "src/base/error.h"
#include "src/base/math.h"
#include "src/base/tensor.h"
#include "src/exec/cuda/attn_kernels.h"
#include "src/exec/launch.h"

namespace kvc {
namespace {

using cuda::AttnKernel;
using cuda::AttnLaunch;
using cuda::kSmallRows;
using kernels::PagedRows;
using kernels::Rotation;
using kernels::TokenRows;

}  // namespace

// All arrays of one call in one allocation: placed first, then taken. Goes behind what the stream
// was given.
class CudaOperators::Scratch {
 public:
  explicit Scratch(cuda::Stream stream) : stream_(stream) {}
  ~Scratch() { memory_.free_on(stream_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  template <typename T>
  void place(T** array, int64_t count) {
    places_.push_back({reinterpret_cast<void**>(array), bytes_});
    bytes_ += align_up(count * static_cast<int64_t>(sizeof(T)), kArrayAlignment);
  }
  void place_bytes(void** array, int64_t bytes) {
    places_.push_back({array, bytes_});
    bytes_ += align_up(bytes, kArrayAlignment);
  }
  // Addresses are written; whoever placed still has to be where it was.
  void take(const Gpu& device) {
    if (bytes_ == 0) return;
    memory_ = DeviceMemory(device, bytes_, stream_);
    for (const Place& place : places_) *place.array = memory_.data() + place.offset;
  }

 private:
  struct Place {
    void** array;
    int64_t offset;
  };
  cuda::Stream stream_;
  DeviceMemory memory_;
  std::vector<Place> places_;
  int64_t bytes_ = 0;
};

// ---- Rotations

void CudaOperators::place_cos_sin(const OpRotation& rotation, int64_t num_rows, CosSin* cos_sin,
                                  Scratch* scratch) {
  if (!rotation.rotates() || num_rows == 0) return;
  const RopeSpec& rope = rotation.rope;
  const int64_t pairs = rope.rotary_dim / 2;
  cos_sin->params.magnitude = rope.magnitude;
  cos_sin->params.positions = rotation.positions;
  cos_sin->params.num_rows = num_rows;
  cos_sin->params.num_pairs = rope.rotary_dim / 2;
  scratch->place(&cos_sin->frequencies, pairs);
  scratch->place(&cos_sin->params.cos, num_rows * pairs);
  scratch->place(&cos_sin->params.sin, num_rows * pairs);
}

Rotation CudaOperators::make_cos_sin(const OpRotation& rotation, CosSin* cos_sin) const {
  if (cos_sin->frequencies == nullptr) return {};
  const RopeSpec& rope = rotation.rope;
  for (size_t done = 0; done < rope.inverse_frequencies.size();) {
    cuda::OpConstantsParams constants{};
    constants.to = cos_sin->frequencies + done;
    constants.count = static_cast<int32_t>(
        std::min<size_t>(rope.inverse_frequencies.size() - done, cuda::kMaxOpConstants));
    std::copy_n(rope.inverse_frequencies.data() + done, constants.count, constants.values);
    device_.call("frequencies", device_.table->op_constants, constants, stream_);
    done += static_cast<size_t>(constants.count);
  }
  cos_sin->params.inverse_frequencies[0] = cos_sin->frequencies;
  device_.call("cos_sin", device_.table->cos_sin, cos_sin->params, stream_);
  return {.cos = cos_sin->params.cos,
          .sin = cos_sin->params.sin,
          .rotary_dim = rope.rotary_dim,
          .interleaved = rope.style == KVC_ROPE_INTERLEAVED ? 1 : 0,
          .begin = rope.begin};
}

// ---- Attention

// How long sequences are is not known here: kernels for short and for long ones, each of which
// takes its own.
std::vector<CudaOperators::RowClass> CudaOperators::row_classes(const OpAttention& attention,
                                                                const AttnLaunch& launch) const {
  const kernels::AttnParams& params = launch.params;
  const auto make = [&](AttnKernel kernel, int32_t min_rows, int32_t max_rows) {
    return RowClass{kernel,
                    schedule_shape(device_, kernel, {min_rows, max_rows}, params, false, 0),
                    {.max_sequences = attention.sequences.num_sequences,
                     .max_rows = attention.sequences.num_rows,
                     .max_keys = 0}};
  };
  const auto [small, large, all] = find_attn_kernels(device_, launch);
  if (small == large) return {make(small, 0, INT_MAX)};
  const int64_t most =
      (attention.sequences.row_indptr == nullptr ? 1 : attention.sequences.num_rows) *
      (params.num_q_heads / params.num_kv_heads);
  if (most <= kSmallRows) return {make(small, 0, INT_MAX)};
  if (attention.sequences.row_indptr == nullptr) return {make(large, 0, INT_MAX)};
  return {make(small, 0, kSmallRows), make(large, kSmallRows, INT_MAX)};
}

void CudaOperators::attend(const OpAttention& attention, const AttnOptions& options,
                           const AttnTensors& tensors, const OpRotation& rotation) {
  if (options.tiles_only) {
    fail(KVC_E_UNSUPPORTED,
         "opt.attn->flags has KVC_ATTN_BATCH_INVARIANT: on CUDA device %d operators have no such "
         "cut, as "
         "lengths are not known here; caches do",
         device_.id);
  }
  cuda::OpSequencesParams sequences{};
  static_cast<kernels::OpSequenceTensors&>(sequences) = attention.sequences;
  if (sequences.num_sequences == 0 || sequences.num_rows == 0) return;
  const LayerSpec& shape = attention.shape;
  AttnLaunch launch{};
  kernels::AttnParams& params = launch.params;
  params = attn_params(shape, attention.page_size, sequences.full == 0, options, tensors);
  params.k = attention.k;
  params.v = attention.v;
  if (rotation.rotates()) {  // so that kernels are asked about what they will get
    params.q_rotation.rotary_dim = rotation.rope.rotary_dim;
    params.q_rotation.interleaved = rotation.rope.style == KVC_ROPE_INTERLEAVED ? 1 : 0;
    params.q_rotation.begin = rotation.rope.begin;
    params.sink_q_rotation = params.q_rotation;
  }
  const std::vector<RowClass> classes = row_classes(attention, launch);
  cuda::ScheduleBytes most{};
  int64_t partial_floats = 0;
  for (const RowClass& rows : classes) {
    cuda::ScheduleBytes bytes{};
    device_.table->schedule_bytes(rows.shape, rows.limits, &bytes);
    for (int64_t cuda::ScheduleBytes::*field :
         {&cuda::ScheduleBytes::counts, &cuda::ScheduleBytes::cta_begin,
          &cuda::ScheduleBytes::items, &cuda::ScheduleBytes::reductions,
          &cuda::ScheduleBytes::sources, &cuda::ScheduleBytes::scratch})
      most.*field = std::max(most.*field, bytes.*field);
    partial_floats = std::max(
        partial_floats,
        bytes.num_splits * cuda::split_floats(rows.shape.geometry.tile_rows, params.v_dim));
  }
  Scratch scratch(stream_);
  CosSin cos_sin;
  void* plan_scratch = nullptr;
  scratch.place(&sequences.sequences, sequences.num_sequences);
  scratch.place(&sequences.key_ends, sequences.num_rows);
  if (sequences.window != 0) scratch.place(&sequences.key_begins, sequences.num_rows);
  scratch.place(&sequences.count, 1);
  scratch.place_bytes(reinterpret_cast<void**>(&launch.schedule.counts), most.counts);
  scratch.place_bytes(reinterpret_cast<void**>(&launch.schedule.cta_begin), most.cta_begin);
  scratch.place_bytes(reinterpret_cast<void**>(&launch.schedule.items), most.items);
  scratch.place_bytes(reinterpret_cast<void**>(&launch.schedule.reductions), most.reductions);
  scratch.place_bytes(reinterpret_cast<void**>(&launch.schedule.sources), most.sources);
  scratch.place_bytes(&plan_scratch, most.scratch);
  scratch.place(&launch.schedule.partials, partial_floats);
  place_cos_sin(rotation, sequences.num_rows, &cos_sin, &scratch);
  scratch.take(device_);
  params.sequences = sequences.sequences;
  device_.call("sequences", device_.table->op_sequences, sequences, stream_);
  params.q_rotation = params.sink_q_rotation = make_cos_sin(rotation, &cos_sin);
  for (const RowClass& rows : classes) {
    launch.schedule.num_ctas = rows.shape.geometry.num_ctas;
    launch.schedule.tile_rows = rows.shape.geometry.tile_rows;
    const cuda::ScheduleLaunch plan{.shape = rows.shape,
                                    .limits = rows.limits,
                                    .sequences = sequences.sequences,
                                    .num_sequences_at = sequences.count,
                                    .schedule = launch.schedule,
                                    .scratch = plan_scratch};
    device_.call("schedule", device_.table->schedule, plan, stream_);
    device_.call("attention", device_.table->attention, rows.kernel, launch, stream_);
    device_.call("reduce_splits", device_.table->reduce_splits, launch, stream_);
  }
}

// ---- Rows

void CudaOperators::append(const OpPool& pool, const TokenRows& k, const TokenRows& v,
                           const int64_t* slots, int64_t num_rows, const OpRotation& rotation) {
  if (num_rows == 0) return;
  Scratch scratch(stream_);
  CosSin cos_sin;
  place_cos_sin(rotation, num_rows, &cos_sin, &scratch);
  scratch.take(device_);
  const cuda::AppendLaunch launch{
      .params = append_params(pool, k, v, slots, make_cos_sin(rotation, &cos_sin)),
      .k_storage = {},
      .v_storage = {},
      .num_rows = num_rows,
      .num_rows_at = nullptr,
      .num_slots = pool.num_slots()};
  device_.call("append", device_.table->append, launch, stream_);
}

void CudaOperators::rotate(const TokenRows& x, const TokenRows& out, int32_t num_heads, int32_t dim,
                           int64_t num_rows, const OpRotation& rotation) {
  if (num_rows == 0) return;
  // Lanes that read an element and its pair do not wait for each other: in place, rows are rotated
  // beside and come back.
  const bool in_place = x.base == out.base;
  const int64_t head_bytes = dim * kernels::dtype_bytes(out.dtype),
                row_bytes = num_heads * head_bytes;
  Scratch scratch(stream_);
  CosSin cos_sin;
  std::byte* beside = nullptr;
  cuda::OpSlotsParams slots{.slots = nullptr, .num_slots = num_rows};
  place_cos_sin(rotation, num_rows, &cos_sin, &scratch);
  scratch.place(&slots.slots, num_rows);
  if (in_place) scratch.place(&beside, num_rows * row_bytes);
  scratch.take(device_);
  device_.call("slots", device_.table->op_slots, slots, stream_);
  const auto store = [&](const TokenRows& from, const TokenRows& to, const Rotation& rotation) {
    const cuda::AppendLaunch launch{
        .params = rotate_params(from, to, num_heads, dim, slots.slots, rotation),
        .k_storage = {},
        .v_storage = {},
        .num_rows = num_rows,
        .num_rows_at = nullptr};
    device_.call("append", device_.table->append, launch, stream_);
  };
  const TokenRows rotated = in_place ? TokenRows{beside, row_bytes, head_bytes, out.dtype} : out;
  store(x, rotated, make_cos_sin(rotation, &cos_sin));
  if (in_place) store(rotated, out, {});
}

void CudaOperators::gather(const OpPool&, const kernels::OpSequenceTensors&, const TokenRows&,
                           const TokenRows&) {
  fail_with(KVC_E_UNSUPPORTED, device_.id,
            "kvc_op_gather: the tensors live on CUDA device %d, but it takes tensors of the CPU "
            "only",
            device_.id);
}

void CudaOperators::copy_pages(const OpPool& pool, const int64_t* pairs, int64_t stride,
                               int64_t num_pairs) {
  if (num_pairs == 0 || pool.num_pages == 0) return;
  const auto half_of = [&](const PagedRows& rows, int64_t dim) {
    const PageRuns runs = runs_of(rows, pool.num_heads, pool.page_size, dim);
    return cuda::OpPairsParams::Half{rows.base,         rows.page_stride, runs.outer_count,
                                     runs.outer_stride, runs.inner_count, runs.inner_stride,
                                     runs.bytes};
  };
  cuda::OpPairsParams params{};
  params.pairs = pairs;
  params.stride = stride;
  params.num_pairs = num_pairs;
  params.num_pages = pool.num_pages;
  params.halves[0] = half_of(pool.k, pool.k_dim);
  if (!pool.v_in_k) params.halves[1] = half_of(pool.v, pool.v_dim);
  int64_t num_runs = 0;
  for (const cuda::OpPairsParams::Half& half : params.halves)
    num_runs += half.outer_count * half.inner_count;
  if (num_runs > INT32_MAX) {
    fail_with(KVC_E_UNSUPPORTED, num_runs,
              "a page of the pool lies in %lld parts: on a device at most %d",
              static_cast<long long>(num_runs), INT32_MAX);
  }
  Scratch scratch(stream_);
  scratch.place(&params.from, num_pairs);
  scratch.place(&params.to, num_pairs);
  scratch.place(&params.layers, num_runs);
  scratch.take(device_);
  device_.call("pairs", device_.table->op_pairs, params, stream_);
  const cuda::PageCopyParams copies{.from_layers = params.layers,
                                    .to_layers = params.layers,
                                    .num_layers = static_cast<int32_t>(num_runs),
                                    .from = params.from,
                                    .to = params.to,
                                    .num_pairs = num_pairs,
                                    .group = -1};
  device_.call("copy pages", device_.table->copy_pages, copies, stream_);
}

void CudaOperators::merge(const MergeCall& call) {
  device_.call("merge_states", device_.table->merge_states, call.params, call.num_rows, nullptr,
               stream_);
}

void CudaOperators::linear(kernels::LinearParams params, const kernels::OpStateTensors& states) {
  if (states.num_sequences == 0) return;
  if (params.k_dim > kMaxHeadDim) {
    fail_with(KVC_E_UNSUPPORTED, params.k_dim,
              "states has a k dim of %d: on CUDA device %d at most %d", params.k_dim, device_.id,
              kMaxHeadDim);
  }
  cuda::OpStatesParams made{};
  static_cast<kernels::OpStateTensors&>(made) = states;
  kernels::LinearSequence* sequences = nullptr;
  Scratch scratch(stream_);
  scratch.place(&sequences, states.num_sequences);
  scratch.take(device_);
  made.sequences = sequences;
  params.sequences = sequences;
  device_.call("states", device_.table->op_states, made, stream_);
  // Lengths are the device's: as many long ones as there can be.
  const int64_t num_long = states.row_indptr == nullptr ? 0 : states.num_rows / cuda::kLongSequence;
  device_.call("linear", device_.table->linear, params, states.num_sequences, nullptr,
               static_cast<int32_t>(std::min<int64_t>(num_long, states.num_sequences)), stream_);
}

}  // namespace kvc
