#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "src/base/error.h"
#include "src/plan/rope.h"

namespace kvc {
namespace {

using testing::HasSubstr;

constexpr double kPi = 3.14159265358979323846;

kvc_rope rope_with(kvc_rope_scaling scaling) {
  kvc_rope rope{};
  rope.struct_size = sizeof rope;
  rope.mode = KVC_ROPE_ON_APPEND;
  rope.scaling = scaling;
  return rope;
}

kvc_rope llama31() {
  kvc_rope rope = rope_with(KVC_ROPE_SCALING_LLAMA3);
  rope.theta = 500000;
  rope.factor = 8;
  rope.low_freq_factor = 1;
  rope.high_freq_factor = 4;
  rope.original_context = 8192;
  return rope;
}

kvc_rope yarn(double theta, double factor, int64_t original_context) {
  kvc_rope rope = rope_with(KVC_ROPE_SCALING_YARN);
  rope.theta = theta;
  rope.factor = factor;
  rope.original_context = original_context;
  return rope;
}

const std::vector<float> kShort{1.0f, 1.5f, 2.0f, 4.0f};
const std::vector<float> kLong{2.0f, 8.0f, 16.0f, 64.0f};

kvc_rope longrope() {
  kvc_rope rope = rope_with(KVC_ROPE_SCALING_LONGROPE);
  rope.num_freq_factors = 4;
  rope.freq_factors = kShort.data();
  rope.long_freq_factors = kLong.data();
  rope.original_context = 4096;
  return rope;
}

double plain(double theta, int pair, int dim) { return 1.0 / std::pow(theta, 2.0 * pair / dim); }

void expect_refused(const kvc_rope& rope, int32_t dim, kvc_status status,
                    const std::vector<std::string>& parts) {
  try {
    make_rope(rope, "config.layers[3].rope->", dim);
    ADD_FAILURE() << "accepted, expected " << (parts.empty() ? "" : parts.front());
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), status) << error.what();
    for (const std::string& part : parts) EXPECT_THAT(error.what(), HasSubstr(part));
  }
}

// `change` makes a good rope bad; the message names the field, with the caller's prefix, and the
// value.
void expect_refused(kvc_rope rope, kvc_status status, const std::string& field,
                    const std::string& value, const std::function<void(kvc_rope&)>& change,
                    int32_t dim = 8) {
  change(rope);
  expect_refused(rope, dim, status, {"config.layers[3].rope->" + field, value});
}

TEST(Rope, WithoutScalingTurnsByPowersOfTheta) {
  kvc_rope rope = rope_with(KVC_ROPE_SCALING_NONE);
  RopeSpec spec = make_rope(rope, "rope->", 64);
  EXPECT_EQ(spec.rotary_dim, 64);
  ASSERT_EQ(spec.inverse_frequencies.size(), 32u);
  for (int i = 0; i < 32; ++i)
    EXPECT_DOUBLE_EQ(spec.inverse_frequencies[static_cast<size_t>(i)], plain(10000, i, 64));
  EXPECT_EQ(spec.magnitude, 1);
  EXPECT_EQ(spec.begin, 0);
  EXPECT_EQ(spec.num_sections, 1);
  EXPECT_TRUE(spec.long_inverse_frequencies.empty());
  EXPECT_TRUE(spec.section_of_pair.empty());

  rope.theta = 500;
  rope.scale = 0.25;
  rope.rotary_dim = 8;
  rope.num_freq_factors = 4;
  rope.freq_factors = kShort.data();
  rope.attention_factor = 1.25;
  spec = make_rope(rope, "rope->", 64);
  for (int i = 0; i < 4; ++i) {
    const double expected =
        0.25 * plain(500, i, 8) / static_cast<double>(kShort[static_cast<size_t>(i)]);
    EXPECT_DOUBLE_EQ(spec.inverse_frequencies[static_cast<size_t>(i)], expected) << i;
  }
  EXPECT_EQ(spec.magnitude, 1.25);
}

