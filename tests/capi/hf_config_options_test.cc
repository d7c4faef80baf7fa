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

kvc_hf_options counting(int32_t mtp_layers) {
  kvc_hf_options options = assuming(nullptr);
  options.mtp_layers = mtp_layers;
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

TEST(HfConfigOptions, ALineSaysBothThatAFamilyIsAssumedAndThatItsModelRotates) {
  const Lines lines;
  Assumed model(strange(R"(, "rope_scaling": {"type": "dynamic", "factor": 2.0})"), "llama");
  EXPECT_EQ(model.layer(0).rope, nullptr);
  ASSERT_EQ(lines.all().size(), 1u);
  EXPECT_NE(lines.all()[0].find("is read as 'llama'"), std::string::npos);
  EXPECT_NE(lines.all()[0].find("; rope_scaling.type = 'dynamic'"), std::string::npos);
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

struct WithMtp : HfModel {
  WithMtp(const std::string& json, int32_t layers) : WithMtp(json, counting(layers)) {}
  WithMtp(const std::string& json, const kvc_hf_options& options)
      : HfModel(json, sizeof(kvc_layer), &options) {
    EXPECT_EQ(status, KVC_OK) << message;
  }
};

bool keep_alike(const kvc_layer& a, const kvc_layer& b) {
  return a.kind == b.kind && a.num_kv_heads == b.num_kv_heads && a.k_dim == b.k_dim &&
         a.v_dim == b.v_dim && a.latent_rank == b.latent_rank &&
         a.latent_rope_dim == b.latent_rope_dim && a.window == b.window && a.quant == b.quant &&
         a.k_dtype.bits == b.k_dtype.bits;
}

TEST(HfConfigOptions, MtpLayersKeepWhatTheModelsLastLayerOfTheirKindKeeps) {
  const struct {
    const char* name;
    const char* fields;  // Added to the file.
    int32_t count;
    size_t like;  // Layer of the model that they are like.
  } kCases[] = {
      {"deepseek-v3", "", 1, 60},
      {"qwen3-next-80b", "", 1, 47},
      {"mimo-v2-flash", "", 3, 46},
      {"qwen3.5-27b", "", 1, 63},
      {"llama-3.1-8b", R"("num_nextn_predict_layers": 2, )", 2, 31},
      {"qwen3-8b", R"("mtp_num_hidden_layers": 1, )", 1, 35},
  };
  for (const auto& one : kCases) {
    SCOPED_TRACE(one.name);
    std::string json = hf_text(one.name);
    json.insert(json.find('{') + 1, one.fields);
    HfModel plain(json);
    ASSERT_EQ(plain.status, KVC_OK) << plain.message;
    WithMtp model(json, one.count);
    ASSERT_EQ(model.num_layers(), plain.num_layers() + static_cast<size_t>(one.count));
    EXPECT_EQ(model.kinds().substr(0, plain.num_layers()), plain.kinds());
    for (size_t i = plain.num_layers(); i < model.num_layers(); ++i) {
      EXPECT_TRUE(keep_alike(model.layer(i), plain.layer(one.like))) << "layer " << i;
      EXPECT_EQ(model.layer(i).rope != nullptr, plain.layer(one.like).rope != nullptr);
    }
    kvc_error error{};
    kvc_plan* plan = model.plan(&error);
    ASSERT_NE(plan, nullptr) << error.message;
    kvc_plan_destroy(plan);
  }
}

TEST(HfConfigOptions, MtpLayersOfEveryKindOfKey) {
  const std::string shape = R"("num_hidden_layers": 4, "num_attention_heads": 8,
      "num_key_value_heads": 2, "head_dim": 64, "hidden_size": 512)";
  const auto file = [&](const std::string& family, const std::string& fields) {
    return R"({"model_type": ")" + family + R"(", )" + shape + ", " + fields + "}";
  };
  for (const char* key :
       {"num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers", "num_mtp_modules"}) {
    const std::string two = "\"" + std::string(key) + "\": 2";
    EXPECT_EQ(WithMtp(file("ernie4_5_moe", two), 2).kinds(), "AAAAAA") << key;
    EXPECT_EQ(WithMtp(file("glm4_moe", two), 1).kinds(), "AAAAA") << key;
    EXPECT_EQ(WithMtp(file("novel", two), 1).kinds(), "AAAAA") << key;
  }
  const std::string slides = R"("sliding_window": 128, "layer_types": ["sliding_attention",
      "full_attention", "sliding_attention", "sliding_attention"], "num_nextn_predict_layers": 2)";
  EXPECT_EQ(WithMtp(file("exaone_moe", slides), 1).kinds(), "WAWWA")
      << "the last layer without a window";
  WithMtp listed(file("exaone_moe", slides + R"(, "mtp_layer_types": ["sliding_attention",
      "full_attention"])"),
                 2);
  EXPECT_EQ(listed.kinds(), "WAWWWA");
  EXPECT_EQ(listed.layer(4).window, 128);
  WithMtp wide(file("exaone_moe", slides + R"(, "mtp_layer_types": ["sliding_attention",
      "full_attention"], "mtp_sliding_windows": [4096, 0])"),
               2);
  EXPECT_EQ(wide.layer(4).window, 4096);
  EXPECT_EQ(WithMtp(file("llama", R"("num_nextn_predict_layers": 1, "sliding_window": 32,
      "mtp_layer_types": ["sliding_attention"])"),
                    1)
                .layer(4)
                .window,
            32)
      << "a model without such a layer";
  EXPECT_EQ(WithMtp(file("novel", R"("num_nextn_predict_layers": 1, "kv_lora_rank": 32,
      "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 32)"),
                    1)
                .kinds(),
            "LLLLL");
  std::string nemotron = hf_text("nemotron-h-8b");
  nemotron.insert(nemotron.find('{') + 1, R"("num_nextn_predict_layers": 1,
      "mtp_hybrid_override_pattern": "*E",)");
  HfModel plain(hf_text("nemotron-h-8b"));
  EXPECT_EQ(WithMtp(nemotron, 1).kinds(), plain.kinds() + "A-");
  // Two attentions of a layer of the model, one of an MTP layer.
  const std::string longcat = R"({"model_type": "longcat_flash", "num_layers": 2,
      "num_attention_heads": 4, "kv_lora_rank": 32, "qk_rope_head_dim": 16,
      "qk_nope_head_dim": 16, "v_head_dim": 32})";
  EXPECT_EQ(WithMtp(longcat, 1).kinds(), "LLLLL");
  const std::string fp8 = file("glm4_moe", R"("num_nextn_predict_layers": 1,
      "quantization_config": {"kv_cache_scheme": {"num_bits": 8, "type": "float"}})");
  EXPECT_EQ(WithMtp(fp8, 1).layer(4).quant, KVC_QUANT_PER_TENSOR);
}

