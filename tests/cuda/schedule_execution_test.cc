// The real work list carried out on the host and compared with attention written down plainly, in
// double: random masks, rotations and pages, NaN in whatever must not be read.
#include <gtest/gtest.h>

#include "tests/cuda/shared_prefixes.h"
#include "tests/unit/kernels_visibility.h"

namespace kvc::cuda::test {
namespace {

using kernels::test::AttnFeatures;
using kernels::test::AttnProblem;
using kernels::test::RotationOwner;
using kernels::test::Visibility;

// Everything is double but the partials. Their m, scores of up to some hundreds, is a float32:
// weights are off by 2^-25 of a score, times ln(2).
constexpr double kLimit = 5e-6;

ScheduleShape shape_of(Dice& dice, const AttnProblem& problem, bool split_sinks) {
  AttnGeometry geometry{};
  geometry.tile_rows = static_cast<int32_t>(dice.pick({1, 3, 16, 64}));
  geometry.key_block = static_cast<int32_t>(dice.pick({1, 16, 48, 64}));
  geometry.num_ctas = static_cast<int32_t>(dice.pick({1, 3, 20, 132}));
  geometry.item_cost = static_cast<int32_t>(dice.pick({0, 1, 3}));
  const int32_t fixed =
      dice.chance(0.3) ? geometry.key_block * static_cast<int32_t>(dice.pick({1, 3})) : 0;
  return schedule_shape(problem.params, geometry, fixed, split_sinks);
}

void check(uint64_t seed, const AttnFeatures& features) {
  Dice dice(seed);
  AttnProblem problem(seed, features);
  const Visibility visibility(problem, {});
  const bool split_sinks = dice.chance(0.4);
  RotationOwner sink_rotation;
  problem.params.sink_q_rotation = problem.params.q_rotation;
  if (split_sinks) {
    sink_rotation = RotationOwner(problem.random, problem.tokens, problem.params.k_dim);
    problem.params.sink_q_rotation = sink_rotation.rotation;
  }
  ScheduleShape shape = shape_of(dice, problem, split_sinks);
  SCOPED_TRACE("seed " + std::to_string(seed) + ": " + problem.describe() + "; " + describe(shape));

  kernels::AttnParams params = problem.params;
  std::vector<float> natural_sinks;
  for (const float sink : problem.sinks) natural_sinks.push_back(sink * 0.69314718f);
  if (params.sinks != nullptr) params.sinks = natural_sinks.data();
  // Two plans, as for two kernels of which one takes the short sequences.
  const auto middle = static_cast<int32_t>(dice.between(0, 40));
  for (const auto& [least, most] : {std::pair{0, middle}, std::pair{middle, 1 << 30}}) {
    shape.min_rows = least;
    shape.max_rows = most;
    HostSchedule schedule = make_schedule(problem.sequences, shape);
    schedule.reserve_partials(params.v_dim);
    execute_schedule(params, schedule.view());
  }
  EXPECT_LT(distance_from(problem, naive_attention(problem, split_sinks)), kLimit);
}

// Sequences of few rows whose first pages are the same, planned with these keys read once.
void check_shared(uint64_t seed) {
  Dice dice(seed);
  AttnProblem problem(seed, {.infinities = false,
                             .max_rows = 3,
                             .max_keys = 500,
                             .sequences = dice.between(2, 6),
                             .min_keys = 100});
  AttnGeometry geometry{};
  geometry.tile_rows = static_cast<int32_t>(dice.pick({16, 64, 128}));
  geometry.key_block = static_cast<int32_t>(dice.pick({1, 16, 48}));
  geometry.num_ctas = static_cast<int32_t>(dice.pick({1, 5, 132}));
  geometry.item_cost = static_cast<int32_t>(dice.pick({0, 2}));
  const int32_t fixed = dice.chance(0.3) ? geometry.key_block * 3 : 0;
  // A token's rows may not lie in two tiles of the prefix.
  geometry.tile_rows =
      std::max(geometry.tile_rows, 3 * problem.params.num_q_heads / problem.params.num_kv_heads);
  const ScheduleShape shape = schedule_shape(problem.params, geometry, fixed);
  SCOPED_TRACE("seed " + std::to_string(seed) + ": " + problem.describe() + "; " + describe(shape));

  int64_t common = 1 << 30;  // keys that every row sees, in whole pages
  for (const kernels::AttnSequence& sequence : problem.sequences)
    common = std::min(common, sequence.first_key_end - 1);
  common = common / problem.params.page_size * problem.params.page_size;
  for (size_t s = 0; s < problem.sequences.size(); ++s) {
    std::copy_n(problem.page_tables[0].begin(), common / problem.params.page_size,
                problem.page_tables[s].begin());
    problem.sequences[s].key_position = problem.sequences[0].key_position;
  }
  const std::vector<PrefixOfBatch> prefixes =
      random_prefixes(dice, problem.num_sequences(), common, geometry.key_block);
  SharedBatch batch(problem.sequences, prefixes, shape);
  kernels::AttnParams params = problem.params;
  params.sequences = batch.sequences.data();
  std::vector<float> natural_sinks;
  for (const float sink : problem.sinks) natural_sinks.push_back(sink * 0.69314718f);
  if (params.sinks != nullptr) params.sinks = natural_sinks.data();
  HostSchedule schedule = make_schedule(batch.sequences, shape, batch.limits(), batch.shares);
  ASSERT_LE(schedule.num_items() * int64_t{sizeof(WorkItem)}, schedule.bytes.items);
  ASSERT_LE(schedule.num_reductions() * int64_t{sizeof(ReduceItem)}, schedule.bytes.reductions);
  ASSERT_LE(schedule.num_sources() * int64_t{sizeof(ReduceSource)}, schedule.bytes.sources);
  ASSERT_LE(schedule.num_splits(), schedule.bytes.num_splits);
  schedule.reserve_partials(params.v_dim);
  execute_schedule(params, schedule.view());
  EXPECT_LT(distance_from(problem, naive_attention(problem)), kLimit);
  // Keys of prefixes are in items of prefixes alone.
  for (int32_t i = 0; i < schedule.num_items(); ++i) {
    const WorkItem& item = schedule.items[static_cast<size_t>(i)];
    EXPECT_GE(item.key_begin, batch.shares[static_cast<size_t>(item.sequence)].key_begin);
  }
}

TEST(CudaPlannerExecution, SharedPrefixesMatchPlainAttention) {
  for (int64_t seed = 1; seed <= scaled(20); ++seed) check_shared(static_cast<uint64_t>(seed));
}

TEST(CudaPlannerExecution, DecodeMatchesPlainAttention) {
  for (int64_t seed = 1; seed <= scaled(60); ++seed)
    check(static_cast<uint64_t>(seed),
          {.infinities = false, .max_keys = 400, .rows = 1, .sequences = 4});
}

TEST(CudaPlannerExecution, MixedRowsMatchPlainAttention) {
  for (int64_t seed = 1; seed <= scaled(40); ++seed)
    check(static_cast<uint64_t>(seed), {.infinities = false, .max_rows = 20, .max_keys = 200});
}

TEST(CudaPlannerExecution, PrefillMatchesPlainAttention) {
  for (int64_t seed = 1; seed <= scaled(4); ++seed)
    check(static_cast<uint64_t>(seed),
          {.infinities = false, .max_rows = 60, .max_keys = 60, .sequences = 2});
}

}  // namespace
}  // namespace kvc::cuda::test
