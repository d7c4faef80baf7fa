// Draws a token from logits.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace kvc::chat {

struct SamplerOptions {
  double temperature = 0;  // 0: the likeliest token.
  double top_p = 1;        // Draw from the likeliest tokens that reach it (arXiv:1904.09751).
  uint64_t seed = 1;
};

class Sampler {
 public:
  explicit Sampler(const SamplerOptions& options) : options_(options), random_(options.seed) {}

  int32_t draw(std::span<const float> logits);

 private:
  SamplerOptions options_;
  std::mt19937_64 random_;
  std::vector<std::pair<float, int32_t>> candidates_;  // Logit, id.
};

}  // namespace kvc::chat
