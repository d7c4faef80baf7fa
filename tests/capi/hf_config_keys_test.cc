// Configurations of families that no rule names, read by their keys, and the families whose meaning
// is not in them.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/capi/hf_config.h"

namespace kvc::test {
namespace {

// A family that nobody knows: six layers, 8 heads of 2 KV heads, 64 elements.
std::string novel(const std::string& fields, const std::string& shape = R"("num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 64, "hidden_size": 512)") {
  return R"({"model_type": "novel_lm", "num_hidden_layers": 6, "vocab_size": 1000,
      "attention_dropout": 0.0, )" +
         shape + (fields.empty() ? "" : ", " + fields) + "}";
}

std::string kinds(const std::string& json) {
  HfModel model(json);
  EXPECT_EQ(model.status, KVC_OK) << model.message;
  return model.status == KVC_OK ? model.kinds() : "";
}

std::string heads(const std::string& json, size_t layer = 0) {
  HfModel model(json);
  EXPECT_EQ(model.status, KVC_OK) << model.message;
  return model.status == KVC_OK ? model.heads(layer) : "";
}

void refused(const std::string& json, kvc_status status, std::initializer_list<const char*> parts) {
  SCOPED_TRACE(json);
  kvc_config config{};
  (void)kvc_config_init(&config, sizeof config);
  size_t n = 7;
  expect_error(status, parts, [&](kvc_error* err) {
    return kvc_config_from_hf_json(json.c_str(), &config, nullptr, &n, err);
  });
  EXPECT_EQ(n, 7u);
  EXPECT_EQ(config.layers, nullptr);
}

TEST(HfConfigKeys, AnUnknownFamilyIsReadWithOneLineThatNamesTheKeys) {
  const Lines lines;
  HfModel model(novel(R"("sliding_window": 128, "layer_types": ["sliding_attention",
      "full_attention", "sliding_attention", "full_attention", "sliding_attention",
      "full_attention"])"));
  ASSERT_EQ(model.status, KVC_OK) << model.message;
  EXPECT_EQ(model.kinds(), "WAWAWA");
  EXPECT_EQ(model.layer(0).window, 128);
  EXPECT_EQ(model.heads(0), "8/2 heads of 64/64 bfloat16");
  EXPECT_EQ(model.layer(0).rope, nullptr) << "rotations are left to the model";
  ASSERT_EQ(lines.all().size(), 1u) << "the call that only counts says nothing";
  EXPECT_EQ(
      lines.all()[0],
      "model_type 'novel_lm' is not known: it is read by its keys: layer_types, "
      "num_attention_heads, num_key_value_heads, head_dim, sliding_window; rotations are left "
      "to the model");
}

TEST(HfConfigKeys, AFamilyThatWasComparedIsReadWithoutALine) {
  const Lines lines;
  HfModel model(R"({"model_type": "smollm3", "num_hidden_layers": 4, "num_attention_heads": 16,
      "num_key_value_heads": 4, "hidden_size": 2048, "max_position_embeddings": 32768,
      "no_rope_layers": [1, 1, 1, 0], "use_sliding_window": false, "sliding_window": null})");
  ASSERT_EQ(model.status, KVC_OK) << model.message;
  EXPECT_EQ(model.kinds(), "AAAA");
  EXPECT_EQ(model.heads(0), "16/4 heads of 128/128 bfloat16");
  EXPECT_EQ(model.config.max_seq_len, 32768);
  EXPECT_TRUE(lines.all().empty());
}

