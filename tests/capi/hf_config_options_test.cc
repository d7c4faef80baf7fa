// What callers of kvc_config_from_hf say beside the file.
#include <gtest/gtest.h>

#include <cstring>
#include <initializer_list>
#include <string>

#include "tests/capi/hf_config.h"

namespace kvc::test {
namespace {

kvc_hf_options assuming(const char* family) {
  kvc_hf_options options{};
  options.struct_size = sizeof options;
  options.assume = family;
  return options;
}

struct Assumed : HfModel {
  Assumed(const std::string& json, const char* family) : Assumed(json, assuming(family)) {}
  Assumed(const std::string& json, const kvc_hf_options& options)
      : HfModel(json, sizeof(kvc_layer), &options) {
    EXPECT_EQ(status, KVC_OK) << message;
  }
};

// A family that nobody knows, with a key that no rule reads.
std::string strange(const std::string& fields = "", const std::string& name = "novel_lm") {
  return R"({"model_type": ")" + name + R"(", "num_hidden_layers": 8, "num_attention_heads": 8,
      "num_key_value_heads": 2, "head_dim": 64, "hidden_size": 512, "kv_groups_map": 3)" +
         fields + "}";
}

void refused(const std::string& json, const kvc_hf_options& options, kvc_status status,
             std::initializer_list<const char*> parts) {
  SCOPED_TRACE(json);
  kvc_config config{};
  (void)kvc_config_init(&config, sizeof config);
  size_t n = 7;
  expect_error(status, parts, [&](kvc_error* err) {
    return kvc_config_from_hf(json.c_str(), &options, &config, nullptr, &n, err);
  });
  EXPECT_EQ(n, 7u);
  EXPECT_EQ(config.layers, nullptr);
}

TEST(HfConfigOptions, NoOptionsAndOptionsOfZeroReadTheFileAsItIs) {
  for (const char* name : {"llama-3.1-8b", "gemma-3-4b", "qwen3-next-80b"}) {
    Loaded plain(name);
    const kvc_hf_options zero = assuming(nullptr);
    HfModel same(hf_text(name), sizeof(kvc_layer), &zero);
    ASSERT_EQ(same.status, KVC_OK) << same.message;
    EXPECT_EQ(same.kinds(), plain.kinds());
    EXPECT_EQ(same.num_elements, plain.num_elements);
    size_t n = 0;
    EXPECT_EQ(
        kvc_config_from_hf(hf_text(name).c_str(), nullptr, &same.config, nullptr, &n, nullptr),
        KVC_OK);
    EXPECT_EQ(n, plain.num_elements);
  }
}

TEST(HfConfigOptions, AnUnknownFamilyIsReadByTheRulesOfAnotherWithOneLine) {
  refused(strange(), assuming(nullptr), KVC_E_UNSUPPORTED, {"kv_groups_map"});
  const Lines lines;
  Assumed model(strange(R"(, "rope_theta": 500000.0)"), "llama");
  EXPECT_EQ(model.kinds(), "AAAAAAAA");
  EXPECT_EQ(model.heads(0), "8/2 heads of 64/64 bfloat16");
  EXPECT_EQ(model.rope(0).theta, 500000) << "it rotates as the assumed family does";
  ASSERT_EQ(lines.all().size(), 1u) << "the call that only counts says nothing";
  EXPECT_EQ(lines.all()[0],
            "model_type 'novel_lm' is read as 'llama': layers and windows that only the former has "
            "are not counted");
}

TEST(HfConfigOptions, AFamilyThatIsRefusedOrHasNoNameMayBeAssumedToBeAnother) {
  const Lines lines;
  Assumed indexed(strange(R"(, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16,
      "v_head_dim": 32)",
                          "glm_moe_dsa"),
                  "deepseek_v3");
  EXPECT_EQ(indexed.kinds(), "LLLLLLLL");
  Assumed nameless(R"({"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64})",
                   "llama");
  EXPECT_EQ(nameless.kinds(), "AA");
  Assumed nested(R"({"model_type": "minimax_m3_vl", "text_config": )" + strange() + "}", "llama");
  EXPECT_EQ(nested.kinds(), "AAAAAAAA");
  ASSERT_EQ(lines.all().size(), 3u);
  EXPECT_EQ(lines.all()[1].find("no model_type is read as 'llama'"), 0u) << lines.all()[1];
  EXPECT_NE(lines.all()[2].find("'novel_lm' is read as 'llama'"), std::string::npos);
}

