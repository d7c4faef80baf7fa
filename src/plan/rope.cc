#include "src/plan/rope.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <numbers>
#include <utility>

#include "src/base/error.h"
#include "src/base/print.h"

namespace kvc {
namespace {

constexpr int32_t kMaxSections = sizeof(kvc_rope::sections) / sizeof(int32_t);
// Larger than the distance of any two int32 positions.
constexpr double kMostPositions = 4294967296.0;

constexpr unsigned bit(kvc_rope_scaling scaling) { return 1u << scaling; }
constexpr unsigned kLlama3 = bit(KVC_ROPE_SCALING_LLAMA3);
constexpr unsigned kYarn = bit(KVC_ROPE_SCALING_YARN);
constexpr unsigned kLongRope = bit(KVC_ROPE_SCALING_LONGROPE);
constexpr const char* kScalingNames[] = {"NONE", "LLAMA3", "YARN", "LONGROPE"};

double value_or(double value, double fallback) { return value == 0 ? fallback : value; }

// A field that must be zero in some context. Arrays have no value to show.
struct OptionalField {
  const char* name;
  double value;
  bool is_array = false;
};

std::string shown(const std::string& prefix, const OptionalField& field) {
  if (field.is_array) return prefix + field.name + " is set";
  char value[32];
  print(value, sizeof value, " = %g", field.value);
  return prefix + field.name + value;
}

// Reads one kvc_rope. Every failure names the field as the caller knows it.
class RopeReader {
 public:
  RopeReader(const kvc_rope& rope, const std::string& prefix) : rope_(rope), prefix_(prefix) {}

  RopeSpec read(int32_t rotated_dim, int64_t max_seq_len) const;

 private:
  std::string name(const char* field) const { return prefix_ + field; }
  void refuse_unless(bool supported, const char* field, int64_t value, const char* expected) const;
  void check_range(const char* field, int64_t value, int64_t least, int64_t most) const;
  void check_positive(const char* field, double value) const;

  void check_empty() const;
  void check_scaling_fields() const;
  void check_frequency_factors(int32_t pairs) const;
  void read_sections(int32_t pairs, RopeSpec* spec) const;

  std::vector<double> frequencies(int32_t rotary_dim, const float* factors,
                                  const char* field) const;
  void scale_llama3(std::vector<double>* frequencies) const;
  void scale_yarn(std::vector<double>* frequencies) const;
  double magnitude() const;

