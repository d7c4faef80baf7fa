// Random choices of the tests of kernels, and how many cases they try.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <random>

#include "kernels/params.h"

namespace kvc::cuda::testing {

// How many random cases: `count`, times KVC_TEST_SCALE.
inline int scaled(int count) {
  const char* scale = std::getenv("KVC_TEST_SCALE");
  return std::max(1, static_cast<int>(count * (scale == nullptr ? 1.0 : std::atof(scale))));
}

struct Rng {
  explicit Rng(int64_t seed) : engine(static_cast<uint64_t>(seed)) {}

  int32_t upto(int32_t most) { return std::uniform_int_distribution<int32_t>(0, most)(engine); }
  int32_t between(int32_t low, int32_t high) { return low + upto(high - low); }
  bool chance(int percent) { return upto(99) < percent; }
  double normal() { return std::normal_distribution<double>()(engine); }
  kernels::DType dtype() { return static_cast<kernels::DType>(upto(2)); }

  std::mt19937_64 engine;
};

}  // namespace kvc::cuda::testing
