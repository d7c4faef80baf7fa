// Four columns of a state at a time.
#pragma once

#include "kernels/cuda/ptx/floats.cuh"

namespace kvc::cuda::linear_kernels {

// Four columns of a state as stored: one vector, or the existing columns.
template <kernels::DType State>
struct Stored4 {
  uint32_t x[State == kernels::DType::kF32 ? 4 : 2];
};

template <kernels::DType State>
KVC_DEVICE Stored4<State> load_4(const std::byte* at, int32_t columns, bool is_aligned) {
  Stored4<State> stored{};
  if (is_aligned && columns >= 4) {
    if constexpr (State == kernels::DType::kF32) {
      const Words4 words = load_16_stream(at);
      for (int i = 0; i < 4; ++i) stored.x[i] = words.x[i];
    } else {
      const uint64_t words = *reinterpret_cast<const uint64_t*>(at);
      stored.x[0] = static_cast<uint32_t>(words);
      stored.x[1] = static_cast<uint32_t>(words >> 32);
    }
    return stored;
  }
  for (int i = 0; i < 4; ++i) {
    if (i >= columns) continue;
    if constexpr (State == kernels::DType::kF32)
      stored.x[i] = reinterpret_cast<const uint32_t*>(at)[i];
    else
      stored.x[i / 2] |= static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(at)[i])
                         << (i % 2 * 16);
  }
  return stored;
}
template <kernels::DType State>
KVC_DEVICE void to_floats(const Stored4<State>& stored, float (&x)[4]) {
  if constexpr (State == kernels::DType::kF32) {
    for (int i = 0; i < 4; ++i) x[i] = as_float(stored.x[i]);
  } else {
    unpack<State>(stored.x[0], x[0], x[1]);
    unpack<State>(stored.x[1], x[2], x[3]);
  }
}
template <kernels::DType State>
KVC_DEVICE void store_4(std::byte* at, int32_t columns, bool is_aligned, const float (&x)[4]) {
  if (is_aligned && columns >= 4) {
    if constexpr (State == kernels::DType::kF32)
      store_16(at, {as_bits(x[0]), as_bits(x[1]), as_bits(x[2]), as_bits(x[3])});
    else
      *reinterpret_cast<uint64_t*>(at) =
          pack<State>(x[0], x[1]) | static_cast<uint64_t>(pack<State>(x[2], x[3])) << 32;
    return;
  }
  for (int i = 0; i < 4; ++i) {
    if (i < columns) store_value(at, State, i, x[i]);
  }
}

}  // namespace kvc::cuda::linear_kernels
