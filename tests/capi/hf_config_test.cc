// kvc_config_from_hf_json: what each family keeps, field by field, and that it can be planned.
#include "tests/capi/hf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace kvc::test {
namespace {

TEST(HfConfig, EveryFileOfTheFolderIsReadAndCanBePlanned) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(hf_config_folder())) {
    const std::string name = entry.path().stem().string();
    SCOPED_TRACE(name);
    Loaded model(name);
    if (model.status != KVC_OK) continue;
    ++files;
    kvc_error error{};
    kvc_plan* plan = model.plan(&error);
    ASSERT_NE(plan, nullptr) << error.message;
    kvc_plan_info info{};
    info.struct_size = sizeof info;
    EXPECT_EQ(kvc_plan_info_get(plan, &info, nullptr), KVC_OK);
    EXPECT_EQ(info.num_layers, model.config.num_layers);
    EXPECT_GT(info.bytes_per_token + info.state_slot_bytes, 0u);
    kvc_plan_destroy(plan);
  }
  EXPECT_GE(files, 49);
}

// What it takes to write a family down: the letters of its layers, then heads and longest context.
struct Family {
  const char* name;
  std::string kinds;
  const char* heads;  // of the first layer that has some
  int64_t max_seq_len;
};

std::string jamba() { return times(4, "SSSSASSS"); }
std::string zamba2() {
  std::string out;
  for (int i = 0; i < 54; ++i) {
    const bool hybrid = (i != 0 && i % 6 == 0 && i <= 42) || i == 47 || i == 51;
    out += hybrid ? "AS" : "S";
  }
  return out;
}

