// Sizes of the view kernel.
#pragma once

#include <cstdint>

namespace kvc::cuda::view_config {

constexpr uint32_t kThreads = 128;
constexpr int32_t kWarps = kThreads / 32;
// With fewer sequences than CTAs several share the rows and keys of one; with more a thread does
// one, unless it has much to write. About one per SM: in a decode step there is a handful of loads
// per sequence, and more CTAs would only take longer to start.
constexpr uint32_t kCtas = 128;

// Rows whose keys a thread finds alone.
constexpr int32_t kBriefRows = 4;

// Sums of warps, then a bit for every sequence that a thread has left to the CTA.
constexpr uint32_t kSharedBytes = kWarps * (2 * sizeof(int64_t) + sizeof(uint32_t));

}  // namespace kvc::cuda::view_config
