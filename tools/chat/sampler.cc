#include "tools/chat/sampler.h"

#include <algorithm>
#include <cmath>

namespace kvc::chat {

int32_t Sampler::draw(std::span<const float> logits) {
  const auto likeliest = std::max_element(logits.begin(), logits.end());
  if (options_.temperature <= 0) return static_cast<int32_t>(likeliest - logits.begin());
  // What is e^-30 times less likely than the first is never drawn.
  constexpr double kNegligible = 30;
  const auto least = static_cast<float>(*likeliest - kNegligible * options_.temperature);
  candidates_.clear();
  for (size_t id = 0; id < logits.size(); ++id) {
    if (logits[id] >= least) candidates_.emplace_back(logits[id], static_cast<int32_t>(id));
  }
  std::sort(candidates_.begin(), candidates_.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  std::vector<double> sums;
  double total = 0;
  for (const auto& [logit, id] : candidates_)
    sums.push_back(total += std::exp((logit - *likeliest) / options_.temperature));
  const auto kept = std::lower_bound(sums.begin(), sums.end(), options_.top_p * total);
  const double limit = kept == sums.end() ? total : *kept;
  // 53 bits: a double of [0, 1).
  const double unit = static_cast<double>(random_() >> 11) * 0x1p-53;
  const auto drawn = std::upper_bound(sums.begin(), sums.end() - 1, unit * limit);
  return candidates_[static_cast<size_t>(drawn - sums.begin())].second;
}

}  // namespace kvc::chat
