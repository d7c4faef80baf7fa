// One warp processes 16 rows and one tile of keys in shared memory: S = Q K', softmax in float32 to
// base 2, O += P V.
#pragma once

#include "kernels/cuda/attn/mma/layout.h"
#include "kernels/cuda/attn/mma/query.cuh"
#include "kernels/cuda/attn/mma/score_mods.cuh"
#include "kernels/cuda/ptx/convert8.cuh"

namespace kvc::cuda::attn_mma {

// The online softmax state of a warp's rows lane/4 and lane/4 + 8.
template <typename C>
struct OnlineSoftmax {
  float o[C::kVDim / 8][4];  // The dims are those of output_dim().
  float m[2];                // In log2 units.
  float l[2];                // Holds only the lane's keys until the epilogue.
  float v_unit;              // The unit of o: a power of two, used where V has a scale per token.
};

template <typename C>
KVC_DEVICE void multiply_keys(const Query<C>& q, const std::byte* k_tile, Scores<C>& scores) {
  const MatrixAddress lane = matrix_address<C::kKRowBytes>(key_lane(lane_id()));
#pragma unroll
  for (int n = 0; n < Scores<C>::kTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) scores.s[n][e] = 0.0f;
  }
#pragma unroll
  for (int pair = 0; pair < C::kKRowBytes / 32; ++pair) {
    uint32_t a[C::kEightBit ? 2 : 1][4];
    q.fragment(C::kEightBit ? 2 * pair : pair, a[0]);
    if constexpr (C::kEightBit) q.fragment(2 * pair + 1, a[1]);
#pragma unroll
    for (int t = 0; t < C::kTileKeys / 16; ++t) {
      uint32_t b[4];
      load_matrix_x4(
          b, k_tile + t * 16 * C::kKRowBytes + lane.row_offset + ((pair * 32) ^ lane.chunk_mask));
      if constexpr (C::kEightBit) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          uint32_t b0, b1;
          widen_8<C::kStored8>(b[i], b0, b1);
          mma_16816<C::kMma>(scores.s[2 * t + i / 2], a[i % 2], b0, b1);
        }
      } else {
        mma_16816<C::kMma>(scores.s[2 * t], a[0], b[0], b[1]);
        mma_16816<C::kMma>(scores.s[2 * t + 1], a[0], b[2], b[3]);
      }
    }
  }
}

// Applies the scale of K: one per tensor, or one per key.
template <typename C>
KVC_DEVICE void scale_scores(Scores<C>& scores, const RowStorage& storage,
                             const std::byte* scales) {
  const bool per_key = storage.quant == Quant::kPerTokenHead;
#pragma unroll
  for (int n = 0; n < Scores<C>::kTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float scale =
          per_key ? reinterpret_cast<const float*>(scales)[8 * n + 2 * (lane_id() & 3) + e]
                  : storage.scale;
      scores.s[n][e] *= scale;
      scores.s[n][2 + e] *= scale;
    }
  }
}

// Turns scores into weights. Earlier sums, made under a smaller maximum, are scaled down.
template <typename C>
KVC_DEVICE void update_softmax(Scores<C>& scores, OnlineSoftmax<C>& state) {
  float correction[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float largest = state.m[i];
#pragma unroll
    for (int n = 0; n < Scores<C>::kTiles; ++n)
      largest = fmaxf(largest, fmaxf(scores.s[n][2 * i], scores.s[n][2 * i + 1]));
    largest = fmaxf(largest, shuffle_xor(largest, 1));
    largest = fmaxf(largest, shuffle_xor(largest, 2));
    // Until now no key was visible to the row.
    const float base = largest == -__builtin_inff() ? 0.0f : largest;
    correction[i] = exp2_fast(state.m[i] - base);
    state.m[i] = largest;
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < Scores<C>::kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& s = scores.s[n][2 * i + e];
        s = exp2_fast(s - base);
        sum += s;
      }
    }
    state.l[i] = state.l[i] * correction[i] + sum;
  }
  // Maxima rarely change after the first tiles, and a factor of 1 changes nothing.
  if (any(correction[0] != 1.0f || correction[1] != 1.0f)) {
#pragma unroll
    for (int n = 0; n < C::kVDim / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) state.o[n][e] *= correction[e >> 1];
    }
  }
}

