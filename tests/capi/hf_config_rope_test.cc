// The rotations that kvc_config_from_hf_json reads.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <string>

#include "tests/capi/hf_config.h"

namespace kvc::test {
namespace {

// A small Llama with these fields beside its own.
std::string llama_with(const std::string& fields) {
  return R"({"model_type": "llama", "hidden_size": 256, "num_attention_heads": 4,
      "num_hidden_layers": 2,
             "max_position_embeddings": 4096, )" +
         fields + "}";
}

TEST(HfConfigRope, ThetaStyleAndRotatedShareAreThoseOfTheModel) {
  struct Fact {
    const char* name;
    size_t layer;
    double theta;
    int32_t rotary_dim;
    kvc_rope_style style;
  };
  const Fact facts[] = {
      {"llama-2-7b", 0, 10000, 128, KVC_ROPE_HALF},
      {"llama-3.1-8b", 0, 500000, 128, KVC_ROPE_HALF},
      {"llama-4-scout", 0, 500000, 128, KVC_ROPE_INTERLEAVED},
      {"mixtral-8x7b", 0, 1e6, 128, KVC_ROPE_HALF},
      {"qwen3-8b", 0, 1e6, 128, KVC_ROPE_HALF},
      {"qwen3-next-80b", 3, 1e7, 64, KVC_ROPE_HALF},
      {"gemma-3-27b", 0, 1e4, 128, KVC_ROPE_HALF},
      {"gemma-3-27b", 5, 1e6, 128, KVC_ROPE_HALF},
      {"gemma-3n-e4b", 0, 1e4, 256, KVC_ROPE_HALF},
      {"gemma-3n-e4b", 4, 1e6, 256, KVC_ROPE_HALF},
      {"gemma-4-31b", 0, 1e4, 256, KVC_ROPE_HALF},
      {"gemma-4-31b", 5, 1e6, 512, KVC_ROPE_HALF},
      {"deepseek-v3", 0, 1e4, 64, KVC_ROPE_INTERLEAVED},
      {"glm-4-9b-0414", 0, 1e4, 64, KVC_ROPE_INTERLEAVED},
      {"glm-4-9b-chat", 0, 5e6, 64, KVC_ROPE_INTERLEAVED},
      {"command-r7b", 0, 50000, 128, KVC_ROPE_INTERLEAVED},
      {"mimo-v2-flash", 0, 5e6, 64, KVC_ROPE_HALF},
      {"mimo-v2-flash", 1, 1e4, 64, KVC_ROPE_HALF},
      {"granite-3.3-8b", 0, 1e7, 128, KVC_ROPE_HALF},
      {"falcon-7b", 0, 1e4, 64, KVC_ROPE_HALF},
      {"pythia-6.9b", 0, 1e4, 32, KVC_ROPE_HALF},
      {"gpt-j-6b", 0, 1e4, 64, KVC_ROPE_INTERLEAVED},
      {"falcon-h1-7b", 0, 1e11, 128, KVC_ROPE_HALF},
      {"bamba-9b", 9, 1e4, 64, KVC_ROPE_HALF},
      {"lfm2-1.2b", 2, 1e6, 64, KVC_ROPE_HALF},
  };
  for (const Fact& fact : facts) {
    SCOPED_TRACE(std::string(fact.name) + " layer " + std::to_string(fact.layer));
    Loaded model(fact.name);
    const kvc_rope& rope = model.rope(fact.layer);
    EXPECT_EQ(rope.mode, KVC_ROPE_ON_APPEND);
    EXPECT_DOUBLE_EQ(rope.theta, fact.theta);
    EXPECT_EQ(rope.rotary_dim, fact.rotary_dim);
    EXPECT_EQ(rope.style, fact.style);
  }
}

TEST(HfConfigRope, LayersThatDoNotRotateHaveNoRope) {
  const std::pair<const char*, size_t> layers[] = {{"llama-4-scout", 3},
                                                   {"command-r7b", 3},
                                                   {"bloom-7b1", 0},
                                                   {"mpt-7b", 0},
                                                   {"gpt2", 0},
                                                   {"opt-6.7b", 0},
                                                   {"jamba-v0.1", 4},
                                                   {"zamba2-2.7b", 6},
                                                   {"nemotron-h-8b", 7},
                                                   {"t5-large", 0},
                                                   {"whisper-large-v3", 0},
                                                   {"granite-4.0-h-small", 5},
                                                   {"llama-3.2-11b-vision", 3}};
  for (const auto& [name, layer] : layers)
    EXPECT_EQ(Loaded(name).layer(layer).rope, nullptr) << name;
}

TEST(HfConfigRope, LayersThatRotateAlikeShareOneRope) {
  Loaded model("gemma-3-27b");
  EXPECT_EQ(model.layer(0).rope, model.layer(1).rope);
  EXPECT_EQ(model.layer(5).rope, model.layer(11).rope);
  EXPECT_NE(model.layer(0).rope, model.layer(5).rope);
}

TEST(HfConfigRope, LinearScalingIsForFullLayersOfGemma3) {
  Loaded model("gemma-3-27b");
  EXPECT_DOUBLE_EQ(model.rope(5).scale, 1.0 / 8);
  EXPECT_EQ(model.rope(0).scale, 0);
}

TEST(HfConfigRope, Llama3Scaling) {
  Loaded model("llama-3.1-8b");
  const kvc_rope& rope = model.rope(0);
  EXPECT_EQ(rope.scaling, KVC_ROPE_SCALING_LLAMA3);
  EXPECT_EQ(rope.factor, 8);
  EXPECT_EQ(rope.low_freq_factor, 1);
  EXPECT_EQ(rope.high_freq_factor, 4);
  EXPECT_EQ(rope.original_context, 8192);
}

TEST(HfConfigRope, Llama4sEqualEndsBecomeAStep) {
  Loaded model("llama-4-scout");
  const kvc_rope& rope = model.rope(0);
  EXPECT_EQ(rope.scaling, KVC_ROPE_SCALING_NONE);
  ASSERT_EQ(rope.num_freq_factors, 64);
  for (int i = 0; i < 64; ++i) {
    const double wave = 2 * std::numbers::pi * std::pow(500000.0, 2.0 * i / 128);
    EXPECT_EQ(rope.freq_factors[i], wave > 8192 ? 16.0f : 1.0f) << i;
  }
}

TEST(HfConfigRope, YarnWithRoundedEnds) {
  Loaded model("deepseek-v3");
  const kvc_rope& rope = model.rope(0);
  EXPECT_EQ(rope.scaling, KVC_ROPE_SCALING_YARN);
  EXPECT_EQ(rope.factor, 40);
  EXPECT_EQ(rope.beta_fast, 32);
  EXPECT_EQ(rope.beta_slow, 1);
  EXPECT_EQ(rope.original_context, 4096);
  EXPECT_DOUBLE_EQ(rope.attention_factor, 1) << "mscale and mscale_all_dim cancel";
  Loaded qwen("qwen2.5-7b");
  EXPECT_DOUBLE_EQ(qwen.rope(0).attention_factor, 0.1 * std::log(4.0) + 1);
  EXPECT_EQ(qwen.config.max_seq_len, 131072) << "what YaRN stretches 32768 to";
}

TEST(HfConfigRope, YarnIsForFullLayersOfOlmo3) {
  Loaded model("olmo-3-7b");
  EXPECT_EQ(model.rope(0).scaling, KVC_ROPE_SCALING_NONE);
  EXPECT_EQ(model.rope(3).scaling, KVC_ROPE_SCALING_YARN);
  EXPECT_DOUBLE_EQ(model.rope(3).attention_factor, 1.2079441541679836);
}

TEST(HfConfigRope, YarnWithoutRoundingBecomesFactorsPerFrequency) {
  Loaded model("gpt-oss-20b");
  const kvc_rope& rope = model.rope(0);
  EXPECT_EQ(rope.scaling, KVC_ROPE_SCALING_NONE);
  ASSERT_EQ(rope.num_freq_factors, 32);
  EXPECT_DOUBLE_EQ(rope.attention_factor, 0.1 * std::log(32.0) + 1);
  // Ends of the ramp by hand: 64 ln(4096 / (turns 2 pi)) / (2 ln 150000) is 8.0928 for 32 turns and
  // 17.3980 for one.
  EXPECT_EQ(rope.freq_factors[8], 1);
  EXPECT_EQ(rope.freq_factors[18], 32);
  const double stretched = (12 - 8.0928) / (17.3980 - 8.0928);
  EXPECT_NEAR(rope.freq_factors[12], 1 / (1 - stretched + stretched / 32), 1e-3);
}

TEST(HfConfigRope, LongRopeHasBothListsAndTheGrowthOfTheContext) {
  Loaded model("phi-3-mini-128k");
  const kvc_rope& rope = model.rope(0);
  EXPECT_EQ(rope.scaling, KVC_ROPE_SCALING_LONGROPE);
  ASSERT_EQ(rope.num_freq_factors, 48);
  EXPECT_EQ(rope.freq_factors[1], 1.045f);
  EXPECT_NEAR(rope.long_freq_factors[2], 1.08f + 2.6f, 1e-5);
  EXPECT_EQ(rope.original_context, 4096);
  EXPECT_EQ(rope.factor, 32);
}

TEST(HfConfigRope, PositionsInSections) {
  Loaded qwen2("qwen2-vl-7b");
  EXPECT_EQ(qwen2.rope(0).num_sections, 3);
  EXPECT_EQ(qwen2.rope(0).sections[1], 24);
  EXPECT_EQ(qwen2.rope(0).section_layout, KVC_ROPE_SECTIONS_CONTIGUOUS);
  Loaded qwen3("qwen3-vl-8b");
  EXPECT_EQ(qwen3.rope(0).sections[0], 24);
  EXPECT_EQ(qwen3.rope(0).section_layout, KVC_ROPE_SECTIONS_INTERLEAVED);
  Loaded qwen35("qwen3.5-27b");
  EXPECT_EQ(qwen35.rope(3).rotary_dim, 64);
  EXPECT_EQ(qwen35.rope(3).sections[2], 10);
}

TEST(HfConfigRope, ProportionalRotationTurnsTheFirstPairsAtFullWidth) {
  Loaded model("gemma-4-31b");
  const kvc_rope& rope = model.rope(5);
  ASSERT_EQ(rope.num_freq_factors, 256);
  EXPECT_EQ(rope.freq_factors[0], 1);
  EXPECT_EQ(rope.freq_factors[63], 1);
  EXPECT_EQ(rope.freq_factors[64], 1e30f) << "stands still";
}

TEST(HfConfigRope, NewAndOldSpellingMeanTheSame) {
  HfModel old_way(
      llama_with(R"("rope_theta": 500000, "rope_scaling": {"type": "linear", "factor": 4})"));
  HfModel new_way(
      llama_with(R"("rope_parameters": {"rope_type": "linear", "factor": 4, "rope_theta": 5e5})"));
  for (HfModel* model : {&old_way, &new_way}) {
    ASSERT_EQ(model->status, KVC_OK) << model->message;
    EXPECT_DOUBLE_EQ(model->rope(0).theta, 500000);
    EXPECT_DOUBLE_EQ(model->rope(0).scale, 0.25);
  }
}

TEST(HfConfigRope, AScalingThatChangesWithTheLengthIsLeftToTheModelWithOneLine) {
  const Lines lines;
  HfModel model(llama_with(R"("rope_scaling": {"type": "dynamic", "factor": 2.0})"));
  ASSERT_EQ(model.status, KVC_OK) << model.message;
  for (size_t i = 0; i < model.num_layers(); ++i) EXPECT_EQ(model.layer(i).rope, nullptr);
  HfModel plain(llama_with(R"("rope_theta": 10000.0)"));
  EXPECT_EQ(model.config.max_seq_len, 2 * plain.config.max_seq_len);
  EXPECT_EQ(model.kinds(), plain.kinds());
  ASSERT_EQ(lines.all().size(), 1u);
  EXPECT_EQ(lines.all()[0], "rope_scaling.type = 'dynamic': rotations are left to the model");
  HfModel wrong(llama_with(R"("rope_scaling": {"type": "dynamic", "factor": -2.0})"));
  EXPECT_NE(wrong.status, KVC_OK);
  EXPECT_NE(wrong.message.find("rope_scaling.factor = -2"), std::string::npos) << wrong.message;
  HfModel missing(llama_with(R"("rope_scaling": {"type": "dynamic"})"));
  EXPECT_EQ(missing.status, KVC_E_INVALID_ARGUMENT);
  EXPECT_NE(missing.message.find("rope_scaling.factor is missing"), std::string::npos);
}

TEST(HfConfigRope, NumbersThatMakeNoRotationAreRefused) {
  const std::pair<const char*, const char*> bad[] = {
      {R"("rope_theta": 0)", "rope_theta = 0"},
      {R"("rope_theta": -1)", "rope_theta = -1"},
      {R"("rope_theta": "big")", "rope_theta is a string"},
      {R"("partial_rotary_factor": 2)", "partial_rotary_factor = 2"},
      {R"("rope_scaling": {"type": "linear"})", "rope_scaling.factor is missing"},
      {R"("rope_scaling": {"type": "linear", "factor": 0})", "rope_scaling.factor = 0"},
      {R"("rope_scaling": {"type": "linear", "factor": "8"})", "rope_scaling.factor is a string"},
      {R"("rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4,
          "high_freq_factor": 1})",
       "high_freq_factor"},
      {R"("rope_scaling": {"type": "longrope", "short_factor": [1], "long_factor": [1]})",
       "rope_scaling.short_factor has 1 numbers, expected 32"},
      {R"("rope_scaling": {"type": "mrope", "mrope_section": [1, 2, 3, 4, 5]})",
       "mrope_section has 5 numbers"},
      {R"("rope_scaling": {"type": "mrope", "mrope_section": [1, 2, 3]})", "sections"},
      {R"("rope_scaling": {"type": "yarn", "factor": 1e300})", "rope_scaling.factor = 1e+300"},
      {R"("rope_scaling": [1])", "rope_scaling is an array, expected an object"},
  };
  for (const auto& [fields, part] : bad) {
    HfModel model(llama_with(fields));
    EXPECT_NE(model.status, KVC_OK) << fields;
    EXPECT_NE(model.message.find(part), std::string::npos)
        << fields << " gives '" << model.message << "'";
  }
}

}  // namespace
}  // namespace kvc::test