TEST(HfConfigOptions, MtpLayersThatAModelHasNotAreRefused) {
  const std::string deepseek = hf_text("deepseek-v3");
  refused(deepseek, counting(2), KVC_E_OUT_OF_RANGE,
          {"opt->mtp_layers = 2", "num_nextn_predict_layers = 1"});
  refused(deepseek, counting(-1), KVC_E_OUT_OF_RANGE, {"opt->mtp_layers = -1", "0 to"});
  refused(deepseek, counting(INT32_MAX), KVC_E_OUT_OF_RANGE, {"opt->mtp_layers = 2147483647"});
  refused(hf_text("mimo-v2-flash"), counting(4), KVC_E_OUT_OF_RANGE,
          {"opt->mtp_layers = 4", "= 3 in this family"});
  refused(hf_text("llama-3.1-8b"), counting(1), KVC_E_UNSUPPORTED,
          {"opt->mtp_layers = 1", "'llama'", "num_nextn_predict_layers is missing"});
  refused(hf_text("jamba-v0.1"), counting(1), KVC_E_UNSUPPORTED,
          {"opt->mtp_layers = 1", "'jamba'", "no MTP layers that are known"});
  refused(hf_text("gemma-4-31b"), counting(1), KVC_E_UNSUPPORTED,
          {"'gemma4", "a model of its own"});
  const auto changed = [&](const std::string& fields) {
    return R"({"model_type": "exaone_moe", "num_hidden_layers": 2, "num_attention_heads": 4,
        "hidden_size": 256, )" +
           fields + "}";
  };
  refused(changed(R"("num_nextn_predict_layers": 0)"), counting(1), KVC_E_UNSUPPORTED,
          {"num_nextn_predict_layers is 0"});
  refused(changed(R"("num_nextn_predict_layers": "one")"), counting(1), KVC_E_INVALID_ARGUMENT,
          {"num_nextn_predict_layers", "a string"});
  const std::string two = R"("num_nextn_predict_layers": 2, "mtp_layer_types": )";
  refused(changed(two + R"(["full_attention"])"), counting(2), KVC_E_INVALID_ARGUMENT,
          {"mtp_layer_types", "1 entries", "2"});
  refused(changed(two + R"(["linear_attention", "full_attention"])"), counting(2),
          KVC_E_UNSUPPORTED, {"mtp_layer_types[0]"});
  refused(changed(two + R"(["sliding_attention", "full_attention"])"), counting(2),
          KVC_E_INVALID_ARGUMENT, {"sliding_window"});
  std::string nemotron = hf_text("nemotron-h-8b");
  nemotron.insert(nemotron.find('{') + 1, R"("num_nextn_predict_layers": 1,)");
  refused(nemotron, counting(1), KVC_E_INVALID_ARGUMENT, {"mtp_hybrid_override_pattern"});
  nemotron.insert(nemotron.find('{') + 1, R"("mtp_hybrid_override_pattern": "*M",)");
  refused(nemotron, counting(1), KVC_E_UNSUPPORTED, {"mtp_hybrid_override_pattern", "'M'"});
}

TEST(HfConfigOptions, ContextParallelRanksAreWrittenIntoTheConfiguration) {
  kvc_hf_options options = assuming(nullptr);
  options.cp_size = 8;
  const std::string json = hf_text("deepseek-v3");
  HfModel model(json, sizeof(kvc_layer), &options);
  ASSERT_EQ(model.status, KVC_OK) << model.message;
  EXPECT_EQ(model.config.cp_size, 8);
  kvc_config config = model.config;
  size_t n = model.num_elements;
  options.cp_size = 0;
  config.cp_size = 4;
  ASSERT_EQ(kvc_config_from_hf(json.c_str(), &options, &config, model.layers(), &n, nullptr),
            KVC_OK);
  EXPECT_EQ(config.cp_size, 4) << "0 leaves it as it is";
  options.cp_size = 2;
  config.struct_size = offsetof(kvc_config, cp_size);
  expect_error(KVC_E_VERSION, {"config->struct_size", "cp_size"}, [&](kvc_error* err) {
    return kvc_config_from_hf(json.c_str(), &options, &config, model.layers(), &n, err);
  });
  EXPECT_EQ(config.cp_size, 4);
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
  for (const int32_t wrong : {-1, 1025}) {
    options.cp_size = wrong;
    const std::string text = "opt->cp_size = " + std::to_string(wrong);
    refused(strange(), options, KVC_E_OUT_OF_RANGE, {text.c_str(), "0 to 1024"});
  }
  options.cp_size = 0;
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
