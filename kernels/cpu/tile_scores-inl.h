// From raw scores to weights: soft cap, ALiBi, bias, mask, online softmax; and a finished row on
// its way out. Arithmetic of one row never looks at another row. Include a vec_<isa>.h first.
#pragma once

#if defined(__AVX512DQ__)
#include <immintrin.h>
#endif

#include <cstdint>

#include "kernels/cpu/epilogue-inl.h"
#include "kernels/cpu/tile_rows-inl.h"

namespace kvc::kernels::cpu {
namespace {

constexpr int kBlockVectors = kBlockKeys / kLanes;

inline bool scores_are_plain(const AttnParams& params) {
  return params.softcap == 0.0f && params.alibi == nullptr && params.bias == nullptr;
}

inline int lanes_below(int64_t end, int c) {
  const int64_t n = end - c * kLanes;
  return n < 0 ? 0 : n > kLanes ? kLanes : static_cast<int>(n);
}

// The part of a block's bits that belongs to vector c.
inline Mask block_mask(uint64_t bits, int c) {
  return mask_of(static_cast<uint32_t>(bits >> (c * kLanes)) & ((uint32_t{1} << kLanes) - 1));
}

// Keys outside `visible` get -inf, whatever the dot product was (their K may hold NaN).
inline void mask_scores(float* scores /* [kBlockKeys] */, uint64_t visible) {
  for (int c = 0; c < kBlockVectors; ++c) {
    float* at = scores + c * kLanes;
    store(at, select(block_mask(visible, c), load(at), set1(kMinusInfinity)));
  }
}

// Distances to the keys of a block whose positions follow no order.
inline void look_up_distances(const TileRows& rows, const TileRow& row, int64_t block_begin,
                              uint64_t visible, float* distances /* [kBlockKeys] */) {
  const int64_t row_position = position_of_row(*rows.sequence, row.token);
  for (int key = 0; key < kBlockKeys; ++key) {
    distances[key] = 0.0f;
    if ((visible >> key & 1) == 0) continue;
    distances[key] =
        static_cast<float>(row_position - position_of_key(*rows.sequence, block_begin + key));
  }
}

// Soft cap, ALiBi and bias of one row; then the mask. Bias is read in front of the last visible key
// only.
void adjust_scores(const TileRows& rows, const TileRow& row, int64_t block_begin, uint64_t visible,
                   float* scores /* [kBlockKeys] */) {
  const AttnParams& params = *rows.params;
  const AttnSequence& sequence = *rows.sequence;
  const int64_t key_position = sequence.key_position + block_begin;
  const float slope = params.alibi != nullptr ? params.alibi[row.head] : 0.0f;
  const float distance = static_cast<float>(position_of_row(sequence, row.token) - key_position);
  const float* bias = params.bias == nullptr
                          ? nullptr
                          : params.bias + row.head * params.bias_head_stride +
                                row.packed_row * params.bias_token_stride + key_position;
  const bool uneven = sequence.key_positions != nullptr && params.alibi != nullptr;
  alignas(64) float distances[kBlockKeys];
  if (uneven) look_up_distances(rows, row, block_begin, visible, distances);
  const int64_t num_visible = visible == 0 ? 0 : 64 - __builtin_clzll(visible);
  for (int c = 0; c < kBlockVectors; ++c) {
    float* at = scores + c * kLanes;
    const int lanes = lanes_below(num_visible, c);
    Vec s = load(at);
    if (params.softcap != 0.0f) s = mul(set1(params.softcap), tanh(s));
    if (params.alibi != nullptr) {
      const Vec lane_distance =
          uneven ? load(distances + c * kLanes)
                 : sub(set1(distance - static_cast<float>(c * kLanes)), lane_index());
      s = fnma(set1(slope), lane_distance, s);
    }
    if (bias != nullptr && lanes > 0) s = add_bias(s, load_tail(bias + c * kLanes, lanes));
    store(at, select(block_mask(visible, c), s, set1(kMinusInfinity)));
  }
}

// Bit k: key k of the block is visible to the row. A score of -inf hides its key, a score of NaN
// does not.
inline uint64_t visible_key_bits(const float* scores /* [kBlockKeys] */) {
  uint64_t masked = 0;
  for (int c = 0; c < kBlockVectors; ++c) {
    masked |=
        static_cast<uint64_t>(mask_bits(equal(load(scores + c * kLanes), set1(kMinusInfinity))))
        << (c * kLanes);
  }
  return ~masked;
}

// 2^x for x <= 0, -inf and NaN; 2^-inf is exactly 0 and 2^0 exactly 1: a masked key
// weighs nothing, a maximum that does not move leaves its row untouched.
template <typename V>
KVC_VEC_INLINE V weight_exp2(V x) {
  return exp2(x);
}
#if defined(__AVX512DQ__)
// A third fewer instructions: f = x - floor(x) in one, the exponent added without rounding x first.
// On [0, 1) the polynomial 1 + f*q(f), fitted by Remez exchange, is off by 8.3e-8 at most.
KVC_VEC_INLINE __m512 weight_exp2(__m512 x) {
  const __m512 f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  __m512 p = _mm512_set1_ps(1.867130050e-03f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.017030708e-03f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.579991266e-02f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.401644439e-01f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.931512952e-01f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, x);
}
#endif

// Scores -> weights 2^(s - max) in place; running maxima and sums; by how much the accumulators of
// each row shrink.
inline void softmax_rows(int num_rows, float* scores /* [num_rows][kBlockKeys] */,
                         float* row_max /* [num_rows] */, float* sum /* [num_rows][kLanes] */,
                         float* correction /* [kLanes] */) {
  float shift[kLanes];
  for (int r = 0; r < kLanes; ++r) correction[r] = 0.0f;
  for (int r = 0; r < num_rows; ++r) {
    const float* row = scores + r * kBlockKeys;
    Vec largest = load(row);
    for (int c = 1; c < kBlockVectors; ++c) largest = max(load(row + c * kLanes), largest);
    const float block_max = horizontal_max(largest);
    const float old_max = row_max[r];
    const float new_max = block_max > old_max ? block_max : old_max;
    // A row without a visible key so far stays at -inf: subtract 0, so that 2^(-inf) = 0 comes out
    // and not NaN.
    shift[r] = new_max == kMinusInfinity ? 0.0f : new_max;
    correction[r] = old_max - shift[r];
    row_max[r] = new_max;
  }
  store(correction, weight_exp2(load(correction)));
  for (int r = 0; r < num_rows; ++r) {
    float* row = scores + r * kBlockKeys;
    const Vec row_shift = set1(shift[r]);
    Vec total = zero();
    for (int c = 0; c < kBlockVectors; ++c) {
      const Vec weight = weight_exp2(sub(load(row + c * kLanes), row_shift));
      total = add(total, weight);
      store(row + c * kLanes, weight);
    }
    float* row_sum = sum + r * kLanes;
    store(row_sum, fma(load(row_sum), set1(correction[r]), total));
  }
}

// Normalises and stores one finished row, or writes its partial result.
inline void store_tile_row(const TileRows& rows, const TileRow& row, float row_max,
                           const float* sum /* [kLanes] */,
                           const float* acc /* [v_dim, rounded up to whole vectors] */) {
  const float total = horizontal_sum(load(sum));
  if (total != total)
    row_max = total;  // A visible NaN: not to be taken for a row without visible keys.
  store_row(*rows.params, *rows.item, row.token, row.head, row_max, total, acc);
}

}  // namespace
}  // namespace kvc::kernels::cpu
