// The shape of the universal attention kernel and its layout of shared memory.
#pragma once

#include <cstdint>

#include "kernels/target.h"

namespace kvc::cuda::simt {

constexpr int32_t kThreads = 128;
constexpr int32_t kCtasPerSm = 3;  // 168 registers per thread.
constexpr int32_t kWarps = kThreads / 32;
// Keys of a block: one per lane, so that a row's softmax stays in its warp.
constexpr int32_t kKeys = 32;
constexpr int32_t kChunk = 128;  // Dims of K or V in shared memory at a time: four per lane.
// In floats. Lanes that read 16 bytes of eight keys touch all banks.
constexpr int32_t kChunkStride = kChunk + 4;
constexpr int32_t kMaxDim = 1024;

// Max k_dim + v_dim for 16 packed rows. Up to it, queries and accumulators (float32) leave room for
// a second CTA on an SM with 228 KiB, and for one CTA where a CTA has 99 KiB.
constexpr int32_t kWideDims = 1152;
KVC_HD int32_t tile_rows(int32_t k_dim, int32_t v_dim) {
  return k_dim + v_dim <= kWideDims ? 16 : 8;
}

KVC_HD int32_t padded(int32_t dim) { return (dim + 3) & ~3; }

// Floats between the weights of neighbouring keys. A lane stores the weights of its key for its
// warp's rows (a quarter of the tile) at once. The lanes that are served together (those of 128
// bytes) must use different banks: see weights_spread.
KVC_HD constexpr int32_t weight_stride(int32_t rows) { return rows + rows / kWarps; }
constexpr bool weights_spread(int32_t rows) {
  const int32_t words = rows / kWarps, lanes = 32 / words;
  uint32_t banks = 0;
  for (int32_t lane = 0; lane < lanes; ++lane) {
    for (int32_t word = 0; word < words; ++word)
      banks |= uint32_t{1} << ((lane * weight_stride(rows) + word) % 32);
  }
  return banks == 0xffffffffu;
}
static_assert(weights_spread(16) && weights_spread(8));

// Offsets in floats. All arrays begin at multiples of 16 bytes.
struct SharedLayout {
  int32_t q;             // [rows][padded(k_dim)], rotated and scaled.
  int32_t sums;          // [rows][padded(v_dim)], the accumulators.
  int32_t chunk;         // [kKeys][kChunkStride] of K or V.
  int32_t weights;       // [kKeys][weight_stride(rows)]
  int32_t visible_rows;  // [kWarps][kKeys], a bit per row of the warp to which the key is visible.
  int32_t rows;          // [rows] of RowFacts.
  int32_t size;
};
constexpr int32_t kRowFactsFloats = 8;

KVC_HD SharedLayout shared_layout(int32_t rows, int32_t k_dim, int32_t v_dim) {
  SharedLayout at{};
  at.q = 0;
  at.sums = at.q + rows * padded(k_dim);
  at.chunk = at.sums + rows * padded(v_dim);
  at.weights = at.chunk + kKeys * kChunkStride;
  at.visible_rows = at.weights + kKeys * weight_stride(rows);
  at.rows = at.visible_rows + kWarps * kKeys;
  at.size = at.rows + rows * kRowFactsFloats;
  return at;
}

}  // namespace kvc::cuda::simt
