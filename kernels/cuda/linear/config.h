// How the recurrence is spread over threads.
//
// The state of a head is [k_dim][v_dim] with v contiguous, and its columns do not depend on each
// other. A CTA keeps all rows of a tile of columns in registers from the first token to the last. A
// tile is 128 bytes wide, so that every load and store of a warp consists of whole cache lines:
//   float32  8 lanes x 4 columns = 128 bytes, 4 rows per warp and instruction
//   16 bits  16 lanes x 4 columns = 128 bytes, 2 rows
// Sums over rows cross lanes and warps. A token needs two of them (S^T k and S^T q, over the
// decayed state), which are computed together with one barrier per token.
#pragma once

#include <cstdint>

#include "kernels/cuda/table.h"

namespace kvc::cuda::linear_config {

constexpr int32_t kColumns = 4;  // Columns of a thread.

// Rows of a thread. More rows leave fewer warps to sum over; fewer rows need fewer registers.
constexpr int32_t kFewRows = 4;   // Up to 64 rows of state.
constexpr int32_t kManyRows = 8;  // More rows of state.
constexpr int32_t kFewRowsMost = 64;

// Max warps of a CTA. With more, each would lack registers.
constexpr int32_t kMaxWarps = 16;

constexpr int32_t lanes_of(kernels::DType state) { return state == kernels::DType::kF32 ? 8 : 16; }
// Rows that fit a CTA of kMostWarps.
constexpr int32_t max_rows(int32_t lanes) { return kMaxWarps * (32 / lanes) * kManyRows; }

// Launch bounds for ptxas: max threads of a CTA, and CTAs per SM. With a small state each thread
// has little in flight, so an SM must fit 512 threads.
constexpr int32_t max_threads(int32_t lanes, int32_t rows) {
  return rows == kFewRows ? kFewRowsMost * lanes / kFewRows : 32 * kMaxWarps;
}
constexpr int32_t least_ctas(int32_t lanes, int32_t rows) {
  return rows == kFewRows ? 512 / max_threads(lanes, rows) : 1;
}

// Tokens whose k, q and decay are kept in shared memory: one is read while the next is written.
// There is a third because warps may be one token apart.
constexpr int32_t kStages = 3;

// ---- Chunks, see chunk.cuh

constexpr int32_t kChunk = 64;  // Tokens.
// Columns of a CTA's tile. Narrow, because a prompt has one CTA per head and tile.
constexpr int32_t kChunkColumns = 32;
constexpr int32_t kChunkThreads = 128;
// Rows of state: two tiles of 16 rows per warp, in registers.
constexpr int32_t kChunkMaxRows = 128;
// Min tokens for which a chunk is worth its work, which does not depend on how full it is.
constexpr int64_t kChunkFrom = kLongSequence;

}  // namespace kvc::cuda::linear_config
