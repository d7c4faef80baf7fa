// Shapes of attn_wgmma, with the reasons for their numbers. Host and device.
#pragma once

#include <climits>
#include <cstdint>

#include "kernels/target.h"

namespace kvc::cuda::wgmma {

// A producer warpgroup and two consumer warpgroups of 64 rows. 65,536 registers for 384 threads are
// 168 per thread at entry. Then 40 * 128 + 232 * 256 are used.
constexpr int32_t kThreads = 384;
constexpr int32_t kConsumers = 2;
constexpr int32_t kRowsOfConsumer = 64;  // M of wgmma.
constexpr int32_t kTileRows = kConsumers * kRowsOfConsumer;
constexpr int32_t kProducerRegisters = 40;  // With 24 registers the page look-ups would spill.
constexpr int32_t kConsumerRegisters = 232;
// Fixed cost of a work item in key blocks: the queries, the first scores without overlap, and the
// output. From the samples of a profile (README.md, "Measured").
constexpr int32_t kItemCost = 5;

// Rows of one TMA box, which never crosses a page. Ragged keys (one page of any length) come in
// boxes of 64. At the end of a sequence they come in smaller boxes: the binary digits of the
// remaining length.
constexpr int32_t kLeastBoxRows = 16;
constexpr int32_t kRaggedBoxRows = 64;
constexpr int32_t kRaggedPage = INT_MAX;
constexpr int32_t kRaggedMaps = 7;  // Boxes of 64 rows, 32, and so on down to 1.
static_assert(1 << (kRaggedMaps - 1) == kRaggedBoxRows);
KVC_HD int32_t num_maps(int32_t page_size) { return page_size == kRaggedPage ? kRaggedMaps : 1; }
KVC_HD int32_t box_rows_of(int32_t page_size, int32_t key_block) {
  if (page_size == kRaggedPage) return kRaggedBoxRows;
  int32_t rows = key_block;
  while (page_size % rows != 0) rows /= 2;
  return rows;
}

constexpr int kScopeBytes = 80;

// Dims are multiples of 64 (a swizzled row). TMA pads smaller heads with zeros.
template <int KDimIn, int VDimIn, int KeyBlockIn, int StagesIn>
struct Shape {
  static constexpr int kKDim = KDimIn, kVDim = VDimIn, kKeyBlock = KeyBlockIn, kStages = StagesIn;
  static constexpr int kQBytes = kTileRows * kKDim * 2;
  static constexpr int kKBytes = kKeyBlock * kKDim * 2;
  static constexpr int kVBytes = kKeyBlock * kVDim * 2;
  // Order in shared memory: queries, stages of K, stages of V, barriers (full and empty of each
  // stage), an ItemScope per warpgroup.
  static constexpr int kKAt = kQBytes;
  static constexpr int kVAt = kKAt + kStages * kKBytes;
  static constexpr int kBarriersAt = kVAt + kStages * kVBytes;
  static constexpr int kScopesAt = (kBarriersAt + 4 * kStages * 8 + 15) / 16 * 16;
  static constexpr int kSharedBytes = kScopesAt + (1 + kConsumers) * kScopeBytes;
  static_assert(kSharedBytes <= 227 * 1024);
};
// Accumulators per thread for outputs and scores, and shared memory. Head dim 256 has 128 + 32:
// with 128 keys per block they would not fit.
using Shape64 = Shape<64, 64, 128, 4>;     // 32 + 64, 144 KiB.
using Shape128 = Shape<128, 128, 128, 2>;  // 64 + 64, 160 KiB.
using Shape192 = Shape<192, 128, 128, 2>;  // 64 + 64, 208 KiB (MLA, not absorbed).
using Shape256 = Shape<256, 256, 64, 2>;   // 128 + 32, 192 KiB.

// The smallest shape that holds a head. -1: none.
KVC_HD int32_t shape_of(int32_t k_dim, int32_t v_dim) {
  if (k_dim <= 64 && v_dim <= 64) return 0;
  if (k_dim <= 128 && v_dim <= 128) return 1;
  if (k_dim <= 192 && v_dim <= 128) return 2;
  return k_dim <= 256 && v_dim <= 256 ? 3 : -1;
}

}  // namespace kvc::cuda::wgmma
