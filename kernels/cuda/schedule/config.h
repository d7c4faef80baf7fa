// Sizes of the planner kernel: one CTA, whose tables lie in shared memory when they fit and in the
// plan's scratch otherwise.
#pragma once

#include <cstdint>

namespace kvc::cuda::planning {

// One sequence, tile or cut per thread for the usual decode step; more threads make barriers
// slower, and have fewer registers than the steps with 64-bit divisions want.
constexpr int32_t kThreads = 512;
constexpr int32_t kWarps = kThreads / 32;

// A decode step of 1,024 sequences: what is searched by dependent loads lies in shared memory. 55
// KiB, more than goes without permission and less than every device since sm_80 gives a CTA; with
// the KiB that a CTA costs it stays within the 64 KiB that a multiprocessor sets aside for 40 KiB
// too.
constexpr int32_t kSharedSequences = 2048;
constexpr int32_t kSharedTiles = 1024;
constexpr int32_t kSharedCtas = 512;
constexpr int32_t kMostSharedBytes = 63 * 1024;

}  // namespace kvc::cuda::planning
