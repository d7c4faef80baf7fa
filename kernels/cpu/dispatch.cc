// Which instruction sets this machine has: CPUID says what the processor can do, XGETBV what the
// operating system saves.
#include <atomic>

#include "kernels/cpu/table.h"
#include "kernels/cpu/tables.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace kvc::kernels::cpu {
namespace {

#if defined(__x86_64__)
struct Registers {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(uint32_t leaf, uint32_t subleaf) {
  Registers r;
  if (__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) return {};
  return r;
}

uint64_t saved_states() {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

constexpr bool bit(uint32_t value, int index) { return (value >> index & 1) != 0; }

Isa detect_x86() {
  const Registers basic = cpuid(1, 0);
  if (!bit(basic.ecx, 27)) return Isa::kScalar;  // OSXSAVE: without it XGETBV itself is illegal.
  const uint64_t saved = saved_states();
  constexpr uint64_t kYmm = 0x6, kZmm = 0xe6;
  const Registers extended = cpuid(7, 0), more = cpuid(7, 1);
  const bool avx2 = (saved & kYmm) == kYmm && bit(basic.ecx, 28) && bit(basic.ecx, 12) /* FMA */ &&
                    bit(basic.ecx, 29) /* F16C */ && bit(extended.ebx, 5);
  if (!avx2) return Isa::kScalar;
  // x86-64-v4 as the compiler understands it: v3 (BMI1, BMI2, LZCNT, MOVBE) and AVX-512 F, DQ, CD,
  // BW, VL.
  const bool v3 = bit(extended.ebx, 3) && bit(extended.ebx, 8) &&
                  bit(cpuid(0x80000001, 0).ecx, 5) && bit(basic.ecx, 22);
  const bool avx512 = v3 && (saved & kZmm) == kZmm && bit(extended.ebx, 16) &&
                      bit(extended.ebx, 17) && bit(extended.ebx, 28) && bit(extended.ebx, 30) &&
                      bit(extended.ebx, 31);
  if (!avx512) return Isa::kAvx2;
  return bit(extended.ecx, 11) /* VNNI */ && bit(more.eax, 5) /* BF16 */ ? Isa::kAvx512Bf16
                                                                         : Isa::kAvx512;
}
#endif

}  // namespace

Isa detect() {
#if defined(__x86_64__)
  // Any thread finds the same. A static would take a lock, which a forked child could find taken.
  static constinit std::atomic<Isa> known{Isa::kAuto};
  Isa best = known.load(std::memory_order_relaxed);
  if (best == Isa::kAuto) known.store(best = detect_x86(), std::memory_order_relaxed);
  return best;
#else
  return Isa::kScalar;
#endif
}

const KernelTable* kernel_table(Isa isa) {
  const Isa best = detect();
  if (isa == Isa::kAuto) isa = best;
  if (isa > best) return nullptr;  // Values are ordered by what they need.
  switch (isa) {
    case Isa::kReference: return &kReferenceTable;
    case Isa::kScalar: return &kScalarTable;
#if defined(__x86_64__)
    case Isa::kAvx2: return &kAvx2Table;
    case Isa::kAvx512: return &kAvx512Table;
    case Isa::kAvx512Bf16: return &kAvx512Bf16Table;
#endif
    default: return nullptr;
  }
}

}  // namespace kvc::kernels::cpu
