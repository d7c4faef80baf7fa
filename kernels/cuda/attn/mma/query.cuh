// Loads Q: rotated and scaled in float32, rounded once, into shared memory and fragments.
#pragma once

#include "kernels/cuda/attn/mma/item.cuh"
#include "kernels/cuda/attn/mma/layout.h"
#include "kernels/cuda/ptx/elements.cuh"

namespace kvc::cuda::attn_mma {

// Elements [first, first + 8) as float32. The row is 16-byte aligned.
KVC_DEVICE void load_eight(const std::byte* row, kernels::DType dtype, int first, float (&x)[8]) {
  if (dtype == kernels::DType::kF32) {
    const Words4 low = load_16(row + first * 4), high = load_16(row + first * 4 + 16);
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = as_float(low.x[i]), x[4 + i] = as_float(high.x[i]);
    return;
  }
  const Words4 words = load_16(row + first * 2);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (dtype == kernels::DType::kF16)
      unpack<kernels::DType::kF16>(words.x[i], x[2 * i], x[2 * i + 1]);
    else
      unpack<kernels::DType::kBF16>(words.x[i], x[2 * i], x[2 * i + 1]);
  }
}

// The same, rotated by row `cos_sin_row` of the RoPE table. Pairs in halves that begin at multiples
// of 8, as in every known model, are read eight at a time.
KVC_DEVICE void load_eight_rotated(const std::byte* row, kernels::DType dtype,
                                   const kernels::Rotation& rotation, int64_t cos_sin_row,
                                   int first, float (&x)[8]) {
  const int32_t half = rotation.rotary_dim / 2, inside = first - rotation.begin;
  if (inside + 8 <= 0 || inside >= 2 * half) {
    load_eight(row, dtype, first, x);
    return;
  }
  const bool in_eights = rotation.interleaved == 0 && ((half | rotation.begin) & 7) == 0;
  if (!in_eights) {
#pragma unroll 1
    for (int i = 0; i < 8; ++i) {
      const float value = rotated(rotation, cos_sin_row, first + i,
                                  [&](int32_t index) { return load_element(row, dtype, index); });
#pragma unroll
      for (int j = 0; j < 8; ++j) x[j] = i == j ? value : x[j];  // Registers cannot be indexed.
    }
    return;
  }
  const bool second = inside >= half;
  const int32_t pair = second ? inside - half : inside;
  float other[8];
  load_eight(row, dtype, first, x);
  load_eight(row, dtype, second ? first - half : first + half, other);
  const float* cos = rotation.cos + cos_sin_row * half + pair;
  const float* sin = rotation.sin + cos_sin_row * half + pair;
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = rotated_element(x[i], other[i], cos[i], sin[i], second);
}

// Loads all rows of the item into shared memory. Rows and dims that do not exist become zeros. The
// caller adds a barrier.
template <typename C>
KVC_DEVICE void load_query(const kernels::AttnParams& params, bool sink_part,
                           const Shared<C>& shared) {
  const kernels::Rotation& rotation = sink_part ? params.sink_q_rotation : params.q_rotation;
  constexpr int kChunks = C::kKDim / 8;
#pragma unroll 1
  for (int index = static_cast<int>(threadIdx.x); index < C::kRows * kChunks; index += kThreads) {
    const int r = index / kChunks, chunk = index % kChunks;
    const Row& row = shared.rows()[r];
    float x[8] = {};
    if (row.exists != 0 && chunk * 8 < params.k_dim) {
      const std::byte* from =
          params.q.base + row.packed * params.q.token_stride + row.head * params.q.head_stride;
      load_eight_rotated(from, params.q.dtype, rotation, row.packed, chunk * 8, x);
    }
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      words[i] = pack<C::kMma>(x[2 * i] * params.q_scale, x[2 * i + 1] * params.q_scale);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // The words of 16 dims lie in two chunks.
      const int pair = chunk % 2 * 4 + i, place = C::kEightBit ? eight_bit_column_pair(pair) : pair;
      const int offset = chunk_offset<C::kQRowBytes>(r, chunk / 2 * 2 + place / 4) + place % 4 * 4;
      *reinterpret_cast<uint32_t*>(shared.q() + offset) = words[i];
    }
  }
}

// The A operand of the warp's 16 rows: held in registers, or read again for every tile.
template <typename C>
struct Query {
  uint32_t held[C::kQInRegisters ? C::kKDim / 16 : 1][4];
  const std::byte* rows;

  KVC_DEVICE static const std::byte* address(const std::byte* rows, int step) {
    const MatrixAddress lane = matrix_address<C::kQRowBytes>(value_lane(lane_id()));
    return rows + lane.row_offset + ((step * 32) ^ lane.chunk_mask);
  }
  KVC_DEVICE void take(const Shared<C>& shared, int warp) {
    rows = shared.q() + (C::kRows == kWarpRows ? 0 : warp * kWarpRows * C::kQRowBytes);
    if constexpr (C::kQInRegisters) {
#pragma unroll
      for (int step = 0; step < C::kKDim / 16; ++step)
        load_matrix_x4(held[step], address(rows, step));
    }
  }
  // Columns [16 * step, 16 * step + 16).
  KVC_DEVICE void fragment(int step, uint32_t (&a)[4]) const {
    if constexpr (C::kQInRegisters) {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = held[step][i];
    } else {
      load_matrix_x4(a, address(rows, step));
    }
  }
};

}  // namespace kvc::cuda::attn_mma
