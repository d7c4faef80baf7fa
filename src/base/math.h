// Integer helpers for sizes and positions.
#pragma once

#include <cstdint>

namespace kvc {

// For any value >= 0, where value + divisor - 1 could overflow near INT64_MAX.
constexpr int64_t ceil_div(int64_t value, int64_t divisor) {
  return value / divisor + (value % divisor != 0 ? 1 : 0);
}
constexpr int64_t align_up(int64_t value, int64_t alignment) {
  return ceil_div(value, alignment) * alignment;
}

// a * b of non-negative values. Returns false when the product exceeds int64.
inline bool multiply(int64_t a, int64_t b, int64_t* product) {
  return !__builtin_mul_overflow(a, b, product);
}

}  // namespace kvc
