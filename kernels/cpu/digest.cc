#include "kernels/cpu/digest.h"

#include "kernels/cpu/digest-inl.h"
#include "kernels/cpu/tables.h"

namespace kvc::kernels::cpu {

const DigestTable* digest_table(Isa isa) noexcept {
  const Isa best = detect();
  if (isa == Isa::kAuto) isa = best;
  if (isa > best) return nullptr;
#if defined(__x86_64__)
  if (isa >= Isa::kAvx512) return &kAvx512Digests;
  if (isa == Isa::kAvx2) return &kAvx2Digests;
#endif
  return &kDigestFunctions;
}

}  // namespace kvc::kernels::cpu
