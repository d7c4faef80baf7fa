// Quantised storage: bytes of pages, against the figures of other planners, and tokens that move
// with their scales.
#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "src/base/error.h"
#include "src/pages/pool.h"
#include "src/plan/layout.h"
#include "src/plan/plan.h"
#include "tests/unit/spec_support.h"

namespace kvc {
namespace {

using kernels::DType;

LayerSpec quantised_layer(int32_t heads, int32_t k_dim, int32_t v_dim, kvc_quant quant,
                          DLDataType type) {
  LayerSpec layer = attention_layer(heads, heads, k_dim, v_dim);
  layer.k_quant = layer.v_quant = quant;
  layer.k_type = layer.v_type = type;
  return layer;
}

constexpr DLDataType kFloat8{kDLFloat8_e4m3fn, 8, 1}, kInt8{kDLInt, 8, 1}, kInt4{kDLInt, 4, 1},
    kFloat4{kDLFloat4_e2m1fn, 4, 1};

struct QuantCase {
  const char* name;
  LayerSpec layer;
  int64_t page_bytes;       // of a layer
  int64_t bytes_per_token;  // of 32 layers
  uint64_t budget;
  int64_t max_seq_len, num_pages;
  uint64_t unused;
  int64_t request_pages, request_bytes;
  double concurrency;
};

// 32 layers of 8 kv heads of 128 in pages of 16 tokens.
TEST(Quant, BytesOfALlamaAreThoseOfOtherPlanners) {
  constexpr uint64_t k16GiB = uint64_t{16} << 30;
  const LayerSpec bf16 = attention_layer(32, 8, 128, 128, DType::kBF16, DType::kBF16);
  const QuantCase cases[] = {
      {"bf16", bf16, 65536, 131072, k16GiB, 131072, 8192, 0, 8192, 17179869184, 1.0},
      {"fp8", quantised_layer(8, 128, 128, KVC_QUANT_PER_TENSOR, kFloat8), 32768, 65536, k16GiB,
       131072, 16384, 0, 8192, 8589934592, 2.0},
      {"bf16, short", bf16, 65536, 131072, 10000000000, 8192, 4768, 779264, 512, 1073741824,
       9.3125},
      {"int8", quantised_layer(8, 128, 128, KVC_QUANT_PER_TOKEN_HEAD, kInt8), 33792, 67584, k16GiB,
       131072, 15887, 557056, 8192, 8858370048, 1.9393310546875},
      {"int4", quantised_layer(8, 128, 128, KVC_QUANT_PER_TOKEN_HEAD, kInt4), 17408, 34816, k16GiB,
       131072, 30840, 262144, 8192, 4563402752, 3.7646484375},
      {"float4", quantised_layer(8, 128, 128, KVC_QUANT_BLOCK16, kFloat4), 18432, 36864, k16GiB,
       131072, 29127, 65536, 8192, 4831838208, 3.5555419921875},
  };
  for (const QuantCase& one : cases) {
    SCOPED_TRACE(one.name);
    Spec spec = spec_of(std::vector<LayerSpec>(32, one.layer), 16);
    spec.byte_budget = one.budget;
    spec.max_seq_len = one.max_seq_len;
    const Plan plan(spec);
    EXPECT_EQ(plan.layout().layers[31].page_bytes, one.page_bytes);
    EXPECT_EQ(plan.layout().bytes_per_token, one.bytes_per_token);
    EXPECT_EQ(plan.layout().regions.size(), 32u);
    EXPECT_EQ(plan.num_pages(), one.num_pages);
    const auto used = static_cast<uint64_t>(plan.num_pages() * plan.layout().page_bytes);
    EXPECT_EQ(used, static_cast<uint64_t>(one.num_pages * one.page_bytes * 32));
    EXPECT_EQ(one.budget - used, one.unused);
    EXPECT_EQ(plan.request_pages(one.max_seq_len), one.request_pages);
    EXPECT_EQ(one.request_pages * plan.layout().page_bytes, one.request_bytes);
    EXPECT_EQ(plan.concurrency(), one.concurrency);
    EXPECT_EQ(static_cast<int64_t>(plan.concurrency() * static_cast<double>(one.max_seq_len)),
              plan.num_pages() * 16)
        << "capacity in tokens";
    EXPECT_EQ(plan.max_tokens(plan.num_pages()), plan.num_pages() * 16);
    EXPECT_EQ(plan.waste(), 0.0) << "the longest request fills its pages";
  }
}

TEST(Quant, ScalesLieBehindTheCodes) {
  const LayerLayout layer =
      make_layout(spec_of({quantised_layer(3, 10, 6, KVC_QUANT_PER_TOKEN_HEAD, kInt4)}, 5))
          .layers[0];
  EXPECT_EQ(layer.k_bytes, 3 * 5 * 5);
  EXPECT_EQ(layer.v_offset, 75);
  EXPECT_EQ(layer.v_bytes, 3 * 5 * 3);
  EXPECT_EQ(layer.k_scale_offset, 120) << "on a multiple of 4";
  EXPECT_EQ(layer.k_scale_bytes, 3 * 5 * 4);
  EXPECT_EQ(layer.v_scale_bytes, 3 * 5 * 4);
  EXPECT_EQ(layer.page_bytes, 240);
  EXPECT_EQ(layer.bytes_per_token, 3 * (5 + 3 + 8));
  const LayerLayout blocks =
      make_layout(spec_of({quantised_layer(2, 32, 16, KVC_QUANT_BLOCK16, kFloat4)}, 4)).layers[0];
  EXPECT_EQ(blocks.k_scale_offset, 2 * 4 * (16 + 8));
  EXPECT_EQ(blocks.k_scale_bytes, 2 * 4 * 2);
  EXPECT_EQ(blocks.v_scale_bytes, 2 * 4 * 1);
  EXPECT_EQ(blocks.alignment, 1);
}

// A layer of which one half is quantised, or each in its own way.
LayerSpec mixed_layer(const LayerSpec& k_of, const LayerSpec& v_of) {
  LayerSpec layer = k_of;
  layer.v_quant = v_of.v_quant;
  layer.v_type = v_of.v_type;
  layer.v_dtype = v_of.v_dtype;
  return layer;
}

TEST(Quant, EachHalfHasTheScalesOfItsOwnKind) {
  const LayerSpec plain = attention_layer(3, 3, 7, 5, DType::kF32, DType::kF32);
  const LayerSpec scaled = quantised_layer(3, 7, 5, KVC_QUANT_PER_TOKEN_HEAD, kInt8);
  const LayerSpec shared = quantised_layer(3, 7, 5, KVC_QUANT_PER_TENSOR, kFloat8);
  const auto layout_of = [](const LayerSpec& layer) {
    return make_layout(spec_of({layer}, 5)).layers[0];
  };
  LayerLayout layer = layout_of(mixed_layer(scaled, plain));
  EXPECT_EQ(layer.k_bytes, 3 * 5 * 7);
  EXPECT_EQ(layer.v_offset, 108) << "float32 begins at a multiple of 4";
  EXPECT_EQ(layer.v_bytes, 3 * 5 * 5 * 4);
  EXPECT_EQ(layer.k_scale_offset, 108 + 300);
  EXPECT_EQ(layer.k_scale_bytes, 3 * 5 * 4);
  EXPECT_EQ(layer.v_scale_bytes, 0);
  EXPECT_EQ(layer.page_bytes, 468);
  EXPECT_EQ(layer.bytes_per_token, 3 * (7 + 4 + 20));
  layer = layout_of(mixed_layer(plain, scaled));
  EXPECT_EQ(layer.v_offset, 3 * 5 * 7 * 4);
  EXPECT_EQ(layer.k_scale_bytes, 0);
  EXPECT_EQ(layer.v_scale_offset, 496) << "after 75 bytes of V";
  EXPECT_EQ(layer.v_scale_bytes, 3 * 5 * 4);
  EXPECT_EQ(layer.bytes_per_token, 3 * (28 + 5 + 4));
  layer = layout_of(mixed_layer(shared, scaled));
  EXPECT_EQ(layer.v_scale_offset, 180);
  EXPECT_EQ(layer.page_bytes, 240);
  layer = layout_of(mixed_layer(scaled, shared));
  EXPECT_EQ(layer.k_scale_offset, 180);
  EXPECT_EQ(layer.page_bytes, 240);
  LayerSpec blocks = quantised_layer(3, 32, 16, KVC_QUANT_BLOCK16, kFloat4);
  layer =
      layout_of(mixed_layer(blocks, quantised_layer(3, 32, 16, KVC_QUANT_PER_TOKEN_HEAD, kInt4)));
  EXPECT_EQ(layer.k_scale_offset, 3 * 5 * (16 + 8));
  EXPECT_EQ(layer.k_scale_bytes, 30);
  EXPECT_EQ(layer.v_scale_offset, 392) << "on a multiple of 4";
}

TEST(Quant, ATokenMovesWithItsScales) {
  const LayerSpec plain = attention_layer(2, 2, 32, 16, DType::kBF16, DType::kF32);
  const LayerSpec shared = quantised_layer(2, 32, 16, KVC_QUANT_PER_TENSOR, kFloat8);
  const LayerSpec scaled = quantised_layer(2, 32, 16, KVC_QUANT_PER_TOKEN_HEAD, kInt8);
  const std::pair<const char*, LayerSpec> cases[] = {
      {"PER_TENSOR", shared},
      {"PER_TOKEN_HEAD int8", scaled},
      {"PER_TOKEN_HEAD int4", quantised_layer(2, 32, 16, KVC_QUANT_PER_TOKEN_HEAD, kInt4)},
      {"BLOCK16", quantised_layer(2, 32, 16, KVC_QUANT_BLOCK16, kFloat4)},
      {"K alone", mixed_layer(scaled, plain)},
      {"V alone", mixed_layer(plain, scaled)},
      {"two kinds", mixed_layer(shared, scaled)}};
  for (const auto& [name, layer] : cases) {
    for (const kvc_pool_layout pool_layout : {KVC_POOL_LAYER_FIRST, KVC_POOL_PAGE_FIRST}) {
      SCOPED_TRACE(std::string(name) + " in pool layout " + std::to_string(pool_layout));
      LayerSpec windowed = layer;
      windowed.window = 8;
      Spec spec = spec_of({layer, windowed, windowed, windowed}, 4);
      spec.num_pages = 3;
      spec.pool_layout = pool_layout;
      auto plan = std::make_shared<const Plan>(spec);
      const PagePool pool(plan, 3);
      for (const int32_t id : {0, 2}) {
        const LayerPages pages = pool.layer(id);
        const auto bytes =
            static_cast<size_t>(plan->layout().layers[static_cast<size_t>(id)].page_bytes);
        std::byte* from = pages.base + pages.page_stride;
        std::byte* to = pages.base + 2 * pages.page_stride;
        for (size_t i = 0; i < bytes; ++i)
          from[i] = static_cast<std::byte>(1 + i % 250), to[i] = std::byte{0};
        pool.copy_token(id, 1, 3, 2, 1);
        // Every non-zero byte came from token 3 and lies where token 1 is: as many as a token has.
        size_t moved = 0;
        for (size_t i = 0; i < bytes; ++i) moved += to[i] != std::byte{0} ? 1 : 0;
        EXPECT_EQ(moved, static_cast<size_t>(
                             plan->layout().layers[static_cast<size_t>(id)].bytes_per_token));
        pool.copy_token(id, 2, 1, 1, 3);
        for (size_t i = 0; i < bytes; ++i)
          EXPECT_EQ(from[i], static_cast<std::byte>(1 + i % 250)) << "byte " << i;
      }
    }
  }
}

}  // namespace
}  // namespace kvc
