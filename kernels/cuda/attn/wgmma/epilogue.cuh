// The epilogue of a work item: writes rows normalised into out and lse, or un-normalised into a
// split.
#pragma once

#include "kernels/cuda/attn/wgmma/softmax.cuh"
#include "kernels/cuda/ptx/elements.cuh"
#include "kernels/cuda/ptx/ptx.cuh"
#include "kernels/cuda/work.h"

namespace kvc::cuda::wgmma {

constexpr float kLog2E = 1.44269504f;
constexpr float kLn2 = 0.693147181f;

KVC_DEVICE float sum_of_row(float l) {
  l += shuffle_xor(l, 1);
  return l + shuffle_xor(l, 2);
}

// Stores columns column_begin + 8 * j + 2 * (lane % 4) and the next one of a row, times `factor`.
// v_dim is a multiple of 8, and `to` is aligned to pairs.
template <int Row, int Count>
KVC_DEVICE void store_row(std::byte* to, kernels::DType dtype, const float (&o)[Count],
                          float factor, int32_t column_begin, int32_t v_dim) {
  const int32_t column = column_begin + 2 * (lane_id() & 3);
  const auto for_each = [&](auto store) {
#pragma unroll
    for (int j = 0; j < Count / 4; ++j) {
      if (column_begin + 8 * j < v_dim)
        store(column + 8 * j, o[4 * j + 2 * Row] * factor, o[4 * j + 2 * Row + 1] * factor);
    }
  };
  if (dtype == kernels::DType::kF32) {
    for_each([&](int32_t at, float x, float y) {
      store_word<uint64_t>(to + 4 * at, as_bits(x) | static_cast<uint64_t>(as_bits(y)) << 32);
    });
  } else if (dtype == kernels::DType::kBF16) {
    for_each([&](int32_t at, float x, float y) {
      store_word<uint32_t>(to + 2 * at, pack<kernels::DType::kBF16>(x, y));
    });
  } else {
    for_each([&](int32_t at, float x, float y) {
      store_word<uint32_t>(to + 2 * at, pack<kernels::DType::kF16>(x, y));
    });
  }
}

// Writes one of the thread's two rows.
template <int Row, int Count>
KVC_DEVICE void write_output_row(const AttnLaunch& launch, const ItemScope& scope,
                                 const WorkItem& item, int32_t packed, const RowSums& sums,
                                 float m_scale, const float (&o)[Count], int32_t column_begin,
                                 bool writes_sums) {
  const kernels::AttnParams& params = launch.params;
  if (packed >= scope.row_end) return;
  const float l = sums.l;
  const bool empty = sums.m == kMinusInfinity;
  const float m = empty ? kMinusInfinity : sums.m * m_scale;
  writes_sums = writes_sums && (lane_id() & 3) == 0;
  std::byte* to;
  kernels::DType dtype = kernels::DType::kF32;
  float factor = 1.0f;
  if (item.split >= 0) {
    float* slot = launch.schedule.partials +
                  item.split * split_floats(launch.schedule.tile_rows, params.v_dim) +
                  int64_t{packed - scope.row_begin} * (2 + params.v_dim);
    if (writes_sums) slot[0] = m, slot[1] = l;
    to = reinterpret_cast<std::byte*>(slot + 2);
  } else {
    const int32_t group_size = params.num_q_heads / params.num_kv_heads;
    const int64_t token = packed_row_of(*scope.sequence, packed / group_size);
    const int32_t q_head = item.kv_head * group_size + packed % group_size;
    if (writes_sums && params.lse != nullptr) {
      params.lse[token * params.lse_token_stride + q_head] =
          empty ? kMinusInfinity : kLn2 * (m + log2_fast(l));
    }
    float denominator = l;
    if (params.sinks != nullptr && !empty)
      denominator += exp2_fast(params.sinks[q_head] * kLog2E - m);
    factor = empty ? 0.0f : 1.0f / denominator;
    dtype = params.out.dtype;
    to = params.out.base + token * params.out.token_stride + q_head * params.out.head_stride;
  }
  store_row<Row>(to, dtype, o, factor, column_begin, params.v_dim);
}

// Writes columns column_begin + 8 * j + 2 * (lane % 4) and the next one of packed rows first_row
// and first_row + 8. `sums` are those of whole rows. `m_scale` converts m to log2 units. With
// `writes_sums` this warpgroup also writes m, l and lse.
template <int Count>
KVC_DEVICE void write_output(const AttnLaunch& launch, const ItemScope& scope, const WorkItem& item,
                             int32_t first_row, const RowSums (&sums)[2], float m_scale,
                             const float (&o)[Count], int32_t column_begin, bool writes_sums) {
  write_output_row<0>(launch, scope, item, first_row, sums[0], m_scale, o, column_begin,
                      writes_sums);
  write_output_row<1>(launch, scope, item, first_row + 8, sums[1], m_scale, o, column_begin,
                      writes_sums);
  sync_warp();
}

}  // namespace kvc::cuda::wgmma