TEST(Rope, OfModeNoneIsEmpty) {
  EXPECT_EQ(make_rope(kvc_rope{}, "rope->", 64), RopeSpec{});
  EXPECT_EQ(make_rope(kvc_rope{}, "rope->", 0), RopeSpec{})
      << "an MLA layer without rotated elements";
}

TEST(Rope, Llama3KeepsFastPairsAndDividesSlowOnes) {
  const RopeSpec spec = make_rope(llama31(), "rope->", 128);
  ASSERT_EQ(spec.inverse_frequencies.size(), 64u);
  for (int i = 0; i < 64; ++i) {
    const double frequency = plain(500000, i, 128);
    const double wave = 2 * kPi / frequency;
    double expected = 0;
    if (wave < 8192.0 / 4) {
      expected = frequency;
    } else if (wave > 8192.0 / 1) {
      expected = frequency / 8;
    } else {
      const double smooth = (8192 / wave - 1) / (4 - 1);
      expected = (1 - smooth) * frequency / 8 + smooth * frequency;
    }
    EXPECT_NEAR(spec.inverse_frequencies[static_cast<size_t>(i)], expected, 1e-14 * expected) << i;
    // Where Llama 3.1 changes: 29 pairs unchanged, 6 between, 29 divided by 8.
    const double ratio = spec.inverse_frequencies[static_cast<size_t>(i)] / frequency;
    if (i <= 28) {
      EXPECT_DOUBLE_EQ(ratio, 1) << i;
    } else if (i >= 35) {
      EXPECT_DOUBLE_EQ(ratio, 0.125) << i;
    } else {
      EXPECT_TRUE(ratio > 0.125 && ratio < 1) << i << ": " << ratio;
    }
  }
  EXPECT_EQ(spec.magnitude, 1) << "a factor changes no magnitude here";
}

TEST(Rope, Llama3HasTheModelsDefaults) {
  kvc_rope rope = llama31();
  rope.low_freq_factor = rope.high_freq_factor = 0;
  EXPECT_EQ(make_rope(rope, "rope->", 128), make_rope(llama31(), "rope->", 128));
}

TEST(Rope, YarnRampsOverThePairsThatThePaperNames) {
  struct Model {
    double theta, factor;
    int64_t original_context;
    int dim;
    double fast, slow;  // 0: default
    int first, last;    // pairs between which the ramp lies
  };
  const Model models[] = {
      {1000000, 4, 32768, 128, 0, 0, 23, 40},  // Qwen2.5, Qwen3
      {10000, 40, 4096, 64, 32, 1, 10, 23},    // DeepSeek-V2, V3
      {10000, 16, 4096, 128, 64, 2, 16, 41},
      {10000, 4, 64, 32, 0, 0, 0, 5},        // begins before the first pair
      {10000, 4, 200000, 32, 0, 0, 11, 19},  // ends behind the last pair
      // Would end behind the last element, where it is cut
      {10, 4, 500, 8, 0, 0, 1, 7},
      {10000, 4, 100000000, 32, 0, 0, 22, 29},  // begins behind the last pair: nothing is divided
  };
  for (const Model& model : models) {
    kvc_rope rope = yarn(model.theta, model.factor, model.original_context);
    rope.beta_fast = model.fast;
    rope.beta_slow = model.slow;
    const RopeSpec spec = make_rope(rope, "rope->", model.dim);
    for (int i = 0; i < model.dim / 2; ++i) {
      double ramp = (i - model.first) / static_cast<double>(model.last - model.first);
      ramp = ramp < 0 ? 0 : (ramp > 1 ? 1 : ramp);
      const double frequency = plain(model.theta, i, model.dim);
      const double expected = ramp * (frequency / model.factor) + (1 - ramp) * frequency;
      EXPECT_NEAR(spec.inverse_frequencies[static_cast<size_t>(i)], expected, 1e-14 * expected)
          << "theta " << model.theta << " pair " << i;
    }
    EXPECT_NEAR(spec.magnitude, 0.1 * std::log(model.factor) + 1, 1e-15);
  }
}