const Family kFamilies[] = {
    {"llama-2-7b", times(32, "A"), "32/32 heads of 128/128 float16", 4096},
    {"llama-3.1-8b", times(32, "A"), "32/8 heads of 128/128 bfloat16", 131072},
    {"llama-4-scout", times(12, "KKKA"), "40/8 heads of 128/128 bfloat16", 10485760},
    {"llama-3.2-11b-vision", "AAAC" + times(7, "AAAAC") + "A", "32/8 heads of 128/128 bfloat16",
     131072},
    {"mistral-7b-v0.1", times(32, "W"), "32/8 heads of 128/128 bfloat16", 32768},
    {"mixtral-8x7b", times(32, "A"), "32/8 heads of 128/128 bfloat16", 32768},
    {"qwen2.5-7b", times(28, "A"), "28/4 heads of 128/128 bfloat16", 131072},
    {"qwen2-vl-7b", times(28, "A"), "28/4 heads of 128/128 bfloat16", 32768},
    {"qwen3-8b", times(36, "A"), "32/8 heads of 128/128 bfloat16", 40960},
    {"qwen3-vl-8b", times(36, "A"), "32/8 heads of 128/128 bfloat16", 262144},
    {"qwen3-next-80b", times(12, "SSSA"), "16/2 heads of 256/256 bfloat16", 262144},
    {"qwen3.5-27b", times(16, "SSSA"), "24/4 heads of 256/256 bfloat16", 262144},
    {"gemma-7b", times(28, "A"), "16/16 heads of 256/256 bfloat16", 8192},
    {"gemma-2-9b", times(21, "WA"), "16/8 heads of 256/256 float32", 8192},
    {"gemma-3-27b", times(10, "WWWWWA") + "WW", "32/16 heads of 128/128 bfloat16", 131072},
    {"gemma-3-4b", times(5, "WWWWWA") + "WWWW", "8/4 heads of 256/256 bfloat16", 131072},
    {"gemma-3n-e4b", times(4, "WWWWA") + times(15, "R"), "8/2 heads of 256/256 bfloat16", 32768},
    {"gemma-4-31b", times(10, "WWWWWA"), "32/16 heads of 256/256 bfloat16", 262144},
    {"gpt-oss-20b", times(12, "WA"), "64/8 heads of 64/64 bfloat16", 131072},
    {"deepseek-v3", times(61, "L"), "128/0 heads of 192/128 bfloat16", 163840},
    {"deepseek-v2-lite", times(27, "L"), "16/0 heads of 192/128 bfloat16", 163840},
    {"kimi-linear-48b", times(6, "SSSL") + "SSL", "32/0 heads of 192/128 bfloat16", 1048576},
    {"phi-3-mini-128k", times(32, "W"), "32/32 heads of 96/96 bfloat16", 131072},
    {"glm-4-9b-0414", times(40, "A"), "32/2 heads of 128/128 bfloat16", 32768},
    {"glm-4-9b-chat", times(40, "A"), "32/2 heads of 128/128 bfloat16", 131072},
    {"command-r7b", times(8, "WWWA"), "32/8 heads of 128/128 bfloat16", 132096},
    {"olmo-2-7b", times(32, "A"), "32/32 heads of 128/128 float32", 4096},
    {"olmo-3-7b", times(8, "WWWA"), "32/32 heads of 128/128 bfloat16", 65536},
    {"granite-3.3-8b", times(40, "A"), "32/8 heads of 128/128 bfloat16", 131072},
    {"granite-4.0-h-small", "SSSSSA" + times(3, "SSSSSSSSSA") + "SSSS",
     "32/8 heads of 128/128 bfloat16", 131072},
    {"mimo-v2-flash", "AWWWWA" + times(7, "WWWWWA"), "64/4 heads of 192/128 bfloat16", 262144},
    {"bloom-7b1", times(30, "A"), "32/32 heads of 128/128 float16", 2048},
    {"falcon-7b", times(32, "A"), "71/1 heads of 64/64 bfloat16", 2048},
    {"falcon-40b", times(60, "A"), "128/8 heads of 64/64 bfloat16", 2048},
    {"mpt-7b", times(32, "A"), "32/32 heads of 128/128 bfloat16", 2048},
    {"gpt2", times(12, "A"), "12/12 heads of 64/64 bfloat16", 1024},
    {"opt-6.7b", times(32, "A"), "32/32 heads of 128/128 float16", 2048},
    {"pythia-6.9b", times(32, "A"), "32/32 heads of 128/128 float16", 2048},
    {"gpt-j-6b", times(28, "A"), "16/16 heads of 256/256 float16", 2048},
    {"jamba-v0.1", jamba(), "32/8 heads of 128/128 bfloat16", 262144},
    {"mamba-2.8b", times(64, "S"), "", 0},
    {"mamba-codestral-7b", times(64, "S"), "", 0},
    {"zamba2-2.7b", zamba2(), "32/32 heads of 160/160 bfloat16", 4096},
    {"falcon-h1-7b", times(44, "AS"), "12/2 heads of 128/128 bfloat16", 262144},
    {"bamba-9b", "SSSSSSSSSASSSSSSSSASSSSSSSSASSSS", "32/8 heads of 128/128 bfloat16", 262144},
    {"nemotron-h-8b", "S-S-S-SA" + times(3, "-S-S-S-S-SA") + "-S-S-S-S-S-",
     "32/8 heads of 128/128 bfloat16", 8192},
    {"lfm2-1.2b", "SSASSASSASASASAS", "32/8 heads of 64/64 bfloat16", 128000},
    {"t5-large", times(24, "AC"), "16/16 heads of 64/64 bfloat16", 512},
    {"whisper-large-v3", times(32, "AC"), "20/20 heads of 64/64 float16", 448},
};

TEST(HfConfig, KindsHeadsAndContextOfEachFamilyAreThoseOfTheModel) {
  for (const Family& family : kFamilies) {
    SCOPED_TRACE(family.name);
    Loaded model(family.name);
    if (model.status != KVC_OK) continue;
    EXPECT_EQ(model.kinds(), family.kinds);
    EXPECT_EQ(model.config.max_seq_len, family.max_seq_len);
    for (size_t i = 0; i < model.num_layers(); ++i) {
      if (model.layer(i).num_q_heads == 0) continue;
      EXPECT_EQ(model.heads(i), family.heads);
      break;
    }
  }
}

TEST(HfConfig, EveryFamilyOfTheFolderHasItsFactsWrittenDownHere) {
  std::vector<std::string> files, facts;
  for (const auto& entry : std::filesystem::directory_iterator(hf_config_folder()))
    files.push_back(entry.path().stem().string());
  for (const Family& family : kFamilies) facts.emplace_back(family.name);
  EXPECT_THAT(files, testing::UnorderedElementsAreArray(facts));
}