TEST(HfConfigKeys, LayerTypesDecide) {
  EXPECT_EQ(kinds(novel(R"("attention_chunk_size": 64, "conv_L_cache": 3, "sliding_window": 32,
      "layer_types": ["chunked_attention", "conv", "moe", "mlp", "full_attention",
      "sliding_attention"])")),
            "KS--AW");
  HfModel delta(novel(R"("linear_num_key_heads": 2, "linear_num_value_heads": 4,
      "linear_key_head_dim": 16, "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4,
      "layers_block_type": ["linear_attention", "mamba", "full_attention", "attention",
      "linear_attention", "full_attention"])"));
  ASSERT_EQ(delta.status, KVC_OK) << delta.message;
  EXPECT_EQ(delta.kinds(), "SSAASA");
  EXPECT_EQ(delta.states(0), "[192, 3] bfloat16, [4, 16, 32] float32");
  HfModel kda(novel(R"("linear_num_heads": 3, "linear_head_dim": 16, "short_conv_kernel_size": 4,
      "layer_types": ["linear_attention", "full_attention", "full_attention", "full_attention",
      "full_attention", "full_attention"])"));
  ASSERT_EQ(kda.status, KVC_OK) << kda.message;
  EXPECT_EQ(kda.states(0),
            "[48, 3] bfloat16, [48, 3] bfloat16, [48, 3] bfloat16, [3, 16, 16] float32");
  HfModel hybrid(novel(R"("mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 4,
      "mamba_d_conv": 4, "mamba_expand": 2, "sliding_window": 9, "layer_types": ["hybrid",
      "hybrid_sliding", "full_attention", "mamba", "hybrid", "moe"])"));
  ASSERT_EQ(hybrid.status, KVC_OK) << hybrid.message;
  EXPECT_EQ(hybrid.kinds(), "ASWSASAS-");
  EXPECT_EQ(hybrid.states(1), "[136, 3] bfloat16, [8, 4, 16] float32");
}

TEST(HfConfigKeys, WindowsWithoutAListFollowTheirSwitches) {
  EXPECT_EQ(kinds(novel(R"("sliding_window": 16)")), "WWWWWW");
  EXPECT_EQ(kinds(novel(R"("sliding_window": null)")), "AAAAAA");
  EXPECT_EQ(kinds(novel(R"("sliding_window": 16, "use_sliding_window": false)")), "AAAAAA");
  EXPECT_EQ(kinds(novel(R"("sliding_window": 16, "use_sliding_window": true,
      "max_window_layers": 4)")),
            "AAAAWW");
  EXPECT_EQ(kinds(novel(R"("sliding_window": 16, "sliding_window_pattern": 3)")), "WWAWWA");
  EXPECT_EQ(kinds(novel(R"("sliding_window": 16, "global_attn_every_n_layers": 2)")), "WAWAWA");
  EXPECT_EQ(kinds(novel(R"("sliding_window": 16, "sliding_window_pattern": "LLLG")")), "WWWAWW");
  EXPECT_EQ(kinds(novel(R"("attention_chunk_size": 16)")), "KKKKKK");
  refused(novel(R"("sliding_window": 16, "sliding_window_pattern": "LX")"), KVC_E_UNSUPPORTED,
          {"sliding_window_pattern", "'X'"});
  refused(novel(R"("layer_types": ["full_attention", "sliding_attention", "full_attention",
      "full_attention", "full_attention", "full_attention"])"),
          KVC_E_INVALID_ARGUMENT, {"sliding_window is missing"});
}

TEST(HfConfigKeys, HeadsHaveSeveralNames) {
  EXPECT_EQ(heads(novel("", R"("num_attention_heads": 8, "hidden_size": 640, "head_dim": null)")),
            "8/8 heads of 80/80 bfloat16");
  EXPECT_EQ(heads(novel("", R"("num_attention_heads": 3, "num_key_value_heads": null,
      "hidden_size": 200)")),
            "3/3 heads of 66/66 bfloat16")
      << "rounded down, as transformers does";
  EXPECT_EQ(heads(novel("", R"("n_head": 4, "n_embd": 260, "multi_query": true)")),
            "4/1 heads of 65/65 bfloat16");
  EXPECT_EQ(heads(novel("", R"("n_heads": 6, "num_kv_heads": 3, "kv_channels": 80)")),
            "6/3 heads of 80/80 bfloat16");
  const std::string sliding = novel(R"("sliding_window": 8, "sliding_window_pattern": 2,
      "swa_num_key_value_heads": 4, "swa_head_dim": 32, "v_head_dim": 48, "swa_v_head_dim": 24)");
  EXPECT_EQ(heads(sliding, 0), "8/4 heads of 32/24 bfloat16");
  EXPECT_EQ(heads(sliding, 1), "8/2 heads of 64/48 bfloat16");
  EXPECT_EQ(heads(novel(R"("num_attention_heads_per_layer": [8, 4, 8, 8, 8, 8])"), 1),
            "4/2 heads of 64/64 bfloat16");
  refused(novel(R"("num_attention_heads_per_layer": [8, 4, 8])"), KVC_E_INVALID_ARGUMENT,
          {"num_attention_heads_per_layer has 3 entries", "one per layer: 6"});
  HfModel latent(novel(R"("kv_lora_rank": 96, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32,
      "v_head_dim": 64, "q_lora_rank": 128, "qk_head_dim": 96)"));
  ASSERT_EQ(latent.status, KVC_OK) << latent.message;
  EXPECT_EQ(latent.kinds(), "LLLLLL");
  EXPECT_EQ(latent.layer(5).latent_rank, 96);
  EXPECT_EQ(latent.layer(5).latent_rope_dim, 32);
}

TEST(HfConfigKeys, SingleLayersMayDiffer) {
  const std::string json = novel(R"("per_layer_config": {"01": {"head_dim": 128}, "5":
      {"num_key_value_heads": 4, "sliding_window": 12}, "2": null}, "sliding_window": 8)");
  HfModel model(json);
  ASSERT_EQ(model.status, KVC_OK) << model.message;
  EXPECT_EQ(model.heads(0), "8/2 heads of 64/64 bfloat16");
  EXPECT_EQ(model.heads(1), "8/2 heads of 128/128 bfloat16");
  EXPECT_EQ(model.heads(5), "8/4 heads of 64/64 bfloat16");
  EXPECT_EQ(model.layer(5).window, 12);
  EXPECT_EQ(model.layer(1).window, 8);
  refused(novel(R"("per_layer_config": {"6": {"head_dim": 128}})"), KVC_E_INVALID_ARGUMENT,
          {"per_layer_config has the key '6'", "below 6"});
  refused(novel(R"("per_layer_config": {"x": {}})"), KVC_E_INVALID_ARGUMENT, {"the key 'x'"});
  refused(novel(R"("per_layer_config": {"1": 3})"), KVC_E_INVALID_ARGUMENT,
          {"per_layer_config.1", "a number"});
  refused(novel(R"("per_layer_config": {"1": {"kv_lora_rank": 3}})"), KVC_E_UNSUPPORTED,
          {"per_layer_config.1.kv_lora_rank"});
  refused(novel(R"("per_layer_config": {"1": {"num_key_value_heads": 3}})"), KVC_E_INVALID_ARGUMENT,
          {"per_layer_config.1.num_attention_heads = 8", "= 3"});
}

TEST(HfConfigKeys, LastLayersMayReadEarlierOnes) {
  HfModel model(
      novel(R"("num_kv_shared_layers": 2, "sliding_window": 8, "sliding_window_pattern": 2)"));
  ASSERT_EQ(model.status, KVC_OK) << model.message;
  EXPECT_EQ(model.kinds(), "WAWARR");
  EXPECT_EQ(model.layer(4).source_layer, 2);
  EXPECT_EQ(model.layer(5).source_layer, 3);
  refused(novel(R"("num_kv_shared_layers": 5, "sliding_window": 8, "sliding_window_pattern": 2)"),
          KVC_E_INVALID_ARGUMENT, {"num_kv_shared_layers leaves layer 1"});
}

TEST(HfConfigKeys, AListOfSourcesSaysWhichLayerEachReads) {
  const auto listed = [](const std::string& list, const std::string& fields = "") {
    return novel("\"kv_source_layers\": " + list + (fields.empty() ? "" : ", " + fields));
  };
  const Lines lines;
  HfModel model(listed("[0, 1, 0, 0, 4, 1]"));
  ASSERT_EQ(model.status, KVC_OK) << model.message;
  EXPECT_EQ(model.kinds(), "AARRAR");
  EXPECT_EQ(model.layer(2).source_layer, 0);
  EXPECT_EQ(model.layer(3).source_layer, 0);
  EXPECT_EQ(model.layer(5).source_layer, 1);
  EXPECT_EQ(model.layer(5).num_q_heads, 8);
  ASSERT_EQ(lines.all().size(), 1u);
  EXPECT_NE(lines.all()[0].find("kv_source_layers"), std::string::npos) << lines.all()[0];
  kvc_error error{};
  kvc_plan* plan = model.plan(&error);
  ASSERT_NE(plan, nullptr) << error.message;
  kvc_plan_info info{};
  info.struct_size = sizeof info;
  ASSERT_EQ(kvc_plan_info_get(plan, &info, nullptr), KVC_OK);
  EXPECT_EQ(info.bytes_per_token, 3u * 2 * (64 + 64) * 2) << "three layers of six keep K and V";
  kvc_plan_destroy(plan);
  for (const char* own : {"[0, 1, 2, 3, 4, 5]", "[]", "null"})
    EXPECT_EQ(kinds(listed(own)), "AAAAAA") << own;

  const std::string latents = R"("kv_lora_rank": 96, "qk_nope_head_dim": 64,
      "qk_rope_head_dim": 32, "v_head_dim": 64)";
  EXPECT_EQ(kinds(listed("[0, 0, 2, 2, 2, 5]", latents)), "LRLRRL");
  // Ids of the library count entries, of which hybrid layers have two.
  HfModel hybrid(listed("[0, 1, 0, 3, 1, 5]", R"("mamba_n_heads": 8, "mamba_d_head": 16,
      "mamba_d_state": 4, "mamba_d_conv": 4, "mamba_expand": 2, "layer_types": ["hybrid",
      "full_attention", "hybrid", "mamba", "full_attention", "moe"])"));
  ASSERT_EQ(hybrid.status, KVC_OK) << hybrid.message;
  EXPECT_EQ(hybrid.kinds(), "ASARSSR-");
  EXPECT_EQ(hybrid.layer(3).source_layer, 0);
  EXPECT_EQ(hybrid.layer(6).source_layer, 2);

  const std::string windows = R"("sliding_window": 8, "sliding_window_pattern": 2)";
  EXPECT_EQ(kinds(listed("[0, 1, 0, 1, 4, 5]", windows)), "WARRWA");
  refused(listed("[0, 1, 1, 3, 4, 5]", windows), KVC_E_UNSUPPORTED,
          {"kv_source_layers[2] = 1", "differ in what they keep"});
  refused(listed("[0, 0, 2, 3, 4, 5]", R"("per_layer_config": {"1": {"head_dim": 128}})"),
          KVC_E_UNSUPPORTED, {"kv_source_layers[1] = 0", "differ"});
  refused(listed("[0, 0, 2, 3, 4, 5]", R"("layer_types": ["full_attention", "moe",
      "full_attention", "full_attention", "full_attention", "full_attention"])"),
          KVC_E_UNSUPPORTED, {"kv_source_layers[1] = 0", "differ"});
  refused(listed("[0, 2, 2, 3, 4, 5]"), KVC_E_INVALID_ARGUMENT,
          {"kv_source_layers[1] = 2", "an earlier one"});
  refused(listed("[0, 0, 1, 3, 4, 5]"), KVC_E_INVALID_ARGUMENT,
          {"kv_source_layers[2] = 1", "reads no other"});
  refused(listed("[0, 2, 4]"), KVC_E_INVALID_ARGUMENT,
          {"kv_source_layers has 3 entries", "one per layer: 6"});
  refused(listed("[0, 1, 2, 3, 4, 6]"), KVC_E_OUT_OF_RANGE, {"kv_source_layers"});
  refused(listed("3"), KVC_E_INVALID_ARGUMENT, {"kv_source_layers"});
  refused(listed("[0, 1, 2, 3, 3, 3]", R"("num_kv_shared_layers": 2)"), KVC_E_UNSUPPORTED,
          {"kv_source_layers", "num_kv_shared_layers"});
  // A layer that reads another one's latents may keep index keys of its own.
  refused(listed("[0, 0, 2, 3, 4, 5]", latents + R"(, "index_topk": 2048)"), KVC_E_UNSUPPORTED,
          {"index_topk", "sparse attention"});
}

TEST(HfConfigKeys, EncodersAreRefusedAndDecodersOfEncodersRead) {
  const std::string pairs = R"({"model_type": "novel_translator", "is_encoder_decoder": true,
      "is_decoder": false, "d_model": 512, "encoder_layers": 6, "decoder_layers": 3,
      "encoder_attention_heads": 4, "decoder_attention_heads": 8, "max_position_embeddings": 256})";
  HfModel model(pairs);
  ASSERT_EQ(model.status, KVC_OK) << model.message;
  EXPECT_EQ(model.kinds(), "ACACAC");
  EXPECT_EQ(model.heads(1), "8/8 heads of 64/64 bfloat16");
  EXPECT_EQ(model.config.max_cross_len, 256);
  EXPECT_EQ(kinds(R"({"model_type": "novel_t5", "is_encoder_decoder": true, "d_kv": 64,
      "num_heads": 4, "num_layers": 2, "num_decoder_layers": 1})"),
            "AC");
  EXPECT_EQ(kinds(novel(R"("is_decoder": true, "add_cross_attention": true)")), "ACACACACACAC");
  EXPECT_EQ(kinds(novel(R"("is_decoder": true)")), "AAAAAA");
  refused(novel(R"("is_decoder": false)"), KVC_E_UNSUPPORTED, {"is_decoder", "encoder"});
  refused(novel(R"("add_cross_attention": true, "kv_lora_rank": 64, "qk_nope_head_dim": 32,
      "qk_rope_head_dim": 32, "v_head_dim": 32)"),
          KVC_E_UNSUPPORTED, {"add_cross_attention", "latents"});
  refused(R"({"model_type": "bert", "is_decoder": false, "num_hidden_layers": 2,
      "num_attention_heads": 2, "hidden_size": 64})",
          KVC_E_UNSUPPORTED, {"is_decoder", "keeps no cache"});
  refused(novel(R"("architectures": ["NovelForMaskedLM"])"), KVC_E_UNSUPPORTED,
          {"architectures has 'NovelForMaskedLM'", "keeps no cache"});
  EXPECT_EQ(kinds(novel(R"("architectures": ["NovelForCausalLM"])")), "AAAAAA");
}

