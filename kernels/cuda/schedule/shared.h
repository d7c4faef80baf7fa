// Merges of sequences that share prefixes: the parts of the prefixes, in which they have some rows,
// then their own. Their sources lie behind those of all slots.
#pragma once

#include "kernels/cuda/schedule/schedule.h"

namespace kvc::cuda::planning {

// Slots of a unit of a split tile, which follow each other, and how many units that only cuts
// divide lie in front of it.
struct UnitSlots {
  int32_t first;
  int32_t count;
  int32_t splits;
};

KVC_HD UnitSlots unit_slots(const PlanWork& work, int32_t tile, int32_t kv_head) {
  const PlanCut* cuts = work.cuts;
  const int32_t num_cuts = work.plan.num_ctas + 1;
  const auto order = [=](int32_t i) {  // of a cut's unit and this one
    if (cuts[i].tile != tile) return cuts[i].tile < tile ? -1 : 1;
    return cuts[i].kv_head < kv_head ? -1 : cuts[i].kv_head > kv_head ? 1 : 0;
  };
  // The first cut lies at the first unit, and divides nothing.
  const int32_t before = last_not_above(0, num_cuts, -1, order),
                last = last_not_above(0, num_cuts, 0, order);
  const int32_t heads = work.shape.num_kv_heads, parts = parts_of(work, tile);
  return {heads * work.tiles[tile].split_parts_before + kv_head * parts + cuts[before].middles +
              cuts[before].splits,
          parts + cuts[last].middles - cuts[before].middles, cuts[before].splits};
}

// Slots of a prefix that hold rows of a member's tile, and the first of these rows.
struct PrefixSlots {
  UnitSlots slots;
  int32_t row;
};
KVC_HD PrefixSlots prefix_slots(const PlanWork& work, int32_t tile, int32_t kv_head,
                                int32_t index) {
  const int32_t sequence = work.tiles[tile].sequence;
  const PlanShare& share = work.shares[sequence];
  const int32_t row =
      share.prefix_row[index] * work.shape.group_size + tile_rows(work, tile, sequence).begin;
  const int32_t most = work.shape.geometry.tile_rows, tile_of_row = row / most;
  return {unit_slots(work, work.first_tile[share.prefix[index]] + tile_of_row, kv_head),
          row - tile_of_row * most};
}

// Units of all tiles, by tile and kv head.
KVC_HD int32_t num_units(const PlanWork& work) { return work.num_tiles * work.shape.num_kv_heads; }

// Sources of a member's unit; 0: it is none.
KVC_HD int32_t count_shared_sources(const PlanWork& work, int32_t unit) {
  const int32_t tile = unit / work.shape.num_kv_heads,
                kv_head = unit - tile * work.shape.num_kv_heads;
  if (!is_member(work, work.tiles[tile].sequence)) return 0;
  int32_t count = unit_slots(work, tile, kv_head).count;
  for (int32_t i = 0; i < work.shares[work.tiles[tile].sequence].num_prefixes; ++i)
    count += prefix_slots(work, tile, kv_head, i).slots.count;
  return count;
}

// `source`: the first of its sources.
KVC_HD void write_shared_merge(const PlanWork& work, int32_t unit, int32_t source) {
  const int32_t heads = work.shape.num_kv_heads, tile = unit / heads, kv_head = unit - tile * heads;
  const int32_t sequence = work.tiles[tile].sequence;
  if (!is_member(work, sequence)) return;
  const UnitSlots own = unit_slots(work, tile, kv_head);
  const TileRows rows = tile_rows(work, tile, sequence);
  const int32_t first = source;
  for (int32_t i = 0; i < work.shares[sequence].num_prefixes; ++i) {
    const PrefixSlots prefix = prefix_slots(work, tile, kv_head, i);
    for (int32_t slot = 0; slot < prefix.slots.count; ++slot)
      work.plan.sources[source++] = {prefix.slots.first + slot, prefix.row};
  }
  for (int32_t slot = 0; slot < own.count; ++slot)
    work.plan.sources[source++] = {own.first + slot, 0};
  work.plan.merges[heads * work.tiles[tile].split_tiles_before + kv_head + own.splits] = {
      sequence, kv_head, rows.begin, rows.count, first, source - first};
}

}  // namespace kvc::cuda::planning
