// Reductions of sequences that share prefixes. A member reads the splits of its prefixes that hold
// its rows, then its own splits. These sources lie behind the sources of all splits.
#pragma once

#include "kernels/cuda/schedule/schedule.h"

namespace kvc::cuda::scheduling {

// The consecutive splits of a head tile of a split tile, and the number of head tiles before it
// that only boundaries divide.
struct TileSplits {
  int32_t first;
  int32_t count;
  int32_t boundary_tiles;
};

KVC_HD TileSplits tile_splits(const Scheduler& work, int32_t tile, int32_t kv_head) {
  const CtaBoundary* boundaries = work.boundaries;
  const int32_t num_boundaries = work.schedule.num_ctas + 1;
  const auto order = [=](int32_t i) {  // The order of the boundary's head tile and this one.
    if (boundaries[i].tile != tile) return boundaries[i].tile < tile ? -1 : 1;
    return boundaries[i].kv_head < kv_head ? -1 : boundaries[i].kv_head > kv_head ? 1 : 0;
  };
  // The first boundary lies at the first head tile and divides nothing.
  const int32_t before = last_not_above(0, num_boundaries, -1, order),
                last = last_not_above(0, num_boundaries, 0, order);
  const int32_t heads = work.shape.num_kv_heads, chunks = chunks_of(work, tile);
  return {heads * work.tiles[tile].split_chunks_before + kv_head * chunks +
              boundaries[before].inside_chunks + boundaries[before].boundary_tiles,
          chunks + boundaries[last].inside_chunks - boundaries[before].inside_chunks,
          boundaries[before].boundary_tiles};
}

// Splits of a prefix that hold rows of a member's tile, and the first of these rows.
struct PrefixSplits {
  TileSplits splits;
  int32_t row;
};
KVC_HD PrefixSplits prefix_splits(const Scheduler& work, int32_t tile, int32_t kv_head,
                                  int32_t index) {
  const int32_t sequence = work.tiles[tile].sequence;
  const PrefixShare& share = work.shares[sequence];
  const int32_t row =
      share.prefix_row[index] * work.shape.group_size + tile_rows(work, tile, sequence).begin;
  const int32_t max_rows = work.shape.geometry.tile_rows, tile_of_row = row / max_rows;
  return {tile_splits(work, work.first_tile[share.prefix[index]] + tile_of_row, kv_head),
          row - tile_of_row * max_rows};
}

// Head tiles are ordered by tile and KV head.
KVC_HD int32_t num_head_tiles(const Scheduler& work) {
  return work.num_tiles * work.shape.num_kv_heads;
}

// Number of sources of a member's head tile. 0: the sequence is no member.
KVC_HD int32_t count_shared_sources(const Scheduler& work, int32_t head_tile) {
  const int32_t tile = head_tile / work.shape.num_kv_heads,
                kv_head = head_tile - tile * work.shape.num_kv_heads;
  if (!is_member(work, work.tiles[tile].sequence)) return 0;
  int32_t count = tile_splits(work, tile, kv_head).count;
  for (int32_t i = 0; i < work.shares[work.tiles[tile].sequence].num_prefixes; ++i)
    count += prefix_splits(work, tile, kv_head, i).splits.count;
  return count;
}

// `source` is the index of the first source.
KVC_HD void write_shared_reduction(const Scheduler& work, int32_t head_tile, int32_t source) {
  const int32_t heads = work.shape.num_kv_heads, tile = head_tile / heads,
                kv_head = head_tile - tile * heads;
  const int32_t sequence = work.tiles[tile].sequence;
  if (!is_member(work, sequence)) return;
  const TileSplits own = tile_splits(work, tile, kv_head);
  const TileRows rows = tile_rows(work, tile, sequence);
  const int32_t first = source;
  for (int32_t i = 0; i < work.shares[sequence].num_prefixes; ++i) {
    const PrefixSplits prefix = prefix_splits(work, tile, kv_head, i);
    for (int32_t split = 0; split < prefix.splits.count; ++split)
      work.schedule.sources[source++] = {prefix.splits.first + split, prefix.row};
  }
  for (int32_t split = 0; split < own.count; ++split)
    work.schedule.sources[source++] = {own.first + split, 0};
  work.schedule
      .reductions[heads * work.tiles[tile].split_tiles_before + kv_head + own.boundary_tiles] = {
      sequence, kv_head, rows.begin, rows.count, first, source - first};
}

}  // namespace kvc::cuda::scheduling
