// The producer warp: looks up pages and fills the rings by TMA, in the order in which the consumers
// empty them.
#pragma once

#include "kernels/cuda/attn/wgmma/config.h"
#include "kernels/cuda/attn/wgmma/item.cuh"
#include "kernels/cuda/attn/wgmma/pipeline.cuh"
#include "kernels/cuda/ptx/hopper.cuh"
#include "kernels/cuda/work.h"

namespace kvc::cuda::wgmma {

// The TMA box of lane i in a block of keys. page -1: no key is visible, and TMA delivers zeros.
// rows < box_rows: the box extends beyond the end of ragged keys.
struct TmaBox {
  int32_t page, slot, rows;
};

// Warp. Each lane takes box_rows keys from its `key` on. Lanes beyond the block get a box as well,
// which is not used.
KVC_DEVICE TmaBox find_tma_box(const kernels::AttnParams& params,
                               const kernels::AttnSequence& sequence, const ItemScope& scope,
                               int32_t key, int32_t box_rows) {
  if (!scope.any_visible(key, key + box_rows)) return {-1, 0, box_rows};
  if (params.page_size != kRaggedPage) {
    const int32_t entry = key / params.page_size;
    return {sequence.pages[entry], key - entry * params.page_size, box_rows};
  }
  // Beyond the last key of the sequence lies another sequence or nothing.
  const int64_t last = sequence.num_rows - 1;
  const int32_t end = row_range(sequence, params.causal, last).end,
                left = end > key ? end - key : 0;
  return {sequence.pages[0], key, left < box_rows ? left : box_rows};
}

// A TMA box of 1 << digit rows inside the last, incomplete box of ragged keys, and its first row.
struct RaggedBox {
  int32_t digit;
  int32_t row;
  bool exists;
};
// Of the 64 rows, `rows` lie before the end. Their binary digits, from the highest down, are boxes
// of keys. The digits of the remaining rows, from the lowest up, are boxes of zeros. So every box
// begins at a multiple of its size, and boxes of eight rows and more begin at a repetition of the
// swizzle.
KVC_HD RaggedBox ragged_box(int32_t rows, int32_t digit, bool of_zeros) {
  const int32_t size = 1 << digit, others = kRaggedBoxRows - rows;
  return of_zeros ? RaggedBox{digit, rows + (others & (size - 1)), (others & size) != 0}
                  : RaggedBox{digit, rows & -2 * size, (rows & size) != 0};
}

// Warp. Loads a block of K or V of one head by boxes of 64 elements x box_rows keys, [dim /
// 64][keys][64]. Lane i < keys / box_rows holds box i. `maps` holds the map with boxes of box_rows;
// for ragged keys the maps with half as many rows and so on follow. With BarrierPerColumnBox, each
// column of boxes signals its own barrier full[column].
template <int Dim, int Keys, bool BarrierPerColumnBox = false>
KVC_DEVICE void load_block(std::byte* shared, uint64_t* full, const TensorMap* maps, int32_t head,
                           const TmaBox& tma_box, int32_t box_rows) {
  constexpr int kColumnBoxes = Dim / 64;
  const int32_t boxes = Keys / box_rows;  // A power of two.
#pragma unroll 1
  for (int32_t first = 0; first < boxes * kColumnBoxes; first += 32) {
    const int32_t box = (first + lane_id()) & (boxes - 1), column = (first + lane_id()) / boxes;
    const int32_t page = shuffle(tma_box.page, box), slot = shuffle(tma_box.slot, box);
    const int32_t rows = shuffle(tma_box.rows, box);
    if (column < kColumnBoxes && rows == box_rows)
      tma_load_4d(shared + column * Keys * 128 + box * box_rows * 128, maps,
                  full + (BarrierPerColumnBox ? column : 0), 64 * column, slot, head, page);
  }
  const uint32_t incomplete = ballot(lane_id() < boxes && tma_box.rows < box_rows);
  if (incomplete == 0) return;
  // At most one box of a block is incomplete. Sixteen lanes hold its digits, for the keys and for
  // the zeros. Each existing box takes one instruction.
  int32_t which = 0;
  while ((incomplete >> which & 1u) == 0) ++which;
  const int32_t page = shuffle(tma_box.page, which), slot = shuffle(tma_box.slot, which);
  const int32_t rows = shuffle(tma_box.rows, which);
  const bool of_zeros = (lane_id() & 8) != 0;
  const RaggedBox box = ragged_box(rows, lane_id() & 7, of_zeros);
  if (!box.exists) return;
#pragma unroll 1
  for (int32_t column = lane_id() >> 4; column < kColumnBoxes; column += 2) {
    tma_load_4d(shared + column * Keys * 128 + (which * kRaggedBoxRows + box.row) * 128,
                maps + kRaggedMaps - 1 - box.digit, full + (BarrierPerColumnBox ? column : 0),
                64 * column, slot + box.row, head, of_zeros ? -1 : page);
  }
}

template <class Shape>
KVC_DEVICE void produce(const AttnLaunch& launch, const TensorMap* maps, int32_t box_rows,
                        ItemScope* scope_at, const Ring<Shape::kStages, Shape::kKBytes>& k_ring,
                        const Ring<Shape::kStages, Shape::kVBytes>& v_ring) {
  const kernels::AttnParams& params = launch.params;
  const int32_t group_size = params.num_q_heads / params.num_kv_heads;
  RingPosition<Shape::kStages> k_position, v_position;
  const int32_t item_end = launch.schedule.cta_begin[blockIdx.x + 1];
  for (int32_t i = launch.schedule.cta_begin[blockIdx.x]; i < item_end; ++i) {
    const WorkItem& item = launch.schedule.items[i];
    const kernels::AttnSequence& sequence = params.sequences[item.sequence];
    find_scope(sequence, item, params.causal, group_size, box_rows, scope_at);
    sync_warp();
    const ItemScope& scope = *scope_at;
    TmaBox tma_box{};
    bool v_is_due = false;
    const auto load_v = [&]() {
      v_ring.acquire(v_position);
      load_block<Shape::kVDim, Shape::kKeyBlock>(
          v_ring.stage(v_position), v_ring.full + v_position.stage(), maps + kRaggedMaps,
          item.kv_head, tma_box, box_rows);
      v_position.blocks++;
    };
    // K of a block is loaded before V of the previous block: scores are one block ahead.
    for (int32_t key = scope.block(scope.first, Shape::kKeyBlock); key < scope.key_end;
         key = scope.block(key + Shape::kKeyBlock, Shape::kKeyBlock)) {
      const TmaBox next =
          find_tma_box(params, sequence, scope,
                       key + (lane_id() & (Shape::kKeyBlock / box_rows - 1)) * box_rows, box_rows);
      k_ring.acquire(k_position);
      load_block<Shape::kKDim, Shape::kKeyBlock>(k_ring.stage(k_position),
                                                 k_ring.full + k_position.stage(), maps,
                                                 item.kv_head, next, box_rows);
      k_position.blocks++;
      if (v_is_due) load_v();
      tma_box = next;
      v_is_due = true;
    }
    if (v_is_due) load_v();
    sync_warp();  // The scope is overwritten next.
  }
}

}  // namespace kvc::cuda::wgmma