TEST(Rope, YarnOutOfItsRangeDividesNothingOrAll) {
  const RopeSpec none = make_rope(yarn(10000, 4, INT32_MAX), "rope->", 16);
  const RopeSpec all = make_rope(yarn(10000, 4, 1), "rope->", 16);
  for (int i = 0; i < 8; ++i) {
    EXPECT_DOUBLE_EQ(none.inverse_frequencies[static_cast<size_t>(i)], plain(10000, i, 16));
    EXPECT_DOUBLE_EQ(all.inverse_frequencies[static_cast<size_t>(i)], plain(10000, i, 16) / 4);
  }
}

TEST(Rope, TakesTheAttentionFactorAsGiven) {
  EXPECT_NEAR(make_rope(yarn(10000, 40, 4096), "rope->", 64).magnitude, 1.3688879454, 1e-10);
  kvc_rope rope = yarn(10000, 40, 4096);
  rope.attention_factor = 1;  // DeepSeek: mscale and mscale_all_dim cancel
  EXPECT_EQ(make_rope(rope, "rope->", 64).magnitude, 1);
  EXPECT_EQ(make_rope(yarn(10000, 0.5, 4096), "rope->", 64).magnitude, 1) << "nothing is stretched";

  rope = longrope();
  EXPECT_EQ(make_rope(rope, "rope->", 8).magnitude, 1);
  rope.factor = 32;  // Phi-3: 131072 / 4096
  EXPECT_NEAR(make_rope(rope, "rope->", 8).magnitude, 1.1902380714, 1e-10);
  rope.attention_factor = 1.5;
  EXPECT_EQ(make_rope(rope, "rope->", 8).magnitude, 1.5);
}

TEST(Rope, LongRopeKeepsBothSetsOfFrequencies) {
  kvc_rope rope = longrope();
  rope.factor = 32;
  const RopeSpec spec = make_rope(rope, "rope->", 8);
  ASSERT_EQ(spec.long_inverse_frequencies.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    const double frequency = plain(10000, static_cast<int>(i), 8);
    EXPECT_DOUBLE_EQ(spec.inverse_frequencies[i], frequency / static_cast<double>(kShort[i]));
    EXPECT_DOUBLE_EQ(spec.long_inverse_frequencies[i], frequency / static_cast<double>(kLong[i]));
  }
  EXPECT_EQ(spec.original_context, 4096);
  EXPECT_EQ(spec.mode, KVC_ROPE_ON_READ) << "whatever is asked for";
  EXPECT_EQ(make_rope(rope, "rope->", 8, 4097), spec);
  const RopeSpec fixed = make_rope(rope, "rope->", 8, 4096);
  EXPECT_EQ(fixed.mode, KVC_ROPE_ON_APPEND);
  EXPECT_EQ(fixed.inverse_frequencies, spec.inverse_frequencies);
  EXPECT_TRUE(fixed.long_inverse_frequencies.empty());
  EXPECT_EQ(fixed.original_context, 0);
  EXPECT_EQ(make_rope(llama31(), "rope->", 128).original_context, 0) << "only LONGROPE switches";
}

TEST(Rope, CutsContiguousSectionsInOrder) {
  kvc_rope rope = rope_with(KVC_ROPE_SCALING_NONE);  // Qwen2-VL
  rope.num_sections = 3;
  rope.sections[0] = 16, rope.sections[1] = 24, rope.sections[2] = 24;
  const RopeSpec spec = make_rope(rope, "rope->", 128);
  EXPECT_EQ(spec.num_sections, 3);
  ASSERT_EQ(spec.section_of_pair.size(), 64u);
  for (size_t i = 0; i < 64; ++i)
    EXPECT_EQ(spec.section_of_pair[i], i < 16 ? 0 : (i < 40 ? 1 : 2)) << i;
}

