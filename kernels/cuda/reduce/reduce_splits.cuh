// Reduces splits into out and lse. For every row of every ReduceItem, with its sources s in order:
//   m = max m_s,  w_s = 2^(m_s - m),  lse = ln(2) * (m + log2(sum w_s l_s))
//   O = sum w_s acc_s / (sum w_s l_s + 2^(sink - m))
// A row that saw no key in any source gets O = 0 and lse = -inf.
#pragma once

#include "kernels/cuda/ptx/ptx.cuh"
#include "kernels/cuda/work.h"

namespace kvc::cuda::reducing {

// A warp per row and query head. The four rows of a CTA are neighbours in a split.
constexpr int32_t kThreads = 128;
constexpr int32_t kWarps = kThreads / 32;
// Leaves enough registers: for more CTAs ptxas would spill.
constexpr int32_t kCtasPerSm = 8;

// Vectors of accumulators in flight per lane and source. 128 accumulators of a row in pairs take
// two.
constexpr int32_t kVectors = 2;

struct Launch {
  WorkSchedule schedule;
  const kernels::AttnSequence* sequences;
  kernels::TokenRows out;
  float* lse;  // Nullable.
  int64_t lse_token_stride;
  const float* sinks;  // Sink logits, nullable, in natural units.
  int32_t v_dim;
  int32_t group_size;
};

constexpr float kMinusInfinity = -__builtin_inff();
constexpr float kLog2E = 1.44269504f;
constexpr float kLn2 = 0.69314718f;

// Width neighbouring float32 accumulators.
template <int Width>
struct alignas(4 * Width) Floats {
  float x[Width];
};

// The larger value. NaN wins, so that it reaches the outputs.
KVC_DEVICE float max_or_nan(float a, float b) { return a != a || a > b ? a : b; }

// One source of a row: its offset in the partials and its weight. Lane s of a warp holds source s
// of a group of 32.
struct SourceWeight {
  int64_t at;
  float weight;
};

// The sources of one row.
struct Row {
  const float* partials;
  const ReduceSource* sources;
  int32_t num_sources;
  int32_t row;  // Row inside the ReduceItem.
  int64_t split_stride;
  int64_t row_stride;

  KVC_DEVICE int64_t begin_of(int32_t source) const {
    const ReduceSource from = sources[source];
    return from.split * split_stride + (from.row + row) * row_stride;
  }
  // Warp. The group of 32 sources from `first` on. Lanes without a source get weight 0.
  KVC_DEVICE SourceWeight weight_of_lane(int32_t first, float max) const {
    const int32_t source = first + lane_id();
    if (source >= num_sources) return {0, 0.0f};
    const int64_t at = begin_of(source);
    return {at, exp2_fast(partials[at] - max)};
  }
};

// Warp. The largest m of all sources.
KVC_DEVICE float max_of_row(const Row& row) {
  float max = kMinusInfinity;
  for (int32_t source = lane_id(); source < row.num_sources; source += 32)
    max = max_or_nan(row.partials[row.begin_of(source)], max);
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) max = max_or_nan(shuffle_xor(max, mask), max);
  return max;
}

// Warp. The weighted sum of l over all sources.
KVC_DEVICE float sum_of_row(const Row& row, float max) {
  float sum = 0.0f;
  for (int32_t first = 0; first < row.num_sources; first += 32) {
    const SourceWeight own = row.weight_of_lane(first, max);
    if (own.weight != 0.0f) sum += own.weight * row.partials[own.at + 1];
  }
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
  return sum;
}

template <int Width>
KVC_DEVICE void store(std::byte* row, kernels::DType dtype, int32_t index,
                      const Floats<Width>& values) {
  if (dtype == kernels::DType::kF32) {
    *reinterpret_cast<Floats<Width>*>(row + 4 * static_cast<int64_t>(index)) = values;
  } else if constexpr (Width == 2) {
    *reinterpret_cast<uint32_t*>(row + 2 * static_cast<int64_t>(index)) =
        dtype == kernels::DType::kF16 ? pack<kernels::DType::kF16>(values.x[0], values.x[1])
                                      : pack<kernels::DType::kBF16>(values.x[0], values.x[1]);
  } else {
    *reinterpret_cast<uint16_t*>(row + 2 * static_cast<int64_t>(index)) =
        dtype == kernels::DType::kF16 ? float_to_f16(values.x[0]) : float_to_bf16(values.x[0]);
  }
}

