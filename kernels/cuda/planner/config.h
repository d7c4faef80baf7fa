// Sizes of the planner kernel: one CTA, whose tables lie in shared memory when they fit and in the plan's
// scratch otherwise.
#pragma once

#include <cstdint>

namespace kvc::cuda::planning {

// One sequence, tile or cut per thread for the usual decode step; more threads make barriers slower, and have
// fewer registers than the steps with 64-bit divisions want.
constexpr int32_t kThreads = 512;
constexpr int32_t kWarps = kThreads / 32;

// What fits in the 48 KiB that need no permission, on every device.
constexpr int32_t kSharedSequences = 2048;
constexpr int32_t kSharedTiles = 512;
constexpr int32_t kSharedCtas = 512;

}  // namespace kvc::cuda::planning
