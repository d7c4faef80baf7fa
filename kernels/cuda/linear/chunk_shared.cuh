// The shared memory of the chunk kernel, and the loads of fragments from it.
#pragma once

#include "kernels/cuda/linear/config.h"
#include "kernels/cuda/ptx/ptx.cuh"

namespace kvc::cuda::linear_kernels {

// Rows of 16-bit elements have an odd multiple of 16 bytes, so that the eight rows of a matrix load
// lie in different banks.
struct ChunkShared {
  static constexpr int32_t kTokens = linear_config::kChunk;
  static constexpr int32_t kColumns = linear_config::kChunkColumns;
  static constexpr int32_t kTileStride = kColumns + 8;  // Stride of S and U.
  static constexpr int32_t kSquareStride = kTokens + 1;
  static constexpr int32_t kRightStride = kColumns + 1;

  int32_t k_rows;     // Rows of state, a multiple of 16.
  int32_t key_parts;  // Parts of q and k: 1 where both are bfloat16, else 2.
  std::byte* memory;  // 16-byte aligned.

  KVC_HD int32_t row_stride() const { return k_rows + 8; }
  KVC_HD int64_t row_bytes() const { return int64_t{2} * kTokens * row_stride(); }
  KVC_HD int64_t state_bytes() const { return int64_t{2} * k_rows * kTileStride; }
  static constexpr int64_t kUpdateBytes = int64_t{2} * kTokens * kTileStride;

  KVC_HD uint16_t* q(int part) const {
    return reinterpret_cast<uint16_t*>(memory + part * row_bytes());
  }
  KVC_HD uint16_t* k(int part) const { return q(key_parts + part); }
  // S in two parts of 16 bits, high and low.
  KVC_HD uint16_t* state(int part) const {
    return reinterpret_cast<uint16_t*>(memory + 2 * key_parts * row_bytes() + part * state_bytes());
  }
  // Parts of U (0, 1), and of U decayed to the end of the chunk (2, 3).
  KVC_HD uint16_t* update(int part) const { return state(2) + part * (kUpdateBytes / 2); }
  KVC_HD float* floats() const { return reinterpret_cast<float*>(update(4)); }
  // [kTokens][kSquareStride]: decay from token s to token t, then the matrix of the triangular
  // system.
  KVC_HD float* square() const { return floats(); }
  // [kTokens][kRightStride]: the right side of the system, then U.
  KVC_HD float* right() const { return floats() + kTokens * kSquareStride; }
  // [kTokens], the decay of each token.
  KVC_HD float* decay() const { return right() + kTokens * kRightStride; }
  KVC_HD float* beta() const { return decay() + kTokens; }
  // Decay of S up to and including each token.
  KVC_HD float* from_start() const { return beta() + kTokens; }
  // Decay of each token's update to the end of the chunk.
  KVC_HD float* to_end() const { return from_start() + kTokens; }
  KVC_HD int64_t bytes() const {
    return 2 * key_parts * row_bytes() + 2 * state_bytes() + 4 * kUpdateBytes +
           4 * (kTokens * (kSquareStride + kRightStride) + 4 * kTokens);
  }
};

// Loads of 16 x 16 elements at (row, column) of a matrix with contiguous rows, for mma_16816. All
// three are warp functions.

// Loads A, whose rows are the rows in memory. Or loads two tiles of B whose columns are the rows in
// memory: b0, b1 of columns row to row + 7 are r[0], r[2], those of the next eight r[1], r[3].
KVC_DEVICE void load_rows(uint32_t (&r)[4], const uint16_t* matrix, int32_t stride, int32_t row,
                          int32_t column) {
  const int lane = lane_id();
  load_matrix_x4(r, matrix + (row + lane % 16) * stride + column + lane / 16 * 8);
}
// Loads two tiles of B whose rows are the rows in memory: b0, b1 of columns column to column + 7
// are r[0], r[1], those of the next eight r[2], r[3].
KVC_DEVICE void load_columns(uint32_t (&r)[4], const uint16_t* matrix, int32_t stride, int32_t row,
                             int32_t column) {
  const int lane = lane_id();
  load_matrix_x4_transposed(r, matrix + (row + lane % 16) * stride + column + lane / 16 * 8);
}
// Loads A whose rows are the columns in memory: row i of A is column column + i.
KVC_DEVICE void load_transposed(uint32_t (&r)[4], const uint16_t* matrix, int32_t stride,
                                int32_t row, int32_t column) {
  const int lane = lane_id();
  load_matrix_x4_transposed(
      r, matrix + (row + lane % 8 + lane / 16 * 8) * stride + column + lane / 8 % 2 * 8);
}

// Splits a float32 into the sum of two bfloat16, which keep 16 bits of fraction.
KVC_DEVICE void split(float value, uint16_t& high, uint16_t& low) {
  high = float_to_bf16(value);
  low = float_to_bf16(value - bf16_to_float(high));
}
KVC_DEVICE void split_pair(float first, float second, uint32_t& high, uint32_t& low) {
  high = pack<kernels::DType::kBF16>(first, second);
  float high_first, high_second;
  unpack<kernels::DType::kBF16>(high, high_first, high_second);
  low = pack<kernels::DType::kBF16>(first - high_first, second - high_second);
}

}  // namespace kvc::cuda::linear_kernels