TEST(HfConfigKeys, KeysThatCouldChangeWhatIsKeptAreRefusedByName) {
  for (const char* name : {"kv_source_map", "loop_passes", "cache_every", "window_pattern_new",
                           "conv_state_width", "ssm_heads", "latent_groups", "cross_layers",
                           "attn_layer_map", "num_kv_things", "swa_ratio"}) {
    refused(novel("\"" + std::string(name) + "\": 3"), KVC_E_UNSUPPORTED,
            {name, "could change what a layer keeps"});
    for (const char* off : {"null", "false", "0", "\"\"", "[]", "{}"})
      EXPECT_EQ(kinds(novel("\"" + std::string(name) + "\": " + off)), "AAAAAA") << name << off;
  }
  refused(novel(R"("index_topk": 2048)"), KVC_E_UNSUPPORTED, {"index_topk", "sparse attention"});
  refused(novel(R"("compress_rates": {"a": 4})"), KVC_E_UNSUPPORTED,
          {"compress_rates", "compressed tokens"});
  // Experts, MLPs and vocabularies keep nothing.
  EXPECT_EQ(kinds(novel(R"("n_shared_experts": 2, "mlp_layer_types": ["dense"], "kv_vocab_size": 3,
      "moe_layer_end_index": 4, "shared_intermediate_size": 9, "use_cache": true)")),
            "AAAAAA");
  const auto typed = [](const std::string& type) {
    return novel(R"("layer_types": ["full_attention", ")" + type +
                 R"(", "full_attention", "full_attention", "full_attention", "full_attention"])");
  };
  refused(typed("indexed_attention"), KVC_E_UNSUPPORTED,
          {"layer_types[1] = 'indexed_attention'", "index"});
  refused(typed("heavily_compressed_attention"), KVC_E_UNSUPPORTED,
          {"layer_types[1]", "compressed"});
  refused(typed("banded"), KVC_E_UNSUPPORTED, {"layer_types[1] = 'banded'"});
  refused(typed("linear_attention"), KVC_E_UNSUPPORTED,
          {"layer_types[1] has a recurrent state", "no key says"});
  refused(typed("conv"), KVC_E_INVALID_ARGUMENT, {"conv_L_cache is missing"});
}