  const kvc_rope& rope_;
  const std::string& prefix_;
};

void RopeReader::refuse_unless(bool supported, const char* field, int64_t value,
                               const char* expected) const {
  if (supported) return;
  fail_with(KVC_E_UNSUPPORTED, value, "%s = %lld is not supported: %s", name(field).c_str(),
            ll(value), expected);
}

void RopeReader::check_range(const char* field, int64_t value, int64_t least, int64_t most) const {
  if (value >= least && value <= most) return;
  fail_with(KVC_E_OUT_OF_RANGE, value, "%s = %lld out of range: %lld to %lld", name(field).c_str(),
            ll(value), ll(least), ll(most));
}

void RopeReader::check_positive(const char* field, double value) const {
  if (value > 0 && std::isfinite(value)) return;
  fail(KVC_E_OUT_OF_RANGE, "%s = %g, expected a positive number", name(field).c_str(), value);
}

void RopeReader::check_empty() const {
  const OptionalField fields[] = {
      {"style", static_cast<double>(rope_.style)},
      {"rotary_dim", static_cast<double>(rope_.rotary_dim)},
      {"num_freq_factors", static_cast<double>(rope_.num_freq_factors)},
      {"theta", rope_.theta},
      {"scale", rope_.scale},
      {"freq_factors", rope_.freq_factors != nullptr ? 1.0 : 0.0, true},
      {"scaling", static_cast<double>(rope_.scaling)},
      {"num_sections", static_cast<double>(rope_.num_sections)},
      {"sections[0]", static_cast<double>(rope_.sections[0])},
      {"sections[1]", static_cast<double>(rope_.sections[1])},
      {"sections[2]", static_cast<double>(rope_.sections[2])},
      {"sections[3]", static_cast<double>(rope_.sections[3])},
      {"section_layout", static_cast<double>(rope_.section_layout)},
      {"factor", rope_.factor},
      {"low_freq_factor", rope_.low_freq_factor},
      {"high_freq_factor", rope_.high_freq_factor},
      {"beta_fast", rope_.beta_fast},
      {"beta_slow", rope_.beta_slow},
      {"attention_factor", rope_.attention_factor},
      {"original_context", static_cast<double>(rope_.original_context)},
      {"long_freq_factors", rope_.long_freq_factors != nullptr ? 1.0 : 0.0, true},
  };
  for (const OptionalField& field : fields) {
    if (field.value == 0) continue;
    fail(KVC_E_INVALID_ARGUMENT, "%s = NONE (0) with other fields set (%s): set the mode",
         name("mode").c_str(), shown("", field).c_str());
  }
}

void RopeReader::check_scaling_fields() const {
  const struct {
    OptionalField field;
    unsigned scalings;
  } fields[] = {
      {{"factor", rope_.factor}, kLlama3 | kYarn | kLongRope},
      {{"low_freq_factor", rope_.low_freq_factor}, kLlama3},
      {{"high_freq_factor", rope_.high_freq_factor}, kLlama3},
      {{"beta_fast", rope_.beta_fast}, kYarn},
      {{"beta_slow", rope_.beta_slow}, kYarn},
      {{"original_context", static_cast<double>(rope_.original_context)},
       kLlama3 | kYarn | kLongRope},
      {{"long_freq_factors", rope_.long_freq_factors != nullptr ? 1.0 : 0.0, true}, kLongRope},
  };
  for (const auto& [field, scalings] : fields) {
    if (field.value == 0 || (scalings & bit(rope_.scaling)) != 0) continue;
    fail(KVC_E_INVALID_ARGUMENT, "%s, which scaling = %s (%d) does not use",
         shown(prefix_, field).c_str(), kScalingNames[rope_.scaling], rope_.scaling);
  }
  if (rope_.scaling == KVC_ROPE_SCALING_NONE) return;
  check_range("original_context", rope_.original_context, 1, INT32_MAX);
  // LONGROPE divides no frequency by the factor. A given factor is the growth of the context, see
  // magnitude().
  if (rope_.scaling != KVC_ROPE_SCALING_LONGROPE || rope_.factor != 0)
    check_positive("factor", rope_.factor);
}

void RopeReader::check_frequency_factors(int32_t pairs) const {
  if (rope_.num_freq_factors != 0 && rope_.num_freq_factors != pairs) {
    fail_with(KVC_E_INVALID_ARGUMENT, rope_.num_freq_factors, "%s = %d, expected rotary_dim/2 = %d",
              name("num_freq_factors").c_str(), rope_.num_freq_factors, pairs);
  }
  if ((rope_.num_freq_factors != 0) != (rope_.freq_factors != nullptr)) {
    fail(KVC_E_INVALID_ARGUMENT, "%s is %s but num_freq_factors = %d", name("freq_factors").c_str(),
         rope_.freq_factors == nullptr ? "NULL" : "set", rope_.num_freq_factors);
  }
  if (rope_.scaling != KVC_ROPE_SCALING_LONGROPE) return;
  for (const auto& [field, array] : {std::pair{"freq_factors", rope_.freq_factors},
                                     std::pair{"long_freq_factors", rope_.long_freq_factors}}) {
    if (array != nullptr) continue;
    fail(KVC_E_INVALID_ARGUMENT, "%s is NULL with scaling = LONGROPE (3), which takes %d of them",
         name(field).c_str(), pairs);
  }
}

// M-RoPE (Qwen2-VL, arXiv:2409.12191): each pair uses the position row of its section.
void RopeReader::read_sections(int32_t pairs, RopeSpec* spec) const {
  check_range("num_sections", rope_.num_sections, 0, kMaxSections);
  refuse_unless(rope_.section_layout == KVC_ROPE_SECTIONS_CONTIGUOUS ||
                    rope_.section_layout == KVC_ROPE_SECTIONS_INTERLEAVED,
                "section_layout", rope_.section_layout, "CONTIGUOUS (0) and INTERLEAVED (1) are");
  const int32_t count = rope_.num_sections;
  int64_t sum = 0;
  for (int32_t s = 0; s < kMaxSections; ++s) {
    const int32_t section = rope_.sections[s];
    const std::string field = "sections[" + std::to_string(s) + "]";
    if (s >= count && section != 0) {
      fail_with(KVC_E_INVALID_ARGUMENT, section, "%s = %d with num_sections = %d",
                name(field.c_str()).c_str(), section, count);
    }
    check_range(field.c_str(), section, 0, pairs);
    sum += section;
  }
  if (count <= 1) {
    if (sum != 0 && sum != pairs) {
      fail_with(KVC_E_INVALID_ARGUMENT, sum, "%s = %lld, expected rotary_dim/2 = %d",
                name("sections[0]").c_str(), ll(sum), pairs);
    }
    if (rope_.section_layout != KVC_ROPE_SECTIONS_CONTIGUOUS) {
      fail_with(KVC_E_INVALID_ARGUMENT, rope_.section_layout,
                "%s = INTERLEAVED (1) with num_sections = %d", name("section_layout").c_str(),
                count);
    }
    return;
  }
  if (sum != pairs) {
    fail_with(KVC_E_INVALID_ARGUMENT, sum, "%s sum to %lld, expected rotary_dim/2 = %d",
              name("sections").c_str(), ll(sum), pairs);
  }
  if (spec->mode == KVC_ROPE_ON_READ) {
    fail_with(KVC_E_UNSUPPORTED, count,
              "%s = %d is not supported with %s: stored keys have one position each",
              name("num_sections").c_str(), count,
              rope_.mode == KVC_ROPE_ON_READ ? "mode = ON_READ (2)"
                                             : "scaling = LONGROPE (3), which rotates on read");
  }
  spec->num_sections = count;
  spec->section_of_pair.reserve(pairs);
  if (rope_.section_layout == KVC_ROPE_SECTIONS_CONTIGUOUS) {
    for (int32_t s = 0; s < count; ++s)
      spec->section_of_pair.insert(spec->section_of_pair.end(),
                                   static_cast<size_t>(rope_.sections[s]), s);
    return;
  }
  for (int32_t i = 0; i < pairs; ++i)
    spec->section_of_pair.push_back(i / count < rope_.sections[i % count] ? i % count : 0);
  for (int32_t s = 1; s < count; ++s) {
    const auto held = std::count(spec->section_of_pair.begin(), spec->section_of_pair.end(), s);
    if (held == rope_.sections[s]) continue;
    fail_with(KVC_E_INVALID_ARGUMENT, rope_.sections[s],
              "%s[%d] = %d, but every %dth of %d pairs makes only %d", name("sections").c_str(), s,
              rope_.sections[s], count, pairs, static_cast<int>(held));
  }
}

std::vector<double> RopeReader::frequencies(int32_t rotary_dim, const float* factors,
                                            const char* field) const {
  const double theta = value_or(rope_.theta, 10000.0);
  const double scale = value_or(rope_.scale, 1.0);
  std::vector<double> frequencies;
  frequencies.reserve(rotary_dim / 2);
  for (int32_t i = 0; i < rotary_dim / 2; ++i) {
    double frequency = scale * std::pow(theta, -2.0 * i / rotary_dim);
    if (factors != nullptr) {
      const double factor = static_cast<double>(factors[i]);
      if (!(factor > 0) || !std::isfinite(factor)) {
        fail_with(KVC_E_OUT_OF_RANGE, i, "%s[%d] = %g, expected a positive number",
                  name(field).c_str(), i, factor);
      }
      frequency /= factor;
    }
    frequencies.push_back(frequency);
  }
  if (rope_.scaling == KVC_ROPE_SCALING_LLAMA3) scale_llama3(&frequencies);
  if (rope_.scaling == KVC_ROPE_SCALING_YARN) scale_yarn(&frequencies);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    if (std::isfinite(frequencies[i] * kMostPositions)) continue;
    fail_with(KVC_E_OUT_OF_RANGE, static_cast<int64_t>(i),
              "%s = %g and scale = %g make frequency %zu infinite", name("theta").c_str(), theta,
              scale, i);
  }
  return frequencies;
}

// Llama 3.1 (Dubey et al., arXiv:2407.21783; the rule of Meta's reference implementation). Waves
// that fit often into the original context keep their length. Waves that hardly fit are stretched
// by `factor`. Between the two the stretch is interpolated linearly.
void RopeReader::scale_llama3(std::vector<double>* frequencies) const {
  const double low = value_or(rope_.low_freq_factor, 1.0);
  const double high = value_or(rope_.high_freq_factor, 4.0);
  check_positive("low_freq_factor", low);
  check_positive("high_freq_factor", high);
  if (high <= low) {
    fail(KVC_E_INVALID_ARGUMENT, "%s = %g is not above low_freq_factor = %g",
         name("high_freq_factor").c_str(), high, low);
  }
  for (double& frequency : *frequencies) {
    // original_context / wave length; 0 for a frequency that has underflowed.
    const double turns =
        static_cast<double>(rope_.original_context) * std::abs(frequency) / (2 * std::numbers::pi);
    const double kept = std::clamp((turns - low) / (high - low), 0.0, 1.0);
    frequency = (1 - kept) * frequency / rope_.factor + kept * frequency;
  }
}

// YaRN "by parts" (Peng et al., arXiv:2309.00071, section 3.2). As in the authors' code and in
// Hugging Face's default, the ramp runs over the index of the pair. Its ends follow from theta
// alone and are rounded outwards to whole pairs.
void RopeReader::scale_yarn(std::vector<double>* frequencies) const {
  const double fast = value_or(rope_.beta_fast, 32.0);
  const double slow = value_or(rope_.beta_slow, 1.0);
  check_positive("beta_fast", fast);
  check_positive("beta_slow", slow);
  if (fast < slow) {
    fail(KVC_E_INVALID_ARGUMENT, "%s = %g is below beta_slow = %g", name("beta_fast").c_str(), fast,
         slow);
  }
  const double theta = value_or(rope_.theta, 10000.0);
  if (!(theta > 1)) {
    fail(KVC_E_OUT_OF_RANGE, "%s = %g, expected more than 1 with scaling = YARN (2)",
         name("theta").c_str(), theta);
  }
  const double rotary_dim = 2.0 * static_cast<double>(frequencies->size());
  // The pair that completes `turns` periods in original_context.
  const auto pair_of = [&](double turns) {
    return rotary_dim *
           std::log(static_cast<double>(rope_.original_context) / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(theta));
  };
  const double first = std::max(std::floor(pair_of(fast)), 0.0);
  const double last = std::min(std::ceil(pair_of(slow)), rotary_dim - 1);
  for (size_t i = 0; i < frequencies->size(); ++i) {
    const double index = static_cast<double>(i);
    double stretched = 0;  // share of the frequency divided by factor
    if (last < 0) {
      stretched = 1;  // no pair turns often enough
    } else if (last <= first) {
      stretched = index > first ? 1 : 0;
    } else {
      stretched = std::clamp((index - first) / (last - first), 0.0, 1.0);
    }
    double& frequency = (*frequencies)[i];
    frequency = frequency / rope_.factor * stretched + frequency * (1 - stretched);
  }
}

double RopeReader::magnitude() const {
  if (rope_.attention_factor != 0) {
    check_positive("attention_factor", rope_.attention_factor);
    if (rope_.attention_factor > FLT_MAX) {
      fail(KVC_E_OUT_OF_RANGE, "%s = %g does not fit float32", name("attention_factor").c_str(),
           rope_.attention_factor);
    }
    return rope_.attention_factor;
  }
  if (rope_.factor <= 1) return 1;  // nothing is stretched
  const double growth = std::log(rope_.factor);
  if (rope_.scaling == KVC_ROPE_SCALING_YARN) return 0.1 * growth + 1;  // YaRN, equation 22
  if (rope_.scaling != KVC_ROPE_SCALING_LONGROPE) return 1;
  if (rope_.original_context == 1) {
    fail_with(KVC_E_OUT_OF_RANGE, 1, "%s = 1 gives no default of attention_factor: set it",
              name("original_context").c_str());
  }
  // LongRoPE as Phi-3 uses it: arXiv:2404.14219 and its published model code.
  return std::sqrt(1 + growth / std::log(static_cast<double>(rope_.original_context)));
}

RopeSpec RopeReader::read(int32_t rotated_dim, int64_t max_seq_len) const {
  refuse_unless(rope_.reserved == 0, "reserved", rope_.reserved, "0 is");
  RopeSpec spec;
  if (rope_.mode == KVC_ROPE_NONE) {
    check_empty();
    return spec;
  }
  refuse_unless(rope_.mode == KVC_ROPE_ON_APPEND || rope_.mode == KVC_ROPE_ON_READ, "mode",
                rope_.mode, "NONE (0), ON_APPEND (1) and ON_READ (2) are");
  refuse_unless(rope_.style == KVC_ROPE_HALF || rope_.style == KVC_ROPE_INTERLEAVED, "style",
                rope_.style, "HALF (0) and INTERLEAVED (1) are");
  refuse_unless(
      rope_.scaling >= KVC_ROPE_SCALING_NONE && rope_.scaling <= KVC_ROPE_SCALING_LONGROPE,
      "scaling", rope_.scaling, "NONE (0), LLAMA3 (1), YARN (2) and LONGROPE (3) are");
  const bool changes = rope_.scaling == KVC_ROPE_SCALING_LONGROPE &&
                       (max_seq_len == 0 || max_seq_len > rope_.original_context);
  spec.mode = changes ? static_cast<kvc_rope_mode>(KVC_ROPE_ON_READ) : rope_.mode;
  spec.style = rope_.style;
  spec.rotary_dim = rope_.rotary_dim == 0 ? rotated_dim : rope_.rotary_dim;
  check_range("rotary_dim", spec.rotary_dim, 2, rotated_dim);
  if (spec.rotary_dim % 2 != 0) {
    fail_with(KVC_E_INVALID_ARGUMENT, spec.rotary_dim, "%s = %d is odd: a rotation turns pairs",
              name("rotary_dim").c_str(), spec.rotary_dim);
  }
  const int32_t pairs = spec.rotary_dim / 2;
  check_scaling_fields();
  check_frequency_factors(pairs);
  read_sections(pairs, &spec);
  check_positive("theta", value_or(rope_.theta, 10000.0));
  if (!std::isfinite(rope_.scale)) {
    fail(KVC_E_OUT_OF_RANGE, "%s = %g, expected a finite number", name("scale").c_str(),
         rope_.scale);
  }
  spec.inverse_frequencies = frequencies(spec.rotary_dim, rope_.freq_factors, "freq_factors");
  if (changes) {
    spec.long_inverse_frequencies =
        frequencies(spec.rotary_dim, rope_.long_freq_factors, "long_freq_factors");
    spec.original_context = rope_.original_context;
  }
  spec.magnitude = magnitude();
  return spec;
}

}  // namespace