TEST(Rope, InterleavesSectionsUntilTheyAreUsedUp) {
  kvc_rope rope = rope_with(KVC_ROPE_SCALING_NONE);  // Qwen3-VL
  rope.num_sections = 3;
  rope.sections[0] = 24, rope.sections[1] = 20, rope.sections[2] = 20;
  rope.section_layout = KVC_ROPE_SECTIONS_INTERLEAVED;
  RopeSpec spec = make_rope(rope, "rope->", 128);
  ASSERT_EQ(spec.section_of_pair.size(), 64u);
  for (int i = 0; i < 64; ++i)
    EXPECT_EQ(spec.section_of_pair[static_cast<size_t>(i)], i < 60 ? i % 3 : 0) << i;

  // Qwen3.5: 64 of 256 elements
  rope.sections[0] = 11, rope.sections[1] = 11, rope.sections[2] = 10;
  rope.rotary_dim = 64;
  spec = make_rope(rope, "rope->", 256);
  for (int i = 0; i < 32; ++i) EXPECT_EQ(spec.section_of_pair[static_cast<size_t>(i)], i % 3) << i;
}

TEST(Rope, OfOneSectionIsAPlainOne) {
  kvc_rope rope = rope_with(KVC_ROPE_SCALING_NONE);
  const RopeSpec expected = make_rope(rope, "rope->", 64);
  rope.num_sections = 1;
  EXPECT_EQ(make_rope(rope, "rope->", 64), expected);
  rope.sections[0] = 32;
  EXPECT_EQ(make_rope(rope, "rope->", 64), expected);
}

TEST(Rope, SharesAnIndexExactlyWhenAllTurnsAreEqual) {
  std::vector<RopeSpec> ropes;
  EXPECT_EQ(shared_rope_index(ropes, RopeSpec{}), -1);
  EXPECT_TRUE(ropes.empty());
  const RopeSpec first = make_rope(llama31(), "rope->", 128);
  EXPECT_EQ(shared_rope_index(ropes, first), 0);
  EXPECT_EQ(shared_rope_index(ropes, make_rope(llama31(), "rope->", 128)), 0);
  kvc_rope other = llama31();
  other.attention_factor = 1.5;
  EXPECT_EQ(shared_rope_index(ropes, make_rope(other, "rope->", 128)), 1);
  RopeSpec behind_a_latent = first;
  behind_a_latent.begin = 512;
  EXPECT_EQ(shared_rope_index(ropes, behind_a_latent), 2);
  EXPECT_EQ(shared_rope_index(ropes, first), 0);
}

TEST(Rope, RefusesUnknownValuesByName) {
  const kvc_rope rope = rope_with(KVC_ROPE_SCALING_NONE);
  const auto refused = [&](const char* field, const char* value,
                           const std::function<void(kvc_rope&)>& change) {
    expect_refused(rope, KVC_E_UNSUPPORTED, field, value, change);
  };
  refused("mode", "= 3", [](kvc_rope& r) { r.mode = 3; });
  refused("mode", "= -1", [](kvc_rope& r) { r.mode = -1; });
  refused("style", "= 2", [](kvc_rope& r) { r.style = 2; });
  refused("scaling", "= 4", [](kvc_rope& r) { r.scaling = 4; });
  refused("scaling", "= -1", [](kvc_rope& r) { r.scaling = -1; });
  refused("section_layout", "= 2", [](kvc_rope& r) { r.section_layout = 2; });
  refused("reserved", "= 7", [](kvc_rope& r) { r.reserved = 7; });
  refused("reserved", "= 7", [](kvc_rope& r) { r.mode = KVC_ROPE_NONE, r.reserved = 7; });
  refused("num_sections", "= 2", [](kvc_rope& r) {
    r.mode = KVC_ROPE_ON_READ;
    r.num_sections = r.sections[0] = r.sections[1] = 2;
  });
}

TEST(Rope, AcceptsRotationOnRead) {
  kvc_rope rope = rope_with(KVC_ROPE_SCALING_NONE);
  rope.mode = KVC_ROPE_ON_READ;
  EXPECT_EQ(make_rope(rope, "rope->", 8).mode, KVC_ROPE_ON_READ);
}