TEST(HfConfigKeys, KeysOfPublishedFilesThatChangeNothingAreNotRefused) {
  EXPECT_EQ(kinds(novel(R"("qkv_bias": true, "clip_qkv": 8.0, "rope_local_base_freq": 10000,
      "local_rope_theta": 10000, "compression_ratio": 1.0, "cla_share_factor": 2, "use_cla": false,
      "use_cache_quantization": true, "kv_proj_bias": true)")),
            "AAAAAA");
  refused(novel(R"("use_cla": true, "cla_share_factor": 2)"), KVC_E_UNSUPPORTED, {"use_cla"});
  refused(novel(R"("local_attention": 128)"), KVC_E_UNSUPPORTED, {"local_attention"});
  EXPECT_EQ(kinds(novel(R"("attn_type_list": [1, 1, 1, 1, 1, 1])")), "AAAAAA");
  refused(novel(R"("attn_type_list": [1, 1])"), KVC_E_INVALID_ARGUMENT,
          {"attn_type_list has 2 entries", "6"});
  refused(novel(R"("attn_type_list": [1, 1, 0, 1, 1, 1])"), KVC_E_UNSUPPORTED,
          {"attn_type_list[2] has a recurrent state"});
  // The same model by the names of its first files.
  for (const char* name : {"minimax", "minimax_text_01", "minimax_m1"}) {
    HfModel minimax(R"({"model_type": ")" + std::string(name) + R"(", "num_hidden_layers": 2,
        "num_attention_heads": 8, "hidden_size": 512, "num_key_value_heads": 2,
        "layernorm_linear_attention_alpha": 3.5, "attn_type_list": [0, 1]})");
    EXPECT_EQ(minimax.kinds(), "SA") << name;
    EXPECT_EQ(minimax.states(0), "[8, 64, 64] float32") << name;
  }
  HfModel modern(R"({"model_type": "modernbert-decoder", "num_hidden_layers": 5,
      "num_attention_heads": 12, "hidden_size": 768, "local_attention": 128,
      "global_attn_every_n_layers": 3})");
  EXPECT_EQ(modern.kinds(), "AWWAW");
  EXPECT_EQ(modern.layer(1).window, 64);
}

