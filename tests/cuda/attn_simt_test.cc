// The universal attention kernel against the reference: any type, dims and cut of the work, every
// rule of visibility.
#include "kernels/cuda/attn/simt/config.h"
#include "kernels/cuda/launches.h"
#include "tests/cuda/device_attention.h"

namespace kvc::cuda::row_test {
namespace {

struct Options {
  AttnFeatures features;
  bool visibility = false;
  bool quantised = false;
  bool rotated_sinks = false;
  int32_t fixed_keys = 0;
};

// The reference on whole sequences, or the plain loops of the test suite where sinks meet queries
// of their own.
void run_reference(AttnProblem& problem, bool rotated_sinks) {
  problem.reset_outputs(DType::kF32);
  if (!rotated_sinks) {
    for (int32_t s = 0; s < problem.num_sequences(); ++s) {
      std::vector<std::byte> scratch(kernels::reference::attention_scratch_bytes(
          problem.params, problem.whole_item(s).row_end));
      kernels::reference::attention(problem.params, problem.whole_item(s), scratch.data());
    }
    return;
  }
  const kernels::test::NaiveResult naive = kernels::test::naive_attention(problem, true);
  size_t index = 0;
  for (int64_t t = 0; t < problem.tokens; ++t) {
    for (int64_t h = 0; h < problem.params.num_q_heads; ++h) {
      problem.lse.floats()[t * problem.params.num_q_heads + h] =
          static_cast<float>(naive.lse[static_cast<size_t>(t * problem.params.num_q_heads + h)]);
      for (int64_t d = 0; d < problem.params.v_dim; ++d)
        kernels::reference::write_element(problem.out.row(t, h), DType::kF32, d,
                                          naive.out[index++]);
    }
  }
}

void compare(AttnProblem& problem, const Options& options) {
  kernels::AttnParams& params = problem.params;
  Random& random = problem.random;
  StoredPool k, v;
  if (options.quantised) {
    k = stored_as(random, random_storage(random, params.k_dim), problem.k, params.k,
                  params.page_size, params.num_kv_heads, params.k_dim);
    v = stored_as(random, random_storage(random, params.v_dim), problem.v, params.v,
                  params.page_size, params.num_kv_heads, params.v_dim);
  }
  RotationOwner sink_turn;
  if (options.rotated_sinks) {
    sink_turn = RotationOwner(random, problem.tokens, params.k_dim);
    params.sink_q_rotation = sink_turn.rotation;
  }
  run_reference(problem, options.rotated_sinks);
  TensorOwner expected = clone(problem.out);
  const std::vector<float> expected_lse(problem.lse.floats(),
                                        problem.lse.floats() + problem.lse.size() / 4);

  const DType out_dtype = random.chance(0.5) ? DType::kF32 : random.dtype();
  problem.reset_outputs(out_dtype);
  DeviceAttention device(problem, options.quantised ? &k : nullptr,
                         options.quantised ? &v : nullptr);
  ASSERT_TRUE(attn_simt_fits(device.launch, {}, nullptr));
  AttnGeometry geometry =
      attn_simt_geometry({.arch = 80, .num_sms = 1}, params.k_dim, params.v_dim);
  geometry.num_ctas = static_cast<int32_t>(random.pick<int64_t>({1, 2, 5, 13}));
  HostSchedule plan =
      make_schedule(problem.sequences,
                    schedule_shape(params, geometry, options.fixed_keys, options.rotated_sinks));
  device.set_plan(plan);
  ASSERT_EQ(attn_simt(device.launch, nullptr), cudaSuccess);
  device.read_back(plan);
  // float32 arithmetic on the stored values (ALiBi makes scores of some hundred, whose last place
  // is 3e-5); 16-bit results are rounded.
  double limit = params.alibi != nullptr ? 3e-5 : 1e-5;
  if (out_dtype == DType::kF16) limit = std::max(limit, 5e-4);
  if (out_dtype == DType::kBF16) limit = 4e-3;
  expect_close(problem, expected, expected_lse, limit);
}

void run_cases(uint64_t first_seed, int count, const Options& options) {
  for (int i = 0; i < scaled_count(count); ++i) {
    const uint64_t seed = first_seed + static_cast<uint64_t>(i);
    AttnFeatures features = options.features;
    features.plain = true;  // StoredPool quantises.
    AttnProblem problem(seed, features);
    std::unique_ptr<Visibility> visibility;
    if (options.visibility) {
      Visibility::Kinds kinds;
      kinds.rotated_keys = !options.rotated_sinks;
      visibility = std::make_unique<Visibility>(problem, kinds);
    }
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + problem.describe());
    compare(problem, options);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(CudaAttnSimt, RandomBatchesAgreeWithTheReference) {
  run_cases(1, 25, {.features = {.max_rows = 9, .max_keys = 200}});
}

TEST(CudaAttnSimt, WindowsSinksTreesSpansAndDroppedPagesHideWhatTheySay) {
  run_cases(100, 40,
            {.features = {.max_rows = 12, .max_keys = 200, .small = true}, .visibility = true});
  run_cases(200, 10, {.features = {.max_rows = 12, .max_keys = 200}, .visibility = true});
}

TEST(CudaAttnSimt, QuantisedKeysAreReadWithTheirScales) {
  run_cases(300, 25, {.features = {.max_rows = 5, .max_keys = 150}, .quantised = true});
  run_cases(400, 15,
            {.features = {.max_rows = 5, .max_keys = 150, .small = true},
             .visibility = true,
             .quantised = true});
}

TEST(CudaAttnSimt, SinksMeetQueriesTurnedForThem) {
  run_cases(500, 20,
            {.features = {.infinities = false, .max_rows = 9, .max_keys = 200, .small = true},
             .visibility = true,
             .rotated_sinks = true});
}

TEST(CudaAttnSimt, CutsAtFixedKeysGiveTheSame) {
  run_cases(600, 10,
            {.features = {.max_rows = 5, .max_keys = 300, .small = true}, .fixed_keys = 64});
}

TEST(CudaAttnSimt, LatentRowsServeAsKeysAndAsValues) {
  for (int i = 0; i < scaled_count(3); ++i) {
    AttnProblem problem(700 + static_cast<uint64_t>(i),
                        {.max_rows = 3, .max_keys = 70, .small = true, .plain = true});
    kernels::AttnParams& params = problem.params;
    // V is the beginning of the K rows; 1024 is the most, and takes the smaller tile.
    params.k_dim = i == 0 ? 576 : 1024;
    params.v_dim = i == 0 ? 512 : 1024;
    problem.rotation = RotationOwner(problem.random, problem.tokens, params.k_dim);
    params.q_rotation = problem.rotation.rotation;
    problem.q =
        TensorOwner(problem.random, problem.tokens, params.num_q_heads, params.k_dim, DType::kBF16);
    problem.q.fill(problem.random, 0.3);
    params.q = problem.q.rows;
    const int64_t pages = problem.k.memory.size() / params.k.page_stride;
    problem.k = PoolOwner(problem.random, pages, params.page_size, params.num_kv_heads,
                          params.k_dim, DType::kBF16);
    params.k = params.v = problem.k.rows;
    for (int64_t at = 0; at < problem.k.memory.size(); at += 2)
      kernels::reference::write_element(problem.k.memory.data() + at, DType::kBF16, 0,
                                        problem.random.normal());
    SCOPED_TRACE("seed " + std::to_string(700 + i) + ": " + problem.describe());
    run_reference(problem, false);
    TensorOwner expected = clone(problem.out);
    const std::vector<float> expected_lse(problem.lse.floats(),
                                          problem.lse.floats() + problem.lse.size() / 4);
    problem.reset_outputs(DType::kF32);
    problem.v.memory = Poisoned(0);
    DeviceAttention device(problem, nullptr, nullptr);
    device.launch.params.v.base = device.launch.params.k.base;
    HostSchedule plan = make_schedule(
        problem.sequences, schedule_shape(params, attn_simt_geometry({.arch = 90, .num_sms = 1},
                                                                     params.k_dim, params.v_dim)));
    device.set_plan(plan);
    ASSERT_EQ(attn_simt(device.launch, nullptr), cudaSuccess);
    device.read_back(plan);
    expect_close(problem, expected, expected_lse, params.alibi != nullptr ? 2e-4 : 2e-5);
  }
}

TEST(CudaAttnSimt, RowsOfMoreThanItsMostAreRefused) {
  AttnLaunch launch{};
  launch.params.k_dim = 1025, launch.params.v_dim = 64;
  const char* why = nullptr;
  EXPECT_FALSE(attn_simt_fits(launch, {}, &why));
  EXPECT_STREQ(why, "rows of more than 1024 elements");
}

TEST(CudaAttnSimt, EveryAcceptedShapeFitsTheSharedMemoryOfEveryDevice) {
  for (const int32_t k_dim : {16, 128, 192, 512, 576, 1024}) {
    for (const int32_t v_dim : {16, 128, 512, 1024}) {
      const AttnGeometry geometry = attn_simt_geometry({.arch = 86, .num_sms = 84}, k_dim, v_dim);
      EXPECT_GE(geometry.num_ctas, 84);
      EXPECT_TRUE(geometry.tile_rows == 16 || geometry.tile_rows == 8);
      const simt::SharedLayout shared = simt::shared_layout(geometry.tile_rows, k_dim, v_dim);
      // The least that a CTA can have, sm_86
      EXPECT_LE(4 * shared.size, 99 * 1024) << k_dim << " " << v_dim;
    }
  }
}

}  // namespace
}  // namespace kvc::cuda::row_test
