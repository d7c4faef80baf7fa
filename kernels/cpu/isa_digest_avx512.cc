// Compile flags: as isa_avx512.cc.
#include "kernels/cpu/tables.h"

#if defined(__AVX512F__)

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 says so of its own header (its bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include "kernels/cpu/digest-inl.h"

namespace kvc::kernels::cpu {

const DigestTable kAvx512Digests = kDigestFunctions;

}  // namespace kvc::kernels::cpu

#endif
