// Compile flags: -ffp-contract=off, the features of x86-64-v4, -mprefer-vector-width=512.
// Contraction is off so that a sum is rounded the same wherever the loop around it stands; fma is
// written where wanted.
#include "kernels/cpu/tables.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)

#include "kernels/cpu/vec_avx512.h"
// The kernels, over that vector width.
#include "kernels/cpu/decode_words_avx512-inl.h"
#include "kernels/cpu/table-inl.h"
#include "kernels/cpu/tile_f32-inl.h"

namespace kvc::kernels::cpu {

const KernelTable kAvx512Table = table_of(Isa::kAvx512, "avx512",
                                          {attn_decode_avx512, attn_decode_avx512_scratch_bytes,
                                           attn_tile_f32, attn_tile_f32_scratch_bytes});

}  // namespace kvc::kernels::cpu

#endif
