// The tables of the single instruction sets; only dispatch.cc and digest.cc read them. One that
// this build lacks is not defined.
#pragma once

#include "kernels/cpu/digest.h"
#include "kernels/cpu/table.h"

namespace kvc::kernels::cpu {

extern const KernelTable kReferenceTable;  // kernels/reference/table.cc
extern const KernelTable kScalarTable;
extern const KernelTable kAvx2Table;
extern const KernelTable kAvx512Table;
extern const KernelTable kAvx512Bf16Table;

extern const DigestTable kAvx2Digests;
extern const DigestTable kAvx512Digests;

}  // namespace kvc::kernels::cpu
