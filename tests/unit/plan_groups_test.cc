// Plans of hybrid models: how their layers are cut into groups, and what is lost to padding.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "src/base/math.h"
#include "src/plan/plan.h"
#include "tests/unit/spec_support.h"

namespace kvc {
namespace {

using kernels::DType;

constexpr int64_t kForward = 2048;
constexpr int64_t kLongest = 131072;
constexpr uint64_t kBudget = uint64_t{24} << 30;

LayerSpec bf16_layer(int32_t heads, int32_t dim, int64_t window = 0) {
  LayerSpec layer = attention_layer(heads, heads, dim, dim, DType::kBF16, DType::kBF16);
  layer.window = window;
  return layer;
}

// `many` and `few` layers, the few as evenly between the many as they go.
std::vector<LayerSpec> mixed(int32_t many, const LayerSpec& of_many, int32_t few,
                             const LayerSpec& of_few) {
  std::vector<LayerSpec> layers;
  int32_t placed = 0;
  for (int32_t i = 0; i < many + few; ++i) {
    const bool is_few = (i + 1) * few / (many + few) > placed;
    placed += is_few ? 1 : 0;
    layers.push_back(is_few ? of_few : of_many);
  }
  return layers;
}

struct HybridModel {
  std::string name;
  std::vector<LayerSpec> layers;
};

std::vector<HybridModel> hybrid_models() {
  LayerSpec chunked = bf16_layer(8, 128);
  chunked.chunk = 8192;
  return {
      {"5:1, 22 + 4", mixed(22, bf16_layer(1, 256, 512), 4, bf16_layer(1, 256))},
      {"5:1, 29 + 5", mixed(29, bf16_layer(4, 256, 1024), 5, bf16_layer(4, 256))},
      {"5:1, 40 + 8", mixed(40, bf16_layer(8, 256, 1024), 8, bf16_layer(8, 256))},
      {"5:1, 52 + 10", mixed(52, bf16_layer(16, 128, 1024), 10, bf16_layer(16, 128))},
      {"1:1, 21 + 21", mixed(21, bf16_layer(8, 256, 4096), 21, bf16_layer(8, 256))},
      {"1:1, 12 + 12", mixed(12, bf16_layer(8, 64, 128), 12, bf16_layer(8, 64))},
      {"chunks, 36 + 12", mixed(36, chunked, 12, bf16_layer(8, 128))},
      {"30 windows + 20", mixed(30, bf16_layer(8, 128, 1024), 20, bf16_layer(8, 128))},
      {"20 windows + 30", mixed(30, bf16_layer(8, 128), 20, bf16_layer(8, 128, 1024))},
      {"heads of 256 and 512", mixed(50, bf16_layer(16, 256, 1024), 10, bf16_layer(4, 512))},
      {"heads of 256 and 512, 28 + 7", mixed(28, bf16_layer(1, 256, 512), 7, bf16_layer(1, 512))},
      {"39 windows of 8 heads + 9 of 4", mixed(39, bf16_layer(8, 128, 128), 9, bf16_layer(4, 128))},
      {"12 windows + 13", mixed(13, bf16_layer(8, 64), 12, bf16_layer(8, 64, 128))},
  };
}

Spec hybrid_spec(const HybridModel& model) {
  Spec spec = spec_of(model.layers, 16, {.max_seq_len = kLongest, .tokens_in_flight = kForward});
  spec.max_tokens_per_forward = kForward;
  spec.max_seq_len = kLongest;
  spec.byte_budget = kBudget;
  return spec;
}

TEST(Hybrids, WasteLessThanFourPercentOfALongRequest) {
  for (const HybridModel& model : hybrid_models()) {
    const Plan plan(hybrid_spec(model));
    EXPECT_LT(plan.waste(), 0.04) << model.name << "\n" << plan.describe();
    EXPECT_LE(plan.spec().groups.size(), 16u) << model.name;
    EXPECT_LE(plan.spec().prefix_block(), 16 * 64) << model.name;
    for (const GroupSpec& group : plan.spec().groups)
      EXPECT_EQ(group.page_size % 16, 0) << model.name;
  }
}

// "52@16 10@80"
std::string groups_text(const Spec& spec) {
  std::string text;
  for (const GroupSpec& group : spec.groups) {
    text += (text.empty() ? "" : " ") + std::to_string(group.layers.size()) + "@" +
            std::to_string(group.page_size);
  }
  return text;
}

TEST(Hybrids, OfFewerLayersOfOneKindPutMoreTokensIntoAPage) {
  // Short requests are served best by few groups: 800 of 832 layer tokens of a page are used.
  Spec spec =
      spec_of(hybrid_models()[3].layers, 16, {.max_seq_len = 32768, .tokens_in_flight = kForward});
  EXPECT_EQ(groups_text(spec), "52@16 10@80") << "52 / 10, rounded down";
  spec.max_tokens_per_forward = kForward;
  spec.max_seq_len = kLongest;
  spec.byte_budget = kBudget;
  const Plan plan(spec);
  EXPECT_EQ(plan.layout().group_bytes[0], plan.layout().page_bytes);
  EXPECT_EQ(plan.spec().prefix_block(), 80);
  const int64_t row = 16 * 2 * 128 * 2;
  EXPECT_EQ(plan.layout().regions.size(), 12u)
      << "ten of five windowed layers and one full, two of the last ones";
  EXPECT_EQ(plan.layout().regions[0].bytes, 5 * 16 * row);
  EXPECT_EQ(plan.layout().regions[11].bytes, 16 * row);
  EXPECT_EQ(plan.layout().layers[7].region, 1) << "the seventh of the windowed layers";
  EXPECT_EQ(plan.layout().layers[7].region_offset, 16 * row);
  EXPECT_EQ(plan.request_pages(kLongest),
            ceil_div(1023 + kForward, 16) + 1 + ceil_div(kLongest, 80));
}

TEST(Hybrids, AreCutUnevenlyWhereThatFillsThePages) {
  const Plan plan(hybrid_spec(hybrid_models()[3]));
  EXPECT_EQ(groups_text(plan.spec()), "10@16 10@16 10@16 10@16 10@16 2@80 10@16");
  for (const int64_t bytes : plan.layout().group_bytes) EXPECT_EQ(bytes, plan.layout().page_bytes);
  EXPECT_LT(plan.waste(), 0.001);
}

TEST(Hybrids, SpreadEveryGroupOverTheModel) {
  // So that every slice of a pipeline has its share of each group, whatever their lengths.
  const Spec spec = hybrid_spec(hybrid_models()[3]);
  for (const GroupSpec& group : spec.groups) {
    for (int32_t end = 1; end <= 62; ++end) {
      const auto placed =
          std::lower_bound(group.layers.begin(), group.layers.end(), end) - group.layers.begin();
      const double share = static_cast<double>(group.layers.size()) * end / 62;
      EXPECT_NEAR(static_cast<double>(placed), share, 1.6)
          << group.layers.size() << " layers, up to " << end;
    }
  }
  // Groups of equal length take turns, the first ones get what is left over.
  std::vector<LayerSpec> layers = mixed(29, bf16_layer(4, 256, 1024), 5, bf16_layer(4, 256));
  const Spec equal = spec_of(layers, 16, {.pads_pages = true});
  ASSERT_EQ(equal.groups.size(), 7u);
  std::vector<int32_t> windowed;
  for (int32_t i = 0; i < 34; ++i) {
    if (layers[static_cast<size_t>(i)].window != 0) windowed.push_back(i);
  }
  for (size_t i = 0; i < windowed.size(); ++i)
    EXPECT_EQ(equal.groups[i % 6].layers[i / 6], windowed[i])
        << "layer " << i << " of those with a window";
}

// A search that tries all divisions of so many layers does not end.
TEST(Hybrids, OfManyLayersHaveEachLayerInOneGroup) {
  std::vector<LayerSpec> layers = mixed(100, bf16_layer(8, 128, 1024), 20, bf16_layer(8, 128));
  const std::vector<GroupSpec> groups =
      make_groups(layers, {.max_seq_len = kLongest, .tokens_in_flight = kForward});
  EXPECT_LE(groups.size(), 16u);
  std::vector<int32_t> placed;
  for (const GroupSpec& group : groups)
    placed.insert(placed.end(), group.layers.begin(), group.layers.end());
  std::sort(placed.begin(), placed.end());
  std::vector<int32_t> all(layers.size());
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(placed, all);
}

TEST(Hybrids, OfAnyBytesArePlannedAlikeEveryTime) {
  for (const HybridModel& model : hybrid_models())
    EXPECT_EQ(groups_text(hybrid_spec(model)), groups_text(hybrid_spec(model))) << model.name;
}

// Formulas that take more groups than a plan may have are not reached exactly.
TEST(Hybrids, OfOneLayerAmongManyStayNearTheFormulas) {
  for (const int32_t many : {17, 31, 60}) {
    const Plan plan(
        hybrid_spec({"", mixed(many, bf16_layer(8, 128, 1024), 1, bf16_layer(8, 128))}));
    EXPECT_LE(plan.spec().groups.size(), 16u);
    for (int64_t tokens = 2048; tokens <= kLongest; tokens += tokens / 9) {
      // Groups of one layer each.
      const int64_t kept = std::min(tokens, 1023 + kForward);
      const int64_t blocks =
          ceil_div(tokens, 16) + many * std::min(ceil_div(tokens, 16), ceil_div(kept, 16) + 1);
      const double theirs = static_cast<double>(blocks) * 16 * 8 * 2 * 128 * 2;
      const double ours = static_cast<double>(plan.request_pages(tokens)) *
                          static_cast<double>(plan.layout().page_bytes);
      EXPECT_GT(theirs / ours, 0.997) << many << " windows and 1, " << tokens << " tokens";
    }
  }
}

TEST(Hybrids, InChunksNeedNoPageMoreWherePagesDivideTheChunk) {
  GroupSpec group;
  group.chunk = 8192;
  group.page_size = 16;
  EXPECT_EQ(request_pages(group, kLongest, {.tokens_in_flight = 2048}), (8191 + 2048 + 15) / 16);
  EXPECT_EQ(request_pages(group, 100, {.tokens_in_flight = 2048}), 7);
  EXPECT_EQ(request_pages(group, 0, {.tokens_in_flight = 2048}), 0);
  // The worst place of a chunk in the pages, tried out.
  for (const int64_t chunk : {1, 6, 24, 40, 48}) {
    for (const int32_t page_size : {1, 4, 16, 18, 48}) {
      group.chunk = chunk;
      group.page_size = page_size;
      for (const int64_t forward : {1, 5, 16, 100}) {
        int64_t most = 0;
        for (int64_t begin = 0; begin + forward <= 3000; ++begin) {
          const int64_t first = first_visible_key(group, begin);
          most = std::max(most, ceil_div(begin + forward, page_size) - first / page_size);
        }
        EXPECT_EQ(request_pages(group, 3000, {.tokens_in_flight = forward}), most)
            << "chunk " << chunk << ", pages of " << page_size << ", forwards of " << forward;
      }
    }
  }
}

TEST(Hybrids, WithPadPagesKeepTheirPageSize) {
  for (const HybridModel& model : hybrid_models()) {
    const Spec spec = spec_of(model.layers, 16, {.pads_pages = true});
    for (const GroupSpec& group : spec.groups) EXPECT_EQ(group.page_size, 16) << model.name;
  }
  const Spec spec = spec_of(hybrid_models()[3].layers, 16, {.pads_pages = true});
  EXPECT_EQ(spec.groups.size(), 7u);
  const Layout layout = make_layout(spec);
  EXPECT_GT(layout.page_bytes - layout.group_bytes[5], 0) << "8 of 10 layers";
}

TEST(Hybrids, LatentsAndEncoderTokensFitAsWell) {
  std::vector<LayerSpec> layers;
  for (int i = 0; i < 24; ++i) {
    LayerSpec layer = bf16_layer(1, 8);
    layer.kind = KVC_LAYER_MLA;
    layer.k_dim = 576, layer.v_dim = 512, layer.latent_rank = 512, layer.latent_rope_dim = 64;
    layer.v_in_k = true;
    layer.window = i % 4 == 3 ? 0 : 512;
    layers.push_back(layer);
  }
  EXPECT_LT(Plan(hybrid_spec({"latents", layers})).waste(), 0.01);
  layers.clear();
  for (int i = 0; i < 32; ++i) {
    layers.push_back(bf16_layer(20, 64));
    layers.push_back(bf16_layer(20, 64));
    layers.back().kind = KVC_LAYER_CROSS;
  }
  Spec spec = spec_of(layers, 16, {.max_seq_len = 448, .max_cross_len = 1500});
  spec.max_seq_len = 448;
  spec.max_cross_len = 1500;
  spec.byte_budget = kBudget;
  const Plan plan(spec);
  EXPECT_LT(plan.waste(), 0.04);
  EXPECT_EQ(plan.spec().prefix_block(), plan.spec().groups[0].page_size) << "encoder tokens aside";
}

// Whatever the shapes: layers of a group do not overlap, regions neither, everything is aligned,
// and pages hold what they promise.
void check_layout(const Spec& spec, const Layout& layout) {
  for (size_t g = 0; g < spec.groups.size(); ++g) {
    int64_t end = 0;
    for (const int32_t id : spec.groups[g].layers) {
      const LayerLayout& layer = layout.layers[static_cast<size_t>(id)];
      const RegionLayout& region = layout.regions[static_cast<size_t>(layer.region)];
      const int64_t begin = region.offset + layer.region_offset;
      EXPECT_GE(begin, end);
      EXPECT_EQ(begin % layer.alignment, 0);
      EXPECT_EQ(layer.region_offset % layer.alignment, 0);
      EXPECT_EQ(region.bytes % layer.alignment, 0) << "the stride of LAYER_FIRST pages";
      EXPECT_LE(layer.region_offset + layer.page_bytes, region.bytes);
      end = begin + layer.page_bytes;
      EXPECT_GE(layer.page_bytes, layer.bytes_per_token * spec.groups[g].page_size);
    }
    EXPECT_LE(end, layout.page_bytes);
    EXPECT_EQ(end, layout.group_bytes[g]);
  }
  for (size_t s = 0; s + 1 < layout.regions.size(); ++s)
    EXPECT_LE(layout.regions[s].offset + layout.regions[s].bytes, layout.regions[s + 1].offset);
  for (const RegionLayout& region : layout.regions)
    EXPECT_EQ(layout.page_bytes % region.alignment, 0);
}

TEST(Hybrids, OfAnyShapeHaveALayoutWithoutOverlaps) {
  uint64_t state = 17;
  SCOPED_TRACE("seed 17");
  const auto random = [&](int64_t least, int64_t most) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return least + static_cast<int64_t>((state >> 33) % static_cast<uint64_t>(most - least + 1));
  };
  for (int i = 0; i < 400; ++i) {
    SCOPED_TRACE("case " + std::to_string(i));
    std::vector<LayerSpec> layers;
    const int64_t count = random(1, 20);
    for (int64_t l = 0; l < count; ++l) {
      static constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
      const auto heads = static_cast<int32_t>(random(1, 4));
      LayerSpec layer = attention_layer(heads, heads, static_cast<int32_t>(random(1, 40)),
                                        static_cast<int32_t>(random(1, 40)), kTypes[random(0, 2)],
                                        kTypes[random(0, 2)]);
      if (random(0, 2) != 0) layer.window = random(1, 3) * 100;
      if (random(0, 9) == 0) layer.kind = KVC_LAYER_CROSS, layer.window = 0;
      if (random(0, 4) == 0) {
        const int64_t half = random(0, 3);
        if (half != 0) layer.k_quant = KVC_QUANT_PER_TOKEN_HEAD;
        if (half != 1) layer.v_quant = KVC_QUANT_PER_TOKEN_HEAD;
        layer.k_type = layer.v_type = {kDLInt, 8, 1};
      }
      layers.push_back(layer);
    }
    const Spec spec =
        spec_of(layers, static_cast<int32_t>(random(1, 20)), {.pads_pages = random(0, 3) == 0});
    check_layout(spec, make_layout(spec));
    EXPECT_LE(spec.prefix_block(), spec.base_page_size * 64);
  }
}

TEST(Hybrids, OfManyKindsKeepOneGroupForEach) {
  std::vector<LayerSpec> layers;
  for (int i = 0; i < 40; ++i) layers.push_back(bf16_layer(1 + i % 3, 64, 100 + i));
  const Spec spec = spec_of(layers, 16);
  EXPECT_EQ(spec.groups.size(), 40u);
  check_layout(spec, make_layout(spec));
}

}  // namespace
}  // namespace kvc
