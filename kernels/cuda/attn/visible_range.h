// The masks of kernels/mask.h as devices count keys: in 32 bits, 32 keys at a time.
#pragma once

#include <cstdint>

#include "kernels/mask.h"

namespace kvc::cuda {

using kernels::bits_below;
using kernels::Cover;
using RowRange = kernels::RowRange<int32_t>;
using SequenceMask = kernels::SequenceMask<int32_t>;
using TileRange = kernels::TileRange<int32_t>;

// The range of a row that does not exist, and that of no rows.
constexpr RowRange kNoKeys = {0, 0};
constexpr TileRange kEmptyTile = {INT32_MAX, 0, INT32_MAX, 0};

KVC_HD RowRange row_range(const kernels::AttnSequence& sequence, int32_t causal, int64_t row) {
  return kernels::row_range<int32_t>(sequence, causal, row);
}
KVC_HD SequenceMask sequence_mask(const kernels::AttnSequence& sequence) {
  return kernels::sequence_mask<int32_t>(sequence);
}

// Clamps a bias to kMaxBias. NaN stays. The caller masks -inf.
KVC_HD float bounded_bias(float bias) {
  const float low = bias < -kernels::kMaxBias ? -kernels::kMaxBias : bias;
  return low > kernels::kMaxBias ? kernels::kMaxBias : low;
}

// The next key from `key` on, in steps of `block` from `first`, whose block is not kNone. Jumps
// from the sink tokens to the window.
KVC_HD int32_t skip_masked(const SequenceMask& mask, const TileRange& tile, int32_t key,
                           int32_t first, int32_t block) {
  if (key < mask.sink_end || tile.first_begin <= key) return key;
  const int32_t blocks = (tile.first_begin - first) / block;
  return first + blocks * block > key ? first + blocks * block : key;
}

}  // namespace kvc::cuda
