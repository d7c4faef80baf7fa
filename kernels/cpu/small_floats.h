// Constants of the element types of 8 bits, which every vector width needs.
#pragma once

#include "kernels/params.h"

namespace kvc::kernels::cpu {
namespace {

// 2^exponent, for compile time.
constexpr float small_float_power(int exponent) {
  float power = 1;
  for (; exponent > 0; --exponent) power *= 2;
  for (; exponent < 0; ++exponent) power /= 2;
  return power;
}

// The largest finite element, from which scales of rows are made.
constexpr float largest_element(DType dtype) {
  return dtype == DType::kInt8 ? 127.0f : dtype == DType::kE4M3 ? 448.0f : 57344.0f;
}

// The smallest finite element.
constexpr float smallest_element(DType dtype) {
  return dtype == DType::kInt8 ? -128.0f : -largest_element(dtype);
}

// No scale is smaller, so that it can be a divisor.
constexpr float kSmallestScale = small_float_power(-126);

}  // namespace
}  // namespace kvc::kernels::cpu
