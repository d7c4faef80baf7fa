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
};

extern const VecChecks kScalarChecks, kAvx2Checks, kAvx512Checks;

}  // namespace kvc::kernels::test
