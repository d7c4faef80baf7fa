// The producer warp: looks pages up and has TMA fill the rings, in the order in which the consumers
// empty them.
#pragma once

#include "kernels/cuda/attn/wgmma/config.h"
#include "kernels/cuda/attn/wgmma/item.cuh"
#include "kernels/cuda/attn/wgmma/pipeline.cuh"
#include "kernels/cuda/ptx/hopper.cuh"
#include "kernels/cuda/work.h"

namespace kvc::cuda::wgmma {

// Where lane i's box of a block of keys lies. page -1: nowhere, TMA gives zeros. rows < box_rows:
// the box reaches over the end of ragged keys.
struct TmaBox {
  int32_t page, slot, rows;
};

// warp. box_rows keys from `key` on per lane; lanes behind the block get a place as well, which is
// not used.
KVC_DEVICE TmaBox find_tma_box(const kernels::AttnParams& params,
                               const kernels::AttnSequence& sequence, const ItemScope& scope,
                               int32_t key, int32_t box_rows) {
  if (!scope.any_visible(key, key + box_rows)) return {-1, 0, box_rows};
  if (params.page_size != kRaggedPage) {
    const int32_t entry = key / params.page_size;
    return {sequence.pages[entry], key - entry * params.page_size, box_rows};
  }
  // Behind the last key of the sequence lies another's, or nothing.
  const int64_t last = sequence.num_rows - 1;
  const int32_t end = row_range(sequence, params.causal, last).end,
                left = end > key ? end - key : 0;
  return {sequence.pages[0], key, left < box_rows ? left : box_rows};
}

// A box of 1 << digit rows inside a box of ragged keys that is cut, and the row where it begins.
struct RaggedBox {
  int32_t digit;
  int32_t row;
  bool exists;
};
// `rows` of 64 lie in front of the end. Their binary digits from the highest down are boxes of
// keys; the digits of the others, from the lowest up, boxes of zeros. So every box begins at a
// multiple of its rows: those of eight and more at whole repetitions of the swizzle.
KVC_HD RaggedBox ragged_box(int32_t rows, int32_t digit, bool of_zeros) {
  const int32_t size = 1 << digit, others = kRaggedBoxRows - rows;
  return of_zeros ? RaggedBox{digit, rows + (others & (size - 1)), (others & size) != 0}
                  : RaggedBox{digit, rows & -2 * size, (rows & size) != 0};
}

// warp. A block of K or V of one head: boxes of 64 elements x box_rows keys, [dim / 64][keys][64].
// Lane i < keys / box_rows holds the place of box i. `maps`: boxes of box_rows; of ragged keys then
// those of half as many, and so on to one. BarrierPerPiece: 64 elements announce themselves at
// full[piece].
template <int Dim, int Keys, bool BarrierPerColumnBox = false>
KVC_DEVICE void load_block(std::byte* shared, uint64_t* full, const TensorMap* maps, int32_t head,
                           const TmaBox& place, int32_t box_rows) {
  constexpr int kColumnBoxes = Dim / 64;
  const int32_t boxes = Keys / box_rows;  // a power of two
#pragma unroll 1
  for (int32_t first = 0; first < boxes * kColumnBoxes; first += 32) {
    const int32_t box = (first + lane_id()) & (boxes - 1), column = (first + lane_id()) / boxes;
    const int32_t page = shuffle(place.page, box), slot = shuffle(place.slot, box);
    const int32_t rows = shuffle(place.rows, box);
    if (column < kColumnBoxes && rows == box_rows)
      tma_load_4d(shared + column * Keys * 128 + box * box_rows * 128, maps,
                  full + (BarrierPerColumnBox ? column : 0), 64 * column, slot, head, page);
  }
  const uint32_t cut = ballot(lane_id() < boxes && place.rows < box_rows);
  if (cut == 0) return;
  // At most one box of a block is cut. Sixteen lanes have its digits, for the keys and for the
  // zeros; each box that there is takes one instruction.
  int32_t which = 0;
  while ((cut >> which & 1u) == 0) ++which;
  const int32_t page = shuffle(place.page, which), slot = shuffle(place.slot, which);
  const int32_t rows = shuffle(place.rows, which);
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
  RingPosition<Shape::kStages> k_place, v_place;
  const int32_t item_end = launch.schedule.cta_begin[blockIdx.x + 1];
  for (int32_t i = launch.schedule.cta_begin[blockIdx.x]; i < item_end; ++i) {
    const WorkItem& item = launch.schedule.items[i];
    const kernels::AttnSequence& sequence = params.sequences[item.sequence];
    find_scope(sequence, item, params.causal, group_size, box_rows, scope_at);
    sync_warp();
    const ItemScope& scope = *scope_at;
    TmaBox place{};
    bool v_is_due = false;
    const auto load_v = [&]() {
      v_ring.acquire(v_place);
      load_block<Shape::kVDim, Shape::kKeyBlock>(v_ring.stage(v_place),
                                                 v_ring.full + v_place.stage(), maps + kRaggedMaps,
                                                 item.kv_head, place, box_rows);
      v_place.blocks++;
    };
    // K of a block goes before V of the one in front of it: scores are one block ahead.
    for (int32_t key = scope.block(scope.first, Shape::kKeyBlock); key < scope.key_end;
         key = scope.block(key + Shape::kKeyBlock, Shape::kKeyBlock)) {
      const TmaBox next =
          find_tma_box(params, sequence, scope,
                       key + (lane_id() & (Shape::kKeyBlock / box_rows - 1)) * box_rows, box_rows);
      k_ring.acquire(k_place);
      load_block<Shape::kKDim, Shape::kKeyBlock>(
          k_ring.stage(k_place), k_ring.full + k_place.stage(), maps, item.kv_head, next, box_rows);
      k_place.blocks++;
      if (v_is_due) load_v();
      place = next;
      v_is_due = true;
    }
    if (v_is_due) load_v();
    sync_warp();  // the scope is written again
  }
}

}  // namespace kvc::cuda::wgmma
