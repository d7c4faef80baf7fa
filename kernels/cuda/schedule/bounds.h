// The size of a schedule, whatever the sequences are within the declared limits. Host only.
#pragma once

#include <algorithm>

#include "kernels/cuda/schedule/schedule.h"

namespace kvc::cuda {
namespace scheduling {

// Offsets of the arrays in the scratch memory of the scheduler.
struct ScheduleScratch {
  int64_t tiles;  // Offsets in bytes.
  int64_t boundaries;
  int64_t first_tile;
  int64_t bytes;
};

inline int64_t max_tiles(const ScheduleShape& shape, const ScheduleLimits& limits) {
  const int64_t tile_rows = shape.geometry.tile_rows;
  const int64_t packed = limits.max_rows * shape.group_size;
  // A scheduled sequence has at least `fewest` packed rows, which bounds the number of sequences.
  // Together, n sequences have at most n + (packed - n) / tile_rows tiles.
  const int64_t fewest = std::max<int64_t>({int64_t{shape.min_rows} + 1, shape.group_size, 1});
  const int64_t sequences = std::min<int64_t>(limits.max_sequences, packed / fewest);
  const int64_t each = divide_up(std::max(0, shape.max_rows), shape.geometry.tile_rows);
  return std::min(sequences + (packed - sequences) / tile_rows, sequences * each);
}

inline ScheduleScratch schedule_scratch(const ScheduleShape& shape, const ScheduleLimits& limits) {
  ScheduleScratch scratch{};
  const auto take = [&](int64_t bytes) {
    const int64_t begin = scratch.bytes;
    scratch.bytes += (bytes + 15) / 16 * 16;
    return begin;
  };
  scratch.tiles = take((max_tiles(shape, limits) + 1) * int64_t{sizeof(QTile)});
  scratch.boundaries = take((shape.geometry.num_ctas + int64_t{1}) * int64_t{sizeof(CtaBoundary)});
  scratch.first_tile = take((limits.max_sequences + int64_t{1}) * int64_t{sizeof(int32_t)});
  return scratch;
}

// The scheduler of a launch. The caller fills `num_sequences` and the fields that depend on it.
inline Scheduler scheduler_of(const ScheduleLaunch& launch) {
  const ScheduleScratch scratch = schedule_scratch(launch.shape, launch.limits);
  auto* const memory = static_cast<std::byte*>(launch.scratch);
  Scheduler work{};
  work.shape = launch.shape;
  work.sequences = launch.sequences;
  work.shares = launch.shares;
  work.schedule = launch.schedule;
  work.schedule.num_ctas = launch.shape.geometry.num_ctas;
  work.schedule.tile_rows = launch.shape.geometry.tile_rows;
  work.first_tile = reinterpret_cast<int32_t*>(memory + scratch.first_tile);
  work.tiles = reinterpret_cast<QTile*>(memory + scratch.tiles);
  work.boundaries = reinterpret_cast<CtaBoundary*>(memory + scratch.boundaries);
  return work;
}

}  // namespace scheduling

// The bounds:
// - Equal shares: num_ctas - 1 boundaries divide at most as many chunks. A chunk gets two splits
//   from its first boundary and one from each other boundary. So there are at most two splits per
//   CTA. With separate sink tokens there are at most two more per head tile.
// - fixed_keys: a head tile may be split at each multiple of fixed_keys.
// - Shared prefixes: every work item may write a split. The reduction of a member reads its own
//   splits and, for each of its prefixes, the splits of one head tile: at least one per chunk. A
//   further split, which a boundary made, belongs to one head tile and so to at most as many
//   members as that tile has rows.
inline ScheduleBytes schedule_bytes(const ScheduleShape& shape, const ScheduleLimits& limits) {
  const int64_t head_tiles = scheduling::max_tiles(shape, limits) * shape.num_kv_heads;
  const int64_t boundaries = std::max<int64_t>(0, int64_t{shape.geometry.num_ctas} - 1);
  const int64_t separate = shape.split_sinks != 0 ? 1 : 0;
  int64_t chunks = 1 + separate, items, reductions, splits, shared_sources = 0;
  if (shape.fixed_keys > 0) {
    chunks = std::max<int64_t>(
        1, (limits.max_keys + shape.fixed_keys - 1) / shape.fixed_keys + separate);
    items = head_tiles * chunks;
    splits = chunks > 1 ? items : 0;
    reductions = chunks > 1 ? head_tiles : 0;
  } else {
    items = head_tiles * chunks + boundaries;
    splits = std::min(items, 2 * boundaries + 2 * head_tiles * separate);
    reductions = separate != 0 ? head_tiles : std::min(head_tiles, boundaries);
  }
  if (limits.max_prefixes > 0) {
    splits = items;
    reductions = head_tiles;
    shared_sources = items + limits.max_prefixes * head_tiles * chunks;
    if (shape.fixed_keys <= 0) shared_sources += boundaries * shape.geometry.tile_rows;
  }
  ScheduleBytes bytes{};
  bytes.counts = 4 * sizeof(int32_t);
  bytes.cta_begin = (shape.geometry.num_ctas + int64_t{1}) * int64_t{sizeof(int32_t)};
  bytes.items = items * int64_t{sizeof(WorkItem)};
  bytes.reductions = reductions * int64_t{sizeof(ReduceItem)};
  bytes.sources = (splits + shared_sources) * int64_t{sizeof(ReduceSource)};
  bytes.scratch = scheduling::schedule_scratch(shape, limits).bytes;
  bytes.num_splits = splits;
  return bytes;
}

}  // namespace kvc::cuda
