// The planner's steps as loops on the host: what kernel.cuh does with one CTA, with the same
// result.
#pragma once

#include "kernels/cuda/schedule/bounds.h"
#include "kernels/cuda/schedule/shared.h"

namespace kvc::cuda {

// All pointers of `launch` are the host's, sized by plan_bytes.
inline void plan_on_host(const PlanLaunch& launch) {
  using namespace planning;
  PlanWork work = work_of(launch);
  work.num_sequences =
      static_cast<int32_t>(within(*launch.num_sequences_at, 0, launch.limits.max_sequences));

  work.num_tiles = 0;
  for (int32_t i = 0; i < work.num_sequences; ++i) {
    work.first_tile[i] = work.num_tiles;
    work.num_tiles += num_tiles_of(work, i);
  }
  work.first_tile[work.num_sequences] = work.num_tiles;

  TileSums tiles{};
  for (int32_t i = 0; i < work.num_tiles; ++i) {
    const TileSums tile = describe_tile(work, i);
    set_sums(work, i, tiles);
    tiles.cost += tile.cost;
    tiles.split_tiles += tile.split_tiles;
    tiles.split_parts += tile.split_parts;
  }
  set_sums(work, work.num_tiles, tiles);

  for (int32_t i = 0; i <= work.plan.num_ctas; ++i) work.cuts[i] = find_cut(work, i);
  CutSums cuts{};
  for (int32_t i = 0; i <= work.plan.num_ctas; ++i) {
    const CutSums cut = count_cut(work, i);
    cuts.middles += cut.middles;
    cuts.splits += cut.splits;
    finish_cut(work, i, cuts);
  }
  write_counts(work);
  for (int32_t i = 0; i < num_items(work); ++i) write_item(work, i);

  if (work.shares == nullptr) return;
  int32_t& num_sources = work.plan.counts[2];
  for (int32_t i = 0; i < num_units(work); ++i) {
    const int32_t count = count_shared_sources(work, i);
    write_shared_merge(work, i, num_sources);
    num_sources += count;
  }
}

}  // namespace kvc::cuda
