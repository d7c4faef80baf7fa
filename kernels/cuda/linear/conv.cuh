// The short convolution in front of a recurrence. See ConvParams.
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx/floats.cuh"
#include "kernels/linear_params.h"

namespace kvc::cuda::conv_config {

// A thread has one channel, so neighbouring threads read neighbouring inputs. An output depends on
// the last `width` inputs alone, so CTAs share the rows of a sequence. A CTA keeps the window of a
// channel in registers while it goes through its rows. Only the first CTA of a channel and sequence
// reads and writes the state, so both may be the same memory. This holds for widths up to kRows +
// 1; wider windows of the second CTA reach into the state.

constexpr uint32_t kThreads = 128;  // Channels of a CTA.
// Rows of a CTA. The width - 1 inputs before them are read twice.
constexpr int32_t kRows = 64;
// Inputs that a thread loads ahead, and CTAs per SM: together they give the bytes in flight.
constexpr int kRowsAhead = 8;
constexpr uint32_t kCtas = 8;
// Max width with the window in registers. Wider windows read every input `width` times, from L1.
constexpr int32_t kMaxWidth = 4;

}  // namespace kvc::cuda::conv_config

namespace kvc::cuda::conv_kernels {

// One channel of one sequence.
struct Channel {
  const kernels::ConvParams& params;
  const kernels::ConvSequence& sequence;
  int32_t channel;

  // Bits of the input of row `row`. Rows from -(width - 1) to -1 come from the state.
  KVC_DEVICE uint32_t new_bits(int64_t row) const {
    return load_bits(params.x.base + (sequence.row_begin + row) * params.x.token_stride,
                     params.x.dtype, channel);
  }
  KVC_DEVICE uint32_t input_bits(int64_t row) const {
    if (row >= 0) return new_bits(row);
    if (sequence.state_in == nullptr) return 0;
    const int32_t kept = params.width - 1;
    return load_bits(sequence.state_in, params.state_dtype,
                     static_cast<int64_t>(channel) * kept + kept + row);
  }
  KVC_DEVICE float input_value(uint32_t bits, int64_t row) const {
    return value_of(bits, row >= 0 ? params.x.dtype : params.state_dtype);
  }
  KVC_DEVICE float input(int64_t row) const { return input_value(input_bits(row), row); }
  KVC_DEVICE float weight(int32_t j) const {
    return params.weight[channel * params.weight_stride + j];
  }
  KVC_DEVICE float bias() const { return params.bias == nullptr ? 0 : params.bias[channel]; }
  KVC_DEVICE float activated(float sum) const {
    return params.activation == kernels::Activation::kSilu ? sum / (1 + expf(-sum)) : sum;
  }
  KVC_DEVICE void write(int64_t row, float sum) const {
    store_value(params.out.base + (sequence.row_begin + row) * params.out.token_stride,
                params.out.dtype, channel, activated(sum));
  }
};

// Computes rows [begin, end) with the window in registers. All loads of the first rows are in
// flight before the first is needed; those of the next rows overlap the computation.
template <int kWidth>
KVC_DEVICE void convolve(const Channel& at, int64_t begin, int64_t end) {
  constexpr int kTogether = conv_config::kRowsAhead, kKept = kWidth - 1;
  const kernels::TokenRows &x = at.params.x, &out = at.params.out;
  // The address advances step by step: addresses of all rows of a round would need too many
  // registers.
  const std::byte* from = x.base + (at.sequence.row_begin + begin) * x.token_stride;
  std::byte* to = out.base + (at.sequence.row_begin + begin) * out.token_stride;
  float weight[kWidth], window[kKept + kTogether];
  uint32_t before[kKept], next[kTogether];
  const auto read_next = [&](int64_t row) {
    for (int i = 0; i < kTogether; ++i, from += x.token_stride)
      next[i] = row + i < end ? load_bits(from, x.dtype, at.channel) : 0;
  };
  for (int j = 0; j < kKept; ++j) before[j] = at.input_bits(begin - kKept + j);
  read_next(begin);
  for (int j = 0; j < kWidth; ++j) weight[j] = at.weight(j);
  const float bias = at.bias();
  for (int j = 0; j < kKept; ++j) window[j] = at.input_value(before[j], begin - kKept + j);
#pragma unroll 1
  for (int64_t row = begin; row < end; row += kTogether) {
    for (int i = 0; i < kTogether; ++i) window[kKept + i] = value_of(next[i], x.dtype);
    read_next(row + kTogether);
    for (int i = 0; i < kTogether; ++i, to += out.token_stride) {
      float sum = bias;
      for (int j = 0; j < kWidth; ++j) sum += weight[j] * window[i + j];
      if (row + i < end) store_value(to, out.dtype, at.channel, at.activated(sum));
    }
    for (int j = 0; j < kKept; ++j) window[j] = window[kTogether + j];
  }
}
// For any width.
template <>
KVC_DEVICE void convolve<0>(const Channel& at, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    float sum = at.bias();
    for (int32_t j = 0; j < at.params.width; ++j)
      sum += at.weight(j) * at.input(row - at.params.width + 1 + j);
    at.write(row, sum);
  }
}

