// Elements of tensors and states that are float32, float16 or bfloat16. They do not use
// elements.cuh, whose switch over the quantised types costs a loop over tokens some thirty
// registers. `type` is the same for all threads.
#pragma once

#include "kernels/cuda/ptx/ptx.cuh"

namespace kvc::cuda {

// Loads the bits of an element, for loads that shall be in flight together: a conversion waits for
// its load, and what follows it waits too. Bits 0 mean 0.
KVC_DEVICE uint32_t load_bits(const std::byte* row, kernels::DType type, int64_t i) {
  if (type == kernels::DType::kF32) return reinterpret_cast<const uint32_t*>(row)[i];
  return reinterpret_cast<const uint16_t*>(row)[i];
}
KVC_DEVICE float value_of(uint32_t bits, kernels::DType type) {
  if (type == kernels::DType::kF32) return as_float(bits);
  const auto half = static_cast<uint16_t>(bits);
  return type == kernels::DType::kF16 ? f16_to_float(half) : bf16_to_float(half);
}
KVC_DEVICE float load_value(const std::byte* row, kernels::DType type, int64_t i) {
  return value_of(load_bits(row, type, i), type);
}
KVC_DEVICE void store_value(std::byte* row, kernels::DType type, int64_t i, float value) {
  if (type == kernels::DType::kF32)
    reinterpret_cast<float*>(row)[i] = value;
  else
    reinterpret_cast<uint16_t*>(row)[i] =
        type == kernels::DType::kF16 ? float_to_f16(value) : float_to_bf16(value);
}

}  // namespace kvc::cuda
