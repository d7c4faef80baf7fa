// The short convolution in front of a recurrence, see ConvParams.
#pragma once

#include "kernels/cuda/conv/config.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/linear_params.h"

namespace kvc::cuda::conv_kernels {

// `type` is the same for all threads. In two steps, because a conversion waits for its load, and what is behind it waits too. Bits 0 are 0.
KVC_DEVICE uint32_t load_bits(const std::byte* row, kernels::DType type, int64_t i) {
  if (type == kernels::DType::kF32) return reinterpret_cast<const uint32_t*>(row)[i];
  return reinterpret_cast<const uint16_t*>(row)[i];
}
KVC_DEVICE float value_of(uint32_t bits, kernels::DType type) {
  if (type == kernels::DType::kF32) return as_float(bits);
  const auto half = static_cast<uint16_t>(bits);
  return type == kernels::DType::kF16 ? f16_to_float(half) : bf16_to_float(half);
}
KVC_DEVICE void store_element(std::byte* row, kernels::DType type, int64_t i, float value) {
  if (type == kernels::DType::kF32)
    reinterpret_cast<float*>(row)[i] = value;
  else
    reinterpret_cast<uint16_t*>(row)[i] =
        type == kernels::DType::kF16 ? float_to_f16(value) : float_to_bf16(value);
}

// One channel of one sequence.
struct Channel {
  const kernels::ConvParams& params;
  const kernels::ConvSequence& sequence;
  int32_t channel;

  // Input of row `row` of the sequence; before row 0: what the state has of it, from -(width - 1) on.
  KVC_DEVICE uint32_t new_bits(int64_t row) const {
    return load_bits(params.x.base + (sequence.row_begin + row) * params.x.token_stride, params.x.dtype,
                     channel);
  }
  KVC_DEVICE uint32_t input_bits(int64_t row) const {
    if (row >= 0) return new_bits(row);
    if (sequence.state_in == nullptr) return 0;
    const int32_t kept = params.width - 1;
    return load_bits(sequence.state_in, params.state_dtype, static_cast<int64_t>(channel) * kept + kept + row);
  }
  KVC_DEVICE float input_value(uint32_t bits, int64_t row) const {
    return value_of(bits, row >= 0 ? params.x.dtype : params.state_dtype);
  }
  KVC_DEVICE float input(int64_t row) const { return input_value(input_bits(row), row); }
  KVC_DEVICE float weight(int32_t j) const { return params.weight[channel * params.weight_stride + j]; }
  KVC_DEVICE float bias() const { return params.bias == nullptr ? 0 : params.bias[channel]; }
  KVC_DEVICE void write(int64_t row, float sum) const {
    if (params.activation == kernels::Activation::kSilu) sum = sum / (1 + expf(-sum));
    store_element(params.out.base + (sequence.row_begin + row) * params.out.token_stride, params.out.dtype,
                  channel, sum);
  }
};

// Rows [begin, end) with the window in registers. All loads of the first rows are on their way before the first is needed, those of the next rows while
// these are computed.
template <int kWidth>
KVC_DEVICE void convolve(const Channel& at, int64_t begin, int64_t end) {
  constexpr int kTogether = conv_config::kRowsAhead, kKept = kWidth - 1;
  float weight[kWidth], window[kKept + kTogether];
  uint32_t before[kKept], next[kTogether];
  for (int j = 0; j < kKept; ++j) before[j] = at.input_bits(begin - kKept + j);
  for (int i = 0; i < kTogether; ++i) next[i] = begin + i < end ? at.new_bits(begin + i) : 0;
  for (int j = 0; j < kWidth; ++j) weight[j] = at.weight(j);
  const float bias = at.bias();
  for (int j = 0; j < kKept; ++j) window[j] = at.input_value(before[j], begin - kKept + j);
  for (int64_t row = begin; row < end; row += kTogether) {
    for (int i = 0; i < kTogether; ++i) window[kKept + i] = value_of(next[i], at.params.x.dtype);
    for (int i = 0; i < kTogether; ++i) {
      const int64_t ahead = row + kTogether + i;
      next[i] = ahead < end ? at.new_bits(ahead) : 0;
    }
    for (int i = 0; i < kTogether; ++i) {
      float sum = bias;
      for (int j = 0; j < kWidth; ++j) sum += weight[j] * window[i + j];
      if (row + i < end) at.write(row + i, sum);
    }
    for (int j = 0; j < kKept; ++j) window[j] = window[kTogether + j];
  }
}
// Any width.
template <>
KVC_DEVICE void convolve<0>(const Channel& at, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    float sum = at.bias();
    for (int32_t j = 0; j < at.params.width; ++j)
      sum += at.weight(j) * at.input(row - at.params.width + 1 + j);
    at.write(row, sum);
  }
}

template <int kWidth>
__global__ void __launch_bounds__(conv_config::kThreads, conv_config::kCtas)
    conv_kernel(const __grid_constant__ kernels::ConvParams params, const int32_t* num_sequences_at,
                int32_t channel_tiles, int32_t row_ctas) {
  const auto cta = static_cast<int32_t>(blockIdx.x);
  const int32_t s = cta / channel_tiles / row_ctas;
  if (num_sequences_at != nullptr && s >= *num_sequences_at) return;
  const int32_t rows_cta = cta / channel_tiles % row_ctas;
  const kernels::ConvSequence sequence = params.sequences[s];
  const Channel at{params, sequence,
                   static_cast<int32_t>(cta % channel_tiles * conv_config::kThreads + threadIdx.x)};
  if (at.channel >= params.channels) return;
  const auto step = static_cast<int64_t>(row_ctas) * conv_config::kRows;
  for (int64_t begin = static_cast<int64_t>(rows_cta) * conv_config::kRows; begin < sequence.num_rows;
       begin += step) {
    const int64_t end = begin + conv_config::kRows;
    convolve<kWidth>(at, begin, end < sequence.num_rows ? end : sequence.num_rows);
  }
  // The last width - 1 inputs. In place, an old one that is kept moves to the front: it is read before it can be written.
  if (rows_cta != 0 || sequence.state_out == nullptr) return;
  const int32_t kept = params.width - 1;
  for (int32_t j = 0; j < kept; ++j) {
    store_element(sequence.state_out, params.state_dtype, static_cast<int64_t>(at.channel) * kept + j,
                  at.input(sequence.num_rows - kept + j));
  }
}

}  // namespace kvc::cuda::conv_kernels
