// Elements of every storage type as doubles, bit by bit: shared by the reference kernels and by
// tests.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/params.h"

namespace kvc::kernels::reference {

// sign | exponent | fraction with the usual meaning of exponent 0 (subnormal) and all ones (inf,
// NaN).
inline double from_small_float(uint32_t bits, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const uint32_t fraction = bits & ((1u << fraction_bits) - 1);
  const double sign = bits >> (exponent_bits + fraction_bits) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) return std::ldexp(sign * fraction, 1 - bias - fraction_bits);
  return std::ldexp(sign * (fraction | 1u << fraction_bits), exponent - bias - fraction_bits);
}

// Nearest representable value, ties to the even code: nearbyint on the value in units of its last
// place.
inline uint32_t to_small_float(double value, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const uint32_t sign = (std::signbit(value) ? 1u : 0u) << (exponent_bits + fraction_bits);
  const uint32_t infinity = static_cast<uint32_t>((1 << exponent_bits) - 1) << fraction_bits;
  if (std::isnan(value)) return sign | infinity | 1u << (fraction_bits - 1);
  const double magnitude = std::fabs(value);
  if (std::isinf(value)) return sign | infinity;
  if (magnitude == 0) return sign;
  int exponent = std::ilogb(magnitude);
  if (exponent < 1 - bias) exponent = 1 - bias;
  // Codes are consecutive integers across exponents, so a carry out of the fraction lands where it
  // should.
  const auto units =
      static_cast<uint64_t>(std::nearbyint(std::ldexp(magnitude, fraction_bits - exponent)));
  const uint64_t code = units + (static_cast<uint64_t>(exponent + bias - 1) << fraction_bits);
  return sign | (code >= infinity ? infinity : static_cast<uint32_t>(code));
}

inline double read_element(const std::byte* row, DType dtype, int64_t index) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, row + index * 4, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, row + index * 2, 2);
  return dtype == DType::kF16 ? from_small_float(bits, 5, 10) : from_small_float(bits, 8, 7);
}

inline void write_element(std::byte* row, DType dtype, int64_t index, double value) {
  if (dtype == DType::kF32) {
    const float rounded = static_cast<float>(value);
    std::memcpy(row + index * 4, &rounded, 4);
    return;
  }
  // Through float first: what a kernel computes in fp32 is what it rounds to 16 bits.
  const double rounded = static_cast<double>(static_cast<float>(value));
  const uint32_t code =
      dtype == DType::kF16 ? to_small_float(rounded, 5, 10) : to_small_float(rounded, 8, 7);
  const uint16_t bits = static_cast<uint16_t>(code);
  std::memcpy(row + index * 2, &bits, 2);
}

}  // namespace kvc::kernels::reference