// The first block of sequence s. Blocks have kRows rows, and those of a sequence follow those of
// the previous one. A sequence has at least one block, for its state, and enough blocks wherever
// its rows begin.
KVC_DEVICE int32_t first_block(const kernels::ConvParams& params, int32_t s) {
  return static_cast<int32_t>(params.sequences[s].row_begin / conv_config::kRows) + s;
}
// The sequence of a block: the last s in [0, n) with first_block(s) <= block, for n > 0.
KVC_DEVICE int32_t sequence_of_block(const kernels::ConvParams& params, int32_t n, int32_t block) {
  // In a decode step every sequence has one row: kRows of them take kRows + 1 blocks, the last of
  // which is empty.
  constexpr int32_t kRows = conv_config::kRows;
  const int32_t inside = block % (kRows + 1);
  const int32_t guess = block / (kRows + 1) * kRows + (inside < kRows ? inside : kRows - 1);
  if (guess < n && first_block(params, guess) <= block &&
      (guess + 1 == n || first_block(params, guess + 1) > block))
    return guess;
  int32_t low = 0, high = n;
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    if (first_block(params, middle) <= block)
      low = middle;
    else
      high = middle;
  }
  return low;
}

template <int kWidth>
__global__ void __launch_bounds__(conv_config::kThreads, conv_config::kCtas)
    conv_kernel(const __grid_constant__ kernels::ConvParams params, int32_t max_sequences,
                const int32_t* num_sequences_at, int32_t channel_tiles) {
  const auto cta = static_cast<int32_t>(blockIdx.x);
  const int32_t n = num_sequences_at == nullptr ? max_sequences : *num_sequences_at;
  if (n <= 0) return;
  const int32_t block = cta / channel_tiles;
  const int32_t s = sequence_of_block(params, n, block);
  const kernels::ConvSequence sequence = params.sequences[s];
  const Channel at{params, sequence,
                   static_cast<int32_t>(cta % channel_tiles * conv_config::kThreads + threadIdx.x)};
  if (at.channel >= params.channels) return;
  const int64_t begin = int64_t{conv_config::kRows} * (block - first_block(params, s));
  const int64_t end = begin + conv_config::kRows;
  if (begin < sequence.num_rows)
    convolve<kWidth>(at, begin, end < sequence.num_rows ? end : sequence.num_rows);
  // Writes the last width - 1 inputs. In place, a kept input moves to the front: it is read before
  // it can be overwritten.
  if (begin != 0 || sequence.state_out == nullptr) return;
  const int32_t kept = params.width - 1;
  for (int32_t j = 0; j < kept; ++j) {
    store_value(sequence.state_out, params.state_dtype, static_cast<int64_t>(at.channel) * kept + j,
                at.input(sequence.num_rows - kept + j));
  }
}

}  // namespace kvc::cuda::conv_kernels