TEST(Rope, WithoutModeMustBeEmpty) {
  const std::pair<const char*, std::function<void(kvc_rope&)>> changes[] = {
      {"style = 1", [](kvc_rope& r) { r.style = 1; }},
      {"rotary_dim = 4", [](kvc_rope& r) { r.rotary_dim = 4; }},
      {"num_freq_factors = 4", [](kvc_rope& r) { r.num_freq_factors = 4; }},
      {"theta = 10000", [](kvc_rope& r) { r.theta = 10000; }},
      {"theta = nan", [](kvc_rope& r) { r.theta = std::numeric_limits<double>::quiet_NaN(); }},
      {"scale = 2", [](kvc_rope& r) { r.scale = 2; }},
      {"freq_factors is set", [](kvc_rope& r) { r.freq_factors = kShort.data(); }},
      {"scaling = 2", [](kvc_rope& r) { r.scaling = KVC_ROPE_SCALING_YARN; }},
      {"num_sections = 3", [](kvc_rope& r) { r.num_sections = 3; }},
      {"sections[0] = 5", [](kvc_rope& r) { r.sections[0] = 5; }},
      {"sections[1] = 5", [](kvc_rope& r) { r.sections[1] = 5; }},
      {"sections[2] = 5", [](kvc_rope& r) { r.sections[2] = 5; }},
      {"sections[3] = 5", [](kvc_rope& r) { r.sections[3] = 5; }},
      {"section_layout = 1", [](kvc_rope& r) { r.section_layout = 1; }},
      {"factor = 8", [](kvc_rope& r) { r.factor = 8; }},
      {"low_freq_factor = 1", [](kvc_rope& r) { r.low_freq_factor = 1; }},
      {"high_freq_factor = 4", [](kvc_rope& r) { r.high_freq_factor = 4; }},
      {"beta_fast = 32", [](kvc_rope& r) { r.beta_fast = 32; }},
      {"beta_slow = 1", [](kvc_rope& r) { r.beta_slow = 1; }},
      {"attention_factor = 1", [](kvc_rope& r) { r.attention_factor = 1; }},
      {"original_context = 4096", [](kvc_rope& r) { r.original_context = 4096; }},
      {"long_freq_factors is set", [](kvc_rope& r) { r.long_freq_factors = kLong.data(); }},
  };
  for (const auto& [shown, change] : changes)
    expect_refused(kvc_rope{}, KVC_E_INVALID_ARGUMENT, "mode = NONE (0)", shown, change);
}

TEST(Rope, RefusesFieldsThatTheScalingDoesNotUse) {
  const auto refused =
      [](const kvc_rope& rope, const char* scaling,
         std::vector<std::pair<const char*, std::function<void(kvc_rope&)>>> changes) {
        for (const auto& [shown, change] : changes)
          expect_refused(rope, KVC_E_INVALID_ARGUMENT, shown, std::string("scaling = ") + scaling,
                         change);
      };
  const auto factor = [](kvc_rope& r) { r.factor = 8; };
  const auto low = [](kvc_rope& r) { r.low_freq_factor = 1; };
  const auto high = [](kvc_rope& r) { r.high_freq_factor = 4; };
  const auto fast = [](kvc_rope& r) { r.beta_fast = 32; };
  const auto slow = [](kvc_rope& r) { r.beta_slow = 1; };
  const auto context = [](kvc_rope& r) { r.original_context = 4096; };
  const auto longs = [](kvc_rope& r) { r.long_freq_factors = kLong.data(); };
  refused(rope_with(KVC_ROPE_SCALING_NONE), "NONE (0)",
          {{"factor = 8", factor},
           {"low_freq_factor = 1", low},
           {"high_freq_factor = 4", high},
           {"beta_fast = 32", fast},
           {"beta_slow = 1", slow},
           {"original_context = 4096", context},
           {"long_freq_factors is set", longs}});
  refused(llama31(), "LLAMA3 (1)",
          {{"beta_fast = 32", fast}, {"beta_slow = 1", slow}, {"long_freq_factors is set", longs}});
  refused(yarn(10000, 4, 4096), "YARN (2)",
          {{"low_freq_factor = 1", low},
           {"high_freq_factor = 4", high},
           {"long_freq_factors is set", longs}});
  refused(longrope(), "LONGROPE (3)",
          {{"low_freq_factor = 1", low},
           {"high_freq_factor = 4", high},
           {"beta_fast = 32", fast},
           {"beta_slow = 1", slow}});
}

