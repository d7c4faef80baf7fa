// Sizes of the view kernel.
#pragma once

#include <cstdint>

namespace kvc::cuda::view_config {

constexpr uint32_t kThreads = 128;
constexpr int32_t kWarps = kThreads / 32;
// With fewer sequences than CTAs several share the rows and keys of one; with more a CTA does several. About one per SM: in a decode step there is a
// handful of loads per sequence, and more CTAs would only take longer to start.
constexpr uint32_t kCtas = 128;

}  // namespace kvc::cuda::view_config
