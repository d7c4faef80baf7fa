#include "tests/model/naive_rope.h"

#include <algorithm>
#include <cmath>

namespace kvc::test {
namespace {

constexpr double kPi = 3.14159265358979323846;

double or_default(double value, double otherwise) { return value == 0 ? otherwise : value; }

double llama3(const kvc_rope& rope, double frequency) {
  const double context = static_cast<double>(rope.original_context);
  const double low = or_default(rope.low_freq_factor, 1),
               high = or_default(rope.high_freq_factor, 4);
  const double wave = 2 * kPi / frequency;
  if (wave < context / high) return frequency;
  if (wave > context / low) return frequency / rope.factor;
  const double smooth = (context / wave - low) / (high - low);
  return (1 - smooth) * frequency / rope.factor + smooth * frequency;
}

// The pair, as a real number, that makes `turns` turns in the original context.
double yarn_pair(const kvc_rope& rope, int dim, double turns) {
  const double context = static_cast<double>(rope.original_context);
  return dim * std::log(context / (turns * 2 * kPi)) /
         (2 * std::log(or_default(rope.theta, 10000)));
}

double yarn(const kvc_rope& rope, int dim, int pair, double frequency) {
  const double first =
      std::max(0.0, std::floor(yarn_pair(rope, dim, or_default(rope.beta_fast, 32))));
  double last =
      std::min<double>(dim - 1, std::ceil(yarn_pair(rope, dim, or_default(rope.beta_slow, 1))));
  if (first == last) last += 0.001;
  const double ramp = std::clamp((pair - first) / (last - first), 0.0, 1.0);
  return frequency * (1 - ramp) + frequency / rope.factor * ramp;
}

int section_of(const kvc_rope& rope, int pair) {
  if (rope.num_sections < 2) return 0;
  if (rope.section_layout == KVC_ROPE_SECTIONS_INTERLEAVED) {
    const int row = pair % rope.num_sections;
    return pair / rope.num_sections < rope.sections[row] ? row : 0;
  }
  int row = 0;
  for (int end = rope.sections[0]; pair >= end && row + 1 < rope.num_sections;
       end += rope.sections[row])
    ++row;
  return row;
}

}  // namespace

NaiveRope make_rope(const kvc_rope& rope, int begin, int dim) {
  NaiveRope result;
  result.mode = result.asked_mode = rope.mode;
  result.interleaved = rope.style == KVC_ROPE_INTERLEAVED;
  result.begin = begin;
  result.rotary_dim = rope.rotary_dim == 0 ? dim : rope.rotary_dim;
  const bool is_yarn = rope.scaling == KVC_ROPE_SCALING_YARN;
  result.attention_factor =
      or_default(rope.attention_factor, is_yarn ? 0.1 * std::log(rope.factor) + 1 : 1);
  if (rope.scaling == KVC_ROPE_SCALING_LONGROPE) {
    result.original_context = rope.original_context;
    result.mode = KVC_ROPE_ON_READ;
  }
  for (int i = 0; i < result.rotary_dim / 2; ++i) {
    result.pair_section.push_back(section_of(rope, i));
    for (size_t regime = 0; regime < 2; ++regime) {
      const float* factors = regime == 1 && rope.scaling == KVC_ROPE_SCALING_LONGROPE
                                 ? rope.long_freq_factors
                                 : rope.freq_factors;
      double frequency = std::pow(or_default(rope.theta, 10000), -2.0 * i / result.rotary_dim) /
                         (factors == nullptr ? 1.0 : static_cast<double>(factors[i]));
      if (rope.scaling == KVC_ROPE_SCALING_LLAMA3) frequency = llama3(rope, frequency);
      if (is_yarn) frequency = yarn(rope, result.rotary_dim, i, frequency);
      result.frequencies[regime].push_back(or_default(rope.scale, 1) * frequency);
    }
  }
  return result;
}

Row rotated(const NaiveRope& rope, int dim, const Row& x, const RopePosition& position,
            bool shift) {
  Row result = x;
  const int half = rope.rotary_dim / 2;
  const double factor = shift ? 1 : rope.attention_factor;
  for (size_t head = 0; head < x.size(); head += static_cast<size_t>(dim)) {
    for (int i = 0; i < half; ++i) {
      const auto pair = static_cast<size_t>(i);
      const auto first = head + static_cast<size_t>(rope.begin + (rope.interleaved ? 2 * i : i));
      const auto second =
          head + static_cast<size_t>(rope.begin + (rope.interleaved ? 2 * i + 1 : i + half));
      const double angle = position.rows[static_cast<size_t>(rope.pair_section[pair])] *
                           rope.frequencies[position.is_long ? 1 : 0][pair];
      result[first] = factor * (x[first] * std::cos(angle) - x[second] * std::sin(angle));
      result[second] = factor * (x[first] * std::sin(angle) + x[second] * std::cos(angle));
    }
  }
  return result;
}

}  // namespace kvc::test
