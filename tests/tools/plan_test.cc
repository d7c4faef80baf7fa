// Amounts of memory, slices and layers of `kvcache plan`.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tools/plan/capacity.h"
#include "tools/plan/model.h"
#include "tools/plan/size.h"

namespace kvc::plan_tool {
namespace {

TEST(ToolPlan, AmountsOfMemoryAreReadAsPeopleWriteThem) {
  EXPECT_EQ(parse_size("24GiB"), uint64_t{24} << 30);
  EXPECT_EQ(parse_size("24GB"), 24'000'000'000u);
  EXPECT_EQ(parse_size("500MiB"), uint64_t{500} << 20);
  EXPECT_EQ(parse_size("500mb"), 500'000'000u);
  EXPECT_EQ(parse_size("1.5 TiB"), (uint64_t{3} << 40) / 2);
  EXPECT_EQ(parse_size("2kib"), 2048u);
  EXPECT_EQ(parse_size("7 B"), 7u);
  EXPECT_EQ(parse_size("4096"), 4096u);
  EXPECT_EQ(parse_size("24G"), uint64_t{24} << 30) << "as GNU's tools read it";
  EXPECT_EQ(parse_size("24g"), uint64_t{24} << 30);
  EXPECT_EQ(parse_size("24gb"), 24'000'000'000u);
  EXPECT_EQ(parse_size("0.5T"), uint64_t{1} << 39);
  EXPECT_EQ(parse_size("512 M"), uint64_t{512} << 20);
  EXPECT_EQ(parse_size("3k"), 3072u);
  EXPECT_EQ(parse_size("0.3 B"), 0u);
  EXPECT_EQ(parse_size("9223372036854775807"), uint64_t{INT64_MAX})
      << "no rounding through a double";
}

TEST(ToolPlan, WhatIsNoAmountOfMemoryIsRefused) {
  for (const char* text :
       {"", " ", "GiB", "-1", "+1", "1e9", "1.2.3GiB", "24Gi", "24 GiBs", "x24", "24GiB ", ".",
        "0x10", "nan", "9223372036854775808", "9000000000TiB", "99999999999999999999999"})
    EXPECT_EQ(parse_size(text), std::nullopt) << "'" << text << "'";
}

TEST(ToolPlan, ASmallNumberWithoutAUnitIsNoMemoryForACache) {
  for (const char* text : {"24", "24576", "1048575", "2.5"})
    EXPECT_NE(size_problem(text).find("has no unit and would be bytes: write " + std::string(text) +
                                      "GiB"),
              std::string::npos)
        << text;
  for (const char* text : {"1048576", "25769803776", "24B", "24G", "24GB", "24 GiB"})
    EXPECT_EQ(size_problem(text), "");
  EXPECT_NE(size_problem("many").find("not an amount of memory"), std::string::npos);
  EXPECT_NE(size_problem("0"), "");
}

TEST(ToolPlan, MessagesOfTheLibraryNameTheOptionsOfTheCommand) {
  EXPECT_EQ(
      in_option_names("config.byte_budget = 1 holds no page, config.host_byte_budget = 2 neither"),
      "--memory = 1 holds no page, --host-memory = 2 neither");
  EXPECT_EQ(in_option_names("config.max_seq_len = 5: see config.max_seq_len"),
            "--max-len = 5: see --max-len");
  EXPECT_EQ(in_option_names("config.layers[2].k_dim = 0"), "config.layers[2].k_dim = 0");
}

TEST(ToolPlan, NumbersAreGroupedByThousands) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(131072), "131,072");
  EXPECT_EQ(grouped(1234567890), "1,234,567,890");
  EXPECT_EQ(grouped(-123456), "-123,456");
  EXPECT_EQ(size_text(1023), "1023 B");
  EXPECT_EQ(size_text(uint64_t{3} << 29), "1.50 GiB");
}

std::string slices(int32_t layers, int32_t stages, int32_t at_end = 0) {
  std::string out;
  for (const Slice slice : cut_layers(layers, stages, at_end))
    out += std::to_string(slice.begin) + "-" + std::to_string(slice.end) + " ";
  return out;
}

TEST(ToolPlan, LayersAreCutEvenlyAndTheFirstStagesGetWhatIsLeftOver) {
  EXPECT_EQ(slices(32, 1), "0-32 ");
  EXPECT_EQ(slices(32, 2), "0-16 16-32 ");
  EXPECT_EQ(slices(33, 2), "0-17 17-33 ");
  EXPECT_EQ(slices(32, 3), "0-11 11-22 22-32 ");
  EXPECT_EQ(slices(5, 5), "0-1 1-2 2-3 3-4 4-5 ");
  EXPECT_EQ(slices(34, 2, 1), "0-17 17-34 ") << "layers that draft run on the last stage";
  EXPECT_EQ(slices(8, 5, 3), "0-1 1-2 2-3 3-4 4-8 ");
  EXPECT_EQ(slices(8, 1, 3), "0-8 ");
}

std::vector<int64_t> windows(UniformLayers shape) {
  Model model;
  shape.layers = 6;
  shape.kv_heads = 2;
  shape.head_dim = 64;
  shape.window = 100;
  make_uniform(shape, model);
  std::vector<int64_t> out;
  for (size_t i = 0; i < model.num_layers(); ++i) out.push_back(model.layers[i].window);
  return out;
}

TEST(ToolPlan, WindowsComeEveryNthLayerOrInAllOthers) {
  UniformLayers all, every_second, all_but_third;
  every_second.window_every = 2;
  all_but_third.full_every = 3;
  EXPECT_EQ(windows(all), (std::vector<int64_t>{100, 100, 100, 100, 100, 100}));
  EXPECT_EQ(windows(every_second), (std::vector<int64_t>{0, 100, 0, 100, 0, 100}));
  EXPECT_EQ(windows(all_but_third), (std::vector<int64_t>{100, 100, 0, 100, 100, 0}));
}

// An attention layer of 8 query heads over `kv_heads` and a layer with a state [6, 4].
void make_mixed(int32_t kv_heads, Model& model) {
  UniformLayers shape;
  shape.layers = 3;
  shape.q_heads = 8;
  shape.kv_heads = kv_heads;
  shape.head_dim = 64;
  make_uniform(shape, model);
  model.own_shapes.push_back({6, 4});
  kvc_state_spec state{};
  state.struct_size = sizeof state;
  state.ndim = 2;
  state.shape = model.own_shapes.back().data();
  model.own_states.push_back({state});
  for (const size_t i : {size_t{1}, size_t{2}}) {
    model.layers[i] = {};
    model.layers[i].struct_size = sizeof(kvc_layer);
    model.layers[i].kind = KVC_LAYER_STATE;
    model.layers[i].states = model.own_states.back().data();
    model.layers[i].num_states = 1;
  }
}

TEST(ToolPlan, TensorParallelRanksDivideHeadsAndStates) {
  Model model;
  make_mixed(4, model);
  divide_heads(2, model);
  EXPECT_EQ(model.layers[0].num_q_heads, 4);
  EXPECT_EQ(model.layers[0].num_kv_heads, 2);
  EXPECT_EQ(model.layers[1].states->shape[0], 3);
  EXPECT_EQ(model.layers[1].states->shape[1], 4);
  EXPECT_EQ(model.layers[2].states, model.layers[1].states) << "shared states are divided once";
}

TEST(ToolPlan, RanksThatDoNotDivideAreRefusedAndRanksBeyondTheKvHeadsHoldCopies) {
  Model model, copies;
  make_mixed(3, model);
  EXPECT_THROW(divide_heads(2, model), Failure);
  make_mixed(1, copies);
  divide_heads(2, copies);
  EXPECT_EQ(copies.layers[0].num_kv_heads, 1);
}

TEST(ToolPlan, StorageIsThatOfTheOption) {
  Model model;
  make_mixed(4, model);
  set_kv_dtype("int4", model);
  EXPECT_EQ(model.layers[0].quant, KVC_QUANT_PER_TOKEN_HEAD);
  EXPECT_EQ(model.layers[0].k_dtype.bits, 4);
  EXPECT_EQ(model.layers[1].quant, KVC_QUANT_NONE) << "states stay as they are";
  set_kv_dtype("fp32", model);
  EXPECT_EQ(model.layers[0].quant, KVC_QUANT_NONE);
  EXPECT_EQ(model.layers[0].v_dtype.bits, 32);
  set_kv_dtype("auto", model);
  EXPECT_EQ(model.layers[0].v_dtype.bits, 32);
  model.layers[0].kind = KVC_LAYER_MLA;
  EXPECT_THROW(set_kv_dtype("nvfp4", model), Failure);
  set_kv_dtype("fp8", model);
  EXPECT_EQ(model.layers[0].quant, KVC_QUANT_PER_TENSOR);
  set_kv_dtype("int8", model);
  EXPECT_EQ(model.layers[0].quant, KVC_QUANT_PER_TOKEN_HEAD);
  EXPECT_EQ(model.layers[0].keep_tokens, 0);
  set_kv_dtype("int8", model, 4);
  EXPECT_EQ(model.layers[0].keep_tokens, 4);
  EXPECT_EQ(model.layers[1].keep_tokens, 0) << "states stay as they are";
  EXPECT_THROW(set_kv_dtype("bf16", model, 4), Failure);
  EXPECT_THROW(set_kv_dtype("auto", model, 4), Failure);
}

}  // namespace
}  // namespace kvc::plan_tool
