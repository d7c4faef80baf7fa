// Compile flags: -ffp-contract=off, the features of x86-64-v4, -mprefer-vector-width=512,
// -mavx512bf16, -mavx512vnni. Contraction is off so that a sum is rounded the same wherever the
// loop around it stands; fma is written where wanted.
#include "kernels/cpu/tables.h"

#if defined(__AVX512BF16__) && defined(__AVX512VNNI__)

#include "kernels/cpu/vec_avx512.h"
// The kernels, over that vector width.
#include "kernels/cpu/decode_words_avx512-inl.h"
#include "kernels/cpu/latent_bf16-inl.h"
#include "kernels/cpu/table-inl.h"
#include "kernels/cpu/tile_bf16-inl.h"

namespace kvc::kernels::cpu {

const KernelTable kAvx512Bf16Table =
    table_of(Isa::kAvx512Bf16, "avx512bf16",
             {attn_decode_bf16, attn_decode_bf16_scratch_bytes, attn_prefill_bf16,
              attn_prefill_bf16_scratch_bytes, latent::serves});

}  // namespace kvc::kernels::cpu

#endif
