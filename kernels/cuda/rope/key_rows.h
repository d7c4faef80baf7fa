// Rotation of keys by their absolute positions (AttnParams::k_rotations).
#pragma once

#include <cstdint>

#include "kernels/cuda/step.h"
#include "kernels/params.h"
#include "kernels/target.h"

namespace kvc::cuda {

// cos and sin of a pair: of a near row, or of the sum of a near and a far one.
KVC_HD void key_cos_sin(const kernels::Rotation& rotation, int64_t position, int32_t pair,
                        float& cos, float& sin) {
  const int32_t pairs = rotation.rotary_dim / 2;
  const int64_t row = (position & (kNearPositions - 1)) * pairs + pair;
  cos = rotation.cos[row];
  sin = rotation.sin[row];
  if (position < kNearPositions) return;
  const int64_t far_row = (kNearPositions + position / kNearPositions) * pairs + pair;
  const float near_cos = cos, far_cos = rotation.cos[far_row], far_sin = rotation.sin[far_row];
  cos = near_cos * far_cos - sin * far_sin;
  sin = sin * far_cos + near_cos * far_sin;
}

}  // namespace kvc::cuda