TEST(HfConfigOptions, ListsOfLayersAndPatternsOfWindowsDecideUnderAssumedRulesToo) {
  const std::string window = R"(, "sliding_window": 4096)";
  EXPECT_EQ(Assumed(strange(window), "llama").kinds(), "AAAAAAAA")
      << "without a list or a pattern, the assumed family has no windows";
  // EXAONE 4's configuration under a name that nobody knows.
  Assumed exaone(strange(window + R"(, "sliding_window_pattern": "LLLG")"), "llama");
  EXPECT_EQ(exaone.kinds(), "WWWAWWWA");
  EXPECT_EQ(exaone.layer(0).window, 4096);
  EXPECT_EQ(exaone.layer(3).window, 0);
  EXPECT_EQ(Assumed(strange(window + R"(, "sliding_window_pattern": 4)"), "mistral").kinds(),
            "WWWAWWWA")
      << "all layers of Mistral slide, but a pattern says more";
  EXPECT_EQ(Assumed(strange(window + R"(, "layers_block_type": ["sliding_attention",
      "full_attention", "full_attention", "full_attention", "full_attention", "full_attention",
      "full_attention", "sliding_attention"])"),
                    "qwen3")
                .kinds(),
            "WAAAAAAW");
  EXPECT_EQ(Assumed(strange(R"(, "attn_type_list": [1, 1, 1, 1, 1, 1, 1, 1])"), "llama").kinds(),
            "AAAAAAAA");
  // MiniMax: seven of eight layers have states, which llama knows nothing of.
  refused(strange(R"(, "attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1])"), assuming("llama"),
          KVC_E_UNSUPPORTED, {"attn_type_list[0]", "no layers of"});
  refused(strange(R"(, "layer_types": ["linear_attention", "full_attention", "full_attention",
      "full_attention", "full_attention", "full_attention", "full_attention", "full_attention"])"),
          assuming("llama"), KVC_E_UNSUPPORTED, {"layer_types[0]", "no layers of"});
  refused(strange(R"(, "attn_type_list": [1, 1])"), assuming("llama"), KVC_E_INVALID_ARGUMENT,
          {"attn_type_list", "2 entries", "8"});
  refused(strange(R"(, "layer_types": ["full_attention"])"), assuming("llama"),
          KVC_E_INVALID_ARGUMENT, {"layer_types", "1 entries", "8"});
  refused(strange(window + R"(, "sliding_window_pattern": "LLXG")"), assuming("llama"),
          KVC_E_UNSUPPORTED, {"sliding_window_pattern", "'X'"});
}

TEST(HfConfigOptions, WrongOptionsAreRefusedByName) {
  refused(strange(), assuming("lama"), KVC_E_INVALID_ARGUMENT,
          {"opt->assume = 'lama'", "a known one is 'llama'"});
  refused(strange(), assuming(""), KVC_E_INVALID_ARGUMENT, {"opt->assume = ''"});
  refused(strange(), assuming("deepseek_v32"), KVC_E_INVALID_ARGUMENT,
          {"opt->assume = 'deepseek_v32'", "deepseek_v3"});
  refused(hf_text("llama-3.1-8b"), assuming("qwen2"), KVC_E_INVALID_ARGUMENT,
          {"opt->assume = 'qwen2'", "'llama' is"});
  refused(R"({"model_type": 3, "num_hidden_layers": 2})", assuming("llama"), KVC_E_INVALID_ARGUMENT,
          {"model_type", "a string"});
  kvc_hf_options options = assuming("llama");
  options.flags = 5;
  refused(strange(), options, KVC_E_UNSUPPORTED, {"opt->flags = 5"});
  options.flags = 0;
  options.struct_size = 0;
  refused(strange(), options, KVC_E_INVALID_ARGUMENT, {"opt", "struct_size"});
  struct Newer {
    kvc_hf_options known;
    uint64_t unknown;
  } newer{assuming("llama"), 0};
  newer.known.struct_size = sizeof newer;
  EXPECT_EQ(Assumed(strange(), newer.known).kinds(), "AAAAAAAA") << "an unknown tail of zeros";
  newer.unknown = 1;
  refused(strange(), newer.known, KVC_E_VERSION, {"opt"});
  kvc_hf_options older = assuming("no family, and not read");
  older.struct_size = offsetof(kvc_hf_options, assume);
  HfModel short_one(hf_text("gpt2"), sizeof(kvc_layer), &older);
  EXPECT_EQ(short_one.status, KVC_OK) << short_one.message;
}

}  // namespace
}  // namespace kvc::test
