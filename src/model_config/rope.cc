#include "src/model_config/rope.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <string>
#include <utility>

#include "src/base/error.h"
#include "src/plan/rope.h"
#include "src/plan/spec.h"

namespace kvc::hf {
namespace {

// Divides a frequency until nothing turns: cos is 1, and sin too small to change a float32 sum.
constexpr float kStill = 1e30f;

struct Parameters {
  std::optional<Fields> fields;  // empty: plain
  bool of_type = false;          // they are of the layer's type alone
};

// The entry of the layer's type in rope_parameters, or rope_parameters itself, or rope_scaling.
Parameters parameters(const Fields& config, const char* layer_type) {
  auto all = config.object("rope_parameters");
  if (!all) return {config.object("rope_scaling"), false};
  if (*layer_type != '\0' && all->is(layer_type, Json::Type::kObject))
    return {all->object(layer_type), true};
  // Entries per layer type and none for this one: plain.
  if (all->is("full_attention", Json::Type::kObject) ||
      all->is("sliding_attention", Json::Type::kObject))
    return {};
  return {std::move(all), false};
}

std::string type_of(const Fields& params) {
  return params.text_or(params.first_of({"rope_type", "type"}), "default");
}

double positive(const Fields& params, const char* name) {
  const double value = params.number(name);
  if (!(value > 0) || !std::isfinite(value))
    fail(KVC_E_OUT_OF_RANGE, "%s = %g, expected a positive number", params.path(name).c_str(),
         value);
  return value;
}

double positive_or(const Fields& params, const char* name, double fallback) {
  return params.has(name) ? positive(params, name) : fallback;
}

int64_t original_context(const Fields& config, const Fields& params) {
  constexpr const char* kName = "original_max_position_embeddings";
  const Fields& fields = params.has(kName) ? params : config;
  const char* name = fields.has(kName) ? kName : "max_position_embeddings";
  return fields.integer(name, 1, kMaxSequenceLength);
}

// Llama 3.1's rule where its two ends are one: a step, as Llama 4 has it. No passage between the
// ends to divide by.
void read_llama3_step(int64_t original, double low, double factor, double theta, Rope* out) {
  for (int32_t i = 0; i < out->rope.rotary_dim / 2; ++i) {
    const double wave = 2 * std::numbers::pi * std::pow(theta, 2.0 * i / out->rope.rotary_dim);
    out->factors.push_back(wave > static_cast<double>(original) / low ? static_cast<float>(factor)
                                                                      : 1.0f);
  }
}

void read_llama3(const Fields& config, const Fields& params, double theta, Rope* out) {
  const double low = positive_or(params, "low_freq_factor", 1);
  const double high = positive_or(params, "high_freq_factor", 4);
  const double factor = positive(params, "factor");
  const int64_t original = original_context(config, params);
  if (low == high) return read_llama3_step(original, low, factor, theta, out);
  out->rope.scaling = KVC_ROPE_SCALING_LLAMA3;
  out->rope.factor = factor;
  out->rope.low_freq_factor = low;
  out->rope.high_freq_factor = high;
  out->rope.original_context = original;
}

double yarn_magnitude(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

// YaRN whose ramp ends are not rounded to whole pairs (gpt-oss), as a factor on every frequency.
void read_yarn_unrounded(double original, double factor, double fast, double slow, double theta,
                         Rope* out) {
  const double dim = out->rope.rotary_dim;
  const auto pair_of = [&](double turns) {
    return dim * std::log(original / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta));
  };
  const double first = std::max(pair_of(fast), 0.0);
  double last = std::min(pair_of(slow), dim - 1);
  if (last == first) last += 0.001;
  for (int32_t i = 0; i < out->rope.rotary_dim / 2; ++i) {
    const double stretched = std::clamp((i - first) / (last - first), 0.0, 1.0);
    out->factors.push_back(static_cast<float>(1 / (1 - stretched + stretched / factor)));
  }
}

void read_yarn(const Fields& config, const Fields& params, double theta, Rope* out) {
  const double factor = positive(params, "factor");
  const double fast = positive_or(params, "beta_fast", 32),
               slow = positive_or(params, "beta_slow", 1);
  const int64_t original = original_context(config, params);
  double magnitude = yarn_magnitude(factor, 1);
  const double mscale = params.number_or("mscale", 0),
               mscale_all = params.number_or("mscale_all_dim", 0);
  if (params.has("attention_factor")) {
    magnitude = positive(params, "attention_factor");
  } else if (mscale != 0 && mscale_all != 0) {
    magnitude = yarn_magnitude(factor, mscale) / yarn_magnitude(factor, mscale_all);
  }
  out->rope.attention_factor = magnitude;
  if (!params.flag_or("truncate", true)) {
    if (!(theta > 1))
      fail(KVC_E_OUT_OF_RANGE, "%s = %g, expected more than 1 with YaRN", "rope_theta", theta);
    return read_yarn_unrounded(static_cast<double>(original), factor, fast, slow, theta, out);
  }
  out->rope.scaling = KVC_ROPE_SCALING_YARN;
  out->rope.factor = factor;
  out->rope.beta_fast = fast;
  out->rope.beta_slow = slow;
  out->rope.original_context = original;
}

std::vector<float> factors(const Fields& params, const char* name, size_t pairs) {
  const std::vector<double> values = params.numbers(name);
  if (values.size() != pairs) {
    fail_with(KVC_E_INVALID_ARGUMENT, static_cast<int64_t>(values.size()),
              "%s has %zu numbers, expected %zu", params.path(name).c_str(), values.size(), pairs);
  }
  return {values.begin(), values.end()};
}

void read_longrope(const Fields& config, const Fields& params, Rope* out) {
  const auto pairs = static_cast<size_t>(out->rope.rotary_dim / 2);
  out->factors = factors(params, "short_factor", pairs);
  out->long_factors = factors(params, "long_factor", pairs);
  out->rope.scaling = KVC_ROPE_SCALING_LONGROPE;
  out->rope.original_context = original_context(config, params);
  const double longest =
      static_cast<double>(config.integer("max_position_embeddings", 1, kMaxSequenceLength));
  const double growth = longest / static_cast<double>(out->rope.original_context);
  out->rope.factor = config.has("original_max_position_embeddings")
                         ? growth
                         : positive_or(params, "factor", growth);
  if (params.has("attention_factor"))
    out->rope.attention_factor = positive(params, "attention_factor");
  if (!params.has("short_mscale") && !params.has("long_mscale")) return;
  // Phi-3.5-MoE names the factor of short and of long sequences.
  const double short_scale = positive(params, "short_mscale"),
               long_scale = positive(params, "long_mscale");
  if (short_scale != long_scale) params.refuse("long_mscale", "it differs from short_mscale");
  out->rope.attention_factor = short_scale;
}

// Gemma 4: frequencies as if all pairs rotated, although only the first share of the pairs does.
void read_proportional(const Fields& params, int64_t dim, double partial, Rope* out) {
  const float factor = static_cast<float>(positive_or(params, "factor", 1));
  const auto turning = static_cast<int64_t>(partial * static_cast<double>(dim) / 2);
  out->rope.rotary_dim = static_cast<int32_t>(dim);
  for (int64_t i = 0; i < dim / 2; ++i) out->factors.push_back(i < turning ? factor : kStill);
}

void read_sections(const Fields& params, Rope* out) {
  constexpr size_t kMost = sizeof(kvc_rope::sections) / sizeof(int32_t);
  const std::vector<int64_t> sections = params.integers("mrope_section", 0, kMaxHeadDim);
  if (sections.empty() || sections.size() > kMost) {
    fail_with(KVC_E_INVALID_ARGUMENT, static_cast<int64_t>(sections.size()),
              "%s has %zu numbers, expected 1 to %zu", params.path("mrope_section").c_str(),
              sections.size(), kMost);
  }
  if (sections.size() == 1) return;
  out->rope.num_sections = static_cast<int32_t>(sections.size());
  for (size_t i = 0; i < sections.size(); ++i)
    out->rope.sections[i] = static_cast<int32_t>(sections[i]);
  out->rope.section_layout = params.flag_or("mrope_interleaved", false)
                                 ? KVC_ROPE_SECTIONS_INTERLEAVED
                                 : KVC_ROPE_SECTIONS_CONTIGUOUS;
}

void read_scaling(const Fields& config, const Fields& params, const RopeRequest& request,
                  double partial, Rope* out) {
  const std::string type = type_of(params);
  if (type == "linear") {
    out->rope.scale = 1 / positive(params, "factor");
  } else if (type == "llama3") {
    read_llama3(config, params, out->rope.theta, out);
  } else if (type == "yarn") {
    read_yarn(config, params, out->rope.theta, out);
  } else if (type == "longrope" || type == "su") {
    read_longrope(config, params, out);
  } else if (type == "proportional") {
    read_proportional(params, request.dim, partial, out);
  } else if (type != "default" && type != "mrope") {
    fail(KVC_E_UNSUPPORTED,
         "%s = '%s' is not supported: default, linear, llama3, yarn, longrope, mrope and "
         "proportional are",
         params.path(params.first_of({"rope_type", "type"})).c_str(), shown(type).c_str());
  }
  if (params.has("mrope_section")) read_sections(params, out);
}

// transformers turns a pair more where the rotated share is odd, with the exponents of the odd
// number.
void read_odd_share(int64_t dim, Rope* out) {
  const int32_t odd = out->rope.rotary_dim;
  if (odd % 2 == 0 || odd + 1 > dim) return;
  out->rope.rotary_dim = odd + 1;
  for (int32_t i = 0; i < (odd + 1) / 2; ++i) {
    const double exponent = 2.0 * i / odd - 2.0 * i / (odd + 1);
    out->factors.push_back(static_cast<float>(std::pow(out->rope.theta, exponent)));
  }
}

// Would the plan accept it? The message then says what is wrong with the numbers of the
// configuration.
void check(const Rope& rope, int64_t dim) {
  kvc_rope whole = rope.rope;
  whole.freq_factors = rope.factors.empty() ? nullptr : rope.factors.data();
  whole.long_freq_factors = rope.long_factors.empty() ? nullptr : rope.long_factors.data();
  make_rope(whole, "the configuration's rope.", static_cast<int32_t>(dim));
}

}  // namespace

int32_t add_rope(const Fields& config, const RopeRequest& request, Model& model) {
  const auto [params, of_type] = parameters(config, request.layer_type);
  const bool as_given = !request.is_local || of_type;
  if (params && as_given && type_of(*params) == "dynamic") {
    // Its base grows with the sequence, so only the model knows how a key was rotated.
    positive(*params, "factor");
    const char* name = params->first_of({"rope_type", "type"});
    model.warning = params->path(name) + " = 'dynamic': rotations are left to the model";
    return -1;
  }
  double theta = request.theta, partial = request.partial;
  if (config.has(request.theta_name)) theta = positive(config, request.theta_name);
  if (config.has(request.partial_name)) partial = positive(config, request.partial_name);
  if (params) {
    if (as_given || std::strcmp(request.theta_name, "rope_theta") == 0)
      theta = positive_or(*params, "rope_theta", theta);
    partial = positive_or(*params, "partial_rotary_factor", partial);
  }
  if (partial > 1)
    fail(KVC_E_OUT_OF_RANGE, "%s = %g, expected at most 1",
         config.path(request.partial_name).c_str(), partial);
  Rope rope;
  rope.rope.struct_size = sizeof rope.rope;
  rope.rope.mode = KVC_ROPE_ON_APPEND;
  rope.rope.style = request.style;
  rope.rope.theta = theta;
  rope.rope.rotary_dim =
      // A share in decimals
      static_cast<int32_t>(static_cast<double>(request.dim) * partial + 1e-6);
  if (params && as_given) read_scaling(config, *params, request, partial, &rope);
  if (rope.factors.empty() && rope.rope.scaling == KVC_ROPE_SCALING_NONE)
    read_odd_share(request.dim, &rope);
  rope.rope.num_freq_factors = static_cast<int32_t>(rope.factors.size());
  check(rope, request.dim);
  for (size_t i = 0; i < model.ropes.size(); ++i) {
    const Rope& other = model.ropes[i];
    if (std::memcmp(&other.rope, &rope.rope, sizeof rope.rope) == 0 &&
        other.factors == rope.factors && other.long_factors == rope.long_factors)
      return static_cast<int32_t>(i);
  }
  model.ropes.push_back(std::move(rope));
  return static_cast<int32_t>(model.ropes.size() - 1);
}

int64_t longest_context(const Fields& config, int64_t max_position_embeddings) {
  const auto params = parameters(config, "full_attention").fields;
  if (!params) return max_position_embeddings;
  const bool is_dynamic = type_of(*params) == "dynamic";
  if (!is_dynamic && type_of(*params) != "yarn") return max_position_embeddings;
  const double original =
      static_cast<double>(is_dynamic ? max_position_embeddings : original_context(config, *params));
  const double stretched = original * positive(*params, "factor");
  if (!(stretched <= static_cast<double>(kMaxSequenceLength))) {
    fail(KVC_E_OUT_OF_RANGE, "%s = %g makes the context longer than 2^31 - 1 tokens",
         params->path("factor").c_str(), params->number("factor"));
  }
  return std::max(max_position_embeddings, static_cast<int64_t>(stretched));
}

}  // namespace kvc::hf