TEST(HfConfigKeys, ACloseNameIsSuggested) {
  refused(R"({"model_type": "lama"})", KVC_E_UNSUPPORTED,
          {"'lama' is not supported: it is not known (a known one is 'llama'), and without "
           "num_hidden_layers"});
  refused(R"({"model_type": "quen3_moe"})", KVC_E_UNSUPPORTED, {"(a known one is 'qwen3_moe')"});
  refused(R"({"model_type": "xyz"})", KVC_E_UNSUPPORTED, {"it is not known, and without"});
  refused(R"({"model_type": ""})", KVC_E_UNSUPPORTED, {"it is not known, and without"});
  const Lines lines;
  std::string typo = novel("");
  typo.replace(typo.find("novel_lm"), 8, "smolm3");
  EXPECT_EQ(kinds(typo), "AAAAAA");
  ASSERT_EQ(lines.all().size(), 1u);
  EXPECT_NE(lines.all()[0].find("'smolm3' is not known (a known one is 'smollm3'): it is read by"),
            std::string::npos)
      << lines.all()[0];
}

TEST(HfConfigKeys, AnUnknownFamilyHasToSayEnough) {
  refused(R"({"model_type": "novel_lm"})", KVC_E_UNSUPPORTED,
          {"model_type = 'novel_lm'", "num_hidden_layers"});
  refused(R"({"model_type": "novel_lm", "num_hidden_layers": 2, "num_attention_heads": 2})",
          KVC_E_UNSUPPORTED, {"model_type = 'novel_lm'", "hidden_size"});
  const auto nested = [](const std::string& fields) {
    return R"({"model_type": "novel_vl", "text_config": {"model_type": "novel_text",
        "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 256)" +
           fields + "}}";
  };
  // The class may have fewer KV heads than query heads.
  refused(nested(""), KVC_E_UNSUPPORTED, {"text_config.num_key_value_heads"});
  EXPECT_EQ(kinds(nested(R"(, "num_key_value_heads": 2)")), "AA");
  EXPECT_EQ(kinds(nested(R"(, "num_key_value_heads": null)")), "AA");
}

