// Prefix sums over the threads of a CTA.
#pragma once

#include "kernels/cuda/ptx/ptx.cuh"

namespace kvc::cuda::step_kernels {

// warp. Inclusive prefix sum over the lanes.
KVC_DEVICE int32_t warp_inclusive_sum(int32_t value) {
  for (int delta = 1; delta < 32; delta *= 2) {
    const int32_t before = shuffle_up(value, delta);
    if (lane_id() >= delta) value += before;
  }
  return value;
}

// All threads of a CTA of `num_warps` warps. Returns the sum over the threads before this one;
// `total` receives the sum over all. `scratch` is [33] in shared memory and may be used again after
// the next sync_cta().
KVC_DEVICE int32_t cta_exclusive_sum(int32_t value, int num_warps, int32_t* scratch,
                                     int32_t& total) {
  const int warp = warp_id(), lane = lane_id();
  const int32_t inclusive = warp_inclusive_sum(value);
  if (lane == 31) scratch[warp] = inclusive;
  sync_cta();
  if (warp == 0) {
    const int32_t sum = lane < num_warps ? scratch[lane] : 0;
    const int32_t up_to = warp_inclusive_sum(sum);
    scratch[lane] = up_to - sum;
    if (lane == 31) scratch[32] = up_to;
  }
  sync_cta();
  total = scratch[32];
  return scratch[warp] + inclusive - value;
}

}  // namespace kvc::cuda::step_kernels