TEST(HfConfig, WindowsAndChunksAreThoseOfTheModel) {
  const std::vector<std::pair<const char*, int64_t>> windows = {
      {"mistral-7b-v0.1", 4096},   {"gemma-2-9b", 4096},  {"gemma-3-27b", 1024},
      {"gemma-3n-e4b", 512},       {"gemma-4-31b", 1024}, {"gpt-oss-20b", 128},
      {"phi-3-mini-128k", 262144}, {"command-r7b", 4096}, {"olmo-3-7b", 4096},
      {"mimo-v2-flash", 128}};
  for (const auto& [name, window] : windows) {
    SCOPED_TRACE(name);
    Loaded model(name);
    const std::string kinds = model.kinds();
    for (size_t i = 0; i < kinds.size(); ++i)
      EXPECT_EQ(model.layer(i).window, kinds[i] == 'W' ? window : 0) << i;
  }
  Loaded scout("llama-4-scout");
  EXPECT_EQ(scout.layer(0).chunk, 8192);
  EXPECT_EQ(scout.layer(3).chunk, 0);
}

TEST(HfConfig, LayersOfOneModelMayHaveDifferentHeads) {
  Loaded gemma("gemma-4-31b");
  EXPECT_EQ(gemma.heads(0), "32/16 heads of 256/256 bfloat16");
  EXPECT_EQ(gemma.heads(5), "32/4 heads of 512/512 bfloat16");
  Loaded mimo("mimo-v2-flash");
  EXPECT_EQ(mimo.heads(0), "64/4 heads of 192/128 bfloat16");
  EXPECT_EQ(mimo.heads(1), "64/8 heads of 192/128 bfloat16");
}

TEST(HfConfig, SharedLayersReadTheLastLayerOfTheirTypeThatKeepsSomething) {
  Loaded model("gemma-3n-e4b");
  for (size_t i = 20; i < 35; ++i)
    EXPECT_EQ(model.layer(i).source_layer, (i + 1) % 5 == 0 ? 19 : 18) << i;
}

TEST(HfConfig, LatentLayersSayRankAndRotatedPart) {
  for (const char* name : {"deepseek-v3", "deepseek-v2-lite"}) {
    SCOPED_TRACE(name);
    Loaded model(name);
    EXPECT_EQ(model.layer(0).latent_rank, 512);
    EXPECT_EQ(model.layer(0).latent_rope_dim, 64);
    EXPECT_EQ(model.rope(0).style, KVC_ROPE_INTERLEAVED);
  }
  Loaded kimi("kimi-linear-48b");
  EXPECT_EQ(kimi.layer(3).latent_rank, 512);
  EXPECT_EQ(kimi.layer(3).latent_rope_dim, 64);
  EXPECT_EQ(kimi.layer(3).rope, nullptr) << "mla_use_nope";
}

TEST(HfConfig, StatesHaveTheShapesThatTheOperatorsTake) {
  const auto states = [](const char* name, size_t layer) { return Loaded(name).states(layer); };
  EXPECT_EQ(states("qwen3-next-80b", 0), "[8192, 3] bfloat16, [32, 128, 128] float32");
  EXPECT_EQ(states("qwen3.5-27b", 0), "[10240, 3] bfloat16, [48, 128, 128] float32");
  EXPECT_EQ(states("kimi-linear-48b", 0),
            "[4096, 3] bfloat16, [4096, 3] bfloat16, [4096, 3] bfloat16, [32, 128, 128] float32");
  EXPECT_EQ(states("mamba-2.8b", 0), "[5120, 3] float32, [5120, 16] float32");
  EXPECT_EQ(states("mamba-codestral-7b", 0), "[10240, 3] bfloat16, [128, 128, 64] float32");
  EXPECT_EQ(states("jamba-v0.1", 0), "[8192, 3] bfloat16, [8192, 16] float32");
  EXPECT_EQ(states("zamba2-2.7b", 0), "[5248, 3] bfloat16, [80, 64, 64] float32");
  EXPECT_EQ(states("falcon-h1-7b", 1), "[3584, 3] bfloat16, [24, 256, 128] float32");
  EXPECT_EQ(states("bamba-9b", 0), "[8448, 3] bfloat16, [128, 128, 64] float32");
  EXPECT_EQ(states("granite-4.0-h-small", 0), "[8448, 3] bfloat16, [128, 128, 64] float32");
  EXPECT_EQ(states("nemotron-h-8b", 0), "[10240, 3] bfloat16, [128, 128, 64] float32");
  EXPECT_EQ(states("lfm2-1.2b", 0), "[2048, 2] bfloat16");
}