// Two families were read wrong without a word, and two refused for a detail of their defaults.
TEST(HfConfigKeys, WhatTheClassDoesWithoutAKeyIsWhatIsPlanned) {
  HfModel mimo(R"({"model_type": "mimo_v2_flash", "num_hidden_layers": 2, "hidden_size": 4096,
      "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 192, "v_head_dim": 128,
      "sliding_window": 128, "layer_types": ["full_attention", "sliding_attention"]})");
  ASSERT_EQ(mimo.status, KVC_OK) << mimo.message;
  EXPECT_EQ(mimo.heads(0), "64/4 heads of 192/128 bfloat16");
  EXPECT_EQ(mimo.heads(1), "64/8 heads of 192/128 bfloat16");
  const std::string kimi = R"({"model_type": "kimi_linear", "num_hidden_layers": 3,
      "num_attention_heads": 4, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
      "qk_rope_head_dim": 64, "v_head_dim": 128)";
  HfModel listed(kimi + R"(, "linear_num_heads": 32, "linear_head_dim": 128,
      "linear_conv_kernel_dim": 4,
      "layer_types": ["linear_attention", "linear_attention", "full_attention"]})");
  ASSERT_EQ(listed.status, KVC_OK) << listed.message;
  EXPECT_EQ(listed.kinds(), "SSL");
  EXPECT_EQ(listed.states(0),
            "[4096, 3] bfloat16, [4096, 3] bfloat16, [4096, 3] bfloat16, [32, 128, 128] float32");
  refused(kimi + "}", KVC_E_INVALID_ARGUMENT, {"layer_types is missing"});
  HfModel glm(R"({"model_type": "glm4_moe", "num_hidden_layers": 1, "hidden_size": 4096,
      "num_attention_heads": 96, "num_key_value_heads": 8})");
  ASSERT_EQ(glm.status, KVC_OK) << glm.message;
  EXPECT_EQ(glm.heads(0), "96/8 heads of 42/42 bfloat16");
  EXPECT_EQ(glm.rope(0).rotary_dim, 22) << "half of 42 is odd: a pair more, by the odd exponents";
  ASSERT_EQ(glm.rope(0).num_freq_factors, 11);
  for (int i = 0; i < 11; ++i) {
    EXPECT_NEAR(std::pow(1e4, -2.0 * i / 22) / glm.rope(0).freq_factors[i],
                std::pow(1e4, -2.0 * i / 21), 1e-6);
  }
  HfModel gemma(R"({"model_type": "gemma4_text", "num_hidden_layers": 2, "sliding_window": 512,
      "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "hidden_size": 2304,
      "layer_types": ["sliding_attention", "full_attention"],
      "per_layer_config": {"01": {"head_dim": 512, "num_key_value_heads": 2}}})");
  ASSERT_EQ(gemma.status, KVC_OK) << gemma.message;
  EXPECT_EQ(gemma.heads(0), "8/4 heads of 256/256 bfloat16");
  EXPECT_EQ(gemma.heads(1), "8/2 heads of 512/512 bfloat16");
}

TEST(HfConfigKeys, PassesThroughALoopKeepKAndVOfTheirOwn) {
  const auto dory = [](const std::string& fields) {
    return R"({"model_type": "dory", "num_attention_heads": 16, "num_key_value_heads": 4,
        "hidden_size": 2560, "head_dim": 256, "sliding_window": 1024, )" +
           fields + "}";
  };
  // Three passes of the layers 1 to 3 of six: entries 6 to 8 and 9 to 11 are the second and third.
  const std::string six = R"("num_hidden_layers": 6, "n_input_layers": 1, "n_output_layers": 2)";
  HfModel looped(dory(six + R"(, "n_recurrent_loops": 3, "n_recurrent_layers": 3)"));
  ASSERT_EQ(looped.status, KVC_OK) << looped.message;
  EXPECT_EQ(looped.kinds(), "WWWAWWWWAWWA");
  EXPECT_EQ(looped.heads(11), "16/4 heads of 256/256 bfloat16");
  EXPECT_EQ(looped.layer(6).window, 1024);
  EXPECT_EQ(kinds(dory(six)), "WWWAWWWWA") << "two passes, and the remaining layers run twice";
  EXPECT_EQ(kinds(dory(six + R"(, "n_recurrent_loops": 1)")), "WWWAWW");
  EXPECT_EQ(kinds(dory(six + R"(, "recurrent_kv_cache_mode": "last_loop")")), "WWWAWW");
  // Files list MLPs beside attention, and count both.
  EXPECT_EQ(kinds(dory(R"("num_hidden_layers": 6, "n_input_layers": 2, "n_output_layers": 2,
      "n_recurrent_layers": 2, "layer_types": ["sliding_attention", "mlp", "full_attention", "mlp",
      "sliding_attention", "mlp"])")),
            "WAWA");
  refused(dory(R"("num_hidden_layers": 2, "n_input_layers": 0, "n_output_layers": 0,
      "layer_types": ["mlp", "full_attention"])"),
          KVC_E_UNSUPPORTED, {"layer_types[0]"});
  refused(dory(six + R"(, "n_recurrent_layers": 4)"), KVC_E_INVALID_ARGUMENT,
          {"n_recurrent_layers = 4", "the number of layers, 6"});
  refused(dory(R"("num_hidden_layers": 6)"), KVC_E_INVALID_ARGUMENT, {"n_recurrent_layers"});
  refused(dory(six + R"(, "recurrent_kv_cache_mode": "each")"), KVC_E_UNSUPPORTED,
          {"recurrent_kv_cache_mode", "last_loop"});
  refused(dory(six + R"(, "n_recurrent_loops": 65536)"), KVC_E_OUT_OF_RANGE,
          {"makes 196611 layers", "at most"});

  const auto inkling = [](const std::string& fields) {
    return R"({"model_type": "inkling2_loop_text", "num_hidden_layers": 4, "hidden_size": 640,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 80, "conv_kernel_size": 4,
        "sliding_window_size": 512, "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding",
        "hybrid"], )" +
           fields + "}";
  };
  const std::string middle = R"("loop_layer_index_start": 1, "loop_layer_index_end": 3)";
  EXPECT_EQ(kinds(inkling(middle)), "WSASWSASASWSASWS") << "three passes";
  EXPECT_EQ(kinds(inkling(middle + R"(, "loop_num_passes": 1)")), "WSASWSAS");
  EXPECT_EQ(kinds(inkling(R"("loop_config": {"core_start": 3, "core_end": 4, "num_passes": 2})")),
            "WSASWSASAS");
  refused(inkling(R"("loop_layer_index_start": 1, "loop_layer_index_end": 5)"), KVC_E_OUT_OF_RANGE,
          {"loop_layer_index_end"});
}

