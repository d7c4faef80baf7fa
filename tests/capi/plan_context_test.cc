// Plans of context parallel ranks, against vLLM's formulas for decode_context_parallel_size:
// FullAttentionSpec.max_memory_usage_bytes, get_max_concurrency_for_kv_cache_config and the number
// of tokens that it logs (vllm/v1/kv_cache_interface.py, vllm/v1/core/kv_cache_utils.py).
#include <string>
#include <vector>

#include "tests/capi/fixture.h"
#include "tests/capi/hf_config.h"

namespace kvc::test {
namespace {

int64_t cdiv(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

// A rank keeps cdiv(max_model_len, dcp) tokens, in blocks of block_size.
int64_t vllm_blocks(int64_t tokens, int64_t ranks, int64_t block_size) {
  return cdiv(cdiv(tokens, ranks), block_size);
}

struct Ranks {
  explicit Ranks(const kvc_config& config) {
    kvc_error error{};
    status = kvc_plan_create(&config, &plan, &error);
    message = error.message;
    info.struct_size = sizeof info;
    if (status != KVC_OK) return;
    EXPECT_EQ(kvc_plan_info_get(plan, &info, nullptr), KVC_OK);
  }
  ~Ranks() { kvc_plan_destroy(plan); }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;
  int64_t pages(int64_t tokens) const {
    int64_t out = -1;
    EXPECT_EQ(kvc_plan_request_pages(plan, tokens, &out, nullptr), KVC_OK);
    return out;
  }

  kvc_plan* plan = nullptr;
  kvc_status status = KVC_OK;
  std::string message;
  kvc_plan_info info{};
};

kvc_layer attention(int32_t heads, int32_t dim) {
  kvc_layer layer{};
  layer.struct_size = sizeof layer;
  layer.num_kv_heads = heads;
  layer.k_dim = dim;
  return layer;
}

kvc_config config_of(const std::vector<kvc_layer>& layers) {
  kvc_config config{};
  (void)kvc_config_init(&config, sizeof config);
  config.layers = layers.data();
  config.num_layers = static_cast<int32_t>(layers.size());
  return config;
}

TEST(PlanContext, RequestsTakeTheBlocksOfVllm) {
  for (const int32_t heads : {1, 3}) {
    for (const int32_t dim : {128, 80, 65}) {
      for (const int32_t page_size : {1, 16, 48}) {
        for (const int32_t ranks : {1, 2, 3, 8, 1024}) {
          const std::vector<kvc_layer> layers(5, attention(heads, dim));
          kvc_config config = config_of(layers);
          config.page_size = page_size;
          config.cp_size = ranks;
          config.byte_budget = 1 << 30;
          const Ranks plan(config);
          ASSERT_EQ(plan.status, KVC_OK) << plan.message;
          const int64_t page_bytes = int64_t{5} * heads * 2 * dim * 2 * page_size;
          EXPECT_EQ(plan.info.num_pages, (1 << 30) / page_bytes) << "a rank's own memory";
          for (const int64_t tokens : {0, 1, 2, 16, 17, 1000, 4096, 100001})
            EXPECT_EQ(plan.pages(tokens), vllm_blocks(tokens, ranks, page_size))
                << tokens << " tokens in pages of " << page_size << " over " << ranks;
          EXPECT_EQ(plan.info.max_tokens, plan.info.num_pages * page_size * ranks);
          EXPECT_EQ(plan.info.prefix_block, page_size * ranks);
        }
      }
    }
  }
}

TEST(PlanContext, DeepSeekV3OnEightRanksHasTheConcurrencyOfVllm) {
  // 61 layers of 576 latent elements of 2 bytes in blocks of 16 tokens: 1,124,352 bytes.
  const struct {
    int32_t ranks;
    int64_t blocks_of_request, pool_tokens;
    double concurrency;
  } kRows[] = {
      {1, 8192, 611184, 38199.0 / 8192},   // 4.66
      {2, 4096, 1222368, 38199.0 / 4096},  // 9.33
      {8, 1024, 4889472, 38199.0 / 1024},  // 37.30
  };
  for (const auto& row : kRows) {
    Loaded model("deepseek-v3");
    model.config.cp_size = row.ranks;
    model.config.byte_budget = uint64_t{40} << 30;
    model.config.max_seq_len = 131072;
    const Ranks plan(model.config);
    ASSERT_EQ(plan.status, KVC_OK) << plan.message;
    EXPECT_EQ(plan.info.page_bytes, 1124352u);
    EXPECT_EQ(plan.info.num_pages, 38199);
    EXPECT_EQ(plan.info.request_pages, row.blocks_of_request);
    EXPECT_EQ(plan.info.max_tokens, row.pool_tokens);
    EXPECT_DOUBLE_EQ(plan.info.concurrency, row.concurrency);
    EXPECT_EQ(plan.info.waste, 0);
  }
}

TEST(PlanContext, ThePartOfALastBlockIsWaste) {
  const std::vector<kvc_layer> layers(2, attention(2, 64));
  kvc_config config = config_of(layers);
  config.num_pages = 100;
  config.max_seq_len = 70;
  config.cp_size = 4;
  const Ranks plan(config);
  ASSERT_EQ(plan.status, KVC_OK) << plan.message;
  // 18 tokens on a rank, in two pages of 16.
  EXPECT_EQ(plan.info.request_pages, 2);
  EXPECT_DOUBLE_EQ(plan.info.waste, 1 - 18.0 / 32);
}

TEST(PlanContext, StatesAreKeptWholeOnEveryRank) {
  Loaded alone("qwen3-next-80b"), dealt("qwen3-next-80b");
  for (Loaded* model : {&alone, &dealt}) {
    model->config.byte_budget = uint64_t{24} << 30;
    model->config.max_seq_len = 0;
  }
  dealt.config.cp_size = 4;
  const Ranks one(alone.config), four(dealt.config);
  ASSERT_EQ(one.status, KVC_OK) << one.message;
  ASSERT_EQ(four.status, KVC_OK) << four.message;
  EXPECT_EQ(four.info.state_slot_bytes, one.info.state_slot_bytes);
  const int64_t states = 2 * four.info.state_slot_pages;
  EXPECT_GT(states, 0);
  const int64_t page = four.info.page_size;
  for (const int64_t tokens : {1, 64, 1000, 65536})
    EXPECT_EQ(four.pages(tokens), states + vllm_blocks(tokens, 4, page)) << tokens;
  EXPECT_EQ(four.pages(0), 0);
}

TEST(PlanContext, TheKAndVOfAnEncoderAreKeptWholeOnEveryRank) {
  Loaded alone("whisper-large-v3"), dealt("whisper-large-v3");
  for (Loaded* model : {&alone, &dealt}) model->config.byte_budget = uint64_t{24} << 30;
  dealt.config.cp_size = 2;
  dealt.config.flags = alone.config.flags = KVC_CONFIG_PAD_PAGES;
  const Ranks one(alone.config), two(dealt.config);
  ASSERT_EQ(one.status, KVC_OK) << one.message;
  ASSERT_EQ(two.status, KVC_OK) << two.message;
  const auto group = [](const Ranks& ranks, int32_t index) {
    kvc_group_info info{};
    info.struct_size = sizeof info;
    EXPECT_EQ(kvc_plan_group_get(ranks.plan, index, &info, nullptr), KVC_OK);
    return info;
  };
  ASSERT_EQ(one.info.num_groups, 2);
  EXPECT_EQ(group(two, 0).request_pages, cdiv(cdiv(448, 2), 16));
  EXPECT_EQ(group(two, 1).request_pages, group(one, 1).request_pages);
  EXPECT_EQ(group(two, 1).request_pages, cdiv(1500, 16));
}

TEST(PlanContext, APlanThatIsTooSmallNamesTheLongestRequestOfAllRanks) {
  const std::vector<kvc_layer> layers(1, attention(1, 64));
  kvc_config config = config_of(layers);
  config.num_pages = 10;
  config.max_seq_len = 10 * 16 * 3 + 1;
  config.cp_size = 3;
  kvc_plan* plan = nullptr;
  kvc_error error = expect_error(KVC_E_NEVER_FITS, {"481", "480"}, [&](kvc_error* err) {
    return kvc_plan_create(&config, &plan, err);
  });
  EXPECT_EQ(error.detail, 480);
  EXPECT_EQ(plan, nullptr);
  config.max_seq_len = 480;
  const Ranks fits(config);
  EXPECT_EQ(fits.status, KVC_OK) << fits.message;
}

TEST(PlanContext, WhatNoRuleDealsOutIsRefusedByName) {
  const auto refused = [](const char* field, auto&& change) {
    std::vector<kvc_layer> layers(3, attention(2, 64));
    change(layers[1]);
    kvc_config config = config_of(layers);
    config.cp_size = 2;
    const std::string name = std::string("layers[1].") + field;
    kvc_plan* plan = nullptr;
    expect_error(KVC_E_UNSUPPORTED, {name.c_str(), "config.cp_size = 2"},
                 [&](kvc_error* err) { return kvc_plan_create(&config, &plan, err); });
    EXPECT_EQ(plan, nullptr);
    config.cp_size = 1;
    const Ranks alone(config);
    EXPECT_EQ(alone.status, KVC_OK) << alone.message;
  };
  refused("window", [](kvc_layer& layer) { layer.window = 128; });
  refused("chunk", [](kvc_layer& layer) { layer.chunk = 128; });
  refused("keep_tokens", [](kvc_layer& layer) {
    layer.quant = KVC_QUANT_PER_TOKEN_HEAD;
    layer.k_dtype = {kDLInt, 8, 1};
    layer.keep_tokens = 4;
  });
}

TEST(PlanContext, NumbersOfRanksAreBounded) {
  const std::vector<kvc_layer> layers(1, attention(1, 64));
  kvc_config config = config_of(layers);
  kvc_plan* plan = nullptr;
  for (const int32_t ranks : {-1, 1025, INT32_MAX}) {
    config.cp_size = ranks;
    const std::string value = "config.cp_size = " + std::to_string(ranks);
    expect_error(KVC_E_OUT_OF_RANGE, {value.c_str(), "0 to 1024"},
                 [&](kvc_error* err) { return kvc_plan_create(&config, &plan, err); });
    EXPECT_EQ(plan, nullptr);
  }
}

TEST(PlanContext, ACacheIsNotMadeOfAPlanForSeveralRanks) {
  const std::vector<kvc_layer> layers(1, attention(1, 64));
  kvc_config config = config_of(layers);
  config.num_pages = 4;
  for (const kvc_storage storage : {KVC_STORAGE_OWNED, KVC_STORAGE_NONE}) {
    config.storage = storage;
    config.cp_size = 4;
    const Ranks several(config);
    ASSERT_EQ(several.status, KVC_OK) << several.message;
    kvc_cache* cache = nullptr;
    expect_error(KVC_E_UNSUPPORTED, {"config.cp_size = 4", "0 or 1"},
                 [&](kvc_error* err) { return kvc_cache_create(several.plan, &cache, err); });
    EXPECT_EQ(cache, nullptr);
    config.cp_size = 1;
    const Ranks one(config);
    ASSERT_EQ(kvc_cache_create(one.plan, &cache, nullptr), KVC_OK);
    kvc_cache_destroy(cache);
  }
}

TEST(PlanContext, PlansOfOneModelDealOutOverTheSameRanks) {
  const std::vector<kvc_layer> layers(4, attention(1, 64));
  kvc_config config = config_of(layers);
  config.num_pages = 8;
  config.layer_end = 2;
  config.cp_size = 2;
  const Ranks first(config);
  config.layer_begin = 2;
  config.layer_end = 4;
  config.num_pages = 6;
  const Ranks second(config);
  config.cp_size = 4;
  const Ranks other(config);
  int64_t pages = -1;
  const kvc_plan* same[] = {first.plan, second.plan};
  EXPECT_EQ(kvc_plan_min_pages(same, 2, &pages, nullptr), KVC_OK);
  EXPECT_EQ(pages, 6);
  const kvc_plan* mixed[] = {first.plan, other.plan};
  expect_error(KVC_E_INVALID_ARGUMENT, {"plans[1] has cp_size = 4", "plans[0] has 2"},
               [&](kvc_error* err) { return kvc_plan_min_pages(mixed, 2, &pages, err); });
  EXPECT_EQ(pages, 6);
}

}  // namespace
}  // namespace kvc::test
