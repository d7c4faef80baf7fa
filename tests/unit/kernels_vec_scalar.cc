// The scalar vector layer, compiled for the checks of kernels_vec_test.cc.
#include "kernels/cpu/vec_scalar.h"
// The checks, over that vector width.
#include "kernels_vec_checks.h"

namespace kvc::kernels::test {
const VecChecks kScalarChecks = KVC_VEC_CHECKS;
}