TEST(HfConfigKeys, CheckpointsSayHowTheyStoreKAndV) {
  const auto with = [](const std::string& quantization) {
    return novel(R"("sliding_window": 16, "sliding_window_pattern": 2, "quantization_config": )" +
                 quantization);
  };
  HfModel fp8(with(R"({"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8,
      "type": "float", "strategy": "tensor", "dynamic": false, "symmetric": true}})"));
  ASSERT_EQ(fp8.status, KVC_OK) << fp8.message;
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(fp8.layer(i).k_dtype.code, kDLFloat8_e4m3fn);
    EXPECT_EQ(fp8.layer(i).v_dtype.code, kDLFloat8_e4m3fn);
    EXPECT_EQ(fp8.layer(i).quant, KVC_QUANT_PER_TENSOR);
    EXPECT_EQ(fp8.layer(i).k_scale, 0) << "1";
  }
  kvc_error error{};
  kvc_plan* plan = fp8.plan(&error);
  ASSERT_NE(plan, nullptr) << error.message;
  kvc_plan_info info{};
  info.struct_size = sizeof info;
  ASSERT_EQ(kvc_plan_info_get(plan, &info, nullptr), KVC_OK);
  EXPECT_EQ(info.bytes_per_token, 6u * 2 * (64 + 64)) << "a byte an element";
  kvc_plan_destroy(plan);
  HfModel int8(with(R"({"kv_cache_scheme": {"num_bits": 8, "type": "int"}})"));
  ASSERT_EQ(int8.status, KVC_OK) << int8.message;
  EXPECT_EQ(int8.layer(0).k_dtype.code, kDLInt);
  HfModel modelopt(with(R"({"quant_method": "modelopt", "kv_cache_quant_algo": "NVFP4"})"));
  ASSERT_EQ(modelopt.status, KVC_OK) << modelopt.message;
  EXPECT_EQ(modelopt.layer(0).quant, KVC_QUANT_BLOCK16);
  EXPECT_EQ(HfModel(with(R"({"kv_cache_quant_algo": "FP8"})")).layer(0).quant,
            KVC_QUANT_PER_TENSOR);
  for (const char* none : {R"({"kv_cache_scheme": null})", R"({"kv_cache_quant_algo": null})",
                           R"({"quant_method": "fp8"})", R"({"kv_cache_quant_algo": "NONE"})"})
    EXPECT_EQ(heads(with(none)), "8/2 heads of 64/64 bfloat16") << none;
  refused(with(R"({"kv_cache_scheme": {"num_bits": 4, "type": "int"}})"), KVC_E_UNSUPPORTED,
          {"quantization_config.kv_cache_scheme.num_bits = 4"});
  refused(with(R"({"kv_cache_scheme": {"num_bits": 8, "strategy": "channel"}})"), KVC_E_UNSUPPORTED,
          {"strategy = 'channel'"});
  refused(with(R"({"kv_cache_scheme": {"num_bits": 8, "dynamic": true}})"), KVC_E_UNSUPPORTED,
          {"kv_cache_scheme.dynamic"});
  refused(with(R"({"kv_cache_scheme": {"num_bits": 8, "symmetric": false}})"), KVC_E_UNSUPPORTED,
          {"kv_cache_scheme.symmetric"});
  refused(with(R"({"kv_cache_scheme": "fp8"})"), KVC_E_INVALID_ARGUMENT, {"kv_cache_scheme"});
  refused(with(R"({"kv_cache_quant_algo": "INT3"})"), KVC_E_UNSUPPORTED,
          {"kv_cache_quant_algo = 'INT3'"});
  // Encoder tokens stay as they are, and a nested configuration's storage may be said outside.
  HfModel pairs(R"({"model_type": "t5", "d_kv": 64, "num_heads": 2, "num_layers": 1,
      "quantization_config": {"kv_cache_quant_algo": "FP8"}})");
  EXPECT_EQ(pairs.layer(0).k_dtype.bits, 8);
  EXPECT_EQ(pairs.layer(1).k_dtype.bits, 16);
  HfModel nested(R"({"model_type": "some_vl", "text_config": {"model_type": "llama"},
      "quantization_config": {"kv_cache_quant_algo": "FP8"}})");
  EXPECT_EQ(nested.layer(0).k_dtype.bits, 8);
}

TEST(HfConfigKeys, LayerTypesDecideForFamiliesWithoutWindowsToo) {
  const auto llama = [](const std::string& fields) {
    return R"({"model_type": "llama", "num_hidden_layers": 3, "num_attention_heads": 4,
        "hidden_size": 256)" +
           fields + "}";
  };
  EXPECT_EQ(kinds(llama(R"(, "sliding_window": 16, "layer_types": ["sliding_attention",
      "full_attention", "sliding_attention"])")),
            "WAW")
      << "another family that is assumed to be this one";
  EXPECT_EQ(kinds(llama(R"(, "sliding_window": 16)")), "AAA");
  refused(llama(R"(, "layer_types": ["linear_attention", "full_attention", "full_attention"])"),
          KVC_E_UNSUPPORTED, {"layer_types[0]"});
}

