// How the recurrence is spread over threads.
//
// The state of a head is [k_dim][v_dim] with v contiguous, and its columns do not depend on each
// other: a CTA keeps all rows of a tile of columns in registers
// from the first token to the last. A tile is as wide as a line of 128 bytes, so that every load
// and store of a warp consists of whole lines:
//   float32  8 lanes x 4 columns = 128 bytes, 4 rows per warp and instruction
//   16 bits  16 lanes x 4 columns = 128 bytes, 2 rows
// Sums over rows cross lanes and warps; both that a token needs (S^T k and S^T q, over the decayed
// state) are made at once, one barrier per token.
#pragma once

#include <cstdint>

#include "kernels/cuda/table.h"

namespace kvc::cuda::linear_config {

constexpr int32_t kColumns = 4;  // of a thread

// Rows of a thread. More rows: fewer warps to add up; fewer: less registers.
constexpr int32_t kFewRows = 4;   // up to 64 rows of state
constexpr int32_t kManyRows = 8;  // beyond
constexpr int32_t kFewRowsMost = 64;

// Warps of a CTA; more do not get the registers that they need.
constexpr int32_t kMostWarps = 16;

constexpr int32_t lanes_of(kernels::DType state) { return state == kernels::DType::kF32 ? 8 : 16; }
// Rows that fit a CTA of kMostWarps.
constexpr int32_t most_rows(int32_t lanes) { return kMostWarps * (32 / lanes) * kManyRows; }

// Bounds for ptxas: the most threads of a CTA, and CTAs per SM. Small states have little on its way
// per thread, so 512 threads shall fit an SM.
constexpr int32_t most_threads(int32_t lanes, int32_t rows) {
  return rows == kFewRows ? kFewRowsMost * lanes / kFewRows : 32 * kMostWarps;
}
constexpr int32_t least_ctas(int32_t lanes, int32_t rows) {
  return rows == kFewRows ? 512 / most_threads(lanes, rows) : 1;
}

// Tokens whose k, q and decay are kept in shared memory: one is being read while the next is
// written; a third, because warps may be one token apart.
constexpr int32_t kStages = 3;

// ---- Chunks, see chunk.cuh

constexpr int32_t kChunk = 64;  // tokens
constexpr int32_t kChunkColumns =
    32;  // of a CTA's tile: narrow, because a prompt has one CTA per head and tile
constexpr int32_t kChunkThreads = 128;
constexpr int32_t kChunkMostRows = 128;  // of state: two tiles of 16 rows per warp, in registers
// Sequences from so many tokens on are worth a chunk, whose work does not depend on how full it is.
constexpr int64_t kChunkFrom = kLongSequence;

}  // namespace kvc::cuda::linear_config
