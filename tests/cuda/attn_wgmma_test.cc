// attn_wgmma, emulated, against kernels/reference. Tolerance: probabilities are rounded to the type
// of V (2^-9 of bf16, 2^-12 of f16, of values of size 1 to 3) and turned queries to that of K.
#include <gtest/gtest.h>

#include <climits>

#include "kernels/cuda/launches.h"
#include "tests/cuda/device_memory.h"
#include "tests/cuda/hopper_attention.h"

namespace kvc::cuda::hopper_test {
namespace {

void run_hopper(uint64_t seed, const HopperCase& of) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  if (testing::device_facts().arch != 90) GTEST_SKIP() << "no device of compute capability 9.0";
  HopperProblem problem(seed, of);
  problem.run([](const AttnLaunch& launch) {
    const char* why = nullptr;
    ASSERT_TRUE(attn_wgmma_fits(launch, {.arch = 90}, &why)) << why;
    ASSERT_EQ(attn_wgmma(launch, nullptr), cudaSuccess);
  });
}

TEST(AttnWgmma, EveryShapeAndTypeIsTheReference) {
  uint64_t seed = 100;
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const auto& [k_dim, v_dim] :
         {std::pair{64, 64}, {128, 128}, {192, 128}, {256, 256}, {80, 80}, {96, 64}, {200, 136}}) {
      HopperCase of;
      of.dtype = of.out_dtype = dtype;
      of.k_dim = k_dim, of.v_dim = v_dim;
      run_hopper(seed++, of);
      if (HasFailure()) return;
    }
  }
}

TEST(AttnWgmma, PagesOfMultiplesOf16AndRaggedKeys) {
  uint64_t seed = 200;
  for (const int32_t page_size : {16, 32, 48, 64, 80, 128, 256, INT_MAX, INT_MAX, INT_MAX}) {
    HopperCase of;
    of.page_size = page_size;
    of.num_sequences = 3, of.max_rows = 20;
    run_hopper(seed++, of);
    if (HasFailure()) return;
  }
  HopperCase wide;
  wide.k_dim = wide.v_dim = 256, wide.page_size = INT_MAX;
  run_hopper(seed++, wide);
}

TEST(AttnWgmma, WindowsSinksTreesSpansAndRowMaps) {
  for (uint64_t seed = 300; seed < 300 + static_cast<uint64_t>(repeats(12)); ++seed) {
    Random random(seed);
    HopperCase of;
    of.k_dim = of.v_dim = random.pick({64, 128, 256});
    of.group_size = random.pick({1, 3, 5, 8});
    of.num_kv_heads = random.pick({1, 2, 3});
    of.page_size = random.pick({16, 48, 64, 256});
    of.windows = random.chance(0.6), of.tree = random.chance(0.5);
    of.spans = random.chance(0.3), of.row_map = random.chance(0.3), of.causal = random.chance(0.8);
    run_hopper(seed, of);
    if (HasFailure()) return;
  }
}

TEST(AttnWgmma, PartsOfKeysGoIntoSlots) {
  for (uint64_t seed = 400; seed < 400 + static_cast<uint64_t>(repeats(8)); ++seed) {
    Random random(seed);
    HopperCase of;
    of.k_dim = of.v_dim = random.pick({64, 128});
    of.page_size = random.pick({16, 64, 80, INT_MAX});
    of.split = true, of.rotation = random.chance(0.5);
    of.windows = of.page_size != INT_MAX && random.chance(0.5), of.tree = random.chance(0.3);
    of.max_keys = 500;
    run_hopper(seed, of);
    if (HasFailure()) return;
  }
}

TEST(AttnWgmma, QueriesTurnScoresAreCappedAndSinksLearned) {
  for (uint64_t seed = 500; seed < 500 + static_cast<uint64_t>(repeats(8)); ++seed) {
    Random random(seed);
    HopperCase of;
    of.k_dim = random.pick({64, 128, 192}), of.v_dim = std::min(of.k_dim, 128);
    of.dtype = random.pick({DType::kBF16, DType::kF16});
    of.out_dtype = random.pick({DType::kF32, DType::kF16, DType::kBF16});
    of.rotation = random.chance(0.7), of.sinks = random.chance(0.6);
    of.softcap = random.chance(0.4) ? 3.0f : 0.0f;
    run_hopper(seed, of);
    if (HasFailure()) return;
  }
}

TEST(AttnWgmma, RefusesWhatItCannotDo) {
  HopperCase of;
  HopperProblem problem(1, of);
  const char* why = nullptr;
  EXPECT_FALSE(attn_wgmma_fits(problem.launch, {.arch = 80}, &why));
  EXPECT_NE(why, nullptr);
  EXPECT_FALSE(attn_wgmma_fits(problem.launch, {.arch = 100}, nullptr));
  const auto refuses = [&](auto change) {
    AttnLaunch launch = problem.launch;
    change(launch);
    return !attn_wgmma_fits(launch, {.arch = 90}, &why);
  };
  EXPECT_TRUE(refuses([](AttnLaunch& l) { l.params.page_size = 24; }));
  EXPECT_TRUE(refuses([](AttnLaunch& l) { l.params.k.dtype = DType::kF32; }));
  EXPECT_TRUE(refuses([](AttnLaunch& l) { l.params.k.token_stride += 8; }));
  EXPECT_TRUE(refuses([](AttnLaunch& l) { l.params.k_dim = 512; }));
  EXPECT_TRUE(refuses([](AttnLaunch& l) { l.params.q_scale = 0; }));
  EXPECT_TRUE(refuses([](AttnLaunch& l) { l.k_storage.quant = Quant::kPerTensor; }));
  EXPECT_TRUE(refuses([](AttnLaunch& l) { l.params.alibi = l.params.lse; }));
}

TEST(AttnWgmma, GeometryNamesTheShapesBlocks) {
  EXPECT_EQ(attn_wgmma_geometry({.num_sms = 132}, 128, 128).key_block, 128);
  EXPECT_EQ(attn_wgmma_geometry({.num_sms = 132}, 256, 256).key_block, 64);
  EXPECT_EQ(attn_wgmma_geometry({.num_sms = 132}, 64, 64).tile_rows, 128);
  EXPECT_EQ(attn_wgmma_geometry({.num_sms = 132}, 64, 64).num_ctas, 132);
}

}  // namespace
}  // namespace kvc::cuda::hopper_test
