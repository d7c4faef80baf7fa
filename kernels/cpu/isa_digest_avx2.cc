// Compile flags: as isa_avx2.cc.
#include "kernels/cpu/tables.h"

#if defined(__AVX2__)

#include "kernels/cpu/digest-inl.h"

namespace kvc::kernels::cpu {

const DigestTable kAvx2Digests = kDigestFunctions;

}  // namespace kvc::kernels::cpu

#endif
