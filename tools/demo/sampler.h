// Draws the next token from the softmax of the logits at a temperature.
#pragma once

#include <cstdint>
#include <span>

#include "tools/demo/workload.h"

namespace kvc::demo {

// The Gumbel-max form of sampling: the largest of logit / temperature + noise. The noise depends on
// the seed, the conversation and the place in its answer alone, so every row of the demo draws
// alike; and two logits that differ by a rounding swap places only where the sums tie to within it,
// while a cumulative sum has a boundary at every token.
Token sample(std::span<const float> logits, double temperature, uint64_t seed, int conversation,
             int64_t place);

}  // namespace kvc::demo