TEST(HfConfigKeys, FamiliesWhoseMeaningIsNotInTheirKeys) {
  HfModel neo(R"({"model_type": "gpt_neo", "num_layers": 2, "num_heads": 16, "hidden_size": 2048,
      "window_size": 256, "attention_layers": ["global", "local"]})");
  EXPECT_EQ(neo.kinds(), "AA");
  EXPECT_EQ(neo.heads(0), "16/16 heads of 128/128 bfloat16");
  HfModel dbrx(R"({"model_type": "dbrx", "n_layers": 2, "n_heads": 48, "d_model": 6144,
      "max_seq_len": 32768, "attn_config": {"kv_n_heads": 8, "rope_theta": 500000}})");
  EXPECT_EQ(dbrx.heads(0), "48/8 heads of 128/128 bfloat16");
  EXPECT_EQ(dbrx.rope(0).theta, 500000);
  HfModel longcat(R"({"model_type": "longcat_flash", "num_layers": 3, "num_attention_heads": 64,
      "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128})");
  EXPECT_EQ(longcat.kinds(), "LLLLLL");
  HfModel inkling(R"({"model_type": "inkling_text", "num_hidden_layers": 2, "hidden_size": 640,
      "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 80, "conv_kernel_size": 4,
      "swa_num_key_value_heads": 4, "sliding_window_size": 512,
      "layer_types": ["hybrid_sliding", "hybrid"]})");
  EXPECT_EQ(inkling.kinds(), "WSAS");
  EXPECT_EQ(inkling.states(1),
            "[320, 3] bfloat16, [320, 3] bfloat16, [640, 3] bfloat16, [640, 3] bfloat16");
  EXPECT_EQ(inkling.states(3),
            "[160, 3] bfloat16, [160, 3] bfloat16, [640, 3] bfloat16, [640, 3] bfloat16");
  const std::string listless = R"({"model_type": "inkling2_text", "num_hidden_layers": 7,
      "hidden_size": 640, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 80,
      "conv_kernel_size": 4, "swa_num_key_value_heads": 4, "sliding_window_size": 512)";
  HfModel unlisted(listless + "}");
  EXPECT_EQ(unlisted.kinds(), "WSWSWSWSWSASWS");
  EXPECT_EQ(unlisted.heads(10), "8/2 heads of 80/80 bfloat16");
  EXPECT_EQ(unlisted.heads(12), "8/4 heads of 80/80 bfloat16");
  EXPECT_EQ(kinds(listless + R"(, "local_layer_ids": [0, 2]})"), "WSASWSASASASAS");
  refused(listless + R"(, "local_layer_ids": [7]})", KVC_E_OUT_OF_RANGE, {"local_layer_ids"});
  HfModel zaya(R"({"model_type": "zaya", "num_hidden_layers": 1, "num_attention_heads": 8,
      "num_key_value_heads": 2, "head_dim": 128, "hidden_size": 2048, "cca_time0": 2,
      "cca_time1": 2, "layer_types": ["hybrid"]})");
  EXPECT_EQ(zaya.kinds(), "AS");
  EXPECT_EQ(zaya.states(1), "[1280, 2] bfloat16, [128] bfloat16");
  HfModel minimax(R"({"model_type": "minimax", "num_hidden_layers": 2, "num_attention_heads": 32,
      "num_key_value_heads": 8, "hidden_size": 4096,
      "layer_types": ["linear_attention", "full_attention"]})");
  EXPECT_EQ(minimax.kinds(), "SA");
  EXPECT_EQ(minimax.states(0), "[32, 128, 128] float32");
  HfModel griffin(R"({"model_type": "recurrent_gemma", "num_hidden_layers": 4, "lru_width": 2560,
      "num_attention_heads": 10, "num_key_value_heads": 1, "hidden_size": 2560,
      "attention_window_size": 2048, "conv1d_width": 4,
      "block_types": ["recurrent", "recurrent", "attention"]})");
  EXPECT_EQ(griffin.kinds(), "SSWS");
  EXPECT_EQ(griffin.states(0), "[2560, 3] bfloat16, [2560] float32");
  HfModel zamba(R"({"model_type": "zamba", "num_hidden_layers": 3, "hidden_size": 3712,
      "num_attention_heads": 16, "attention_head_dim": 464, "n_mamba_heads": 2, "mamba_expand": 2,
      "mamba_d_state": 16, "layers_block_type": ["mamba", "hybrid", "mamba"]})");
  EXPECT_EQ(zamba.kinds(), "SASS");
  EXPECT_EQ(zamba.states(0), "[7424, 3] bfloat16, [2, 3712, 16] float32");
  // A model that drafts from another one's cache, around a text part that alone could be read.
  refused(R"({"model_type": "gemma4_assistant", "text_config": {"model_type": "gemma2",
      "num_hidden_layers": 2}})",
          KVC_E_UNSUPPORTED, {"model_type = 'gemma4_assistant'", "another model"});
  for (const char* name : {"openai-gpt", "rwkv", "xlstm", "xlnet", "xlm", "reformer", "blt",
                           "minimax_m3_vl_text", "qwen4_exp_text", "trocr", "musicgen_decoder"}) {
    refused(R"({"model_type": ")" + std::string(name) + "\"}", KVC_E_UNSUPPORTED,
            {name, "is not supported: "});
  }
}

}  // namespace
}  // namespace kvc::test
