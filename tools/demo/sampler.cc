#include "tools/demo/sampler.h"

#include <cmath>

#include "tools/demo/model.h"

namespace kvc::demo {

Token sample(const float* logits, double temperature, uint64_t seed, int conversation,
             int64_t place) {
  constexpr uint64_t kStream = 1u << 30;
  const uint64_t stream = kStream + static_cast<uint64_t>(conversation);
  int best = 0;
  double best_value = 0.0;
  for (int token = 0; token < ModelShape::kVocabulary; ++token) {
    double value = logits[token];
    if (temperature > 0.0) {
      const auto index = static_cast<uint64_t>(place * ModelShape::kVocabulary + token);
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
