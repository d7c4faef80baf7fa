// attn_latent, emulated, against kernels/reference. Tolerance: probabilities and turned queries are
// rounded to bf16.
#include <gtest/gtest.h>

#include <climits>

#include "kernels/cuda/launches.h"
#include "tests/cuda/device_memory.h"
#include "tests/cuda/hopper_attention.h"

namespace kvc::cuda::hopper_test {
namespace {

HopperCase latents() {
  HopperCase of;
  of.k_dim = 576, of.v_dim = 512;
  of.same_rows = true;
  of.num_kv_heads = 1, of.group_size = 16;
  of.page_size = 64;
  of.tile_rows = 64;
  of.max_rows = 5, of.max_keys = 260;
  return of;
}

void run_latent(uint64_t seed, const HopperCase& of) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  if (testing::device_facts().arch != 90) GTEST_SKIP() << "no device of compute capability 9.0";
  HopperProblem problem(seed, of);
  problem.run([](const AttnLaunch& launch) {
    const char* why = nullptr;
    ASSERT_TRUE(attn_latent_fits(launch, {.arch = 90}, &why)) << why;
    ASSERT_EQ(attn_latent(launch, nullptr), cudaSuccess);
  });
}

TEST(AttnLatent, AnyHeadCountIsTheReference) {
  uint64_t seed = 700;
  for (const int32_t heads : {1, 5, 16, 64, 100, 128}) {
    HopperCase of = latents();
    of.group_size = heads;
    of.max_rows = heads > 16 ? 2 : 7;
    of.max_keys = heads > 16 ? 130 : 260;
    of.rotation = true;
    run_latent(seed++, of);
    if (HasFailure()) return;
  }
}

TEST(AttnLatent, PagesOfMultiplesOf16AndRaggedKeys) {
  uint64_t seed = 720;
  for (const int32_t page_size : {16, 32, 48, 128, INT_MAX}) {
    HopperCase of = latents();
    of.page_size = page_size;
    run_latent(seed++, of);
    if (HasFailure()) return;
  }
}

TEST(AttnLatent, WindowsTreesSlotsCapsAndSinks) {
  for (uint64_t seed = 740; seed < 740 + static_cast<uint64_t>(repeats(8)); ++seed) {
    Random random(seed);
    HopperCase of = latents();
    of.group_size = random.pick({3, 16, 33});
    of.page_size = random.pick({16, 64, 80});
    of.windows = random.chance(0.5), of.tree = random.chance(0.5), of.split = random.chance(0.6);
    of.sinks = random.chance(0.3), of.row_map = random.chance(0.3);
    of.softcap = random.chance(0.3) ? 4.0f : 0.0f;
    of.out_dtype = random.pick({DType::kF32, DType::kF16, DType::kBF16});
    run_latent(seed, of);
    if (HasFailure()) return;
  }
}

TEST(AttnLatent, RefusesWhatIsNotItsModel) {
  HopperProblem problem(1, latents());
  const char* why = nullptr;
  EXPECT_TRUE(attn_latent_fits(problem.launch, {.arch = 90}, nullptr));
  EXPECT_FALSE(attn_latent_fits(problem.launch, {.arch = 80}, &why));
  const auto refuses = [&](auto change) {
    AttnLaunch launch = problem.launch;
    change(launch);
    return !attn_latent_fits(launch, {.arch = 90}, &why);
  };
  EXPECT_TRUE(refuses([](AttnLaunch& l) { l.params.k_dim = 320; }));
  EXPECT_TRUE(refuses([](AttnLaunch& l) { l.params.v.base += 1024; }));
  EXPECT_TRUE(refuses([](AttnLaunch& l) { l.params.k.dtype = DType::kF16; }));
  EXPECT_TRUE(refuses([](AttnLaunch& l) { l.params.page_size = 1; }));
  EXPECT_TRUE(refuses([](AttnLaunch& l) { l.v_storage.quant = Quant::kPerTokenHead; }));
}

}  // namespace
}  // namespace kvc::cuda::hopper_test
