// The steps of the scheduler (schedule.h) as one CTA: a thread per sequence, tile, boundary and
// work item, with prefix sums of the CTA in between. Only the search for the first key of a tile's
// rows is serial.
#pragma once

#include "kernels/cuda/ptx/ptx.cuh"
#include "kernels/cuda/schedule/config.h"
#include "kernels/cuda/schedule/shared_prefixes.h"

namespace kvc::cuda::scheduling {

struct Shared {
  int64_t warp_sums[2][kWarps];
  QTile tiles[kSharedTiles + 1];
  CtaBoundary boundaries[kSharedCtas + 1];
  int32_t first_tile[kSharedSequences + 1];
};
static_assert(sizeof(Shared) <= kMaxSharedBytes);

// Exclusive prefix sums of one value per thread. Two alternating rows of warp sums make one barrier
// per sum sufficient.
class Scan {
 public:
  explicit KVC_DEVICE Scan(Shared* shared) : shared_(shared) {}

  // Returns the sum over the threads before this one; `total` gets the sum over all. All threads
  // call it.
  KVC_DEVICE int64_t before(int64_t value, int64_t* total) {
    const int lane = lane_id(), warp = warp_id();
    int64_t sum = value;
#pragma unroll
    for (int delta = 1; delta < 32; delta *= 2) {
      const int64_t other = shuffle_up(sum, delta);
      if (lane >= delta) sum += other;
    }
    int64_t* sums = shared_->warp_sums[row_];
    row_ ^= 1;
    if (lane == 31) sums[warp] = sum;
    sync_cta();
    int64_t before = 0, all = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) before += sums[w];
      all += sums[w];
    }
    *total = all;
    return before + sum - value;
  }

 private:
  Shared* shared_;
  int row_ = 0;
};

// Packs two sums below 2^31 into one value.
KVC_DEVICE int64_t pair_up(int32_t high, int32_t low) { return int64_t{high} << 32 | low; }
KVC_DEVICE int32_t high_of(int64_t pair) { return static_cast<int32_t>(pair >> 32); }
KVC_DEVICE int32_t low_of(int64_t pair) { return static_cast<int32_t>(pair); }

KVC_DEVICE int32_t count_tiles(const Scheduler& work, Scan& scan) {
  int64_t done = 0;
  for (int32_t first = 0; first < work.num_sequences; first += kThreads) {
    const int32_t i = first + static_cast<int32_t>(threadIdx.x);
    int64_t total;
    const int64_t before = scan.before(i < work.num_sequences ? num_tiles_of(work, i) : 0, &total);
    if (i < work.num_sequences) work.first_tile[i] = static_cast<int32_t>(done + before);
    done += total;
  }
  if (threadIdx.x == 0) work.first_tile[work.num_sequences] = static_cast<int32_t>(done);
  sync_cta();
  return static_cast<int32_t>(done);
}

KVC_DEVICE void describe_tiles(const Scheduler& work, Scan& scan) {
  const bool may_split =
      work.shape.fixed_keys > 0 || work.shape.split_sinks != 0 || work.shares != nullptr;
  int64_t cost_done = 0, split_done = 0;
  for (int32_t first = 0; first < work.num_tiles; first += kThreads) {
    const int32_t i = first + static_cast<int32_t>(threadIdx.x);
    const TileSums tile = i < work.num_tiles ? describe_tile(work, i) : TileSums{0, 0, 0};
    int64_t cost_total, split_total = 0, split = 0;
    const int64_t cost = scan.before(tile.cost, &cost_total);
    if (may_split) split = scan.before(pair_up(tile.split_tiles, tile.split_chunks), &split_total);
    if (i < work.num_tiles)
      set_sums(work, i,
               {cost_done + cost, high_of(split_done + split), low_of(split_done + split)});
    cost_done += cost_total;
    split_done += split_total;
  }
  if (threadIdx.x == 0)
    set_sums(work, work.num_tiles, {cost_done, high_of(split_done), low_of(split_done)});
  sync_cta();
}

KVC_DEVICE void find_boundaries(const Scheduler& work, Scan& scan) {
  const int32_t count = work.schedule.num_ctas + 1;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < count; i += kThreads)
    work.boundaries[i] = find_boundary(work, i);
  sync_cta();
  int64_t done = 0;
  for (int32_t first = 0; first < count; first += kThreads) {
    const int32_t i = first + static_cast<int32_t>(threadIdx.x);
    const BoundarySums boundary = i < count ? count_boundary(work, i) : BoundarySums{0, 0};
    const int64_t own = pair_up(boundary.inside_chunks, boundary.boundary_tiles);
    int64_t total;
    const int64_t up_to = done + scan.before(own, &total) + own;
    if (i < count) finish_boundary(work, i, {high_of(up_to), low_of(up_to)});
    done += total;
  }
  sync_cta();
}

KVC_DEVICE void write_shared_reductions(const Scheduler& work, Scan& scan) {
  const int32_t count = num_head_tiles(work);
  int64_t done = work.schedule.counts[3];  // The sources of members lie behind those of all splits.
  for (int32_t first = 0; first < count; first += kThreads) {
    const int32_t i = first + static_cast<int32_t>(threadIdx.x);
    int64_t total;
    const int64_t before = scan.before(i < count ? count_shared_sources(work, i) : 0, &total);
    if (i < count) write_shared_reduction(work, i, static_cast<int32_t>(done + before));
    done += total;
  }
  if (threadIdx.x == 0) work.schedule.counts[2] = static_cast<int32_t>(done);
}

__global__ void __launch_bounds__(kThreads)
    schedule_kernel(const __grid_constant__ Scheduler given, const int32_t* num_sequences_at,
                    int32_t max_sequences) {
  wait_for_previous_kernel();
  launch_dependents();
  auto* const shared = reinterpret_cast<Shared*>(cta_shared());
  Scheduler work = given;
  work.num_sequences = static_cast<int32_t>(clamp(*num_sequences_at, 0, max_sequences));
  if (work.num_sequences <= kSharedSequences) work.first_tile = shared->first_tile;
  if (work.schedule.num_ctas <= kSharedCtas) work.boundaries = shared->boundaries;

  Scan scan(shared);
  work.num_tiles = count_tiles(work, scan);
  if (work.num_tiles <= kSharedTiles) work.tiles = shared->tiles;
  describe_tiles(work, scan);
  find_boundaries(work, scan);

  if (threadIdx.x == 0) write_counts(work);
  const int32_t count = num_items(work);
  for (auto i = static_cast<int32_t>(threadIdx.x); i < count; i += kThreads) write_item(work, i);
  if (work.shares != nullptr) {
    sync_cta();  // Makes the counts visible.
    write_shared_reductions(work, scan);
  }
}

}  // namespace kvc::cuda::scheduling
