// Sin and cos in double for rotary embeddings. CUDA's own functions accept any
// argument, for which they keep a table in local memory. An angle here is a position (31 bits)
// times a frequency, so fused multiply-adds reduce it in registers.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/target.h"

namespace kvc::cuda {

// For |angle| < 2^31 the error is about one unit in the last place of a double.
KVC_HD void sine_cosine(double angle, double& sine, double& cosine) {
  // The reduction of Cody and Waite, "Software Manual for the Elementary Functions" (1980): angle -
  // n * pi/2, with pi/2 in three parts of 53 bits each. The first difference is exact: the fused
  // product keeps all bits, and the rest is a multiple of 2^-53 below 1. The error after the third
  // part is n * 2^-163.
  constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
  constexpr double kHalfPi[3] = {0x1.921fb54442d18p+0, 0x1.1a62633145c07p-54,
                                 -0x1.f1976b7ed8fbcp-110};
  const double n = std::rint(angle * kTwoOverPi);
  const double high = std::fma(-n, kHalfPi[0], angle);
  const double x = std::fma(-n, kHalfPi[2], std::fma(-n, kHalfPi[1], high));
  const double x2 = x * x;
  // Taylor series on |x| <= pi/4 (0.7854). The first omitted term is below 2^-57 of the result.
  double s = 1.0 / 355687428096000.0;  // 1/17!
  s = std::fma(s, x2, -1.0 / 1307674368000.0);
  s = std::fma(s, x2, 1.0 / 6227020800.0);
  s = std::fma(s, x2, -1.0 / 39916800.0);
  s = std::fma(s, x2, 1.0 / 362880.0);
  s = std::fma(s, x2, -1.0 / 5040.0);
  s = std::fma(s, x2, 1.0 / 120.0);
  s = std::fma(s, x2, -1.0 / 6.0);
  s = std::fma(s * x2, x, x);
  double c = 1.0 / 20922789888000.0;  // 1/16!
  c = std::fma(c, x2, -1.0 / 87178291200.0);
  c = std::fma(c, x2, 1.0 / 479001600.0);
  c = std::fma(c, x2, -1.0 / 3628800.0);
  c = std::fma(c, x2, 1.0 / 40320.0);
  c = std::fma(c, x2, -1.0 / 720.0);
  c = std::fma(c, x2, 1.0 / 24.0);
  c = std::fma(c, x2, -0.5);
  c = std::fma(c, x2, 1.0);
  // The quadrant.
  const auto quarter = static_cast<int64_t>(n) & 3;
  const double sine_of = (quarter & 1) != 0 ? c : s;
  const double cosine_of = (quarter & 1) != 0 ? s : c;
  sine = quarter >= 2 ? -sine_of : sine_of;
  cosine = quarter == 1 || quarter == 2 ? -cosine_of : cosine_of;
}

}  // namespace kvc::cuda
