// The checks of one vector width as a table of functions (kernels_vec_checks.h), one table per
// instruction set.
#pragma once

#include <cstdint>

namespace kvc::kernels::test {

struct VecChecks {
  double (*exp2_worst_ulps)(double (*)(double));
  double (*tanh_worst_ulps)(double (*)(double));
  float (*exp2_at)(float);
  float (*tanh_at)(float);
  int (*convert_f16)(float*);
  int (*convert_bf16)(float*);
  void (*round_f16)(const float*, uint16_t*, int);
  void (*round_bf16)(const float*, uint16_t*, int);
  int (*wrong_shuffle)();
  // Int8, e4m3, e5m2, kE4M3Low: values[code] for whole vectors; the first code that differs in a
  // tail or in a pair of vectors, or -1.
  int (*read_codes[4])(float*);
  void (*round_to_codes[3])(const float*, uint8_t*, int);
};

extern const VecChecks kScalarChecks, kAvx2Checks, kAvx512Checks;

}  // namespace kvc::kernels::test
