// Merges two attention states over different keys into one, in place: kernels::MergeParams.
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx/elements.cuh"
#include "kernels/params.h"

namespace kvc::cuda::merging {

constexpr int32_t kThreads = 128;  // A warp has one row of one head.

struct Launch {
  kernels::MergeParams params;
  int64_t num_rows;
  const int32_t* num_rows_at;
};

constexpr float kMinusInfinity = -__builtin_inff();

struct Weights {
  float own, other;  // Weights of the two outputs. Both are 0 when neither state saw a key.
  float lse;
};

KVC_DEVICE Weights weights_of(float own, float other) {
  const float top = fmaxf(own, other);
  if (top == kMinusInfinity) return {0.0f, 0.0f, kMinusInfinity};
  const float a = expf(own - top), b = expf(other - top), sum = a + b;
  return {a / sum, b / sum, top + logf(sum)};
}

// An output of weight 0 may hold any bits.
KVC_DEVICE float merged(const Weights& weights, float own, float other) {
  return (weights.own == 0.0f ? 0.0f : weights.own * own) +
         (weights.other == 0.0f ? 0.0f : weights.other * other);
}

template <bool ByFour>
__global__ void __launch_bounds__(kThreads)
    merge_states_kernel(const __grid_constant__ Launch launch) {
  wait_for_previous_kernel();
  const kernels::MergeParams& params = launch.params;
  const int64_t rows = launch.num_rows_at != nullptr ? *launch.num_rows_at : launch.num_rows;
  const int64_t task = int64_t{blockIdx.x} * (kThreads / 32) + warp_id();
  const int64_t row = task / params.num_heads;
  if (row >= rows) return;
  const int32_t head = static_cast<int32_t>(task - row * params.num_heads);
  float* lse = params.lse + row * params.lse_token_stride + head;
  const Weights weights =
      weights_of(*lse, params.other_lse[row * params.other_lse_token_stride + head]);
  sync_warp();  // All lanes have read the LSE.
  if (lane_id() == 0) *lse = weights.lse;
  std::byte* out = params.out.base + row * params.out.token_stride + head * params.out.head_stride;
  const std::byte* other = params.other_out.base + row * params.other_out.token_stride +
                           head * params.other_out.head_stride;
  if constexpr (ByFour) {
    const auto own_type = element_of(params.out.dtype);
    const auto other_type = element_of(params.other_out.dtype);
#pragma unroll 1
    for (int32_t d = 4 * lane_id(); d < params.dim; d += 128) {
      float a[4], b[4];
      decode_four(own_type, load_four_raw(out, element_bits(own_type), d), a);
      decode_four(other_type, load_four_raw(other, element_bits(other_type), d), b);
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = merged(weights, a[i], b[i]);
      store_four(out, params.out.dtype, d, a);
    }
  } else {
#pragma unroll 1
    for (int32_t d = lane_id(); d < params.dim; d += 32) {
      const float a = load_element(out, params.out.dtype, d);
      const float b = load_element(other, params.other_out.dtype, d);
      store_element(out, params.out.dtype, d, merged(weights, a, b));
    }
  }
}

}  // namespace kvc::cuda::merging
