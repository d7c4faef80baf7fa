// Integer helpers for sizes and positions.
#pragma once

#include <cstdint>

namespace kvc {

// Of any value >= 0: value + divisor - 1 would overflow near INT64_MAX.
constexpr int64_t ceil_div(int64_t value, int64_t divisor) {
  return value / divisor + (value % divisor != 0 ? 1 : 0);
}
constexpr int64_t align_up(int64_t value, int64_t alignment) {
  return ceil_div(value, alignment) * alignment;
}

// a*b for non-negative values; false when the product exceeds int64.
inline bool multiply(int64_t a, int64_t b, int64_t* product) {
  return !__builtin_mul_overflow(a, b, product);
}

}  // namespace kvc
