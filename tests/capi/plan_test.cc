// kvcache.h, section "Plan".
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/capi/fixture.h"

namespace kvc::test {
namespace {

TEST(Config, InitZeroesEverythingAndSetsTheSize) {
  kvc_config config;
  std::memset(static_cast<void*>(&config), 0xEE, sizeof config);
  ASSERT_EQ(kvc_config_init(&config, sizeof config), KVC_OK);
  kvc_config expected{};
  expected.struct_size = sizeof expected;
  EXPECT_EQ(std::memcmp(&config, &expected, sizeof config), 0);
  EXPECT_EQ(kvc_config_init(nullptr, sizeof config), KVC_E_INVALID_ARGUMENT);
  EXPECT_EQ(kvc_config_init(&config, 0), KVC_E_INVALID_ARGUMENT);
  EXPECT_EQ(kvc_config_init(&config, 4), KVC_E_INVALID_ARGUMENT);
}

TEST(Plan, CountsBytesAndPages) {
  Model model;
  Cache cache(model.config);
  kvc_plan_info info{};
  info.struct_size = sizeof info;
  expect_ok([&](kvc_error* err) { return kvc_plan_info_get(cache.plan(), &info, err); });
  const uint64_t per_token = 2 * (8 + 8) * 4 + 2 * (6 + 4) * 4;
  EXPECT_EQ(info.page_size, 4);
  EXPECT_EQ(info.num_layers, 2);
  EXPECT_EQ(info.layer_begin, 0);
  EXPECT_EQ(info.layer_end, 2);
  EXPECT_EQ(info.num_groups, 1);
  EXPECT_EQ(info.num_pages, 8);
  EXPECT_EQ(info.bytes_per_token, per_token);
  EXPECT_EQ(info.page_bytes, 4 * per_token);
  EXPECT_EQ(info.pool_bytes, 8 * 4 * per_token);
  EXPECT_EQ(info.max_tokens, 32);
  EXPECT_EQ(info.max_seq_len, 32);
  int64_t number = -1;
  expect_ok([&](kvc_error* err) {
    return kvc_plan_pages_for(cache.plan(), 3 * info.page_bytes + 1, &number, err);
  });
  EXPECT_EQ(number, 3);
  expect_ok([&](kvc_error* err) {
    return kvc_plan_pages_for(cache.plan(), info.page_bytes - 1, &number, err);
  });
  EXPECT_EQ(number, 0);
  expect_ok([&](kvc_error* err) {
    return kvc_plan_max_tokens(cache.plan(), 3 * info.page_bytes, &number, err);
  });
  EXPECT_EQ(number, 12);
  for (const auto& [tokens, pages] :
       {std::pair<int64_t, int64_t>{0, 0}, {1, 1}, {4, 1}, {5, 2}, {32, 8}, {33, 9}}) {
    expect_ok([&, t = tokens](kvc_error* err) {
      return kvc_plan_request_pages(cache.plan(), t, &number, err);
    });
    EXPECT_EQ(number, pages) << tokens;
  }
  expect_error(KVC_E_OUT_OF_RANGE, {"num_tokens", "-3"}, [&](kvc_error* err) {
    return kvc_plan_request_pages(cache.plan(), -3, &number, err);
  });
  ASSERT_EQ(kvc_plan_request_pages(cache.plan(), INT64_MAX, &number, nullptr), KVC_OK)
      << "no overflow";
  EXPECT_EQ(number, INT64_MAX / 4 + 1);
}

TEST(Plan, DescribesItsLayers) {
  Model model;
  model.layers[1].k_dtype = {};
  model.layers[1].num_q_heads = 0;
  Cache cache(model.config);
  kvc_layer_info info{};
  info.struct_size = sizeof info;
  expect_ok([&](kvc_error* err) { return kvc_plan_layer_get(cache.plan(), 0, &info, err); });
  EXPECT_EQ(info.kind, KVC_LAYER_ATTENTION);
  EXPECT_EQ(info.group, 0);
  EXPECT_EQ(info.num_q_heads, 4);
  EXPECT_EQ(info.v_dim, 8) << "0 means k_dim";
  EXPECT_EQ(info.k_page_bytes, 2u * 4 * 8 * 4);
  EXPECT_EQ(info.v_page_bytes, 2u * 4 * 8 * 4);
  EXPECT_EQ(info.page_bytes, info.k_page_bytes + info.v_page_bytes);
  EXPECT_EQ(info.bytes_per_token, 2u * 16 * 4);
  expect_ok([&](kvc_error* err) { return kvc_plan_layer_get(cache.plan(), 1, &info, err); });
  EXPECT_EQ(info.num_q_heads, 2) << "0 means num_kv_heads";
  EXPECT_EQ(info.k_dtype.code, kDLBfloat) << "all zero means bfloat16";
  EXPECT_EQ(info.v_dtype.code, kDLBfloat);
  EXPECT_EQ(info.v_dtype.bits, 16);
  EXPECT_EQ(info.k_page_bytes, 2u * 4 * 6 * 2);
  for (const int32_t layer : {-1, 2, INT32_MAX}) {
    expect_error(KVC_E_OUT_OF_RANGE, {"layer", std::to_string(layer).c_str()}, [&](kvc_error* err) {
      return kvc_plan_layer_get(cache.plan(), layer, &info, err);
    });
  }
}

TEST(Plan, KeepsGlobalLayerIdsInAPipelineSlice) {
  Model model;
  model.config.layer_begin = 1;
  model.config.layer_end = 2;
  Cache cache(model.config);
  kvc_layer_info info{};
  info.struct_size = sizeof info;
  ASSERT_EQ(kvc_plan_layer_get(cache.plan(), 1, &info, nullptr), KVC_OK);
  EXPECT_EQ(info.k_dim, 6);
  expect_error(KVC_E_OUT_OF_RANGE, {"layer", "0"},
               [&](kvc_error* err) { return kvc_plan_layer_get(cache.plan(), 0, &info, err); });
}

using TextCall = kvc_status (*)(const kvc_plan*, char*, size_t*, kvc_error*);

TEST(Plan, WritesTextByTheTwoCallRule) {
  Model model;
  Cache cache(model.config);
  for (const TextCall text : {&kvc_plan_describe, &kvc_plan_to_json}) {
    size_t len = 0;
    expect_ok([&](kvc_error* err) { return text(cache.plan(), nullptr, &len, err); });
    ASSERT_GT(len, 10u);
    std::vector<char> buffer(len + 1, 'x');
    size_t small = len - 1;
    expect_error(KVC_E_BUFFER_TOO_SMALL,
                 {std::to_string(len).c_str(), std::to_string(len - 1).c_str()},
                 [&](kvc_error* err) {
                   small = len - 1;
                   return text(cache.plan(), buffer.data(), &small, err);
                 });
    EXPECT_EQ(small, len);
    for (const char c : buffer) EXPECT_EQ(c, 'x') << "nothing but *len is written";
    size_t exact = len;
    ASSERT_EQ(text(cache.plan(), buffer.data(), &exact, nullptr), KVC_OK);
    EXPECT_EQ(exact, len);
    EXPECT_EQ(buffer[len - 1], '\0') << "the count has the terminating NUL";
    EXPECT_EQ(strlen(buffer.data()), len - 1);
    EXPECT_EQ(buffer[len], 'x');
    expect_error(KVC_E_INVALID_ARGUMENT, {"len"},
                 [&](kvc_error* err) { return text(cache.plan(), buffer.data(), nullptr, err); });
    expect_error(KVC_E_INVALID_ARGUMENT, {"plan"},
                 [&](kvc_error* err) { return text(nullptr, buffer.data(), &exact, err); });
  }
}

TEST(Plan, JsonHasWhatTheHeaderPromises) {
  Model model;
  Cache cache(model.config);
  size_t len = 0;
  ASSERT_EQ(kvc_plan_to_json(cache.plan(), nullptr, &len, nullptr), KVC_OK);
  std::string text(len, 0);
  ASSERT_EQ(kvc_plan_to_json(cache.plan(), text.data(), &len, nullptr), KVC_OK);
  const nlohmann::json json = nlohmann::json::parse(text.c_str());
  kvc_plan_info info{};
  info.struct_size = sizeof info;
  ASSERT_EQ(kvc_plan_info_get(cache.plan(), &info, nullptr), KVC_OK);
  EXPECT_EQ(json.at("page_size"), info.page_size);
  EXPECT_EQ(json.at("num_pages"), info.num_pages);
  EXPECT_EQ(json.at("page_bytes"), info.page_bytes);
  EXPECT_EQ(json.at("bytes_per_token"), info.bytes_per_token);
  EXPECT_EQ(json.at("pool_bytes"), info.pool_bytes);
  EXPECT_EQ(json.at("max_tokens"), info.max_tokens);
  EXPECT_EQ(json.at("max_seq_len"), info.max_seq_len);
  EXPECT_TRUE(json.contains("pool_layout"));
  EXPECT_TRUE(json.contains("storage"));
  EXPECT_EQ(json.at("layers").size(), 2u);
}

TEST(Plan, TakesABudgetInsteadOfPages) {
  Model model;
  const uint64_t page_bytes = 4 * (2 * 16 * 4 + 2 * 10 * 4);
  model.config.num_pages = 0;
  model.config.byte_budget = 5 * page_bytes + 17;
  Cache cache(model.config);
  EXPECT_EQ(kvc_cache_available_pages(cache.get()), 5);
  model.config.byte_budget = page_bytes - 1;
  const kvc_error error = expect_error(
      KVC_E_INVALID_ARGUMENT,
      {"byte_budget", std::to_string(page_bytes - 1).c_str(), std::to_string(page_bytes).c_str()},
      [&](kvc_error* err) { return model.plan_status(err); });
  EXPECT_EQ(error.detail, static_cast<int64_t>(page_bytes)) << "detail: bytes of one page";
  model.config.num_pages = 3;
  expect_error(KVC_E_INVALID_ARGUMENT, {"num_pages", "byte_budget", "3"},
               [&](kvc_error* err) { return model.plan_status(err); });
}

TEST(Plan, WithoutPagesAnswersQuestionsButMakesNoCache) {
  Model model;
  model.config.num_pages = 0;
  kvc_plan* plan = nullptr;
  ASSERT_EQ(kvc_plan_create(&model.config, &plan, nullptr), KVC_OK);
  int64_t pages = 0;
  EXPECT_EQ(kvc_plan_request_pages(plan, 9, &pages, nullptr), KVC_OK);
  EXPECT_EQ(pages, 3);
  kvc_cache* cache = nullptr;
  expect_error(KVC_E_INVALID_ARGUMENT, {"num_pages", "byte_budget"},
               [&](kvc_error* err) { return kvc_cache_create(plan, &cache, err); });
  EXPECT_EQ(cache, nullptr);
  kvc_plan_destroy(plan);
}

TEST(Plan, RefusesPagesThatCannotHoldTheLongestSequence) {
  Model model;
  model.config.max_seq_len = 32;
  EXPECT_EQ(model.plan_status(nullptr), KVC_OK);
  model.config.max_seq_len = 33;
  const kvc_error error = expect_error(KVC_E_NEVER_FITS, {"max_seq_len", "33", "32"},
                                       [&](kvc_error* err) { return model.plan_status(err); });
  EXPECT_EQ(error.detail, 32);
}

TEST(Plan, RefusesFieldsOfLaterVersionsByName) {
  const auto refused = [](const char* field, const char* value,
                          const std::function<void(Model&)>& change) {
    Model model;
    change(model);
    expect_error(KVC_E_UNSUPPORTED, {field, value},
                 [&](kvc_error* err) { return model.plan_status(err); });
  };
  refused("reserved", "9", [](Model& m) { m.layers[0].reserved = 9; });
  refused("layers[0].flags", "2", [](Model& m) { m.layers[0].flags = 2; });
  for (const kvc_layer_kind kind : {-1, KVC_LAYER_NONE + 1}) {
    refused("layers[1].kind", std::to_string(kind).c_str(),
            [&](Model& m) { m.layers[1].kind = kind; });
  }
  for (const kvc_quant quant : {-1, KVC_QUANT_BLOCK16 + 1})
    refused("layers[0].quant", std::to_string(quant).c_str(),
            [&](Model& m) { m.layers[0].quant = quant; });
  refused("k_dtype", "int8", [](Model& m) { m.layers[0].k_dtype = {kDLInt, 8, 1}; });
  refused("v_dtype", "float64", [](Model& m) { m.layers[0].v_dtype = {kDLFloat, 64, 1}; });
  refused("flags", "8", [](Model& m) { m.config.flags = 8; });
  refused("device", "8", [](Model& m) { m.config.device = {kDLMetal, 0}; });
  refused("storage", "3", [](Model& m) { m.config.storage = 3; });
  refused("pool_layout", "2", [](Model& m) { m.config.pool_layout = 2; });
  kvc_rope rope{};
  rope.struct_size = sizeof rope;
  rope.mode = KVC_ROPE_ON_READ + 1;
  refused("rope->mode", "3", [&](Model& m) { m.layers[0].rope = &rope; });
  rope.mode = KVC_ROPE_ON_APPEND;
  rope.style = 2;
  refused("style", "2", [&](Model& m) { m.layers[0].rope = &rope; });
  kvc_ext ext{77, nullptr};
  refused("ext", "77", [&](Model& m) { m.config.ext = &ext; });
}

TEST(Plan, ScalesBelongToStorageOfOneScale) {
  const auto refused = [](kvc_status status, std::initializer_list<const char*> parts,
                          const std::function<void(Model&)>& change) {
    Model model;
    change(model);
    expect_error(status, parts, [&](kvc_error* err) { return model.plan_status(err); });
  };
  refused(KVC_E_INVALID_ARGUMENT, {"layers[0].k_scale", "0.5"},
          [](Model& m) { m.layers[0].k_scale = 0.5f; });
  refused(KVC_E_INVALID_ARGUMENT, {"layers[1].v_scale", "2"},
          [](Model& m) { m.layers[1].v_scale = 2; });
  const auto quantised = [](Model& m) {
    m.layers[0].quant = KVC_QUANT_PER_TENSOR;
    m.layers[0].k_dtype = {kDLInt, 8, 1};
  };
  refused(KVC_E_OUT_OF_RANGE, {"layers[0].k_scale", "-1"},
          [&](Model& m) { quantised(m), m.layers[0].k_scale = -1; });
  refused(KVC_E_OUT_OF_RANGE, {"layers[0].v_scale", "inf"}, [&](Model& m) {
    quantised(m), m.layers[0].v_scale = std::numeric_limits<float>::infinity();
  });
  Model good;
  quantised(good);
  good.layers[0].k_scale = 0.25f;
  expect_ok([&](kvc_error* err) { return good.plan_status(err); });
}

// No back end lies beside this program: planning and bookkeeping need none.
TEST(Plan, OfAGpuNeedsABackEndOnlyForMemory) {
  Model model;
  model.config.device = {kDLCUDA, 3};
  for (const kvc_storage storage : {KVC_STORAGE_OWNED, KVC_STORAGE_NONE}) {
    model.config.storage = storage;
    kvc_plan* plan = nullptr;
    expect_ok([&](kvc_error* err) { return kvc_plan_create(&model.config, &plan, err); });
    kvc_cache* cache = nullptr;
    if (storage == KVC_STORAGE_NONE) {
      expect_ok([&](kvc_error* err) { return kvc_cache_create(plan, &cache, err); });
      EXPECT_EQ(kvc_seq_add(cache, 1, nullptr), KVC_OK);
    } else if (kvc_has_feature("cuda") == 0) {
      expect_error(KVC_E_UNSUPPORTED, {"libkvcache_cuda.so"},
                   [&](kvc_error* err) { return kvc_cache_create(plan, &cache, err); });
    }
    kvc_cache_destroy(cache);
    kvc_plan_destroy(plan);
  }
}

TEST(Plan, RefusesValuesBeyondTheirLimits) {
  const auto refused = [](kvc_status status, const char* field, const char* value,
                          const std::function<void(Model&)>& change) {
    Model model;
    change(model);
    expect_error(status, {field, value}, [&](kvc_error* err) { return model.plan_status(err); });
  };
  refused(KVC_E_OUT_OF_RANGE, "page_size", "-1", [](Model& m) { m.config.page_size = -1; });
  refused(KVC_E_OUT_OF_RANGE, "page_size", "65537", [](Model& m) { m.config.page_size = 65537; });
  refused(KVC_E_OUT_OF_RANGE, "num_layers", "0", [](Model& m) { m.config.num_layers = 0; });
  refused(KVC_E_OUT_OF_RANGE, "num_layers", "-2", [](Model& m) { m.config.num_layers = -2; });
  refused(KVC_E_INVALID_ARGUMENT, "layers", "2", [](Model& m) { m.config.layers = nullptr; });
  refused(KVC_E_OUT_OF_RANGE, "layer_end", "3", [](Model& m) { m.config.layer_end = 3; });
  refused(KVC_E_OUT_OF_RANGE, "layer_begin", "-1",
          [](Model& m) { m.config.layer_begin = -1, m.config.layer_end = 1; });
  refused(KVC_E_INVALID_ARGUMENT, "layer_begin", "1",
          [](Model& m) { m.config.layer_begin = 1, m.config.layer_end = 1; });
  refused(KVC_E_OUT_OF_RANGE, "num_pages", "-1", [](Model& m) { m.config.num_pages = -1; });
  refused(KVC_E_OUT_OF_RANGE, "num_pages", "9223372036854775807",
          [](Model& m) { m.config.num_pages = INT64_MAX; });
  refused(KVC_E_OUT_OF_RANGE, "max_seqs", "-1", [](Model& m) { m.config.max_seqs = -1; });
  refused(KVC_E_OUT_OF_RANGE, "max_tokens_per_forward", "-1",
          [](Model& m) { m.config.max_tokens_per_forward = -1; });
  refused(KVC_E_OUT_OF_RANGE, "max_seq_len", "-1", [](Model& m) { m.config.max_seq_len = -1; });
  refused(KVC_E_OUT_OF_RANGE, "forwards_in_flight", "-1",
          [](Model& m) { m.config.forwards_in_flight = -1; });
  refused(KVC_E_OUT_OF_RANGE, "forwards_in_flight", "65",
          [](Model& m) { m.config.forwards_in_flight = 65; });
  refused(KVC_E_OUT_OF_RANGE, "event_capacity", "-1",
          [](Model& m) { m.config.event_capacity = -1; });
  refused(KVC_E_OUT_OF_RANGE, "event_capacity", "16777217",
          [](Model& m) { m.config.event_capacity = (1 << 24) + 1; });
  refused(KVC_E_INVALID_ARGUMENT, "host_byte_budget", "831",
          [](Model& m) { m.config.host_byte_budget = 4 * (2 * 16 * 4 + 2 * 10 * 4) - 1; });
  refused(KVC_E_OUT_OF_RANGE, "num_threads", "-1", [](Model& m) { m.config.num_threads = -1; });
  refused(KVC_E_OUT_OF_RANGE, "cpu_isa", "99", [](Model& m) { m.config.cpu_isa = 99; });
  refused(KVC_E_OUT_OF_RANGE, "num_kv_heads", "0", [](Model& m) { m.layers[0].num_kv_heads = 0; });
  refused(KVC_E_INVALID_ARGUMENT, "num_q_heads", "5",
          [](Model& m) { m.layers[0].num_q_heads = 5; });
  refused(KVC_E_OUT_OF_RANGE, "layers[1].k_dim", "0", [](Model& m) { m.layers[1].k_dim = 0; });
  refused(KVC_E_OUT_OF_RANGE, "k_dim", "513", [](Model& m) { m.layers[0].k_dim = 513; });
  refused(KVC_E_OUT_OF_RANGE, "v_dim", "513", [](Model& m) { m.layers[0].v_dim = 513; });
  refused(KVC_E_OUT_OF_RANGE, "v_dim", "-1", [](Model& m) { m.layers[0].v_dim = -1; });
  refused(KVC_E_OUT_OF_RANGE, "num_pages", "2147483646", [](Model& m) {
    m.config.page_size = 65536;
    m.config.num_pages = INT32_MAX - 1;
    m.layers[0].num_kv_heads = m.layers[0].num_q_heads = 65536;
    m.layers[0].k_dim = 512;
  });
  std::vector<float> factors{1, 1, 1, 1};
  kvc_rope rope{};
  rope.struct_size = sizeof rope;
  rope.mode = KVC_ROPE_ON_APPEND;
  const auto rope_refused = [&](kvc_status status, const char* field, const char* value,
                                const std::function<void(kvc_rope&)>& change) {
    kvc_rope changed = rope;
    change(changed);
    refused(status, field, value, [&](Model& m) { m.layers[0].rope = &changed; });
  };
  rope_refused(KVC_E_OUT_OF_RANGE, "rotary_dim", "10", [](kvc_rope& r) { r.rotary_dim = 10; });
  rope_refused(KVC_E_OUT_OF_RANGE, "rotary_dim", "-2", [](kvc_rope& r) { r.rotary_dim = -2; });
  rope_refused(KVC_E_INVALID_ARGUMENT, "rotary_dim", "3", [](kvc_rope& r) { r.rotary_dim = 3; });
  rope_refused(KVC_E_OUT_OF_RANGE, "theta", "-1", [](kvc_rope& r) { r.theta = -1; });
  rope_refused(KVC_E_INVALID_ARGUMENT, "num_freq_factors", "3",
               [&](kvc_rope& r) { r.num_freq_factors = 3, r.freq_factors = factors.data(); });
  rope_refused(KVC_E_INVALID_ARGUMENT, "freq_factors", "4",
               [](kvc_rope& r) { r.num_freq_factors = 4; });
  factors[2] = 0;
  rope_refused(KVC_E_OUT_OF_RANGE, "freq_factors", "2",
               [&](kvc_rope& r) { r.num_freq_factors = 4, r.freq_factors = factors.data(); });
}

TEST(Plan, ReadsStructsOfEveryVersion) {
  Model model;
  for (const size_t size : {0u, 4u}) {
    model.config.struct_size = size;
    expect_error(KVC_E_INVALID_ARGUMENT, {"config", "struct_size", std::to_string(size).c_str()},
                 [&](kvc_error* err) { return model.plan_status(err); });
  }
  // An older caller: the rest counts as zero
  model.config.struct_size = offsetof(kvc_config, pool_tensors);
  model.config.num_threads = -5;
  EXPECT_EQ(model.plan_status(nullptr), KVC_OK);

  Model newer;
  struct {
    kvc_config config;
    uint64_t tail[2];
  } longer{newer.config, {0, 0}};
  longer.config.struct_size = sizeof longer;
  kvc_plan* plan = nullptr;
  expect_ok([&](kvc_error* err) { return kvc_plan_create(&longer.config, &plan, err); });
  kvc_plan_destroy(plan);
  plan = nullptr;
  longer.tail[1] = 1;
  expect_error(
      KVC_E_VERSION,
      {"config", std::to_string(sizeof longer).c_str(), std::to_string(sizeof(kvc_config)).c_str()},
      [&](kvc_error* err) { return kvc_plan_create(&longer.config, &plan, err); });
  EXPECT_EQ(plan, nullptr);
}

TEST(Plan, TheFirstLayersSizeIsTheStrideOfAll) {
  Model model;
  struct LongLayer {
    kvc_layer layer;
    uint64_t tail;
  } layers[2] = {{model.layers[0], 0}, {model.layers[1], 0}};
  layers[0].layer.struct_size = layers[1].layer.struct_size = sizeof(LongLayer);
  model.config.layers = &layers[0].layer;
  EXPECT_EQ(model.plan_status(nullptr), KVC_OK);
  layers[1].tail = 3;
  expect_error(KVC_E_VERSION, {"layers[1]"},
               [&](kvc_error* err) { return model.plan_status(err); });
  layers[1].tail = 0;
  layers[0].layer.struct_size = 4;
  expect_error(KVC_E_INVALID_ARGUMENT, {"layers[0]", "struct_size", "4"},
               [&](kvc_error* err) { return model.plan_status(err); });
  kvc_rope rope{};
  model.config.layers = model.layers;
  model.layers[1].rope = &rope;
  expect_error(KVC_E_INVALID_ARGUMENT, {"layers[1]", "rope", "struct_size", "0"},
               [&](kvc_error* err) { return model.plan_status(err); });
}

TEST(Plan, RefusesHalfFilledHooks) {
  Model model;
  kvc_executor executor{};
  executor.struct_size = sizeof executor;
  model.config.executor = &executor;
  model.config.num_threads = 0;
  expect_error(KVC_E_INVALID_ARGUMENT, {"executor", "concurrency"},
               [&](kvc_error* err) { return model.plan_status(err); });
  executor.concurrency = [](void*) { return int32_t{0}; };
  expect_error(KVC_E_INVALID_ARGUMENT, {"executor", "parallel_for"},
               [&](kvc_error* err) { return model.plan_status(err); });
  executor.parallel_for = [](void*, int64_t, void (*)(void*, int64_t, int32_t), void*) {};
  model.config.num_threads = 2;
  expect_error(KVC_E_INVALID_ARGUMENT, {"num_threads", "2", "executor"},
               [&](kvc_error* err) { return model.plan_status(err); });
  model.config.num_threads = 0;
  kvc_plan* plan = nullptr;
  ASSERT_EQ(kvc_plan_create(&model.config, &plan, nullptr), KVC_OK);
  kvc_cache* cache = nullptr;
  expect_error(KVC_E_INVALID_ARGUMENT, {"executor", "0"},
               [&](kvc_error* err) { return kvc_cache_create(plan, &cache, err); });
  kvc_plan_destroy(plan);
  Model other;
  kvc_allocator allocator{};
  allocator.struct_size = sizeof allocator;
  other.config.allocator = &allocator;
  expect_error(KVC_E_INVALID_ARGUMENT, {"allocator", "alloc"},
               [&](kvc_error* err) { return other.plan_status(err); });
  allocator.alloc = [](void*, DLDevice, uint64_t, uint64_t) -> void* { return nullptr; };
  expect_error(KVC_E_INVALID_ARGUMENT, {"allocator", "free"},
               [&](kvc_error* err) { return other.plan_status(err); });
  allocator.free = [](void*, DLDevice, void*, uint64_t) {};
  ASSERT_EQ(kvc_plan_create(&other.config, &plan, nullptr), KVC_OK);
  expect_error(KVC_E_NO_MEMORY, {"allocator"},
               [&](kvc_error* err) { return kvc_cache_create(plan, &cache, err); });
  EXPECT_EQ(cache, nullptr);
  kvc_plan_destroy(plan);
}

TEST(Plan, NullArgumentsAreRefusedByName) {
  Model model;
  Cache cache(model.config);
  const kvc_plan* plan = cache.plan();
  kvc_plan* made = nullptr;
  int64_t number = 0;
  kvc_plan_info info{};
  kvc_layer_info layer{};
  info.struct_size = sizeof info;
  layer.struct_size = sizeof layer;
  expect_error(KVC_E_INVALID_ARGUMENT, {"config"},
               [&](kvc_error* err) { return kvc_plan_create(nullptr, &made, err); });
  expect_error(KVC_E_INVALID_ARGUMENT, {"out"},
               [&](kvc_error* err) { return kvc_plan_create(&model.config, nullptr, err); });
  expect_error(KVC_E_INVALID_ARGUMENT, {"plan"},
               [&](kvc_error* err) { return kvc_plan_info_get(nullptr, &info, err); });
  expect_error(KVC_E_INVALID_ARGUMENT, {"out"},
               [&](kvc_error* err) { return kvc_plan_info_get(plan, nullptr, err); });
  expect_error(KVC_E_INVALID_ARGUMENT, {"plan"},
               [&](kvc_error* err) { return kvc_plan_layer_get(nullptr, 0, &layer, err); });
  expect_error(KVC_E_INVALID_ARGUMENT, {"out"},
               [&](kvc_error* err) { return kvc_plan_layer_get(plan, 0, nullptr, err); });
  expect_error(KVC_E_INVALID_ARGUMENT, {"plan"},
               [&](kvc_error* err) { return kvc_plan_pages_for(nullptr, 1, &number, err); });
  expect_error(KVC_E_INVALID_ARGUMENT, {"out_pages"},
               [&](kvc_error* err) { return kvc_plan_pages_for(plan, 1, nullptr, err); });
  expect_error(KVC_E_INVALID_ARGUMENT, {"plan"},
               [&](kvc_error* err) { return kvc_plan_max_tokens(nullptr, 1, &number, err); });
  expect_error(KVC_E_INVALID_ARGUMENT, {"out_tokens"},
               [&](kvc_error* err) { return kvc_plan_max_tokens(plan, 1, nullptr, err); });
  expect_error(KVC_E_INVALID_ARGUMENT, {"plan"},
               [&](kvc_error* err) { return kvc_plan_request_pages(nullptr, 1, &number, err); });
  expect_error(KVC_E_INVALID_ARGUMENT, {"out_pages"},
               [&](kvc_error* err) { return kvc_plan_request_pages(plan, 1, nullptr, err); });
  info.struct_size = 0;
  expect_error(KVC_E_INVALID_ARGUMENT, {"out", "struct_size", "0"},
               [&](kvc_error* err) { return kvc_plan_info_get(plan, &info, err); });
  layer.struct_size = 4;
  expect_error(KVC_E_INVALID_ARGUMENT, {"out", "struct_size", "4"},
               [&](kvc_error* err) { return kvc_plan_layer_get(plan, 0, &layer, err); });
  kvc_plan_destroy(nullptr);
}

TEST(Plan, CachesLiveOnWhenThePlanIsGone) {
  Model model;
  kvc_plan* plan = nullptr;
  kvc_cache* cache = nullptr;
  ASSERT_EQ(kvc_plan_create(&model.config, &plan, nullptr), KVC_OK);
  ASSERT_EQ(kvc_cache_create(plan, &cache, nullptr), KVC_OK);
  kvc_plan_destroy(plan);
  EXPECT_EQ(kvc_seq_add(cache, 1, nullptr), KVC_OK);
  EXPECT_EQ(kvc_cache_check(cache, nullptr), KVC_OK);
  kvc_cache_destroy(cache);
}

}  // namespace
}  // namespace kvc::test
