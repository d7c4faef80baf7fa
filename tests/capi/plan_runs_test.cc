// What a plan promises, run: every accepted plan serves one request of max_seq_len, prefilled and
// decoded to its last token.
#include <gtest/gtest.h>

#include "tests/capi/layers.h"

namespace kvc::test {
namespace {

// The least budget that the plan accepts; one byte less is refused with the longest length that
// fits.
uint64_t least_budget(Net& net) {
  kvc_error error{};
  const auto accepts = [&](uint64_t bytes) {
    net.config.byte_budget = bytes;
    kvc_plan* plan = nullptr;
    const kvc_status status = kvc_plan_create(&net.config, &plan, &error);
    kvc_plan_destroy(plan);
    EXPECT_TRUE(status == KVC_OK || status == KVC_E_NEVER_FITS || status == KVC_E_INVALID_ARGUMENT)
        << error.message;
    return status == KVC_OK;
  };
  uint64_t fits = uint64_t{1} << 40, refused = 0;
  while (fits - refused > 1) {
    const uint64_t middle = refused + (fits - refused) / 2;
    (accepts(middle) ? fits : refused) = middle;
  }
  EXPECT_FALSE(accepts(fits - 1));
  if (error.status == KVC_E_NEVER_FITS) {
    EXPECT_LT(error.detail, net.config.max_seq_len) << "the longest that fits";
  }
  net.config.byte_budget = fits;
  return fits;
}

void expect_longest_request_runs(Net& net) {
  net.config.num_pages = 0;
  net.config.storage = KVC_STORAGE_NONE;
  least_budget(net);
  Cache cache(net.config);
  ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  kvc_error error{};
  int64_t length = 0;
  while (length < net.config.max_seq_len) {
    const int64_t rest = net.config.max_seq_len - length;
    const int64_t tokens = length < 100 ? std::min(rest, net.config.max_tokens_per_forward) : 1;
    const kvc_seq seq = 1;
    kvc_forward_desc desc{};
    desc.struct_size = sizeof desc;
    desc.num_seqs = 1;
    desc.seqs = &seq;
    desc.append_lengths = &tokens;
    kvc_forward* fwd = nullptr;
    ASSERT_EQ(kvc_forward_begin(cache.get(), &desc, &fwd, &error), KVC_OK)
        << "after " << length << " tokens: " << error.message;
    ASSERT_EQ(kvc_forward_end(fwd, nullptr), KVC_OK);
    length += tokens;
  }
  EXPECT_EQ(kvc_cache_check(cache.get(), &error), KVC_OK) << error.message;
}

void expect_runs(std::vector<kvc_layer> layers) {
  for (const int64_t longest : {1, 7, 130, 1000}) {
    SCOPED_TRACE(longest);
    Net net(layers);
    net.config.max_seq_len = longest;
    net.config.max_tokens_per_forward = 24;
    expect_longest_request_runs(net);
  }
}

TEST(PlanRuns, UniformModels) { expect_runs({attention_layer(), attention_layer()}); }

TEST(PlanRuns, WindowsBesideFullAttention) {
  expect_runs({attention_layer(32), attention_layer(32), attention_layer(32), attention_layer()});
}

TEST(PlanRuns, ChunksAndWindows) {
  expect_runs({attention_layer(0, 40), attention_layer(9), attention_layer(0, 40)});
}

TEST(PlanRuns, LatentLayers) { expect_runs({mla_layer(), attention_layer(16)}); }

// States come out of the pages, and the checkpoints that decoding keeps are given up for them.
TEST(PlanRuns, RecurrentStatesBesideAttention) {
  const std::vector<int64_t> large{5, 7}, small{3};
  const std::vector<kvc_state_spec> first{state_spec(large)},
      second{state_spec(small), state_spec(large)};
  expect_runs({state_layer(first), attention_layer(), state_layer(second)});
}

TEST(PlanRuns, RecurrentStatesAlone) {
  const std::vector<int64_t> shape{64, 64};
  const std::vector<kvc_state_spec> states{state_spec(shape)};
  expect_runs({state_layer(states)});
}

TEST(PlanRuns, A131072TokenRequestFillsTheUniformPlanOfIts16GiB) {
  std::vector<kvc_layer> layers(32, attention_layer());
  for (kvc_layer& layer : layers) {
    layer.num_q_heads = 32, layer.num_kv_heads = 8, layer.k_dim = layer.v_dim = 128;
    layer.k_dtype = layer.v_dtype = {kDLBfloat, 16, 1};
    layer.rope = nullptr;
  }
  Net net(layers);
  net.config.num_pages = 0;
  net.config.page_size = 16;
  net.config.byte_budget = uint64_t{16} << 30;
  net.config.max_seq_len = 131072;
  net.config.storage = KVC_STORAGE_NONE;
  Cache cache(net.config);
  EXPECT_EQ(kvc_cache_available_pages(cache.get()), 8192);
  ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  const kvc_seq seq = 1;
  int64_t tokens = 131072;
  kvc_forward_desc desc{};
  desc.struct_size = sizeof desc;
  desc.num_seqs = 1;
  desc.seqs = &seq;
  desc.append_lengths = &tokens;
  kvc_forward* fwd = nullptr;
  ASSERT_EQ(kvc_forward_begin(cache.get(), &desc, &fwd, nullptr), KVC_OK);
  ASSERT_EQ(kvc_forward_end(fwd, nullptr), KVC_OK);
  EXPECT_EQ(kvc_cache_available_pages(cache.get()), 0);
}

}  // namespace
}  // namespace kvc::test