// Warp. Adds the next 32 sources to the accumulators from `index` on, each lane to its own.
template <int Width>
KVC_DEVICE void add_sources(const Row& row, const SourceWeight& own, int32_t count, int32_t index,
                            int32_t v_dim, Floats<Width> (&sums)[kVectors]) {
#pragma unroll 4
  for (int32_t source = 0; source < count; ++source) {
    const float weight = shuffle(own.weight, source);
    const float* from = row.partials + shuffle(own.at, source) + 2;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int32_t d = index + i * 32 * Width;
      // A source of weight 0 may hold any bits.
      if (d >= v_dim || weight == 0.0f) continue;
      const auto values = *reinterpret_cast<const Floats<Width>*>(from + d);
#pragma unroll
      for (int j = 0; j < Width; ++j) sums[i].x[j] += weight * values.x[j];
    }
  }
}

// Warp. Reduces one row.
template <int Width>
KVC_DEVICE void reduce_row(const Launch& launch, const Row& row, std::byte* out, float sink,
                           float* lse) {
  const float max = max_of_row(row);
  const bool is_empty = max == kMinusInfinity;
  const float sum = is_empty ? 0.0f : sum_of_row(row, max);
  if (lse != nullptr && lane_id() == 0)
    *lse = is_empty ? kMinusInfinity : kLn2 * (max + log2_fast(sum));
  const float scale = is_empty ? 0.0f : 1.0f / (sum + exp2_fast(kLog2E * sink - max));
  const bool one_group = row.num_sources <= 32;
  SourceWeight own = is_empty ? SourceWeight{0, 0.0f} : row.weight_of_lane(0, max);
  for (int32_t first_d = 0; first_d < launch.v_dim; first_d += kVectors * 32 * Width) {
    const int32_t index = first_d + lane_id() * Width;
    Floats<Width> sums[kVectors] = {};
    for (int32_t first = 0; first < row.num_sources && !is_empty; first += 32) {
      if (!one_group) own = row.weight_of_lane(first, max);
      const int32_t left = row.num_sources - first;
      add_sources<Width>(row, own, left < 32 ? left : 32, index, launch.v_dim, sums);
    }
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int32_t d = index + i * 32 * Width;
#pragma unroll
      for (int j = 0; j < Width; ++j) sums[i].x[j] *= scale;
      if (d < launch.v_dim) store<Width>(out, launch.out.dtype, d, sums[i]);
    }
  }
}

// Width 2: v_dim is even, and rows of `out` are aligned to pairs of elements.
template <int Width>
__global__ void __launch_bounds__(kThreads, kCtasPerSm)
    reduce_splits_kernel(const __grid_constant__ Launch launch) {
  wait_for_previous_kernel();
  launch_dependents();
  const WorkSchedule& schedule = launch.schedule;
  const int32_t num_tasks = schedule.counts[1] * schedule.tile_rows;
  const int32_t stride = static_cast<int32_t>(gridDim.x) * kWarps;
  for (int32_t task = static_cast<int32_t>(blockIdx.x) * kWarps + warp_id(); task < num_tasks;
       task += stride) {
    const ReduceItem item = schedule.reductions[task / schedule.tile_rows];
    const int32_t i = task % schedule.tile_rows;
    if (i >= item.num_rows) continue;
    const Row row{schedule.partials,
                  schedule.sources + item.first_source,
                  item.num_sources,
                  i,
                  split_floats(schedule.tile_rows, launch.v_dim),
                  2 + launch.v_dim};
    const kernels::AttnSequence& sequence = launch.sequences[item.sequence];
    const int32_t packed = item.row_begin + i, token_row = packed / launch.group_size;
    const int32_t head = item.kv_head * launch.group_size + packed % launch.group_size;
    const int64_t token =
        sequence.row_map != nullptr ? sequence.row_map[token_row] : sequence.row_begin + token_row;
    reduce_row<Width>(
        launch, row,
        launch.out.base + token * launch.out.token_stride + head * launch.out.head_stride,
        launch.sinks != nullptr ? launch.sinks[head] : kMinusInfinity,
        launch.lse != nullptr ? launch.lse + token * launch.lse_token_stride + head : nullptr);
  }
}

}  // namespace kvc::cuda::reducing
