// Any machine: the compiler's baseline instruction set. Compile flags: -ffp-contract=off
// Contraction is off so that a sum is rounded the same wherever the loop around it stands; fma is
// written where wanted.
#include "kernels/cpu/tables.h"
#include "kernels/cpu/vec_scalar.h"
// The kernels, over that vector width.
#include "kernels/cpu/decode_words_scalar-inl.h"
#include "kernels/cpu/table-inl.h"
#include "kernels/cpu/tile_f32-inl.h"

namespace kvc::kernels::cpu {

const KernelTable kScalarTable = table_of(Isa::kScalar, "scalar",
                                          {attn_decode_scalar, attn_decode_scalar_scratch_bytes,
                                           attn_tile_f32, attn_tile_f32_scratch_bytes});

}  // namespace kvc::kernels::cpu
