// The avx512 vector layer, compiled for the checks of kernels_vec_test.cc.
#if defined(__x86_64__)
#include <cstddef>
#include <cstdint>

#if defined(__clang__)
#pragma clang attribute push(                                                    \
    __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl"))), \
    apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")
#endif

#include "kernels/cpu/vec_avx512.h"
// The checks, over that vector width.
#include "kernels_vec_checks.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif

namespace kvc::kernels::test {
const VecChecks kAvx512Checks = KVC_VEC_CHECKS;
}

#endif
