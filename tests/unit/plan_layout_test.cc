#include <gtest/gtest.h>

#include "src/base/error.h"
#include "src/plan/layout.h"
#include "src/plan/plan.h"
#include "tests/unit/spec_support.h"

namespace kvc {
namespace {

using kernels::DType;

TEST(Layout, OfALlamaLayerIsTwoTimesHeadsTimesTokensTimesDimTimesElement) {
  const Layout layout =
      make_layout(spec_of({attention_layer(32, 8, 128, 128, DType::kBF16, DType::kBF16)}, 16));
  EXPECT_EQ(layout.page_bytes, 2 * 8 * 16 * 128 * 2);
  EXPECT_EQ(layout.bytes_per_token, 2 * 8 * 128 * 2);
}

TEST(Layout, AlignsOnlyWhereAnElementNeedsIt) {
  const Layout layout = make_layout(spec_of(
      {attention_layer(1, 1, 33, 17, DType::kF16, DType::kF32), attention_layer(1, 1, 16, 16)}, 1));
  EXPECT_EQ(layout.layers[0].k_bytes, 66);
  EXPECT_EQ(layout.layers[0].v_offset, 68);
  EXPECT_EQ(layout.layers[0].page_bytes, 68 + 68);
  EXPECT_EQ(layout.regions[1].offset % 4, 0);
  EXPECT_EQ(layout.page_bytes, 136 + 128);
  const Layout halves =
      make_layout(spec_of({attention_layer(1, 1, 33, 32, DType::kF16, DType::kBF16)}, 1));
  EXPECT_EQ(halves.page_bytes, 65 * 2) << "half precision needs no padding";
}

TEST(Plan, OffersTheLongestLengthWhenOneRequestDoesNotFit) {
  Spec spec = spec_of({attention_layer(8, 2, 64, 64)}, 16);
  spec.num_pages = 10;
  spec.max_seq_len = 160;
  EXPECT_NO_THROW(Plan{spec});
  spec.max_seq_len = 161;
  try {
    Plan plan(spec);
    FAIL() << "161 tokens in 10 pages of 16";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), KVC_E_NEVER_FITS);
    EXPECT_EQ(error.detail(), 160);
  }
}

TEST(Plan, TakesAsManyPagesAsTheBudgetHolds) {
  Spec spec = spec_of({attention_layer(8, 2, 64, 64)}, 16);
  const int64_t page_bytes = make_layout(spec).page_bytes;
  spec.byte_budget = static_cast<uint64_t>(page_bytes * 5 - 1);
  EXPECT_EQ(Plan(spec).num_pages(), 4);
  spec.byte_budget = static_cast<uint64_t>(page_bytes - 1);
  EXPECT_THROW(Plan{spec}, Error);
}

// ----------------------------------------------------------------------------------------------
// groups

std::vector<LayerSpec> five_to_one(int32_t num_layers) {
  std::vector<LayerSpec> layers;
  for (int32_t i = 0; i < num_layers; ++i) {
    layers.push_back(i % 6 == 5 ? attention_layer(8, 2, 64, 64) : window_layer(8, 2, 64, 1024));
  }
  return layers;
}

TEST(Groups, OneKindOfLayersIsOneGroupAndEveryLayerItsSlot) {
  const Spec spec = spec_of({attention_layer(8, 2, 64, 64), attention_layer(4, 1, 32, 32)}, 16);
  ASSERT_EQ(spec.groups.size(), 1u);
  EXPECT_EQ(spec.groups[0].layers, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(make_layout(spec).page_bytes,
            make_layout(spec).layers[0].page_bytes + make_layout(spec).layers[1].page_bytes);
}

TEST(Groups, ManyWindowLayersAreCutByStrideIntoGroupsAsLongAsTheFullOne) {
  const Spec spec = spec_of(five_to_one(12), 16);  // 10 windows, 2 full
  ASSERT_EQ(spec.groups.size(), 6u);
  EXPECT_EQ(spec.num_page_regions(), 2);
  EXPECT_EQ(spec.groups[0].layers, (std::vector<int32_t>{0, 6}));
  EXPECT_EQ(spec.groups[5].layers, (std::vector<int32_t>{5, 11}));
  EXPECT_EQ(spec.groups[0].window, 1024);
  EXPECT_EQ(spec.groups[5].window, 0);
}

TEST(Groups, NearlyEqualCountsStayWholeWherePagesArePadded) {
  const Spec spec =
      spec_of({window_layer(1, 1, 8, 4), attention_layer(1, 1, 8, 8), window_layer(1, 1, 8, 4),
               attention_layer(1, 1, 8, 8), attention_layer(1, 1, 8, 8), window_layer(1, 1, 8, 4),
               attention_layer(1, 1, 8, 8)},
              16, {.pads_pages = true});
  EXPECT_EQ(spec.groups.size(), 2u) << "4 full layers are fewer than 1.5 times 3 windows";
}

TEST(Groups, StatesKeepNoPages) {
  const Spec spec = spec_of({state_layer({2, 3}), attention_layer(1, 1, 8, 8)}, 16);
  ASSERT_EQ(spec.groups.size(), 1u);
  EXPECT_EQ(spec.layers[0].group, -1);
  EXPECT_EQ(make_layout(spec).state_slot_bytes, 64) << "6 floats, aligned";
}

TEST(Plan, CountsAWindowByWhatAForwardSeesBehindItAndTheForwardItself) {
  Spec spec = spec_of({window_layer(1, 1, 8, 1024), attention_layer(1, 1, 8, 8)}, 16);
  spec.num_pages = 100000;
  EXPECT_EQ(Plan(spec).request_pages(4000), 250 + 250)
      << "in one forward the window needs all tokens";
  spec.max_tokens_per_forward = 512;
  EXPECT_EQ(Plan(spec).request_pages(4000), 97 + 250) << "ceil((1023 + 512) / 16) + 1";
  EXPECT_EQ(Plan(spec).request_pages(100), 7 + 7);
}

TEST(Plan, TheLongestRequestFitsAndOneTokenMoreDoesNot) {
  Spec spec = spec_of({window_layer(1, 1, 8, 64), attention_layer(1, 1, 8, 8)}, 16);
  spec.max_tokens_per_forward = 32;
  spec.num_pages = 40;
  const Plan plan(spec);
  const int64_t longest = plan.max_seq_len(40);
  EXPECT_LE(plan.request_pages(longest), 40);
  EXPECT_GT(plan.request_pages(longest + 1), 40);
}

}  // namespace
}  // namespace kvc
