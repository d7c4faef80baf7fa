// Sizes of the step kernel.
#pragma once

#include <cstdint>

namespace kvc::cuda::step_config {

// One CTA reads the step and writes the tables. Everything behind it waits for that, so the CTA is
// as wide as possible. All CTAs of a launch have the same size.
constexpr uint32_t kThreads = 1024;
constexpr int32_t kWarps = kThreads / 32;

// CTAs that copy pages. They take regions of pages in turn.
constexpr uint32_t kCopyCtas = 31;
// Pairs of pages that a CTA fetches from the host at once. One round trip serves all of them and
// all layers.
constexpr int32_t kPairs = 1024;

// Words of an entry that are read together with the header, before their number is known. So a step
// of a few hundred sequences takes one round trip to the host (about a microsecond each) instead of
// three.
constexpr int32_t kFirstWords = 2048;

// A table change of at most this many pages is written by one thread, a longer one by a warp.
constexpr int32_t kFewPages = 4;

}  // namespace kvc::cuda::step_config