// Scales of V per key are applied to the weights, in units of a power of two that is above all
// scales so far. So weights stay within the range of f16, and the choice of the unit changes no bit
// of a result.
template <typename C>
KVC_DEVICE void scale_weights(Scores<C>& scores, OnlineSoftmax<C>& state,
                              const std::byte* scales_at) {
  const float* scales = reinterpret_cast<const float*>(scales_at);
  float largest = 0.0f;
#pragma unroll
  for (int key = 0; key < C::kTileKeys; key += 32) {
    if (C::kTileKeys >= 32 || lane_id() < C::kTileKeys)
      largest = fmaxf(largest, fabsf(scales[key + lane_id()]));
  }
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2)
    largest = fmaxf(largest, shuffle_xor(largest, distance));
  // The next power of two, within the range that float32 can divide by.
  uint32_t exponent = (as_bits(largest) >> 23) + 1;
  exponent = exponent < 32 ? 32 : exponent > 220 ? 220 : exponent;
  const float unit = fmaxf(as_float(exponent << 23), state.v_unit);
  if (unit != state.v_unit) {
    const float correction = state.v_unit / unit;
#pragma unroll
    for (int n = 0; n < C::kVDim / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) state.o[n][e] *= correction;
    }
    state.v_unit = unit;
  }
  const float inverse = 1.0f / unit;
#pragma unroll
  for (int n = 0; n < Scores<C>::kTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float scale = scales[8 * n + 2 * (lane_id() & 3) + e] * inverse;
      scores.s[n][e] *= scale;
      scores.s[n][2 + e] *= scale;
    }
  }
}

// O += P V.
template <typename C>
KVC_DEVICE void multiply_values(const Scores<C>& weights, const std::byte* v_tile,
                                OnlineSoftmax<C>& state) {
  const MatrixAddress lane = matrix_address<C::kVRowBytes>(value_lane(lane_id()));
#pragma unroll
  for (int t = 0; t < C::kTileKeys / 16; ++t) {
    uint32_t a[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int n = 2 * t + i / 2, e = 2 * (i % 2);
      a[i] = pack<C::kMma>(weights.s[n][e], weights.s[n][e + 1]);
    }
#pragma unroll
    for (int pair = 0; pair < C::kVRowBytes / 32; ++pair) {
      uint32_t b[4];
      load_matrix_x4_transposed(
          b, v_tile + t * 16 * C::kVRowBytes + lane.row_offset + ((pair * 32) ^ lane.chunk_mask));
      if constexpr (C::kEightBit) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          // Dims 2g and 2g + 1 of tokens 2p and 2p + 1, and of the tokens 8 further.
          uint32_t even0, odd0, even1, odd1;
          widen_8<C::kStored8>(permute_bytes(b[2 * half], 0, 0x3120), even0, odd0);
          widen_8<C::kStored8>(permute_bytes(b[2 * half + 1], 0, 0x3120), even1, odd1);
          mma_16816<C::kMma>(state.o[4 * pair + 2 * half], a, even0, even1);
          mma_16816<C::kMma>(state.o[4 * pair + 2 * half + 1], a, odd0, odd1);
        }
      } else {
        mma_16816<C::kMma>(state.o[2 * pair], a, b[0], b[1]);
        mma_16816<C::kMma>(state.o[2 * pair + 1], a, b[2], b[3]);
      }
    }
  }
}

// Processes one tile. `nonfinite_keys`: see nonfinite.cuh.
template <typename C>
KVC_DEVICE void process_tile(const AttnLaunch& launch, const Item& item, const Row* rows,
                             const Query<C>& q, const std::byte* stage, int32_t first_key,
                             bool partial, uint64_t nonfinite_keys, OnlineSoftmax<C>& state) {
  Scores<C> scores;
  const std::byte* v_tile = stage + C::kTileKeys * C::kKRowBytes;
  const std::byte* scales = stage + C::kStageBytesKv;
  multiply_keys(q, stage, scores);
  if constexpr (C::kEightBit) scale_scores(scores, launch.k_storage, scales);
  const bool masked = partial || launch.params.bias != nullptr;
  const VisibleBits visible_keys =
      apply_score_modifiers(scores, launch.params, item, rows, first_key, masked);
  update_softmax(scores, state);
  if constexpr (C::kEightBit) {
    if (launch.v_storage.quant == Quant::kPerTokenHead)
      scale_weights(scores, state, scales + C::kTileKeys * 4);
  }
  if (nonfinite_keys != 0) {
    // The bits are shifted like those of VisibleBits.
    constexpr uint64_t kOfLane = 0x0303030303030303u;
    const uint64_t nonfinite_of_lane = nonfinite_keys >> (2 * (lane_id() & 3)) & kOfLane;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if ((visible_keys.of[i] & nonfinite_of_lane) != 0) state.l[i] = __builtin_nanf("");
  }
  multiply_values(scores, v_tile, state);
}

}  // namespace kvc::cuda::attn_mma
