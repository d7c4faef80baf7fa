// What a work item asks for: which keys its rows see together, which blocks of keys are visited.
// Producer and consumers go by the same.
#pragma once

#include "kernels/cuda/attn/visible_range.h"
#include "kernels/cuda/ptx/ptx.cuh"
#include "kernels/cuda/work.h"

namespace kvc::cuda::wgmma {

// It lies in shared memory, one for every warp role: accumulators leave no registers for it.
struct alignas(16) ItemScope {
  SequenceMask mask;
  TileRange rows;              // ends clipped to the item's
  int32_t key_begin, key_end;  // of the item, and where its last row ends
  int32_t first;               // where blocks are counted from: aligned to boxes
  int32_t row_begin, row_end;  // packed rows
  const kernels::AttnSequence* sequence;

  // Some row may see it.
  KVC_DEVICE bool visible_to_any(int32_t key) const {
    return key >= key_begin && key < key_end && (key >= rows.first_begin || key < mask.sink_end);
  }
  // Some row may see one of [begin, end).
  KVC_DEVICE bool any_visible(int32_t begin, int32_t end) const {
    return end > key_begin && begin < key_end && (end > rows.first_begin || begin < mask.sink_end);
  }
  // Some row may see each of them.
  KVC_DEVICE bool each_visible(int32_t begin, int32_t end) const {
    return begin >= key_begin && end <= key_end &&
           (begin >= rows.first_begin || end <= mask.sink_end);
  }
  // Every row sees each of them.
  KVC_DEVICE bool all_visible(int32_t begin, int32_t end) const {
    return begin >= key_begin && cover(mask, rows, begin, end) == Cover::kFull;
  }
  // Blocks begin at block(first), block(it + length), … as long as they are below key_end.
  KVC_DEVICE int32_t block(int32_t key, int32_t length) const {
    return skip_masked(mask, rows, key, first, length);
  }
};

// warp. Written by lane 0: barriers are the caller's.
KVC_DEVICE void find_scope(const kernels::AttnSequence& sequence, const WorkItem& item,
                           int32_t causal, int32_t group_size, int32_t box_rows, ItemScope* out) {
  const int32_t row_begin = item.row_begin / group_size;
  const int32_t row_end = (item.row_begin + item.num_rows - 1) / group_size + 1;
  TileRange rows = kEmptyTile;
  for (int32_t row = row_begin + lane_id(); row < row_end; row += 32)
    rows = united(rows, tile_of(row_range(sequence, causal, row)));
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    rows = united(rows, {shuffle_xor(rows.first_begin, lanes), shuffle_xor(rows.last_begin, lanes),
                         shuffle_xor(rows.first_end, lanes), shuffle_xor(rows.last_end, lanes)});
  }
  rows.first_end = rows.first_end < item.key_end ? rows.first_end : item.key_end;
  rows.last_end = rows.last_end < item.key_end ? rows.last_end : item.key_end;
  const int32_t first = item.key_begin / box_rows * box_rows;
  // An item without keys has no blocks, not even the one that key_begin lies in.
  const int32_t key_end = rows.last_end > item.key_begin ? rows.last_end : first;
  if (lane_id() == 0)
    *out = {
        sequence_mask(sequence),        rows,     item.key_begin, key_end, first, item.row_begin,
        item.row_begin + item.num_rows, &sequence};
}

}  // namespace kvc::cuda::wgmma