TEST(Rope, RefusesValuesBeyondTheirLimits) {
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const kvc_rope none = rope_with(KVC_ROPE_SCALING_NONE);
  const kvc_rope ramp = yarn(10000, 4, 4096);
  const auto range = [](const kvc_rope& rope, const char* field, const char* value,
                        const std::function<void(kvc_rope&)>& change) {
    expect_refused(rope, KVC_E_OUT_OF_RANGE, field, value, change);
  };
  range(none, "rotary_dim", "= 10", [](kvc_rope& r) { r.rotary_dim = 10; });
  range(none, "rotary_dim", "= -2", [](kvc_rope& r) { r.rotary_dim = -2; });
  range(none, "theta", "= -1", [](kvc_rope& r) { r.theta = -1; });
  range(none, "theta", "= nan", [&](kvc_rope& r) { r.theta = nan; });
  range(none, "theta", "= inf", [&](kvc_rope& r) { r.theta = inf; });
  range(none, "scale", "= inf", [&](kvc_rope& r) { r.scale = inf; });
  range(none, "scale", "= nan", [&](kvc_rope& r) { r.scale = nan; });
  range(none, "theta", "scale = 1e+300", [](kvc_rope& r) { r.scale = 1e300; });
  range(none, "attention_factor", "= -1", [](kvc_rope& r) { r.attention_factor = -1; });
  range(none, "attention_factor", "= nan", [&](kvc_rope& r) { r.attention_factor = nan; });
  range(none, "attention_factor", "= 1e+200", [](kvc_rope& r) { r.attention_factor = 1e200; });
  range(llama31(), "factor", "= 0", [](kvc_rope& r) { r.factor = 0; });
  range(llama31(), "factor", "= -8", [](kvc_rope& r) { r.factor = -8; });
  range(llama31(), "low_freq_factor", "= -1", [](kvc_rope& r) { r.low_freq_factor = -1; });
  range(llama31(), "high_freq_factor", "= inf", [&](kvc_rope& r) { r.high_freq_factor = inf; });
  range(llama31(), "original_context", "= 0", [](kvc_rope& r) { r.original_context = 0; });
  range(ramp, "original_context", "= -4096", [](kvc_rope& r) { r.original_context = -4096; });
  range(ramp, "original_context", "= 2147483648",
        [](kvc_rope& r) { r.original_context = int64_t{1} << 31; });
  range(ramp, "factor", "= nan", [&](kvc_rope& r) { r.factor = nan; });
  range(ramp, "beta_fast", "= -32", [](kvc_rope& r) { r.beta_fast = -32; });
  range(ramp, "beta_slow", "= -1", [](kvc_rope& r) { r.beta_slow = -1; });
  range(ramp, "theta", "= 1,", [](kvc_rope& r) { r.theta = 1; });
  range(longrope(), "factor", "= -2", [](kvc_rope& r) { r.factor = -2; });
  range(longrope(), "original_context", "= 0", [](kvc_rope& r) { r.original_context = 0; });
  range(longrope(), "original_context", "= 1",
        [](kvc_rope& r) { r.original_context = 1, r.factor = 2; });
  const std::vector<float> bad{1, 1, 0, 1};
  range(longrope(), "freq_factors[2]", "= 0", [&](kvc_rope& r) { r.freq_factors = bad.data(); });
  range(longrope(), "long_freq_factors[2]", "= 0",
        [&](kvc_rope& r) { r.long_freq_factors = bad.data(); });
}

