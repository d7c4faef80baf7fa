// kvcache.h, section "Plan": groups whose pages differ in tokens, quantised storage, states and
// host memory in a budget, several ranks.
#include <nlohmann/json.hpp>

#include "tests/capi/layers.h"

namespace kvc::test {
namespace {

// A window layer of kDim, then one that sees all with heads of half the width: twice the tokens per
// page.
kvc_layer narrow_layer() {
  kvc_layer layer = attention_layer();
  layer.k_dim = kDim / 2;
  return layer;
}

TEST(PlanHybrid, NarrowGroupsHaveMoreTokensPerPage) {
  Net net({attention_layer(8), narrow_layer()});
  net.config.max_tokens_per_forward = 4;
  const PlanHandle plan(net.config);
  const kvc_plan_info info = plan.info();
  ASSERT_EQ(info.num_groups, 2);
  EXPECT_EQ(plan.group(0).page_size, 4);
  EXPECT_EQ(plan.group(1).page_size, 8);
  EXPECT_EQ(plan.group(0).padding_bytes, 0u);
  EXPECT_EQ(plan.group(1).padding_bytes, 0u);
  EXPECT_EQ(plan.group(0).bytes_per_token, 2u * kDim * 4);
  EXPECT_EQ(plan.group(1).bytes_per_token, 2u * kDim / 2 * 4);
  EXPECT_EQ(plan.group(0).first_layer, 0);
  EXPECT_EQ(plan.group(1).first_layer, 1);
  EXPECT_EQ(info.prefix_block, 8);
  EXPECT_EQ(plan.layer(0).page_size, 4);
  EXPECT_EQ(plan.layer(1).page_size, 8);
  EXPECT_EQ(plan.layer(1).page_bytes, plan.layer(0).page_bytes);
  const int64_t longest = info.max_seq_len;
  EXPECT_EQ(plan.group(0).request_pages, (7 + 4 + 3) / 4 + 1);
  EXPECT_EQ(plan.group(1).request_pages, (longest + 7) / 8);
  EXPECT_EQ(info.request_pages, plan.group(0).request_pages + plan.group(1).request_pages);
  EXPECT_DOUBLE_EQ(info.concurrency,
                   static_cast<double>(info.num_pages) / static_cast<double>(info.request_pages));
}

TEST(PlanHybrid, PaddedGroupsHaveThePageSizeAndTellTheirPadding) {
  Net net({attention_layer(8), narrow_layer(), attention_layer(8), narrow_layer()});
  net.config.max_tokens_per_forward = 4;
  const PlanHandle plan(net.config);
  net.config.flags = KVC_CONFIG_PAD_PAGES;
  const PlanHandle padded(net.config);
  EXPECT_EQ(padded.group(1).page_size, 4);
  EXPECT_EQ(padded.group(1).padding_bytes, padded.info().page_bytes / 2);
  EXPECT_EQ(padded.info().prefix_block, 4);
  EXPECT_EQ(padded.info().num_layer_regions, 2);
  EXPECT_EQ(padded.layer(3).region, 0) << "both narrow layers lie where the first wide one does";
  EXPECT_EQ(padded.layer(3).region_offset, padded.layer(1).page_bytes);
  EXPECT_EQ(padded.layer(3).region_bytes, padded.layer(0).page_bytes);
  EXPECT_GT(padded.info().waste, plan.info().waste + 0.1);
}

TEST(PlanHybrid, SlicesOfAPipelineAgreeOnGroupsAndTokens) {
  std::vector<kvc_layer> layers;
  for (int i = 0; i < 12; ++i) layers.push_back(i % 6 == 5 ? narrow_layer() : attention_layer(8));
  Net net(layers, 100);
  const PlanHandle whole(net.config);
  std::vector<const kvc_plan*> plans;
  std::vector<std::unique_ptr<PlanHandle>> slices;
  for (const auto& [begin, end] : {std::pair{0, 5}, {5, 6}, {6, 12}}) {
    net.config.layer_begin = begin;
    net.config.layer_end = end;
    net.config.num_pages = 100 + begin;
    slices.push_back(std::make_unique<PlanHandle>(net.config));
    const PlanHandle& slice = *slices.back();
    plans.push_back(slice.get());
    ASSERT_EQ(slice.info().num_groups, whole.info().num_groups);
    EXPECT_EQ(slice.info().prefix_block, whole.info().prefix_block);
    for (int32_t group = 0; group < whole.info().num_groups; ++group) {
      EXPECT_EQ(slice.group(group).page_size, whole.group(group).page_size);
      EXPECT_EQ(slice.group(group).window, whole.group(group).window);
      EXPECT_EQ(slice.group(group).first_layer == -1, slice.group(group).num_layers == 0);
    }
    for (int32_t layer = begin; layer < end; ++layer) {
      EXPECT_EQ(slice.layer(layer).group, whole.layer(layer).group);
      EXPECT_EQ(slice.layer(layer).page_bytes, whole.layer(layer).page_bytes);
    }
  }
  EXPECT_EQ(slices[0]->group(whole.layer(5).group).num_layers, 0);
  EXPECT_EQ(slices[0]->group(whole.layer(5).group).padding_bytes, slices[0]->info().page_bytes);
  EXPECT_NE(slices[0]->text(kvc_plan_describe).find("none here"), std::string::npos);
  int64_t pages = 0;
  expect_ok(
      [&](kvc_error* err) { return kvc_plan_min_pages(plans.data(), plans.size(), &pages, err); });
  EXPECT_EQ(pages, 100);
}

TEST(PlanHybrid, MinPagesRefusesPlansOfDifferentGroups) {
  Net net({attention_layer(8), attention_layer()});
  const PlanHandle first(net.config);
  net.config.num_pages = 7;
  const PlanHandle fewer(net.config);
  const kvc_plan* plans[] = {first.get(), fewer.get()};
  int64_t pages = -5;
  const auto call = [&](kvc_error* err) { return kvc_plan_min_pages(plans, 2, &pages, err); };
  expect_ok(call);
  EXPECT_EQ(pages, 7);
  const auto refused = [&](const kvc_config& config, std::initializer_list<const char*> parts) {
    const PlanHandle other(config);
    plans[1] = other.get();
    pages = -5;
    expect_error(KVC_E_INVALID_ARGUMENT, parts, call);
    EXPECT_EQ(pages, -5);
  };
  Net one({attention_layer(8)});
  refused(one.config, {"plans[1]", "num_groups = 1", "plans[0] has 2"});
  Net window({attention_layer(9), attention_layer()});
  refused(window.config, {"groups[0].window = 9", "8"});
  Net chunk({attention_layer(8), attention_layer(0, 5)});
  refused(chunk.config, {"groups[1].chunk = 5", "0"});
  Net cross({attention_layer(8), cross_layer()});
  refused(cross.config, {"groups[1].is_cross = 1", "0"});
  net.config.page_size = 8;
  refused(net.config, {"groups[0].page_size = 8", "4"});
  plans[1] = nullptr;
  expect_error(KVC_E_INVALID_ARGUMENT, {"plans[1] is NULL", "n = 2"}, call);
  expect_error(KVC_E_INVALID_ARGUMENT, {"n = 0"},
               [&](kvc_error* err) { return kvc_plan_min_pages(plans, 0, &pages, err); });
  expect_error(KVC_E_INVALID_ARGUMENT, {"plans"},
               [&](kvc_error* err) { return kvc_plan_min_pages(nullptr, 1, &pages, err); });
  expect_error(KVC_E_INVALID_ARGUMENT, {"out_pages"},
               [&](kvc_error* err) { return kvc_plan_min_pages(plans, 1, nullptr, err); });
}

constexpr DLDataType kFloat8{kDLFloat8_e4m3fn, 8, 1}, kInt8{kDLInt, 8, 1}, kInt4{kDLInt, 4, 1},
    kFloat4{kDLFloat4_e2m1fn, 4, 1};

kvc_layer quantised(kvc_quant quant, DLDataType type) {
  kvc_layer layer = attention_layer();
  layer.k_dim = 32;
  layer.num_kv_heads = 2;
  layer.quant = quant;
  layer.k_dtype = type;
  return layer;
}

TEST(PlanQuant, TellsTypesAndScales) {
  Net net({quantised(KVC_QUANT_PER_TENSOR, kFloat8), quantised(KVC_QUANT_PER_TOKEN_HEAD, kInt4),
           quantised(KVC_QUANT_BLOCK16, kFloat4)});
  const PlanHandle plan(net.config);
  EXPECT_EQ(plan.layer(0).quant, KVC_QUANT_PER_TENSOR);
  EXPECT_EQ(plan.layer(0).k_dtype.code, kDLFloat8_e4m3fn);
  EXPECT_EQ(plan.layer(0).v_dtype.code, kDLFloat8_e4m3fn) << "all zero means k_dtype";
  EXPECT_EQ(plan.layer(0).k_page_bytes, 2u * 4 * 32);
  EXPECT_EQ(plan.layer(0).k_scale_bytes, 0u) << "kept by the host";
  EXPECT_EQ(plan.layer(1).k_dtype.bits, 4);
  EXPECT_EQ(plan.layer(1).k_page_bytes, 2u * 4 * 16);
  EXPECT_EQ(plan.layer(1).k_scale_bytes, 2u * 4 * 4);
  EXPECT_EQ(plan.layer(1).v_scale_bytes, 2u * 4 * 4);
  EXPECT_EQ(plan.layer(1).page_bytes, 2u * 4 * (16 + 16 + 8));
  EXPECT_EQ(plan.layer(1).bytes_per_token, 2u * (16 + 16 + 8));
  EXPECT_EQ(plan.layer(2).page_bytes, 2u * 4 * 2 * (16 + 2));
  const nlohmann::json json = nlohmann::json::parse(plan.text(kvc_plan_to_json));
  EXPECT_EQ(json.at("layers").at(0).at("k_dtype"), "float8_e4m3fn");
  EXPECT_EQ(json.at("layers").at(1).at("k_dtype"), "int4");
  EXPECT_EQ(json.at("layers").at(2).at("k_dtype"), "float4_e2m1fn");
  EXPECT_EQ(json.at("layers").at(2).at("quant"), "block16");
  EXPECT_NE(plan.text(kvc_plan_describe).find("PER_TOKEN_HEAD"), std::string::npos);
}

TEST(PlanQuant, RefusesContradictionsByName) {
  const auto refused = [](kvc_status status, std::initializer_list<const char*> parts,
                          const kvc_layer& layer) {
    Net net({attention_layer(), layer});
    expect_error(status, parts, [&](kvc_error* err) { return plan_status(net.config, err); });
  };
  refused(KVC_E_UNSUPPORTED, {"layers[1].k_dtype = float8_e4m3fn", "quant"},
          quantised(KVC_QUANT_NONE, kFloat8));
  refused(KVC_E_UNSUPPORTED, {"layers[1].k_dtype = int4"}, quantised(KVC_QUANT_NONE, kInt4));
  for (const kvc_quant quant :
       {KVC_QUANT_PER_TENSOR, KVC_QUANT_PER_TOKEN_HEAD, KVC_QUANT_BLOCK16}) {
    refused(KVC_E_INVALID_ARGUMENT, {"k_dtype = float16", "quant", "expected"},
            quantised(quant, {kDLFloat, 16, 1}));
    refused(KVC_E_INVALID_ARGUMENT, {"k_dtype = bfloat16", "quant", "expected"},
            quantised(quant, {}));
  }
  refused(KVC_E_INVALID_ARGUMENT, {"k_dtype = int4", "PER_TENSOR (1)"},
          quantised(KVC_QUANT_PER_TENSOR, kInt4));
  refused(KVC_E_INVALID_ARGUMENT, {"k_dtype = int8", "BLOCK16 (3)", "float4"},
          quantised(KVC_QUANT_BLOCK16, kInt8));
  kvc_layer layer = quantised(KVC_QUANT_PER_TOKEN_HEAD, kInt8);
  layer.v_dtype = {kDLBfloat, 16, 1};
  refused(KVC_E_INVALID_ARGUMENT, {"v_dtype = bfloat16", "PER_TOKEN_HEAD (2)"}, layer);
  layer = quantised(KVC_QUANT_PER_TOKEN_HEAD, kInt4);
  layer.k_dim = 33;
  refused(KVC_E_INVALID_ARGUMENT, {"k_dim = 33", "int4", "2"}, layer);
  layer.k_dim = 32;
  layer.v_dim = 31;
  refused(KVC_E_INVALID_ARGUMENT, {"v_dim = 31", "int4", "2"}, layer);
  layer = quantised(KVC_QUANT_BLOCK16, kFloat4);
  layer.k_dim = 40;
  refused(KVC_E_INVALID_ARGUMENT, {"k_dim = 40", "BLOCK16 (3)", "16"}, layer);
  layer = quantised(KVC_QUANT_BLOCK16, kFloat4);
  layer.flags = KVC_LAYER_V_IS_K;
  refused(KVC_E_UNSUPPORTED, {"quant = BLOCK16 (3)", "flags = 1", "PER_TOKEN_HEAD (2)"}, layer);
  layer = quantised(KVC_QUANT_PER_TENSOR, kInt8);
  layer.flags = KVC_LAYER_V_IS_K;
  kvc_layer scaled = layer;
  scaled.quant = KVC_QUANT_PER_TOKEN_HEAD;
  Net joint({layer, scaled});
  const PlanHandle joined(joint.config);
  EXPECT_EQ(joined.layer(0).page_bytes, 2u * 4 * 32);
  EXPECT_EQ(joined.layer(1).page_bytes, 2u * 4 * (32 + 4)) << "one scale for K and V";
  EXPECT_EQ(joined.layer(1).k_scale_bytes, 2u * 4 * 4);
  EXPECT_EQ(joined.layer(1).v_scale_bytes, 0u);
  kvc_layer latent = mla_layer();
  latent.quant = KVC_QUANT_PER_TENSOR;
  latent.k_dtype = kFloat8;
  Net latents({latent, shared_layer(0)});
  const PlanHandle plan(latents.config);
  EXPECT_EQ(plan.layer(0).page_bytes, 4u * (kRank + kRopeDim));
  EXPECT_EQ(plan.layer(1).quant, KVC_QUANT_PER_TENSOR) << "the source's";
  latent.quant = KVC_QUANT_PER_TOKEN_HEAD;
  Net scaled_latents({latent});
  EXPECT_EQ(PlanHandle(scaled_latents.config).layer(0).page_bytes, 4u * (kRank + kRopeDim + 4));
  latent.quant = KVC_QUANT_BLOCK16;
  latent.k_dtype = kFloat4;
  refused(KVC_E_UNSUPPORTED, {"quant = BLOCK16 (3)", "latent_rank = 8", "PER_TENSOR (1)"}, latent);
  kvc_layer shared = shared_layer(0);
  shared.quant = KVC_QUANT_PER_TENSOR;
  refused(KVC_E_INVALID_ARGUMENT, {"quant = 1", "source layer 0", "0"}, shared);
  layer = layer_of_kind(KVC_LAYER_NONE);
  layer.quant = KVC_QUANT_PER_TENSOR;
  refused(KVC_E_INVALID_ARGUMENT, {"layers[1].quant = 1", "NONE"}, layer);
}

TEST(PlanQuant, KAndVAreStoredApart) {
  kvc_layer k_alone = quantised(KVC_QUANT_PER_TOKEN_HEAD, kInt8);
  k_alone.v_quant = KVC_QUANT_OFF;
  kvc_layer v_alone = quantised(KVC_QUANT_NONE, {kDLFloat, 16, 1});
  v_alone.v_quant = KVC_QUANT_PER_TENSOR;
  v_alone.v_dtype = kFloat8;
  v_alone.v_scale = 0.5f;
  kvc_layer two_kinds = quantised(KVC_QUANT_PER_TENSOR, kFloat8);
  two_kinds.v_quant = KVC_QUANT_PER_TOKEN_HEAD;
  two_kinds.v_dtype = kInt8;
  kvc_layer same = quantised(KVC_QUANT_PER_TOKEN_HEAD, kInt8);
  same.v_quant = KVC_QUANT_PER_TOKEN_HEAD;
  kvc_layer off = quantised(KVC_QUANT_NONE, {kDLFloat, 16, 1});
  off.v_quant = KVC_QUANT_OFF;
  Net net({k_alone, v_alone, two_kinds, same, off, shared_layer(0)});
  const PlanHandle plan(net.config);
  EXPECT_EQ(plan.layer(0).quant, KVC_QUANT_PER_TOKEN_HEAD);
  EXPECT_EQ(plan.layer(0).v_quant, KVC_QUANT_NONE);
  EXPECT_EQ(plan.layer(0).v_dtype.code, kDLBfloat) << "the default of OFF";
  EXPECT_EQ(plan.layer(0).v_dtype.bits, 16);
  EXPECT_EQ(plan.layer(0).k_scale_bytes, 2u * 4 * 4);
  EXPECT_EQ(plan.layer(0).v_scale_bytes, 0u);
  EXPECT_EQ(plan.layer(0).bytes_per_token, 2u * (32 + 4 + 64));
  EXPECT_EQ(plan.layer(1).quant, KVC_QUANT_NONE);
  EXPECT_EQ(plan.layer(1).v_quant, KVC_QUANT_PER_TENSOR);
  EXPECT_EQ(plan.layer(1).k_dtype.bits, 16);
  EXPECT_EQ(plan.layer(1).v_dtype.code, kDLFloat8_e4m3fn);
  EXPECT_EQ(plan.layer(1).bytes_per_token, 2u * (64 + 32));
  EXPECT_EQ(plan.layer(2).k_scale_bytes, 0u);
  EXPECT_EQ(plan.layer(2).v_scale_bytes, 2u * 4 * 4);
  EXPECT_EQ(plan.layer(3).v_quant, KVC_QUANT_PER_TOKEN_HEAD);
  EXPECT_EQ(plan.layer(3).v_dtype.code, kDLInt) << "k_dtype, where both are of one kind";
  EXPECT_EQ(plan.layer(4).v_quant, KVC_QUANT_NONE);
  EXPECT_EQ(plan.layer(4).v_dtype.code, kDLFloat) << "k_dtype";
  EXPECT_EQ(plan.layer(5).v_quant, KVC_QUANT_NONE) << "the source's";
  EXPECT_EQ(plan.layer(5).quant, KVC_QUANT_PER_TOKEN_HEAD);
  const nlohmann::json json = nlohmann::json::parse(plan.text(kvc_plan_to_json)).at("layers");
  EXPECT_EQ(json.at(0).at("quant"), "per_token_head");
  EXPECT_EQ(json.at(0).at("v_quant"), "none");
  EXPECT_EQ(json.at(1).at("v_quant"), "per_tensor");
  EXPECT_EQ(json.at(3).at("v_quant"), "per_token_head");
  const std::string text = plan.text(kvc_plan_describe);
  for (const char* part : {"PER_TOKEN_HEAD/-", "-/PER_TENSOR", "PER_TENSOR/PER_TOKEN_HEAD"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
}

// Files of earlier versions are loaded by it.
TEST(PlanQuant, FingerprintsOfOneKindForBothStayAsTheyWere) {
  kvc_layer scaled = quantised(KVC_QUANT_PER_TENSOR, kFloat8);
  scaled.k_scale = 0.5f;
  Net net(
      {scaled, quantised(KVC_QUANT_PER_TOKEN_HEAD, kInt8), quantised(KVC_QUANT_BLOCK16, kFloat4)});
  const std::string before = PlanHandle(net.config).text(kvc_layout_fingerprint);
  EXPECT_EQ(before,
            "kvcache-layout-1:"
            "10ae2559c8b7ed92217c7628a72fb13ae596265660d7764073b11b7591bde56c");
  for (kvc_layer& layer : net.layers) layer.v_quant = layer.quant;
  EXPECT_EQ(PlanHandle(net.config).text(kvc_layout_fingerprint), before) << "said twice";
  net.layers[1].v_quant = KVC_QUANT_OFF;
  net.layers[1].v_dtype = {kDLFloat, 16, 1};
  const std::string apart = PlanHandle(net.config).text(kvc_layout_fingerprint);
  EXPECT_NE(apart, before);
}

TEST(PlanQuant, RefusesContradictionsOfKAndVByName) {
  const auto refused = [](kvc_status status, std::initializer_list<const char*> parts,
                          const kvc_layer& layer) {
    Net net({attention_layer(), layer});
    expect_error(status, parts, [&](kvc_error* err) { return plan_status(net.config, err); });
  };
  refused(KVC_E_UNSUPPORTED, {"layers[1].quant = 4", "BLOCK16 (3)"},
          quantised(KVC_QUANT_OFF, kInt8));
  for (const kvc_quant quant : {-1, 5}) {
    kvc_layer layer = quantised(KVC_QUANT_PER_TENSOR, kInt8);
    layer.v_quant = quant;
    refused(KVC_E_UNSUPPORTED, {"layers[1].v_quant = ", "OFF (4)"}, layer);
  }
  kvc_layer layer = quantised(KVC_QUANT_PER_TENSOR, kInt8);
  layer = quantised(KVC_QUANT_NONE, {});
  layer.v_quant = KVC_QUANT_PER_TOKEN_HEAD;
  refused(
      KVC_E_INVALID_ARGUMENT,
      {"layers[1].v_dtype is not set", "v_quant = PER_TOKEN_HEAD (2)", "quant = NONE (0)", "int4"},
      layer);
  layer.v_dtype = {kDLBfloat, 16, 1};
  refused(KVC_E_INVALID_ARGUMENT,
          {"layers[1].v_dtype = bfloat16", "v_quant = PER_TOKEN_HEAD (2)", "int8"}, layer);
  layer.v_dtype = kInt4;
  layer.v_dim = 31;
  refused(KVC_E_INVALID_ARGUMENT, {"v_dim = 31", "v_quant = PER_TOKEN_HEAD (2)"}, layer);
  layer = quantised(KVC_QUANT_PER_TENSOR, kInt8);
  layer.v_quant = KVC_QUANT_OFF;
  layer.v_dtype = kInt8;
  refused(KVC_E_UNSUPPORTED, {"layers[1].v_dtype = int8", "quant"}, layer);
  layer.v_dtype = {};
  layer.v_scale = 2;
  refused(KVC_E_INVALID_ARGUMENT, {"layers[1].v_scale = 2", "v_quant = OFF (4)", "PER_TENSOR (1)"},
          layer);
  layer = quantised(KVC_QUANT_NONE, {});
  layer.v_quant = KVC_QUANT_PER_TENSOR;
  layer.v_dtype = kInt8;
  layer.k_scale = 2;
  refused(KVC_E_INVALID_ARGUMENT, {"layers[1].k_scale = 2", "quant = NONE (0)"}, layer);
  layer.k_scale = 0;
  layer.flags = KVC_LAYER_V_IS_K;
  refused(KVC_E_INVALID_ARGUMENT,
          {"layers[1].v_quant = PER_TENSOR (1)", "quant = NONE (0)", "flags = 1"}, layer);
  kvc_layer latent = mla_layer();
  latent.quant = KVC_QUANT_PER_TENSOR;
  latent.k_dtype = kFloat8;
  latent.v_quant = KVC_QUANT_OFF;
  refused(KVC_E_INVALID_ARGUMENT,
          {"layers[1].v_quant = OFF (4)", "quant = PER_TENSOR (1)", "latent_rank = 8"}, latent);
  latent.v_quant = KVC_QUANT_PER_TENSOR;
  Net latents({latent});
  EXPECT_EQ(plan_status(latents.config, nullptr), KVC_OK) << "said twice";
  kvc_layer shared = shared_layer(0);
  shared.v_quant = KVC_QUANT_PER_TENSOR;
  refused(KVC_E_INVALID_ARGUMENT, {"layers[1].v_quant = 1", "source layer 0", "4"}, shared);
  shared.v_quant = KVC_QUANT_OFF;
  Net plain({attention_layer(), shared});
  EXPECT_EQ(plan_status(plain.config, nullptr), KVC_OK);
  layer = layer_of_kind(KVC_LAYER_NONE);
  layer.v_quant = KVC_QUANT_OFF;
  refused(KVC_E_INVALID_ARGUMENT, {"layers[1].v_quant = 4", "NONE"}, layer);
}

TEST(PlanBudget, CountsStatesHostPagesAndForwardsInFlight) {
  const std::vector<int64_t> shape{100};
  const std::vector<kvc_state_spec> states{state_spec(shape)};  // 400 bytes, 448 in a slot
  Net net({attention_layer(8), state_layer(states)}, 0);
  const uint64_t page_bytes = 4 * 2 * kDim * 4;
  net.config.byte_budget = 20 * page_bytes;
  net.config.host_byte_budget = 3 * page_bytes + 1;
  net.config.forwards_in_flight = 2;
  net.config.max_tokens_per_forward = 4;
  net.config.event_capacity = 1 << 24;
  kvc_plan_info info = PlanHandle(net.config).info();
  EXPECT_EQ(info.num_pages, 20);
  EXPECT_EQ(info.state_slot_pages, 2);
  EXPECT_EQ(info.num_host_pages, 3);
  EXPECT_EQ(info.forwards_in_flight, 2);
  const PlanHandle plan(net.config);
  int64_t pages = 0;
  ASSERT_EQ(kvc_plan_request_pages(plan.get(), 1000, &pages, nullptr), KVC_OK);
  EXPECT_EQ(pages, 2 * 2 + (7 + 8 + 3) / 4 + 1);
  const nlohmann::json json = nlohmann::json::parse(plan.text(kvc_plan_to_json));
  EXPECT_EQ(json.at("state_slot_pages"), 2);
  EXPECT_EQ(json.at("num_host_pages"), 3);
  EXPECT_EQ(json.at("prefix_block"), info.prefix_block);
  EXPECT_EQ(json.at("request_pages"), info.request_pages);
  EXPECT_EQ(json.at("concurrency"), info.concurrency);
  EXPECT_EQ(json.at("waste"), info.waste);
  ASSERT_EQ(json.at("groups").size(), 1u);
  const nlohmann::json& group = json.at("groups").at(0);
  EXPECT_EQ(group.at("layers"), std::vector<int>{0});
  EXPECT_EQ(group.at("kind"), "window");
  EXPECT_EQ(group.at("page_size"), 4);
  EXPECT_EQ(group.at("page_bytes"), page_bytes);
  EXPECT_EQ(group.at("padding_bytes"), 0);
  EXPECT_EQ(group.at("bytes_per_token"), page_bytes / 4);
  EXPECT_EQ(group.at("request_pages"), plan.group(0).request_pages);
  net.config.num_state_slots = 5;
  info = PlanHandle(net.config).info();
  EXPECT_EQ(info.num_pages, static_cast<int64_t>((20 * page_bytes - 5 * 448) / page_bytes));
  EXPECT_EQ(info.state_slot_pages, 0);
  net.config.byte_budget = 5 * 448 - 1;
  const kvc_error error =
      expect_error(KVC_E_INVALID_ARGUMENT, {"byte_budget = 2239", "num_state_slots = 5", "2240"},
                   [&](kvc_error* err) { return plan_status(net.config, err); });
  EXPECT_EQ(error.detail, 5 * 448);
}

TEST(PlanBudget, ASliceThatKeepsNothingThatGrowsNeedsANumberOfPages) {
  Net net({attention_layer(), layer_of_kind(KVC_LAYER_NONE)}, 0);
  net.config.layer_begin = 1;
  net.config.layer_end = 2;
  net.config.byte_budget = 1 << 20;
  expect_error(KVC_E_INVALID_ARGUMENT, {"byte_budget = 1048576", "num_pages"},
               [&](kvc_error* err) { return plan_status(net.config, err); });
  net.config.byte_budget = 0;
  net.config.num_pages = 9;
  const PlanHandle plan(net.config);
  EXPECT_EQ(plan.info().num_groups, 1);
  EXPECT_EQ(plan.info().page_bytes, 0u);
  EXPECT_EQ(plan.info().max_seq_len, 36) << "page tables are kept";
}

}  // namespace
}  // namespace kvc::test
