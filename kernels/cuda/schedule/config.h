// Sizes of the scheduler kernel. It is one CTA. Its tables lie in shared memory when they fit, and
// in the scratch memory of the schedule otherwise.
#pragma once

#include <cstdint>

namespace kvc::cuda::scheduling {

// For the usual decode step each thread has one sequence, tile or boundary. More threads would make
// barriers slower and leave too few registers for the steps with 64-bit divisions.
constexpr int32_t kThreads = 512;
constexpr int32_t kWarps = kThreads / 32;

// The tables of a decode step of 1,024 sequences fit: whatever is searched by dependent loads lies
// in shared memory. 55 KiB exceed the default limit but not the limit of a CTA on any device since
// sm_80. With the 1 KiB that a CTA reserves they fit the 64 KiB carve-out, which a CTA of 40 KiB
// needs as well.
constexpr int32_t kSharedSequences = 2048;
constexpr int32_t kSharedTiles = 1024;
constexpr int32_t kSharedCtas = 512;
constexpr int32_t kMaxSharedBytes = 63 * 1024;

}  // namespace kvc::cuda::scheduling
