// The score modifiers between the two products: soft cap, ALiBi, bias and masks. The plain causal
// path passes three uniform branches.
#pragma once

#include "kernels/cuda/attn/mma/item.cuh"

namespace kvc::cuda::attn_mma {

// Scores of a warp: s[n][e] belongs to row lane/4 (+ 8 for e of 2, 3) and to key 8*n + 2*(lane % 4)
// + e % 2 of the tile.
template <typename C>
struct Scores {
  static constexpr int kTiles = C::kTileKeys / 8;
  float s[kTiles][4];
};

// Bit 8*n + e of a row: the lane's key of s[n][e] or s[n][2 + e] is visible to the row.
struct VisibleBits {
  uint64_t of[2];
  KVC_DEVICE bool operator()(int n, int e) const {
    return (of[e >> 1] >> (8 * n + (e & 1)) & 1u) != 0;
  }
};

template <typename C>
KVC_DEVICE VisibleBits visible_key_bits(const Item& item, const Row* rows, int32_t first_key) {
  const int lane = lane_id();
  VisibleBits visible_keys;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const Row& row = rows[lane / 4 + 8 * i];
    uint64_t bits = visible_bits(item.mask, row.mask, row.token, first_key);
    if constexpr (C::kTileKeys > 32)
      bits |= static_cast<uint64_t>(visible_bits(item.mask, row.mask, row.token, first_key + 32))
              << 32;
    if constexpr (C::kTileKeys == 16) bits &= 0xffffu;
    const int32_t before = item.key_begin - first_key;
    if (before > 0) bits = before >= 64 ? 0 : bits >> before << before;
    visible_keys.of[i] = bits >> (2 * (lane & 3));
  }
  return visible_keys;
}

// softcap * tanh(s) with tanh(x) = 1 - 2 / (2^(2 x log2 e) + 1). The error is at most 2^-22 of the
// cap.
KVC_DEVICE float capped(float s, float cap) {
  return cap * (1.0f - 2.0f * reciprocal_fast(exp2_fast(s * (2.0f * kLog2E)) + 1.0f));
}

template <typename C>
KVC_DEVICE void cap_scores(Scores<C>& scores, float cap) {
#pragma unroll
  for (int n = 0; n < Scores<C>::kTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) scores.s[n][e] = capped(scores.s[n][e], cap);
  }
}

// Reads positions of visible keys only.
template <typename C>
KVC_DEVICE void add_slopes(Scores<C>& scores, const Item& item, const Row* rows, int32_t first_key,
                           const VisibleBits& visible_keys) {
  const int lane = lane_id();
  const Row &row0 = rows[lane / 4], &row1 = rows[lane / 4 + 8];
#pragma unroll
  for (int n = 0; n < Scores<C>::kTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int32_t key = first_key + 8 * n + 2 * (lane & 3) + e;
      int32_t position = item.key_position + key;
      if (item.key_positions != nullptr && (visible_keys(n, e) || visible_keys(n, 2 + e)))
        position = item.key_positions[key];
      scores.s[n][e] -= row0.slope * static_cast<float>(row0.position - position);
      scores.s[n][2 + e] -= row1.slope * static_cast<float>(row1.position - position);
    }
  }
}

// A bias of -inf hides the key like a mask: the score may be NaN.
template <typename C>
KVC_DEVICE void add_bias(Scores<C>& scores, const kernels::AttnParams& params, const Item& item,
                         const Row* rows, int32_t first_key, VisibleBits& visible_keys) {
  const int lane = lane_id();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const Row& row = rows[lane / 4 + 8 * i];
    const float* bias = item.bias + row.head * params.bias_head_stride +
                        row.packed * params.bias_token_stride + first_key + 2 * (lane & 3);
#pragma unroll
    for (int n = 0; n < Scores<C>::kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (!visible_keys(n, 2 * i + e)) continue;
        const float b = bias[8 * n + e];
        scores.s[n][2 * i + e] += bounded_bias(b) * kLog2E;
        if (b == -__builtin_inff()) visible_keys.of[i] &= ~(uint64_t{1} << (8 * n + e));
      }
    }
  }
}

// Masked scores are replaced, never multiplied or added to: they may be NaN.
template <typename C>
KVC_DEVICE void mask_scores(Scores<C>& scores, const VisibleBits& visible_keys) {
#pragma unroll
  for (int n = 0; n < Scores<C>::kTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e)
      scores.s[n][e] = visible_keys(n, e) ? scores.s[n][e] : -__builtin_inff();
  }
}

// Returns the visible keys of each row of the tile, which is meaningful only when `masked`.
template <typename C>
KVC_DEVICE VisibleBits apply_score_modifiers(Scores<C>& scores, const kernels::AttnParams& params,
                                             const Item& item, const Row* rows, int32_t first_key,
                                             bool masked) {
  if (params.softcap != 0.0f) cap_scores(scores, params.softcap);
  VisibleBits visible_keys = {{~uint64_t{0}, ~uint64_t{0}}};
  if (masked) visible_keys = visible_key_bits<C>(item, rows, first_key);
  if (params.alibi != nullptr) add_slopes(scores, item, rows, first_key, visible_keys);
  if (params.bias != nullptr) add_bias(scores, params, item, rows, first_key, visible_keys);
  if (masked) mask_scores(scores, visible_keys);
  return visible_keys;
}

}  // namespace kvc::cuda::attn_mma
