#include "tools/demo/sampler.h"

#include <cmath>

namespace kvc::demo {

Token sample(std::span<const float> logits, double temperature, uint64_t seed, int conversation,
             int64_t place) {
  constexpr uint64_t kStream = 1u << 30;
  const uint64_t stream = kStream + static_cast<uint64_t>(conversation);
  size_t best = 0;
  double best_value = 0.0;
  for (size_t token = 0; token < logits.size(); ++token) {
    double value = logits[token];
    if (temperature > 0.0) {
      const auto index = static_cast<uint64_t>(place) * logits.size() + token;
      value = value / temperature - std::log(-std::log(random_unit(seed, stream, index)));
    }
    if (token == 0 || value > best_value) {
      best = token;
      best_value = value;
    }
  }
  return static_cast<Token>(best);
}

}  // namespace kvc::demo
