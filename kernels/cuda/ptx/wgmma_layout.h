// The layout of operands of wgmma and TMA in shared memory (128-byte swizzle), as functions that
// tests run on the host.
#pragma once

#include <cstdint>

#include "kernels/target.h"

namespace kvc::cuda {

// Tiles have 8 rows of 128 bytes. In a tile the eight 16-byte chunks of row r are permuted by XOR
// with r. A row has 64 elements of 16 bits.
constexpr int32_t kSwizzleBytes = 128;
constexpr int32_t kSwizzleElements = 64;
constexpr int32_t kSwizzleTileBytes = 1024;

// The hardware's mapping of addresses, for TMA's writes and wgmma's reads alike.
KVC_HD uint32_t swizzled_128(uint32_t address) { return address ^ ((address >> 7 & 7u) << 4); }

// The offset of an element in a block of `rows` rows of `dim` elements, as TMA boxes of 64 elements
// write it: [dim / 64][rows][64], swizzled, 16-bit elements.
KVC_HD int32_t block_offset(int32_t rows, int32_t row, int32_t element) {
  const int32_t chunk = element / 8 % 8;
  return element / kSwizzleElements * rows * kSwizzleBytes + row * kSwizzleBytes +
         ((chunk ^ (row & 7)) * 16) + element % 8 * 2;
}

// Descriptors of such blocks. K-major: rows are the rows of A or the columns of B, and elements run
// along the reduction. N-major: rows run along the reduction, and elements are the columns of B.
constexpr int32_t kStrideBytes = kSwizzleTileBytes;
KVC_HD constexpr int32_t leading_bytes(int32_t rows) { return rows * kSwizzleBytes; }
// Offset of step `step`, 16 elements of the reduction.
KVC_HD constexpr int32_t k_major_step(int32_t rows, int32_t step) {
  return step / 4 * rows * kSwizzleBytes + step % 4 * 32;
}
KVC_HD constexpr int32_t n_major_step(int32_t step) { return step * 16 * kSwizzleBytes; }

// The address that wgmma reads, from the descriptor's start (1024-byte tiles) and its strides. PTX
// ISA, "Strides", canonical layouts of the 128-byte swizzle.
KVC_HD uint32_t k_major_address(uint32_t start, int32_t stride, int32_t row, int32_t of_sum) {
  return swizzled_128(
      start + static_cast<uint32_t>(row / 8 * stride + row % 8 * kSwizzleBytes + of_sum * 2));
}
KVC_HD uint32_t n_major_address(uint32_t start, int32_t leading, int32_t stride, int32_t column,
                                int32_t of_sum) {
  return swizzled_128(
      start + static_cast<uint32_t>(column / kSwizzleElements * leading + of_sum / 8 * stride +
                                    of_sum % 8 * kSwizzleBytes + column % kSwizzleElements * 2));
}

}  // namespace kvc::cuda
