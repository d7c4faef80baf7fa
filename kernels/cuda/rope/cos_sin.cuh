// The kernel of the RoPE tables of cos and sin. See CosSinParams.
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx/ptx.cuh"
#include "kernels/cuda/rope/sine_cosine.h"
#include "kernels/cuda/step.h"

namespace kvc::cuda::cos_sin_config {

constexpr uint32_t kThreads = 128;
// Max CTAs. Further rows are taken in turn.
constexpr uint32_t kMaxCtas = 1024;

}  // namespace kvc::cuda::cos_sin_config

namespace kvc::cuda {

// One thread per pair of a row, in the order of rows, so that the stores of a warp are contiguous.
__global__ void __launch_bounds__(cos_sin_config::kThreads)
    cos_sin_kernel(const __grid_constant__ CosSinParams params) {
  const int64_t rows = params.num_rows_at != nullptr && *params.num_rows_at < params.num_rows
                           ? *params.num_rows_at
                           : params.num_rows;
  const int64_t total = rows * params.num_pairs;
  const int64_t step = static_cast<int64_t>(gridDim.x) * cos_sin_config::kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * cos_sin_config::kThreads + threadIdx.x;
       i < total; i += step) {
    const int64_t row = i / params.num_pairs;
    const auto pair = static_cast<int32_t>(i - row * params.num_pairs);
    const bool is_far = params.positions == nullptr && row >= kNearPositions;
    int64_t position = is_far ? (row - kNearPositions) * kNearPositions : row;
    if (params.positions != nullptr) {
      const int64_t section = params.pair_section == nullptr ? 0 : params.pair_section[pair];
      position = params.positions[section * params.positions_stride + row];
    }
    const double* frequencies = params.inverse_frequencies[0];
    if (params.row_sequence != nullptr) {
      const int32_t s = params.row_sequence[row];
      if (params.position_limit > 0) {
        const int32_t window = params.window[s];
        position = window != 0 && position > window - 1 ? window - 1 : position;
      }
      const bool is_long =
          params.long_ropes != nullptr && (params.long_ropes[s] >> params.rope & 1) != 0;
      if (is_long && params.inverse_frequencies[1] != nullptr)
        frequencies = params.inverse_frequencies[1];
    }
    double sine, cosine;
    sine_cosine(static_cast<double>(position) * frequencies[pair], sine, cosine);
    const double magnitude = is_far ? 1.0 : params.magnitude;
    params.cos[i] = static_cast<float>(cosine * magnitude);
    params.sin[i] = static_cast<float>(sine * magnitude);
  }
}

}  // namespace kvc::cuda
