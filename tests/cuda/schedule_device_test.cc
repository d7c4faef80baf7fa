// The scheduler kernel against the scheduler's loops on the host, bit for bit.
#include <gtest/gtest.h>

#include "kernels/cuda/launches.h"
#include "kernels/cuda/schedule/config.h"
#include "tests/cuda/schedule_on_device.h"
#include "tests/cuda/shared_prefixes.h"

namespace kvc::cuda::test {
namespace {

using testing::DeviceArray;

// A batch as the scheduler reads it.
struct DeviceBatch {
  DeviceArray<kernels::AttnSequence> sequences;
  DeviceArray<int32_t> count;
  std::vector<DeviceArray<int32_t>> rows;

  explicit DeviceBatch(std::vector<kernels::AttnSequence> copies)
      : count(std::vector{static_cast<int32_t>(copies.size())}) {
    for (kernels::AttnSequence& sequence : copies) {
      sequence.key_begins = keep(sequence.key_begins, sequence.num_rows);
      sequence.key_ends = keep(sequence.key_ends, sequence.num_rows);
      // The scheduler does not read these:
      sequence.tree_mask = nullptr;
      sequence.row_map = sequence.row_positions = nullptr;
    }
    sequences = DeviceArray<kernels::AttnSequence>(copies);
  }
  const int32_t* keep(const int32_t* values, int64_t size) {
    if (values == nullptr) return nullptr;
    rows.emplace_back(std::vector<int32_t>(values, values + size));
    return rows.back().data();
  }
};

template <typename T>
bool same(const std::vector<T>& a, const std::vector<T>& b, int64_t count) {
  return count == 0 || std::memcmp(a.data(), b.data(), static_cast<size_t>(count) * sizeof(T)) == 0;
}

void check(const std::vector<kernels::AttnSequence>& sequences, const ScheduleShape& shape,
           const ScheduleLimits& limits, const std::vector<PrefixShare>& shares = {}) {
  const HostSchedule expected = make_schedule(sequences, shape, limits, shares);
  const DeviceBatch batch(sequences);
  const DeviceArray<PrefixShare> device_shares(shares);
  const ScheduleOnDevice device_schedule(shape, limits, 0);
  const ScheduleLaunch launch = device_schedule.launch(
      batch.sequences.data(), batch.count.data(), shares.empty() ? nullptr : device_shares.data());
  testing::check(cuda::schedule(launch, nullptr), "schedule");
  testing::finish();
  const HostSchedule actual = device_schedule.read();
  ASSERT_EQ(actual.counts, expected.counts);
  ASSERT_EQ(actual.cta_begin, expected.cta_begin);
  ASSERT_TRUE(same(actual.items, expected.items, expected.num_items()));
  ASSERT_TRUE(same(actual.reductions, expected.reductions, expected.num_reductions()));
  ASSERT_TRUE(same(actual.sources, expected.sources, expected.num_sources()));
}

void check_random_on_device(uint64_t seed, PlannerBatchShape batch_shape) {
  Dice dice(seed);
  batch_shape.causal = dice.chance(0.8);
  const PlannerBatch batch = random_batch(dice, batch_shape);
  const ScheduleShape shape = random_shape(dice, batch_shape);
  ScheduleLimits limits = limits_of(batch.sequences);
  limits.max_sequences += static_cast<int32_t>(dice.between(0, 3));
  limits.max_rows += dice.between(0, 100);
  SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(shape));
  ASSERT_NO_FATAL_FAILURE(check(batch.sequences, shape, limits));
}

TEST(CudaPlannerDevice, MakesTheHostsPlan) {
  for (int64_t seed = 1; seed <= scaled(100); ++seed)
    ASSERT_NO_FATAL_FAILURE(check_random_on_device(static_cast<uint64_t>(seed), {}));
}

TEST(CudaPlannerDevice, MakesTheHostsPlanOfManySequences) {
  for (int64_t seed = 1; seed <= scaled(8); ++seed)
    ASSERT_NO_FATAL_FAILURE(
        check_random_on_device(static_cast<uint64_t>(seed), {.max_sequences = 4096,
                                                             .max_rows = 20,
                                                             .max_keys = 300,
                                                             .decode = 0.8,
                                                             .masks = seed % 2 == 0}));
}

TEST(CudaPlannerDevice, PlansADecodeStepOf1024SequencesInSharedMemory) {
  for (const int count : {1023, 1024, 1025}) {
    SCOPED_TRACE(std::to_string(count) + " sequences");
    Dice dice(static_cast<uint64_t>(count));
    PlannerBatch batch;
    for (int i = 0; i < count; ++i) add_sequence(&batch, dice, {}, dice.between(0, 3000), 1);
    const ScheduleShape shape{4, 8, 1, 0, 0, 0, 1 << 30, {16, 64, 264, 3}};
    const ScheduleLimits limits = limits_of(batch.sequences);
    ASSERT_NO_FATAL_FAILURE(check(batch.sequences, shape, limits));
    const DeviceBatch there(batch.sequences);
    const ScheduleOnDevice device_schedule(shape, limits, 0);
    testing::check(
        cuda::schedule(device_schedule.launch(there.sequences.data(), there.count.data()), nullptr),
        "schedule");
    testing::finish();
    EXPECT_EQ(device_schedule.scratch_is_used(), count > 1024);
  }
}

// More of everything than the tables in shared memory hold.
TEST(CudaPlannerDevice, MakesTheHostsPlanInScratchMemory) {
  Dice dice(1);
  PlannerBatch batch;
  const PlannerBatchShape batch_shape{.max_keys = 5000};
  for (int i = 0; i < scheduling::kSharedSequences + 100; ++i)
    add_sequence(&batch, dice, batch_shape, 17 * i % 4000, i % 5 == 0 ? 40 : 1);
  for (const int32_t fixed : {0, 1024}) {
    const ScheduleShape shape{2,     4, 1,       0,
                              fixed, 0, 1 << 30, {16, 64, scheduling::kSharedCtas + 300, 3}};
    ASSERT_NO_FATAL_FAILURE(check(batch.sequences, shape, limits_of(batch.sequences)));
  }
}

TEST(CudaPlannerDevice, MakesTheHostsPlanOfSharedPrefixes) {
  for (int64_t seed = 1; seed <= scaled(60); ++seed) {
    Dice dice(static_cast<uint64_t>(seed));
    const PlannerBatchShape batch_shape{.masks = false};
    PlannerBatch batch;
    const auto count = static_cast<int32_t>(dice.of_any_size(600));
    for (int32_t s = 0; s < count; ++s)
      add_sequence(&batch, dice, batch_shape, 200 + dice.of_any_size(4000), dice.between(1, 4));
    ScheduleShape shape = random_shape(dice, batch_shape);
    shape.split_sinks = shape.min_rows = 0;
    shape.max_rows = 1 << 30;
    shape.geometry.tile_rows = static_cast<int32_t>(dice.pick({64, 128}));
    const SharedBatch shared(batch.sequences,
                             random_prefixes(dice, count, 200, shape.geometry.key_block), shape);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(shape));
    ASSERT_NO_FATAL_FAILURE(check(shared.sequences, shape, shared.limits(), shared.shares));
  }
}

}  // namespace
}  // namespace kvc::cuda::test
