// Sizes of the kernel that brings partial results together, and what it reads.
#pragma once

#include "kernels/cuda/work.h"

namespace kvc::cuda::combining {

// A warp per row and query head; four rows of a CTA lie side by side in a slot.
constexpr int32_t kThreads = 128;
constexpr int32_t kWarps = kThreads / 32;
// Keeps ptxas from squeezing registers, with spills, for more.
constexpr int32_t kCtasPerSm = 8;

// Vectors of accumulators that a lane has under way per source: 128 accumulators of a row in pairs
// take two.
constexpr int32_t kVectors = 2;

struct Launch {
  WorkPlan plan;
  const kernels::AttnSequence* sequences;
  kernels::TokenRows out;
  float* lse;  // nullable
  int64_t lse_token_stride;
  const float* sinks;  // nullable, natural units
  int32_t v_dim;
  int32_t group_size;
};

}  // namespace kvc::cuda::combining