TEST(Rope, RefusesContradictions) {
  const kvc_rope none = rope_with(KVC_ROPE_SCALING_NONE);
  const auto invalid = [](const kvc_rope& rope, const char* field, const char* value,
                          const std::function<void(kvc_rope&)>& change) {
    expect_refused(rope, KVC_E_INVALID_ARGUMENT, field, value, change);
  };
  invalid(none, "rotary_dim", "= 3", [](kvc_rope& r) { r.rotary_dim = 3; });
  invalid(none, "num_freq_factors", "= 3",
          [](kvc_rope& r) { r.num_freq_factors = 3, r.freq_factors = kShort.data(); });
  invalid(none, "freq_factors is NULL", "= 4", [](kvc_rope& r) { r.num_freq_factors = 4; });
  invalid(none, "freq_factors is set", "= 0", [](kvc_rope& r) { r.freq_factors = kShort.data(); });
  invalid(llama31(), "high_freq_factor = 4", "low_freq_factor = 4",
          [](kvc_rope& r) { r.low_freq_factor = 4; });
  invalid(yarn(10000, 4, 4096), "beta_fast = 2", "beta_slow = 3",
          [](kvc_rope& r) { r.beta_fast = 2, r.beta_slow = 3; });
  invalid(longrope(), "long_freq_factors is NULL", "LONGROPE",
          [](kvc_rope& r) { r.long_freq_factors = nullptr; });
  invalid(longrope(), "freq_factors is NULL", "LONGROPE",
          [](kvc_rope& r) { r.freq_factors = nullptr, r.num_freq_factors = 0; });
}

TEST(Rope, RefusesSectionsThatDoNotFit) {
  const kvc_rope rope = rope_with(KVC_ROPE_SCALING_NONE);
  const auto refused = [&](kvc_status status, const char* field, const char* value,
                           const std::function<void(kvc_rope&)>& change) {
    expect_refused(rope, status, field, value, change);
  };
  const auto three = [](kvc_rope& r, int32_t a, int32_t b, int32_t c) {
    r.num_sections = 3;
    r.sections[0] = a, r.sections[1] = b, r.sections[2] = c;
  };
  refused(KVC_E_OUT_OF_RANGE, "num_sections", "= 5", [](kvc_rope& r) { r.num_sections = 5; });
  refused(KVC_E_OUT_OF_RANGE, "num_sections", "= -1", [](kvc_rope& r) { r.num_sections = -1; });
  refused(KVC_E_INVALID_ARGUMENT, "sections", "sum to 3", [&](kvc_rope& r) { three(r, 1, 1, 1); });
  refused(KVC_E_INVALID_ARGUMENT, "sections", "sum to 5", [&](kvc_rope& r) { three(r, 2, 2, 1); });
  refused(KVC_E_OUT_OF_RANGE, "sections[1]", "= -1", [&](kvc_rope& r) { three(r, 3, -1, 2); });
  refused(KVC_E_INVALID_ARGUMENT, "sections[3]", "= 1",
          [&](kvc_rope& r) { three(r, 2, 1, 1), r.sections[3] = 1; });
  refused(KVC_E_INVALID_ARGUMENT, "sections[0]", "= 4", [](kvc_rope& r) { r.sections[0] = 4; });
  refused(KVC_E_INVALID_ARGUMENT, "sections[0]", "= 3",
          [](kvc_rope& r) { r.num_sections = 1, r.sections[0] = 3; });
  refused(KVC_E_INVALID_ARGUMENT, "section_layout", "num_sections = 0",
          [](kvc_rope& r) { r.section_layout = KVC_ROPE_SECTIONS_INTERLEAVED; });
  refused(KVC_E_INVALID_ARGUMENT, "sections[1]", "= 3", [&](kvc_rope& r) {
    three(r, 1, 3, 0);
    r.section_layout = KVC_ROPE_SECTIONS_INTERLEAVED;
  });
}

}  // namespace
}  // namespace kvc
