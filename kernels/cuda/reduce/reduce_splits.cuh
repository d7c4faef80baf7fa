// Partial results of split rows into out and lse. For every row of every merge item, with the
// sources s in
// their order:
//   m = max m_s,  w_s = 2^(m_s - m),  lse = ln(2) * (m + log2(sum w_s l_s))
//   O = sum w_s acc_s / (sum w_s l_s + 2^(sink - m))
// A row that no source saw anything of: O = 0, lse = -inf.
#pragma once

#include "kernels/cuda/ptx/ptx.cuh"
#include "kernels/cuda/work.h"

namespace kvc::cuda::combining {

// A warp per row and query head; four rows of a CTA lie side by side in a slot.
constexpr int32_t kThreads = 128;
constexpr int32_t kWarps = kThreads / 32;
// Keeps ptxas from squeezing registers, with spills, for more.
constexpr int32_t kCtasPerSm = 8;

// Vectors of accumulators that a lane has under way per source: 128 accumulators of a row in pairs
// take two.
constexpr int32_t kVectors = 2;

struct Launch {
  WorkPlan plan;
  const kernels::AttnSequence* sequences;
  kernels::TokenRows out;
  float* lse;  // nullable
  int64_t lse_token_stride;
  const float* sinks;  // nullable, natural units
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

// The larger one; NaN wins, so that it reaches the outputs.
KVC_DEVICE float top_of(float a, float b) { return a != a || a > b ? a : b; }

// A part of a row as lane s of a group of 32 sources knows the s-th of them: where it begins in the
// partials, and its weight.
struct Part {
  int64_t at;
  float weight;
};

// The sources of one row.
struct Row {
  const float* partials;
  const MergeSource* sources;
  int32_t num_sources;
  int32_t row;  // inside the merge item
  int64_t slot_stride;
  int64_t row_stride;

  KVC_DEVICE int64_t begin_of(int32_t source) const {
    const MergeSource from = sources[source];
    return from.slot * slot_stride + (from.row + row) * row_stride;
  }
  // warp. The group of sources from `first` on; lanes without one weigh nothing.
  KVC_DEVICE Part part(int32_t first, float top) const {
    const int32_t source = first + lane_id();
    if (source >= num_sources) return {0, 0.0f};
    const int64_t at = begin_of(source);
    return {at, exp2_fast(partials[at] - top)};
  }
};

// warp. The largest m over all sources.
KVC_DEVICE float top_of_row(const Row& row) {
  float top = kMinusInfinity;
  for (int32_t source = lane_id(); source < row.num_sources; source += 32)
    top = top_of(row.partials[row.begin_of(source)], top);
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) top = top_of(shuffle_xor(top, mask), top);
  return top;
}

// warp. Sum of l over all sources.
KVC_DEVICE float length_of_row(const Row& row, float top) {
  float sum = 0.0f;
  for (int32_t first = 0; first < row.num_sources; first += 32) {
    const Part part = row.part(first, top);
    if (part.weight != 0.0f) sum += part.weight * row.partials[part.at + 1];
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

// warp. Adds the next 32 sources to the accumulators from `index` on, every lane to its own.
template <int Width>
KVC_DEVICE void add_parts(const Row& row, const Part& part, int32_t count, int32_t index,
                          int32_t v_dim, Floats<Width> (&sums)[kVectors]) {
#pragma unroll 4
  for (int32_t source = 0; source < count; ++source) {
    const float weight = shuffle(part.weight, source);
    const float* from = row.partials + shuffle(part.at, source) + 2;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int32_t d = index + i * 32 * Width;
      // What weighs nothing may hold anything.
      if (d >= v_dim || weight == 0.0f) continue;
      const auto values = *reinterpret_cast<const Floats<Width>*>(from + d);
#pragma unroll
      for (int j = 0; j < Width; ++j) sums[i].x[j] += weight * values.x[j];
    }
  }
}

// warp.
template <int Width>
KVC_DEVICE void combine_row(const Launch& launch, const Row& row, std::byte* out, float sink,
                            float* lse) {
  const float top = top_of_row(row);
  const bool is_empty = top == kMinusInfinity;
  const float length = is_empty ? 0.0f : length_of_row(row, top);
  if (lse != nullptr && lane_id() == 0)
    *lse = is_empty ? kMinusInfinity : kLn2 * (top + log2_fast(length));
  const float scale = is_empty ? 0.0f : 1.0f / (length + exp2_fast(kLog2E * sink - top));
  const bool one_group = row.num_sources <= 32;
  Part part = is_empty ? Part{0, 0.0f} : row.part(0, top);
  for (int32_t first_d = 0; first_d < launch.v_dim; first_d += kVectors * 32 * Width) {
    const int32_t index = first_d + lane_id() * Width;
    Floats<Width> sums[kVectors] = {};
    for (int32_t first = 0; first < row.num_sources && !is_empty; first += 32) {
      if (!one_group) part = row.part(first, top);
      const int32_t left = row.num_sources - first;
      add_parts<Width>(row, part, left < 32 ? left : 32, index, launch.v_dim, sums);
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

// Width 2: v_dim is even and rows of `out` are aligned for pairs of elements.
template <int Width>
__global__ void __launch_bounds__(kThreads, kCtasPerSm)
    combine_kernel(const __grid_constant__ Launch launch) {
  wait_for_previous_kernel();
  launch_dependents();
  const WorkPlan& plan = launch.plan;
  const int32_t num_tasks = plan.counts[1] * plan.tile_rows;
  const int32_t stride = static_cast<int32_t>(gridDim.x) * kWarps;
  for (int32_t task = static_cast<int32_t>(blockIdx.x) * kWarps + warp_id(); task < num_tasks;
       task += stride) {
    const MergeItem merge = plan.merges[task / plan.tile_rows];
    const int32_t i = task % plan.tile_rows;
    if (i >= merge.num_rows) continue;
    const Row row{plan.partials,
                  plan.sources + merge.first_source,
                  merge.num_sources,
                  i,
                  slot_floats(plan.tile_rows, launch.v_dim),
                  2 + launch.v_dim};
    const kernels::AttnSequence& sequence = launch.sequences[merge.sequence];
    const int32_t packed = merge.row_begin + i, token_row = packed / launch.group_size;
    const int32_t head = merge.kv_head * launch.group_size + packed % launch.group_size;
    const int64_t token =
        sequence.row_map != nullptr ? sequence.row_map[token_row] : sequence.row_begin + token_row;
    combine_row<Width>(
        launch, row,
        launch.out.base + token * launch.out.token_stride + head * launch.out.head_stride,
        launch.sinks != nullptr ? launch.sinks[head] : kMinusInfinity,
        launch.lse != nullptr ? launch.lse + token * launch.lse_token_stride + head : nullptr);
  }
}

}  // namespace kvc::cuda::combining
