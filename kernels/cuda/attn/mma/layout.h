// Layouts of shared memory and of fragments. Shared with the host, where a test counts bank
// conflicts.
#pragma once

#include <cstdint>

#include "kernels/target.h"

namespace kvc::cuda::attn_mma {

// Rows have 64 bytes or a multiple of 128. The 16-byte chunks of 128 bytes are XORed with the row.
// So equal chunks of eight rows (a phase of ldmatrix) and eight chunks of one row (a phase of a
// copy) both lie in different banks.
template <int kRowBytes>
KVC_HD int swizzle_mask(int row) {
  static_assert(kRowBytes == 64 || kRowBytes % 128 == 0);
  return kRowBytes == 64 ? (row >> 1 & 3) << 4 : (row & 7) << 4;
}
template <int kRowBytes>
KVC_HD int chunk_offset(int row, int chunk) {
  return row * kRowBytes + ((chunk << 4) ^ swizzle_mask<kRowBytes>(row));
}

// Ldmatrix.x4: lane 8*i + r gives the address of row r of matrix i. Two ways to spread four
// matrices over 16 rows and 32 bytes:
//   K, the B operand as stored: (rows 0-7, chunk 0) (rows 0-7, chunk 1)
//                               (rows 8-15, chunk 0) (rows 8-15, chunk 1)
//   Q, and V transposed:        (rows 0-7, chunk 0) (rows 8-15, chunk 0)
//                               (rows 0-7, chunk 1) (rows 8-15, chunk 1)
struct MatrixLane {
  int row, chunk;
};
KVC_HD MatrixLane key_lane(int lane) { return {(lane & 7) + (lane >> 4) * 8, lane >> 3 & 1}; }
KVC_HD MatrixLane value_lane(int lane) { return {(lane & 7) + (lane >> 3 & 1) * 8, lane >> 4}; }

// A lane's contribution to the addresses of ldmatrix. The chunk pair `pair` of rows 16*t to 16*t +
// 15 lies at
//   tile + t * 16 * kRowBytes + row_offset + ((pair * 32) ^ chunk_mask)
struct MatrixAddress {
  int row_offset, chunk_mask;
};
template <int kRowBytes>
KVC_HD MatrixAddress matrix_address(const MatrixLane& lane) {
  return {lane.row * kRowBytes, (lane.chunk << 4) ^ swizzle_mask<kRowBytes>(lane.row)};
}

// Number of lanes that copy one row together.
template <int kRowBytes>
KVC_HD constexpr int lanes_per_row() {
  return kRowBytes == 64 ? 4 : 8;
}

// 8-bit K: ldmatrix gives lane p of a quad the four dims 4p to 4p+3 of 16, where the fragment has
// columns 2p, 2p+1, 2p+8 and 2p+9. A sum over dims does not depend on their order, so Q is stored
// in that order: the pair of dims (2w, 2w+1) of 16 goes to this pair of columns.
KVC_HD int eight_bit_column_pair(int dim_pair) { return (dim_pair & 1) * 4 + (dim_pair >> 1); }

// The dim of accumulator `element` (0, 1: row lane/4; 2, 3: row lane/4 + 8) in columns [8 * n_tile,
// 8 * n_tile + 8). For 8-bit V, ldmatrix transposes pairs of dims: the first dim of a pair goes to
// an even n_tile, the second to the next.
template <bool kEightBit>
KVC_HD int output_dim(int lane, int n_tile, int element) {
  const int column = 2 * (lane & 3) + (element & 1);
  return kEightBit ? 16 * (n_tile >> 1) + 2 * column + (n_tile & 1) : 8 * n_tile + column;
}

}  // namespace kvc::cuda::attn_mma
