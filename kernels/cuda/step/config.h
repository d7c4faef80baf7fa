// Sizes of the step kernel.
#pragma once

#include <cstdint>

namespace kvc::cuda::step_config {

// One CTA reads the step and writes the tables: everything behind it waits for that, so it is as
// wide as a CTA can be. All CTAs of a launch have the same size.
constexpr uint32_t kThreads = 1024;
constexpr int32_t kWarps = kThreads / 32;

// CTAs that copy pages: parts of pages are dealt out in turn.
constexpr uint32_t kCopyCtas = 31;
// Pairs of pages that a CTA brings from the host at once: one trip for all of them, and all layers
// are copied from what it brought.
constexpr int32_t kPairs = 1024;

// Words of an entry that are read at once with the header, before it is known how many there are: a
// step of a few hundred sequences then takes a single round trip to the host (about a microsecond
// each) instead of three.
constexpr int32_t kFirstWords = 2048;

// A table change of so many pages at most is written by one thread, a longer one by a warp.
constexpr int32_t kFewPages = 4;

}  // namespace kvc::cuda::step_config
