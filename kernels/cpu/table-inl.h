// The kernel table of one instruction set.
//
//   table_of(isa, name, attention)
//     attention: the kernels that the instruction set has a choice of
//
// Included by the isa_<name>.cc files after a vec_<isa>.h.
#pragma once

#include "kernels/cpu/conv-inl.h"
#include "kernels/cpu/epilogue-inl.h"
#include "kernels/cpu/linear-inl.h"
#include "kernels/cpu/rows-inl.h"
#include "kernels/cpu/tables.h"

namespace kvc::kernels::cpu {
namespace {

struct AttentionKernels {
  decltype(KernelTable::attn_decode) decode;
  decltype(KernelTable::attn_decode_scratch_bytes) decode_scratch_bytes;
  decltype(KernelTable::attn_tile) tile;
  decltype(KernelTable::attn_tile_scratch_bytes) tile_scratch_bytes;
  decltype(KernelTable::reads_latents) reads_latents = nullptr;
};

constexpr KernelTable table_of(Isa isa, const char* name, const AttentionKernels& attention) {
  return {
      .isa = isa,
      .name = name,
      .attn_decode = attention.decode,
      .attn_decode_scratch_bytes = attention.decode_scratch_bytes,
      .attn_tile = attention.tile,
      .attn_tile_scratch_bytes = attention.tile_scratch_bytes,
      .attn_merge_splits = attn_merge_splits,
      .append = append,
      .gather = gather,
      .merge = merge,
      .copy = copy,
      .linear = linear,
      .linear_scratch_bytes = linear_scratch_bytes,
      .conv = conv,
      .conv_scratch_bytes = conv_scratch_bytes,
      .reads_latents = attention.reads_latents,
  };
}

}  // namespace
}  // namespace kvc::kernels::cpu