TEST(HfConfig, TheEncodersLengthIsSetWhereItIsKnown) {
  EXPECT_EQ(Loaded("whisper-large-v3").config.max_cross_len, 1500);
  EXPECT_EQ(Loaded("t5-large").config.max_cross_len, 0);
  EXPECT_EQ(Loaded("llama-3.1-8b").config.max_cross_len, 0);
}

// Nested configurations are written without what equals the class's default; null is not a default.
TEST(HfConfig, NestedConfigurationsMayLeaveOutWhatTheirClassKnows) {
  const auto nested = [](const std::string& type, const std::string& fields) {
    return HfModel(
        R"({"model_type": "some_vl", "torch_dtype": "float16", "text_config": {"model_type": ")" +
        type + "\"" + (fields.empty() ? "" : ", " + fields) + "}}");
  };
  HfModel llama = nested("llama", "");  // LLaVA 1.5
  EXPECT_EQ(llama.kinds(), times(32, "A"));
  EXPECT_EQ(llama.heads(0), "32/32 heads of 128/128 float16");
  HfModel mistral = nested("mistral", ""),
          no_window = nested("mistral", R"("sliding_window": null)");
  EXPECT_EQ(mistral.kinds(), times(32, "W"));
  EXPECT_EQ(mistral.layer(0).window, 4096);
  EXPECT_EQ(no_window.kinds(), times(32, "A"));
  HfModel scout = nested("llama4_text", ""),
          no_chunk = nested("llama4_text", R"("attention_chunk_size": null)");
  EXPECT_EQ(scout.kinds(), times(12, "KKKA"));
  EXPECT_EQ(scout.layer(0).chunk, 8192);
  EXPECT_EQ(no_chunk.kinds(), times(48, "A"));
  EXPECT_EQ(no_chunk.layer(3).rope, nullptr);
  EXPECT_NE(no_chunk.layer(2).rope, nullptr);
  // At the top everything has to be there.
  EXPECT_EQ(HfModel(R"({"model_type": "llama"})").status, KVC_E_INVALID_ARGUMENT);
}

TEST(HfConfig, OtherFieldsOfTheConfigStayAsTheyAre) {
  HfModel model(hf_text("llama-3.1-8b"));
  kvc_config before{};
  std::memset(static_cast<void*>(&before), 0x3C, sizeof before);
  before.struct_size = sizeof before;
  kvc_config after = before;
  size_t n = model.num_elements;
  ASSERT_EQ(
      kvc_config_from_hf_json(hf_text("llama-3.1-8b").c_str(), &after, model.layers(), &n, nullptr),
      KVC_OK);
  EXPECT_EQ(after.num_layers, 32);
  EXPECT_EQ(after.layers, model.layers());
  EXPECT_EQ(after.max_seq_len, 131072);
  after.num_layers = before.num_layers;
  after.layers = before.layers;
  after.max_seq_len = before.max_seq_len;
  EXPECT_EQ(std::memcmp(&before, &after, sizeof before), 0);
}

TEST(HfConfig, LongerStructsOfTheCallerGetAZeroTail) {
  for (const char* name : {"llama-3.1-8b", "qwen3-next-80b", "phi-3-mini-128k"}) {
    SCOPED_TRACE(name);
    constexpr size_t kStride = sizeof(kvc_layer) + 40;
    HfModel model(hf_text(name), kStride);
    ASSERT_EQ(model.status, KVC_OK) << model.message;
    EXPECT_EQ(model.layer(1).struct_size, kStride);
    kvc_error error{};
    kvc_plan* plan = model.plan(&error);
    EXPECT_NE(plan, nullptr) << error.message;
    kvc_plan_destroy(plan);
  }
}

TEST(HfConfig, AShorterStructThatHoldsAllThatIsNeededIsEnough) {
  // Only STATE layers need what lies behind source_layer.
  constexpr size_t kStride =
      offsetof(kvc_layer, latent_rope_dim) + sizeof(int32_t) + sizeof(int32_t);
  HfModel model(hf_text("llama-3.1-8b"), kStride - kStride % 8);
  EXPECT_EQ(model.status, KVC_OK) << model.message;
  HfModel states(hf_text("mamba-2.8b"), kStride - kStride % 8);
  EXPECT_EQ(states.status, KVC_E_VERSION) << states.message;
}

}  // namespace
}  // namespace kvc::test
