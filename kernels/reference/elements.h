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

// Elements of 8 bits, without the scale of their row.
inline double from_code(uint8_t code, DType dtype) {
  if (dtype == DType::kInt8) return static_cast<int8_t>(code);
  if (dtype == DType::kE5M2) return from_small_float(code, 5, 2);
  // e4m3 has no infinity, and one NaN per sign: the highest exponent is one like the others.
  const double sign = code >> 7 != 0 ? -1.0 : 1.0;
  const int exponent = code >> 3 & 15, fraction = code & 7;
  if (exponent == 15 && fraction == 7) return std::numeric_limits<double>::quiet_NaN();
  return exponent == 0 ? std::ldexp(sign * fraction, -9)
                       : std::ldexp(sign * (fraction | 8), exponent - 10);
}

inline double largest_element(DType dtype) {
  return dtype == DType::kInt8 ? 127 : dtype == DType::kE4M3 ? 448 : 57344;
}

// The nearest code, ties to the even one; saturates. NaN becomes 0 in int8.
inline uint8_t to_code(double value, DType dtype) {
  if (dtype == DType::kInt8) {
    if (std::isnan(value)) return 0;
    const double bounded = value < -128 ? -128 : value > 127 ? 127 : value;
    return static_cast<uint8_t>(static_cast<int8_t>(std::nearbyint(bounded)));
  }
  const uint32_t sign = std::signbit(value) ? 0x80 : 0;
  if (std::isnan(value)) return static_cast<uint8_t>(sign | 0x7f);
  // Codes ascend with what they stand for.
  const double magnitude = std::fabs(value);
  const int last = dtype == DType::kE4M3 ? 0x7e : 0x7b;
  int code = 0;
  while (code < last && from_code(static_cast<uint8_t>(code + 1), dtype) <= magnitude) ++code;
  if (code < last) {
    const double below = magnitude - from_code(static_cast<uint8_t>(code), dtype);
    const double above = from_code(static_cast<uint8_t>(code + 1), dtype) - magnitude;
    if (above < below || (above == below && code % 2 != 0)) ++code;
  }
  return static_cast<uint8_t>(sign | static_cast<uint32_t>(code));
}

inline double read_element(const std::byte* row, DType dtype, int64_t index) {
  if (is_quantised(dtype)) return from_code(static_cast<uint8_t>(row[index]), dtype);
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
  if (is_quantised(dtype)) {
    row[index] = static_cast<std::byte>(to_code(value, dtype));
    return;
  }
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

// The value lies outside of the type's range: to_code() gives the nearest end of it.
inline bool saturates(double value, DType dtype) {
  const double largest = largest_element(dtype);
  return value > largest || value < (dtype == DType::kInt8 ? -128 : -largest);
}

// Stores a quantised row of `dim` values, see AppendParams. `scale_at` null: the scale is `shared`.
// Returns how many saturated: elements of a row with a scale of its own never do.
template <typename Value>
uint64_t write_quantised(std::byte* row, std::byte* scale_at, float shared, DType dtype,
                         int64_t dim, const Value& value) {
  float scale = shared;
  if (scale_at != nullptr) {
    float largest = 0;
    bool finite = true;
    for (int64_t d = 0; d < dim; ++d) {
      const float magnitude = std::fabs(static_cast<float>(value(d)));
      finite = finite && std::isfinite(magnitude);
      largest = std::fmax(largest, magnitude);
    }
    scale = std::fmax(largest / static_cast<float>(largest_element(dtype)),
                      std::numeric_limits<float>::min());
    if (!finite) scale = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(scale_at, &scale, sizeof scale);
    if (!finite) {
      std::memset(row, 0, static_cast<size_t>(dim));
      return 0;
    }
  }
  uint64_t saturated = 0;
  for (int64_t d = 0; d < dim; ++d) {
    const double element = static_cast<float>(value(d)) / scale;
    if (scale_at == nullptr && saturates(element, dtype)) ++saturated;
    row[d] = static_cast<std::byte>(to_code(element, dtype));
  }
  return saturated;
}

}  // namespace kvc::kernels::reference
