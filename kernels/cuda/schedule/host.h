// The scheduler as loops on the host. kernel.cuh runs the same steps as one CTA, with the same
// result.
#pragma once

#include "kernels/cuda/schedule/bounds.h"
#include "kernels/cuda/schedule/shared_prefixes.h"

namespace kvc::cuda {

// All pointers of `launch` are host pointers, sized by schedule_bytes.
inline void schedule_on_host(const ScheduleLaunch& launch) {
  using namespace scheduling;
  Scheduler work = scheduler_of(launch);
  work.num_sequences =
      static_cast<int32_t>(clamp(*launch.num_sequences_at, 0, launch.limits.max_sequences));

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
    tiles.split_chunks += tile.split_chunks;
  }
  set_sums(work, work.num_tiles, tiles);

  for (int32_t i = 0; i <= work.schedule.num_ctas; ++i) work.boundaries[i] = find_boundary(work, i);
  BoundarySums boundaries{};
  for (int32_t i = 0; i <= work.schedule.num_ctas; ++i) {
    const BoundarySums boundary = count_boundary(work, i);
    boundaries.inside_chunks += boundary.inside_chunks;
    boundaries.boundary_tiles += boundary.boundary_tiles;
    finish_boundary(work, i, boundaries);
  }
  write_counts(work);
  for (int32_t i = 0; i < num_items(work); ++i) write_item(work, i);

  if (work.shares == nullptr) return;
  int32_t& num_sources = work.schedule.counts[2];
  for (int32_t i = 0; i < num_head_tiles(work); ++i) {
    const int32_t count = count_shared_sources(work, i);
    write_shared_reduction(work, i, num_sources);
    num_sources += count;
  }
}

}  // namespace kvc::cuda
