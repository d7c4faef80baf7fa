// Scores of a block in wgmma's accumulator layout: masks, soft cap, and the online softmax state of
// every row. A thread holds columns 8 * j + 2 * (lane % 4) and the next one of two rows, which are
// eight apart.
#pragma once

#include "kernels/cuda/attn/visible_range.h"
#include "kernels/cuda/attn/wgmma/item.cuh"
#include "kernels/cuda/ptx/ptx.cuh"
#include "kernels/cuda/work.h"

namespace kvc::cuda::wgmma {

constexpr float kMinusInfinity = -__builtin_inff();

// The first of a thread's two rows in its warpgroup. The other row is 8 further.
KVC_DEVICE int32_t row_of_warpgroup() {
  const auto thread = static_cast<int32_t>(threadIdx.x & 127u);
  return thread / 32 * 16 + (thread & 31) / 4;
}

// Sets masked scores to -inf, whatever they were. s[4 * j + 2 * row + i] belongs to keys from
// first_key on and to packed rows first_row and first_row + 8.
template <int Keys>
KVC_DEVICE void mask_scores(float (&s)[Keys / 2], const ItemScope& scope,
                            const kernels::AttnParams& params, int32_t first_row,
                            int32_t first_key) {
  const int32_t group_size = params.num_q_heads / params.num_kv_heads;
  const int shift = 2 * (lane_id() & 3);
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int32_t packed = first_row + 8 * row;
    const int32_t token = packed < scope.row_end ? packed / group_size : 0;
    RowRange own =
        packed < scope.row_end ? row_range(*scope.sequence, params.causal, token) : kNoKeys;
    own.end = own.end < scope.key_end ? own.end : scope.key_end;
#pragma unroll
    for (int word = 0; word < Keys / 32; ++word) {
      const int32_t key = first_key + 32 * word;
      const uint32_t bits =
          (visible_bits(scope.mask, own, token, key) & ~bits_below(scope.key_begin - key)) >> shift;
#pragma unroll
      for (int column = 0; column < 4; ++column) {
        float* at = s + 4 * (4 * word + column) + 2 * row;
        if ((bits >> (8 * column) & 1u) == 0) at[0] = kMinusInfinity;
        if ((bits >> (8 * column + 1) & 1u) == 0) at[1] = kMinusInfinity;
      }
    }
  }
}

// tanh(x) = 1 - 2 / (e^2x + 1), with an absolute error near 1e-7.
KVC_DEVICE float tanh_fast(float x) {
  constexpr float kTwoLog2E = 2.88539008f;
  return 1.0f - 2.0f * reciprocal_fast(exp2_fast(x * kTwoLog2E) + 1.0f);
}
template <int Count>
KVC_DEVICE void cap_scores(float (&s)[Count], float scale) {
#pragma unroll
  for (int i = 0; i < Count; ++i) s[i] = tanh_fast(s[i] * scale);
}

// The online softmax state of a row. m is the maximum of its unscaled scores, the same in all four
// lanes of the row. l is the sum of the thread's own columns alone.
struct RowSums {
  float m = kMinusInfinity;
  float l = 0;
};

KVC_DEVICE float maximum_of_row(float m) {
  m = fmaxf(m, shuffle_xor(m, 1));
  return fmaxf(m, shuffle_xor(m, 2));
}

// The maxima, including this block's scores.
template <int Keys>
KVC_DEVICE void find_maxima(const float (&s)[Keys / 2], const RowSums (&sums)[2], float (&m)[2]) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    m[row] = sums[row].m;
#pragma unroll
    for (int j = 0; j < Keys / 8; ++j)
      m[row] = fmaxf(m[row], fmaxf(s[4 * j + 2 * row], s[4 * j + 2 * row + 1]));
    m[row] = maximum_of_row(m[row]);
  }
}

// s becomes 2^(scale * (s - m)), with scale > 0. `factor` rescales the sums and outputs of earlier
// blocks. A row without a visible key so far has factor 0 and weights 0.
template <int Keys>
KVC_DEVICE void softmax(float (&s)[Keys / 2], float scale, const float (&m)[2], RowSums (&sums)[2],
                        float (&factor)[2]) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const float base = m[row] == kMinusInfinity ? 0.0f : -m[row] * scale;
    factor[row] = exp2_fast(fmaf(sums[row].m, scale, base));
    float l = sums[row].l * factor[row];
#pragma unroll
    for (int j = 0; j < Keys / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& p = s[4 * j + 2 * row + i];
        p = exp2_fast(fmaf(p, scale, base));
        l += p;
      }
    }
    sums[row] = {m[row], l};
  }
}

// Packs probabilities into A operands: the registers of step k hold columns 16 * k to 16 * k + 15.
template <kernels::DType T, int Keys>
KVC_DEVICE void pack_scores(const float (&s)[Keys / 2], uint32_t (&a)[Keys / 16][4]) {
#pragma unroll
  for (int k = 0; k < Keys / 16; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[k][i] = pack<T>(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
  }
}

template <int Count>
KVC_DEVICE void rescale(float (&o)[Count], const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < Count; ++i) o[i] *= factor[i / 2 % 2];
}

}  // namespace kvc::cuda::wgmma
