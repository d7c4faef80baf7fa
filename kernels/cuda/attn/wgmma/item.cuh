// The visible range of a work item and the key blocks that it visits. The producer and the
// consumers use the same rules.
#pragma once

#include "kernels/cuda/attn/visible_range.h"
#include "kernels/cuda/ptx/ptx.cuh"
#include "kernels/cuda/work.h"

namespace kvc::cuda::wgmma {

// Lies in shared memory, once per warp role: accumulators leave no registers for it.
struct alignas(16) ItemScope {
  SequenceMask mask;
  TileRange rows;              // The ends are clipped to the work item.
  int32_t key_begin, key_end;  // First key of the item, and the end of its last row.
  int32_t first;               // First key of the first block, aligned to TMA boxes.
  int32_t row_begin, row_end;  // Packed rows.
  const kernels::AttnSequence* sequence;

  // Whether some row may see `key`.
  KVC_DEVICE bool visible_to_any(int32_t key) const {
    return key >= key_begin && key < key_end && (key >= rows.first_begin || key < mask.sink_end);
  }
  // Whether some row may see one of the keys [begin, end).
  KVC_DEVICE bool any_visible(int32_t begin, int32_t end) const {
    return end > key_begin && begin < key_end && (end > rows.first_begin || begin < mask.sink_end);
  }
  // Whether each of the keys [begin, end) may be visible to some row.
  KVC_DEVICE bool each_visible(int32_t begin, int32_t end) const {
    return begin >= key_begin && end <= key_end &&
           (begin >= rows.first_begin || end <= mask.sink_end);
  }
  // Whether each of the keys [begin, end) is visible to every row.
  KVC_DEVICE bool all_visible(int32_t begin, int32_t end) const {
    return begin >= key_begin && cover(mask, rows, begin, end) == Cover::kFull;
  }
  // The begin of the next visible block. Blocks begin at block(first), block(previous + length) and
  // so on, as long as they are below key_end.
  KVC_DEVICE int32_t block(int32_t key, int32_t length) const {
    return skip_masked(mask, rows, key, first, length);
  }
};

// Warp. Lane 0 writes the scope. The caller adds barriers.
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
  // A work item without keys has no blocks, not even the block of key_begin.
  const int32_t key_end = rows.last_end > item.key_begin ? rows.last_end : first;
  if (lane_id() == 0)
    *out = {
        sequence_mask(sequence),        rows,     item.key_begin, key_end, first, item.row_begin,
        item.row_begin + item.num_rows, &sequence};
}

}  // namespace kvc::cuda::wgmma
