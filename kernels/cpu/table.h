// The CPU kernels as a table of function pointers, one table per instruction set, chosen at run
// time.
//
// Every function is thread-safe and allocation-free; `scratch` is private to the calling worker,
// 64-byte aligned, and at least as large as the matching *_scratch_bytes said.
#pragma once

#include "kernels/linear_params.h"
#include "kernels/params.h"

namespace kvc::kernels::cpu {

// Ordered by preference: a later one is chosen when the machine has it. Values equal KVC_CPU_ISA_*.
enum class Isa : int32_t {
  kAuto = 0,
  kReference = 1,
  kScalar = 2,
  kAvx2 = 3,
  kAvx512 = 4,
  kAvx512Bf16 = 5
};

struct KernelTable {
  Isa isa;
  const char* name;  // "reference", "scalar", "avx2", "avx512", "avx512bf16"

  // Few rows (a decode step): reads each KV byte once for all query heads of its group, walks page
  // by page over the item's heads, fp32 arithmetic for every storage type. Correct for any number
  // of rows. Exceptions, whose error is far below that of the storage:
  //   bf16 latents  (V is the beginning of the only K row, four query heads or more) AVX512-BF16:
  //                 bf16 dot products, Q and P are rounded to bf16.
  //   int8          integer dot products, Q has 16 bits and P has 15.
  //   e4m3          AVX512-BF16: bf16 dot products, Q and P are rounded to bf16, elements below
  //                 2^-6 count as 0.
  // int8 and e4m3 where K and V are of the same type, and K is not rotated while it is read; e4m3
  // where each row has a scale.
  void (*attn_decode)(const AttnParams&, const AttnItem&, void* scratch);
  size_t (*attn_decode_scratch_bytes)(const AttnParams&,
                                      int64_t max_rows);  // max_rows: largest row_end - row_begin.

  // Many rows (prefill): register tiles over packed key blocks that start at absolute keys k0 % 64
  // == 0. A row's result depends only on its own query and its visible keys, never on the other
  // rows of the item: any cut into items gives the same bits.
  void (*attn_tile)(const AttnParams&, const AttnItem&, void* scratch);
  size_t (*attn_tile_scratch_bytes)(const AttnParams&, int64_t max_rows);

  void (*attn_merge_splits)(const AttnParams&, const AttnMergeGroup&);

  // Returns how many elements RowScales::shared put outside of their type's range.
  uint64_t (*append)(const AppendParams&, int64_t row_begin, int64_t row_end);
  void (*gather)(const GatherParams&, int64_t key_begin, int64_t key_end);
  void (*merge)(const MergeParams&, int64_t row_begin, int64_t row_end);
  void (*copy)(std::byte* to, const std::byte* from,
               size_t bytes);  // Page copies; streams past the caches when large.

  // Linear attention over all new tokens of sequences[sequence], heads [head_begin, head_end):
  // reads the state and writes it back. A head's results depend on its own inputs only, however
  // heads are cut.
  void (*linear)(const LinearParams&, int32_t sequence, int32_t head_begin, int32_t head_end,
                 void* scratch);
  // max_rows: largest num_rows.
  size_t (*linear_scratch_bytes)(const LinearParams&, int64_t max_rows);

  // Causal depthwise convolution, channels [channel_begin, channel_end) of one sequence.
  void (*conv)(const ConvParams&, int32_t sequence, int32_t channel_begin, int32_t channel_end,
               void* scratch);
  size_t (*conv_scratch_bytes)(const ConvParams&);

  // Nullable. Whether attn_decode and attn_tile are the same kernel for these params, one that
  // reads latents (V inside K, all query heads on one kv head): the planner then cuts for its
  // taste. A property of the layer and the options alone.
  bool (*reads_latents)(const AttnParams&);
};

// The best instruction set of this machine (CPUID and XGETBV: the operating system must save the
// registers too).
Isa detect();
// The table of one instruction set; null when this build or this machine does not have it. kAuto:
// detect()'s.
const KernelTable* kernel_table(Isa isa);

}  // namespace kvc::kernels::cpu
