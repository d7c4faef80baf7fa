// What the two ways of linear attention share: rows as floats, decay factors, and the register tile
// of the chunked way.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/tile_pass-inl.h"
#include "kernels/linear_params.h"

namespace kvc::kernels::cpu {
namespace {

// Rows x columns of a register tile; the rest of the registers holds one row of the other operand
// and a broadcast.
constexpr int kLinearRows = kVectorRegisters >= 16 ? 6 : 2;
constexpr int kLinearColumns = kVectorRegisters >= 32 ? 4 : 2;

inline int64_t whole_vectors(int64_t floats) { return (floats + kLanes - 1) / kLanes * kLanes; }

KVC_VEC_INLINE int lanes_from(int64_t column, int64_t columns) {
  return columns - column < kLanes ? static_cast<int>(columns - column) : kLanes;
}

// `count` elements as floats, zeros up to a whole vector behind them.
inline void widen_row(float* to, const std::byte* from, DType dtype, int64_t count) {
  const int64_t bytes = dtype_bytes(dtype);
  for (int64_t i = 0; i < count; i += kLanes)
    store(to + i, load_any(from + i * bytes, dtype, lanes_from(i, count)));
}

inline void narrow_row(std::byte* to, const float* from, DType dtype, int64_t count) {
  const int64_t bytes = dtype_bytes(dtype);
  for (int64_t i = 0; i < count; i += kLanes)
    store_any(to + i * bytes, dtype, load(from + i), lanes_from(i, count));
}

// e^x for x <= 0; what lies above the range of floats is the caller's mistake and saturates.
KVC_VEC_INLINE Vec decay_factor(Vec x) {
  return exp2(min(set1(127.0f), mul(x, set1(1.44269504f))));
}

KVC_VEC_INLINE const std::byte* row_of(const TokenRows& rows, int64_t token, int64_t head) {
  return rows.base + token * rows.token_stride + head * rows.head_stride;
}

KVC_VEC_INLINE const float* decay_of(const LinearParams& params, int64_t token, int64_t head) {
  return params.decay + token * params.decay_token_stride + head * params.decay_head_stride;
}

KVC_VEC_INLINE float beta_of(const LinearParams& params, int64_t token, int64_t head) {
  return params.beta == nullptr ? 1.0f : params.beta[token * params.beta_token_stride + head];
}

// acc[r][c] += sum over j of a[r][j] * b[j][c], with a[r][j] at a + r*a_row + j*a_step and rows of
// b at b + j*b_row.
template <int kRows, int kColumns>
KVC_VEC_INLINE void multiply_add(const float* a, int64_t a_row, int64_t a_step, const float* b,
                                 int64_t b_row, int64_t count, Vec (&acc)[kRows][kColumns]) {
  for (int64_t j = 0; j < count; ++j) {
    Vec row[kColumns];
    KVC_UNROLL
    for (int c = 0; c < kColumns; ++c) row[c] = load(b + j * b_row + c * kLanes);
    KVC_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const Vec factor = set1(a[r * a_row + j * a_step]);
      KVC_UNROLL
      for (int c = 0; c < kColumns; ++c) acc[r][c] = fma(factor, row[c], acc[r][c]);
    }
  }
}

// tile<rows>(row) over rows [begin, end).
template <typename Tile>
KVC_VEC_INLINE void for_row_tiles(int64_t begin, int64_t end, Tile&& tile) {
  int64_t row = begin;
  for (; row + kLinearRows <= end; row += kLinearRows) tile.template operator()<kLinearRows>(row);
  if constexpr (kLinearRows > 2) {
    for (; row + 2 <= end; row += 2) tile.template operator()<2>(row);
  }
  for (; row < end; ++row) tile.template operator()<1>(row);
}

}  // namespace
}  // namespace kvc::kernels::cpu
