// Matrix fragments, conversions and quick maths under the names of ptx.cuh.
#pragma once

#include <math.h>

#include <bit>
#include <cstdint>

#include "kernels/params.h"

namespace cudasim {

float f16_to_float(uint16_t bits);
uint16_t float_to_f16(float value);
uint16_t float_to_bf16(float value);
void load_matrix(uint32_t (&r)[4], const void* shared_row, bool transposed);
// The 16 products and d are added in double, and rounded once.
void mma_16816(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, bool is_bf16);

}  // namespace cudasim

namespace kvc::cuda {

inline void load_matrix_x4(uint32_t (&r)[4], const void* shared_row) {
  cudasim::load_matrix(r, shared_row, false);
}
inline void load_matrix_x4_transposed(uint32_t (&r)[4], const void* shared_row) {
  cudasim::load_matrix(r, shared_row, true);
}
template <kernels::DType Type>
inline void mma_16816(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  static_assert(Type == kernels::DType::kF16 || Type == kernels::DType::kBF16);
  cudasim::mma_16816(d, a, b0, b1, Type == kernels::DType::kBF16);
}

inline float as_float(uint32_t bits) { return std::bit_cast<float>(bits); }
inline uint32_t as_bits(float value) { return std::bit_cast<uint32_t>(value); }
inline float f16_to_float(uint16_t bits) { return cudasim::f16_to_float(bits); }
inline uint16_t float_to_f16(float value) { return cudasim::float_to_f16(value); }
inline float bf16_to_float(uint16_t bits) { return as_float(uint32_t{bits} << 16); }
inline uint16_t float_to_bf16(float value) { return cudasim::float_to_bf16(value); }
template <kernels::DType Type>
inline uint32_t pack(float first, float second) {
  if constexpr (Type == kernels::DType::kBF16)
    return float_to_bf16(first) | (uint32_t{float_to_bf16(second)} << 16);
  else
    return float_to_f16(first) | (uint32_t{float_to_f16(second)} << 16);
}
template <kernels::DType Type>
inline void unpack(uint32_t pair, float& first, float& second) {
  if constexpr (Type == kernels::DType::kBF16) {
    first = bf16_to_float(static_cast<uint16_t>(pair));
    second = bf16_to_float(static_cast<uint16_t>(pair >> 16));
  } else {
    first = f16_to_float(static_cast<uint16_t>(pair));
    second = f16_to_float(static_cast<uint16_t>(pair >> 16));
  }
}

inline float exp2_fast(float x) { return exp2f(x); }
inline float log2_fast(float x) { return log2f(x); }
inline float reciprocal_fast(float x) { return 1.0f / x; }

}  // namespace kvc::cuda
