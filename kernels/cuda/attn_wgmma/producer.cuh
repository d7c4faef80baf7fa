// The producer warp: looks pages up and has TMA fill the rings, in the order in which the consumers empty them.
#pragma once

#include "kernels/cuda/attn_wgmma/config.h"
#include "kernels/cuda/attn_wgmma/item.cuh"
#include "kernels/cuda/attn_wgmma/pipeline.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/work.h"

namespace kvc::cuda::wgmma {

// Where lane i's box of a block of keys lies. page -1: nowhere, TMA gives zeros. rows < box_rows: the box reaches over the end of ragged keys.
struct BoxPlace {
  int32_t page, slot, rows;
};

// warp. box_rows keys from `key` on per lane; lanes behind the block get a place as well, which is not used.
KVC_DEVICE BoxPlace find_box(const kernels::AttnParams& params, const kernels::AttnSequence& sequence,
                             const ItemScope& scope, int32_t key, int32_t box_rows) {
  if (!scope.any_seen(key, key + box_rows)) return {-1, 0, box_rows};
  if (params.page_size != kRaggedPage) {
    const int32_t entry = key / params.page_size;
    return {sequence.pages[entry], key - entry * params.page_size, box_rows};
  }
  // Behind the last key of the sequence lies another's, or nothing.
  const int64_t last = sequence.num_rows - 1;
  const int32_t end = row_mask(sequence, params.causal, last).end;
  return {sequence.pages[0], key, end - key < box_rows ? end - key : box_rows};
}

// warp. A block of K or V of one head: boxes of 64 elements x box_rows keys, [dim / 64][keys][64]. Lane i < keys / box_rows holds the place of box i.
// BarrierPerPiece: 64 elements announce themselves at full[piece].
template <int Dim, int Keys, bool BarrierPerPiece = false>
KVC_DEVICE void load_block(std::byte* shared, uint64_t* full, const TensorMap* map, const TensorMap* row_map,
                           int32_t head, const BoxPlace& place, int32_t box_rows) {
  constexpr int kPieces = Dim / 64;
  const int32_t boxes = Keys / box_rows;  // a power of two
#pragma unroll 1
  for (int32_t first = 0; first < boxes * kPieces; first += 32) {
    const int32_t box = (first + lane_id()) & (boxes - 1), piece = (first + lane_id()) / boxes;
    const int32_t page = shuffle(place.page, box), slot = shuffle(place.slot, box);
    const int32_t rows = shuffle(place.rows, box);
    if (piece < kPieces && rows == box_rows)
      tma_load_4d(shared + piece * Keys * 128 + box * box_rows * 128, map,
                  full + (BarrierPerPiece ? piece : 0), 64 * piece, slot, head, page);
  }
  const uint32_t cut = ballot(lane_id() < boxes && place.rows < box_rows);
  if (cut == 0) return;
  // At most one box of a block is cut: its rows one by one, those behind the end as zeros.
  int32_t cut_box = 0;
  while ((cut >> cut_box & 1u) == 0) ++cut_box;
  const int32_t cut_page = shuffle(place.page, cut_box), cut_slot = shuffle(place.slot, cut_box);
  const int32_t cut_rows = shuffle(place.rows, cut_box);
#pragma unroll 1
  for (int32_t i = lane_id(); i < box_rows * kPieces; i += 32) {
    const int32_t row = i / kPieces, piece = i % kPieces;
    tma_load_4d(shared + piece * Keys * 128 + (cut_box * box_rows + row) * 128, row_map,
                full + (BarrierPerPiece ? piece : 0), 64 * piece, cut_slot + row, head,
                row < cut_rows ? cut_page : -1);
  }
}

template <class Shape>
KVC_DEVICE void produce(const AttnLaunch& launch, const TensorMap* maps, int32_t box_rows,
                        ItemScope* scope_at, const Ring<Shape::kStages, Shape::kKBytes>& k_ring,
                        const Ring<Shape::kStages, Shape::kVBytes>& v_ring) {
  const kernels::AttnParams& params = launch.params;
  const int32_t group_size = params.num_q_heads / params.num_kv_heads;
  RingPlace<Shape::kStages> k_place, v_place;
  const int32_t item_end = launch.plan.cta_begin[blockIdx.x + 1];
  for (int32_t i = launch.plan.cta_begin[blockIdx.x]; i < item_end; ++i) {
    const WorkItem& item = launch.plan.items[i];
    const kernels::AttnSequence& sequence = params.sequences[item.sequence];
    find_scope(sequence, item, params.causal, group_size, box_rows, scope_at);
    sync_warp();
    const ItemScope& scope = *scope_at;
    BoxPlace place{};
    bool v_is_due = false;
    const auto load_v = [&]() {
      v_ring.open(v_place);
      load_block<Shape::kVDim, Shape::kKeyBlock>(v_ring.stage(v_place), v_ring.full + v_place.stage(),
                                                 maps + 2, maps + 3, item.kv_head, place, box_rows);
      v_place.blocks++;
    };
    // K of a block goes before V of the one in front of it: scores are one block ahead.
    for (int32_t key = scope.block(scope.first, Shape::kKeyBlock); key < scope.key_end;
         key = scope.block(key + Shape::kKeyBlock, Shape::kKeyBlock)) {
      const BoxPlace next =
          find_box(params, sequence, scope, key + (lane_id() & (Shape::kKeyBlock / box_rows - 1)) * box_rows,
                   box_rows);
      k_ring.open(k_place);
      load_block<Shape::kKDim, Shape::kKeyBlock>(k_ring.stage(k_place), k_ring.full + k_place.stage(), maps,
                                                 maps + 1, item.kv_head, next, box_rows);
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
