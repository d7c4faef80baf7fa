// Shape of the universal attention kernel and where its shared memory goes.
#pragma once

#include <cstdint>

#include "kernels/cuda/target.h"

namespace kvc::cuda::simt {

constexpr int32_t kThreads = 128;
constexpr int32_t kCtasPerSm = 3;  // 168 registers a thread
constexpr int32_t kWarps = kThreads / 32;
constexpr int32_t kKeys = 32;    // of a block: one per lane, so that a row's softmax stays in its warp
constexpr int32_t kChunk = 128;  // dims of K or V in shared memory at a time: four per lane
constexpr int32_t kChunkStride =
    kChunk + 4;  // floats; lanes that read 16 bytes of eight keys touch all banks
constexpr int32_t kMaxDim = 1024;

// 16 packed rows while a CTA's queries and accumulators (float32) leave room for a second CTA on a multiprocessor with 164 KiB, and for one
// where a CTA can have 99 KiB.
constexpr int32_t kWideDims = 1152;  // k_dim + v_dim
KVC_HD int32_t tile_rows(int32_t k_dim, int32_t v_dim) { return k_dim + v_dim <= kWideDims ? 16 : 8; }

KVC_HD int32_t padded(int32_t dim) { return (dim + 3) & ~3; }

// In floats, one behind the other; all begin at multiples of 16 bytes.
struct SharedLayout {
  int32_t q;        // [rows][padded(k_dim)], rotated and scaled
  int32_t sums;     // [rows][padded(v_dim)] accumulators
  int32_t chunk;    // [kKeys][kChunkStride] of K or V
  int32_t weights;  // [kKeys][rows]
  int32_t seen;     // [kWarps][kKeys] bits: which of the warp's rows see a key
  int32_t rows;     // [rows] of RowFacts
  int32_t size;
};
constexpr int32_t kRowFactsFloats = 8;

KVC_HD SharedLayout shared_layout(int32_t rows, int32_t k_dim, int32_t v_dim) {
  SharedLayout at{};
  at.q = 0;
  at.sums = at.q + rows * padded(k_dim);
  at.chunk = at.sums + rows * padded(v_dim);
  at.weights = at.chunk + kKeys * kChunkStride;
  at.seen = at.weights + kKeys * rows;
  at.rows = at.seen + kWarps * kKeys;
  at.size = at.rows + rows * kRowFactsFloats;
  return at;
}

}  // namespace kvc::cuda::simt