RopeSpec make_rope(const kvc_rope& rope, const std::string& prefix, int32_t rotated_dim,
                   int64_t max_seq_len) {
  return RopeReader(rope, prefix).read(rotated_dim, max_seq_len);
}

int32_t shared_rope_index(std::vector<RopeSpec>& ropes, const RopeSpec& rope) {
  if (rope.mode == KVC_ROPE_NONE) return -1;
  const auto found = std::find(ropes.begin(), ropes.end(), rope);
  if (found != ropes.end()) return static_cast<int32_t>(found - ropes.begin());
  ropes.push_back(rope);
  return static_cast<int32_t>(ropes.size() - 1);
}

int64_t cos_sin_bytes_per_token(const std::vector<RopeSpec>& ropes) noexcept {
  int64_t bytes = 0;
  for (const RopeSpec& rope : ropes) {
    // A float each, of rotary_dim/2 pairs.
    if (rope.mode == KVC_ROPE_ON_READ) bytes += rope.rotary_dim * int64_t{sizeof(float)};
  }
  return bytes;
}

const char* rope_mode_name(kvc_rope_mode mode) {
  return mode == KVC_ROPE_ON_APPEND ? "ON_APPEND" : mode == KVC_ROPE_ON_READ ? "ON_READ" : "NONE";
}

}  // namespace kvc
