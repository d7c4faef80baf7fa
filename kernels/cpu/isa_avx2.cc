// Compile flags: -ffp-contract=off -mavx2 -mfma -mf16c Contraction is off so that a sum is rounded
// the same wherever the loop around it stands; fma is written where wanted.
#include "kernels/cpu/tables.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include "kernels/cpu/vec_avx2.h"
// The kernels, over that vector width.
#include "kernels/cpu/decode_words_avx2-inl.h"
#include "kernels/cpu/table-inl.h"
#include "kernels/cpu/tile_f32-inl.h"

namespace kvc::kernels::cpu {

const KernelTable kAvx2Table = table_of(
    Isa::kAvx2, "avx2",
    {attn_decode_avx2, attn_decode_avx2_scratch_bytes, attn_tile_f32, attn_tile_f32_scratch_bytes});

}  // namespace kvc::kernels::cpu

#endif
