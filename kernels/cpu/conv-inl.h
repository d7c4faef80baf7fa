// Causal depthwise convolution over the new tokens, some vectors of channels at a time so that
// weights and bias stay near. Included by the isa_<name>.cc files after a vec_<isa>.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/linear_tile-inl.h"

namespace kvc::kernels::cpu {
namespace {

// Channels of a block: two cache lines of 16-bit rows.
constexpr int64_t kConvChannels = 64;
static_assert(kConvChannels % kLanes == 0);

struct ConvScratch {
  float* weights;  // [width][kConvChannels]
  // [2 * width - 2][kConvChannels]: the kept inputs, then room for the ones that replace them.
  float* inputs;
};

inline ConvScratch allocate_conv(const ConvParams& params, ScratchCursor& cursor) {
  return {take_array<float>(cursor, params.width * kConvChannels),
          take_array<float>(cursor, 2 * (int64_t{params.width} - 1) * kConvChannels)};
}

inline float read_float(const std::byte* at, DType dtype) {
  float lanes[kLanes];
  store(lanes, load_any(at, dtype, 1));
  return lanes[0];
}

// x / (1 + e^-x). Below -104 it is less than the smallest float, and e^-x no float any more.
KVC_VEC_INLINE Vec silu(Vec x) {
  const Vec smaller = exp2(min(set1(126.0f), mul(x, set1(-1.44269504f))));
  return select(less(x, set1(-104.0f)), zero(), div(x, add(set1(1.0f), smaller)));
}

// Row `t` of the inputs, counted from the first new token; the kept ones come before it.
KVC_VEC_INLINE Vec conv_input(const ConvParams& params, const ConvSequence& sequence,
                              const ConvScratch& s, int64_t t, int64_t first_channel,
                              int64_t channel, int lanes) {
  if (t < 0) return load(s.inputs + (params.width - 1 + t) * kConvChannels + channel);
  const std::byte* row = params.x.base + (sequence.row_begin + t) * params.x.token_stride;
  return load_any(row + (first_channel + channel) * dtype_bytes(params.x.dtype), params.x.dtype,
                  lanes);
}

inline void load_conv_block(const ConvParams& params, const ConvSequence& sequence,
                            int64_t first_channel, int64_t channels, const ConvScratch& s) {
  const int64_t kept = params.width - 1;
  const int64_t bytes = dtype_bytes(params.state_dtype);
  for (int64_t c = 0; c < kConvChannels; ++c) {
    const int64_t channel = first_channel + c;
    for (int64_t j = 0; j < params.width; ++j) {
      s.weights[j * kConvChannels + c] =
          c < channels ? params.weight[channel * params.weight_stride + j] : 0.0f;
    }
    for (int64_t j = 0; j < kept; ++j) {
      const bool given = c < channels && sequence.state_in != nullptr;
      s.inputs[j * kConvChannels + c] =
          given ? read_float(sequence.state_in + (channel * kept + j) * bytes, params.state_dtype)
                : 0.0f;
    }
  }
}

// The last width - 1 inputs become the state.
inline void store_conv_state(const ConvParams& params, const ConvSequence& sequence,
                             int64_t first_channel, int64_t channels, const ConvScratch& s) {
  const int64_t kept = params.width - 1;
  const int64_t bytes = dtype_bytes(params.state_dtype);
  float* last = s.inputs + kept * kConvChannels;
  for (int64_t j = 0; j < kept; ++j) {
    for (int64_t c = 0; c < channels; c += kLanes) {
      store(last + j * kConvChannels + c,
            conv_input(params, sequence, s, sequence.num_rows - kept + j, first_channel, c,
                       lanes_from(c, channels)));
    }
  }
  for (int64_t c = 0; c < channels; ++c) {
    std::byte* to = sequence.state_out + (first_channel + c) * kept * bytes;
    for (int64_t j = 0; j < kept; ++j)
      store_any(to + j * bytes, params.state_dtype, set1(last[j * kConvChannels + c]), 1);
  }
}

inline void conv_block(const ConvParams& params, const ConvSequence& sequence,
                       int64_t first_channel, int64_t channels, const ConvScratch& s) {
  load_conv_block(params, sequence, first_channel, channels, s);
  const int64_t out_bytes = dtype_bytes(params.out.dtype);
  for (int64_t t = 0; t < sequence.num_rows; ++t) {
    std::byte* out = params.out.base + (sequence.row_begin + t) * params.out.token_stride;
    for (int64_t c = 0; c < channels; c += kLanes) {
      const int lanes = lanes_from(c, channels);
      Vec sum = params.bias == nullptr ? zero() : load_tail(params.bias + first_channel + c, lanes);
      for (int64_t j = 0; j < params.width; ++j) {
        const Vec x =
            conv_input(params, sequence, s, t - params.width + 1 + j, first_channel, c, lanes);
        sum = fma(load(s.weights + j * kConvChannels + c), x, sum);
      }
      if (params.activation == Activation::kSilu) sum = silu(sum);
      store_any(out + (first_channel + c) * out_bytes, params.out.dtype, sum, lanes);
    }
  }
  store_conv_state(params, sequence, first_channel, channels, s);
}

size_t conv_scratch_bytes(const ConvParams& params) {
  ScratchCursor cursor = {nullptr, 0};
  allocate_conv(params, cursor);
  return cursor.used;
}

void conv(const ConvParams& params, int32_t index, int32_t channel_begin, int32_t channel_end,
          void* memory) {
  ScratchCursor cursor = {static_cast<std::byte*>(memory), 0};
  const ConvScratch scratch = allocate_conv(params, cursor);
  for (int64_t channel = channel_begin; channel < channel_end; channel += kConvChannels) {
    const int64_t left = channel_end - channel;
    conv_block(params, params.sequences[index], channel,
               left < kConvChannels ? left : kConvChannels, scratch);
  }
}

}  // namespace
}  // namespace kvc::kernels::cpu
