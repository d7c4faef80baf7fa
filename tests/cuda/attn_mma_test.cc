// The mma.sync attention kernel against kernels/reference: every feature, every storage type, plans
// that split keys, NaN in all that is not seen.
//
// Tolerances, relative norms over all rows: Q and P are rounded to 8 (bf16) or 11 bits (f16),
// errors of single weights are independent, so a row is off by 2^-9 or 2^-12 times a small factor
// (error of Q times the spread of the scores, at most about 3 here), less where many keys are
// summed. A wrong key, scale or mask bit is off by 1 / sqrt(keys) > 0.03 and more.
#include "tests/cuda/attn_mma_run.h"
#include "tests/cuda/random_numbers.h"

namespace kvc::cuda {
namespace {

using test::AttnErrors;
using test::AttnProblemShape;
using test::AttnRandom;
using test::AttnResult;
using test::DeviceAttnProblem;
using test::plan_for;
using test::run_mma;
using testing::scaled;

struct Limits {
  double out, row, lse;
};
Limits limits_of(const AttnProblemShape& shape) {
  if (shape.stored == Element::kBF16) return {8e-3, 4e-2, 2e-2};
  return {1e-3, 5e-3, 3e-3};
}

void check_problem(uint64_t seed, const AttnProblemShape& shape, int32_t tile_rows,
                   int32_t num_ctas, int32_t fixed_keys = 0) {
  DeviceAttnProblem problem(seed, shape);
  SCOPED_TRACE("seed " + std::to_string(seed) + ", tile of " + std::to_string(tile_rows) + ", " +
               std::to_string(num_ctas) + " CTAs: " + problem.describe());
  const AttnResult actual = run_mma(problem, plan_for(problem, tile_rows, num_ctas, fixed_keys));
  std::vector<float> out, lse;
  problem.reference(&out, &lse);
  ASSERT_EQ(actual.lse.size(), lse.size());
  const AttnErrors errors = test::errors_of(actual, out, lse, shape.v_dim);
  const Limits limits = limits_of(shape);
  const double rounding = shape.out_type == kernels::DType::kF32 ? 0 : 2e-3;
  EXPECT_LT(errors.out, limits.out + rounding);
  EXPECT_LT(errors.row, limits.row + rounding);
  EXPECT_LT(errors.lse, limits.lse);
  if (std::getenv("KVC_TEST_PRINT") != nullptr)
    std::printf("%-40s out %.2e row %.2e lse %.2e\n",
                ::testing::UnitTest::GetInstance()->current_test_info()->name(), errors.out,
                errors.row, errors.lse);
}

constexpr int32_t kMmaTiles[] = {16, 64};

TEST(AttnMma, DecodesEveryGroupSize) {
  uint64_t seed = 1;
  for (const int32_t group : {1, 2, 3, 4, 5, 7, 8, 16, 32}) {
    AttnProblemShape shape;
    shape.group = group, shape.kv_heads = group < 8 ? 2 : 1;
    shape.rows = {1, 1}, shape.keys = {100, 33};
    for (const int32_t tile : kMmaTiles) check_problem(seed++, shape, tile, 3);
  }
}

TEST(AttnMma, TakesEveryRowLengthAndType) {
  uint64_t seed = 100;
  struct Dims {
    int32_t k, v;
  };
  for (const Dims dims : {Dims{64, 64},
                          {80, 80},
                          {96, 96},
                          {128, 128},
                          {192, 128},
                          {256, 256},
                          {16, 64},
                          {128, 64}}) {
    for (const Element stored :
         {Element::kBF16, Element::kF16, Element::kE4M3, Element::kE5M2, Element::kInt8}) {
      AttnProblemShape shape;
      shape.k_dim = dims.k, shape.v_dim = dims.v, shape.stored = stored;
      shape.scales_per_row = seed % 2 == 0;
      shape.q_type = static_cast<kernels::DType>(seed % 3);
      shape.out_type = static_cast<kernels::DType>(seed / 3 % 3);
      shape.rows = {2}, shape.keys = {87};
      for (const int32_t tile : kMmaTiles) check_problem(seed++, shape, tile, 2);
    }
  }
}

TEST(AttnMma, FindsKeysOnPagesOfEverySize) {
  uint64_t seed = 200;
  for (const int32_t page : {1, 3, 16, 48, 256}) {
    AttnProblemShape shape;
    shape.page_size = page;
    shape.rows = {1, 3, 20}, shape.keys = {page + 1, 2 * page < 300 ? 2 * page : 300, 130};
    for (const int32_t tile : kMmaTiles) check_problem(seed++, shape, tile, 4);
  }
}

TEST(AttnMma, EndsAtEveryLength) {
  uint64_t seed = 300;
  for (const int64_t keys : {0, 1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 401}) {
    AttnProblemShape shape;
    shape.causal = keys % 2 == 1;
    shape.rows = {1, 17}, shape.keys = {keys, keys};
    for (const int32_t tile : kMmaTiles) check_problem(seed++, shape, tile, 3);
  }
}

TEST(AttnMma, AnswersRowsThatSeeNothingWithZeros) {
  AttnProblemShape shape;
  shape.causal = false, shape.sinks = true;
  shape.rows = {3, 0, 1}, shape.keys = {0, 9, 12};
  for (const int32_t tile : kMmaTiles) check_problem(400, shape, tile, 2);
}

TEST(AttnMma, ComputesEveryFeatureAlone) {
  uint64_t seed = 500;
  bool AttnProblemShape::*const features[] = {
      &AttnProblemShape::window,  &AttnProblemShape::spans,    &AttnProblemShape::tree,
      &AttnProblemShape::row_map, &AttnProblemShape::rotation, &AttnProblemShape::softcap,
      &AttnProblemShape::alibi,   &AttnProblemShape::bias,     &AttnProblemShape::sinks};
  for (bool AttnProblemShape::*const feature : features) {
    for (const int32_t tile : kMmaTiles) {
      for (int round = 0; round < 2 * scaled(1); ++round) {
        AttnProblemShape shape;
        shape.*feature = true;
        shape.rows = {9, 1}, shape.keys = {210, 70};
        if (feature == &AttnProblemShape::alibi) shape.positions = round % 2 == 1;
        if (feature == &AttnProblemShape::bias) shape.hidden_by_bias = round % 2 == 1;
        check_problem(seed++, shape, tile, 3);
      }
    }
  }
}

TEST(AttnMma, ComputesRandomMixturesOfFeatures) {
  const int rounds = scaled(40);
  for (int round = 0; round < rounds; ++round) {
    const uint64_t seed = 1000 + static_cast<uint64_t>(round);
    AttnRandom random(seed);
    AttnProblemShape shape;
    shape.group = random.pick<int32_t>({1, 2, 3, 4, 5, 8});
    shape.kv_heads = random.pick<int32_t>({1, 2, 3});
    shape.k_dim = shape.v_dim = random.pick<int32_t>({64, 80, 128});
    shape.page_size = random.pick<int32_t>({1, 16, 16, 48, 256});
    shape.causal = random.chance(0.7);
    shape.stored =
        random.pick<Element>({Element::kBF16, Element::kF16, Element::kE4M3, Element::kInt8});
    shape.scales_per_row = random.chance(0.5);
    shape.q_type = static_cast<kernels::DType>(random.between(0, 2));
    shape.rows.clear(), shape.keys.clear();
    for (int64_t s = random.between(1, 3); s > 0; --s) {
      shape.rows.push_back(random.pick<int64_t>({1, 1, 4, 17, 40}));
      shape.keys.push_back(random.between(0, random.chance(0.8) ? 150 : 600));
    }
    shape.window = random.chance(0.4), shape.spans = random.chance(0.2),
    shape.tree = random.chance(0.3);
    shape.row_map = random.chance(0.3), shape.positions = random.chance(0.3),
    shape.rotation = random.chance(0.5);
    shape.softcap = random.chance(0.3), shape.alibi = random.chance(0.3),
    shape.bias = random.chance(0.3);
    shape.hidden_by_bias = random.chance(0.5), shape.sinks = random.chance(0.3);
    const auto num_ctas = static_cast<int32_t>(random.between(1, 9));
    check_problem(seed, shape, random.pick<int32_t>({16, 64}), num_ctas,
                  random.pick<int32_t>({0, 0, 64, 128}));
  }
}

}  // namespace
}  // namespace kvc::cuda
