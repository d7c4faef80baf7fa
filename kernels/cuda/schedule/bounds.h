// How large a plan can get, whatever the sequences are within the declared most. Host only.
#pragma once

#include <algorithm>

#include "kernels/cuda/schedule/schedule.h"

namespace kvc::cuda {
namespace planning {

// The scratch of a plan, one array behind the other.
struct PlanScratch {
  int64_t tiles;  // offsets in bytes
  int64_t cuts;
  int64_t first_tile;
  int64_t bytes;
};

inline int64_t most_tiles(const PlanShape& shape, const PlanLimits& limits) {
  const int64_t tile_rows = shape.geometry.tile_rows;
  const int64_t packed = limits.max_rows * shape.group_size;
  // A planned sequence has at least `fewest` packed rows, so there are at most so many, and n of
  // them have at most n + (packed - n) / tile_rows tiles.
  const int64_t fewest = std::max<int64_t>({int64_t{shape.min_rows} + 1, shape.group_size, 1});
  const int64_t sequences = std::min<int64_t>(limits.max_sequences, packed / fewest);
  const int64_t each = divide_up(std::max(0, shape.max_rows), shape.geometry.tile_rows);
  return std::min(sequences + (packed - sequences) / tile_rows, sequences * each);
}

inline PlanScratch plan_scratch(const PlanShape& shape, const PlanLimits& limits) {
  PlanScratch scratch{};
  const auto take = [&](int64_t bytes) {
    const int64_t begin = scratch.bytes;
    scratch.bytes += (bytes + 15) / 16 * 16;
    return begin;
  };
  scratch.tiles = take((most_tiles(shape, limits) + 1) * int64_t{sizeof(TilePlan)});
  scratch.cuts = take((shape.geometry.num_ctas + int64_t{1}) * int64_t{sizeof(PlanCut)});
  scratch.first_tile = take((limits.max_sequences + int64_t{1}) * int64_t{sizeof(int32_t)});
  return scratch;
}

// The steps' view of a launch. `num_sequences` and what follows from it is filled by who runs them.
inline PlanWork work_of(const PlanLaunch& launch) {
  const PlanScratch scratch = plan_scratch(launch.shape, launch.limits);
  auto* const memory = static_cast<std::byte*>(launch.scratch);
  PlanWork work{};
  work.shape = launch.shape;
  work.sequences = launch.sequences;
  work.shares = launch.shares;
  work.plan = launch.plan;
  work.plan.num_ctas = launch.shape.geometry.num_ctas;
  work.plan.tile_rows = launch.shape.geometry.tile_rows;
  work.first_tile = reinterpret_cast<int32_t*>(memory + scratch.first_tile);
  work.tiles = reinterpret_cast<TilePlan*>(memory + scratch.tiles);
  work.cuts = reinterpret_cast<PlanCut*>(memory + scratch.cuts);
  return work;
}

}  // namespace planning

// Equal shares: num_ctas - 1 cuts divide at most so many parts, each of which gets two slots from
// its first cut and one from every other. So there are at most two slots per CTA, and with sinks
// apart two more per unit. Fixed keys: every unit may be cut at each multiple. Shared prefixes:
// every item may have a slot. A member's merge has its own slots and for each of its prefixes those
// of one unit, at least one per part; a further slot, which a cut made, belongs to one unit and so
// to no more members than that has rows.
inline PlanBytes plan_bytes(const PlanShape& shape, const PlanLimits& limits) {
  const int64_t units = planning::most_tiles(shape, limits) * shape.num_kv_heads;
  const int64_t cuts = std::max<int64_t>(0, int64_t{shape.geometry.num_ctas} - 1);
  const int64_t apart = shape.split_sinks != 0 ? 1 : 0;
  int64_t parts = 1 + apart, items, merges, slots, shared_sources = 0;
  if (shape.fixed_keys > 0) {
    parts =
        std::max<int64_t>(1, (limits.max_keys + shape.fixed_keys - 1) / shape.fixed_keys + apart);
    items = units * parts;
    slots = parts > 1 ? items : 0;
    merges = parts > 1 ? units : 0;
  } else {
    items = units * parts + cuts;
    slots = std::min(items, 2 * cuts + 2 * units * apart);
    merges = apart != 0 ? units : std::min(units, cuts);
  }
  if (limits.max_prefixes > 0) {
    slots = items;
    merges = units;
    shared_sources = items + limits.max_prefixes * units * parts;
    if (shape.fixed_keys <= 0) shared_sources += cuts * shape.geometry.tile_rows;
  }
  PlanBytes bytes{};
  bytes.counts = 4 * sizeof(int32_t);
  bytes.cta_begin = (shape.geometry.num_ctas + int64_t{1}) * int64_t{sizeof(int32_t)};
  bytes.items = items * int64_t{sizeof(WorkItem)};
  bytes.merges = merges * int64_t{sizeof(MergeItem)};
  bytes.sources = (slots + shared_sources) * int64_t{sizeof(MergeSource)};
  bytes.scratch = planning::plan_scratch(shape, limits).bytes;
  bytes.num_slots = slots;
  return bytes;
}

}  // namespace kvc::cuda
