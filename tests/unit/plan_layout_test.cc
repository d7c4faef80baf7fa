#include <gtest/gtest.h>

#include "src/base/error.h"
#include "src/plan/layout.h"
#include "src/plan/plan.h"

namespace kvc {
namespace {

using kernels::DType;

Spec spec_of(std::vector<LayerSpec> layers, int32_t page_size) {
  Spec spec;
  spec.page_size = page_size;
  spec.num_layers = spec.layer_end = static_cast<int32_t>(layers.size());
  spec.layers = std::move(layers);
  return spec;
}

TEST(Layout, OfALlamaLayerIsTwoTimesHeadsTimesTokensTimesDimTimesElement) {
  const Layout layout = make_layout(spec_of({{32, 8, 128, 128, DType::kBF16, DType::kBF16, -1}}, 16));
  EXPECT_EQ(layout.page_bytes, 2 * 8 * 16 * 128 * 2);
  EXPECT_EQ(layout.bytes_per_token, 2 * 8 * 128 * 2);
}

TEST(Layout, AlignsOnlyWhereAnElementNeedsIt) {
  const Layout layout = make_layout(spec_of(
      {{1, 1, 33, 17, DType::kF16, DType::kF32, -1}, {1, 1, 16, 16, DType::kF32, DType::kF32, -1}}, 1));
  EXPECT_EQ(layout.layers[0].k_bytes, 66);
  EXPECT_EQ(layout.layers[0].v_offset, 68);
  EXPECT_EQ(layout.layers[0].page_bytes, 68 + 68);
  EXPECT_EQ(layout.layers[1].page_offset % 4, 0);
  EXPECT_EQ(layout.page_bytes, 136 + 128);
  const Layout halves = make_layout(spec_of({{1, 1, 33, 32, DType::kF16, DType::kBF16, -1}}, 1));
  EXPECT_EQ(halves.page_bytes, 65 * 2) << "half precision needs no padding";
}

TEST(Plan, OffersTheLongestLengthWhenOneRequestDoesNotFit) {
  Spec spec = spec_of({{8, 2, 64, 64, DType::kF32, DType::kF32, -1}}, 16);
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
  Spec spec = spec_of({{8, 2, 64, 64, DType::kF32, DType::kF32, -1}}, 16);
  const int64_t page_bytes = make_layout(spec).page_bytes;
  spec.byte_budget = static_cast<uint64_t>(page_bytes * 5 - 1);
  EXPECT_EQ(Plan(spec).num_pages(), 4);
  spec.byte_budget = static_cast<uint64_t>(page_bytes - 1);
  EXPECT_THROW(Plan{spec}, Error);
}

}  // namespace
}  // namespace kvc
