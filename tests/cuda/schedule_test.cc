// Properties of plans: everything visible is done once and nothing else, by CTAs that all have as
// much to do, in the memory that schedule_bytes promised.
#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "src/exec/kv_chunks.h"
#include "tests/cuda/shared_prefixes.h"

namespace kvc::cuda::test {
namespace {

using kernels::AttnSequence;

// What token rows of a tile see together, by the rules of the host's own work list.
VisibleKeys visible_of(const ScheduleShape& shape, const AttnSequence& sequence, int64_t row,
                       int64_t num_rows) {
  VisibleKeys keys = visible_keys(sequence, row / shape.group_size,
                                  (row + num_rows - 1) / shape.group_size + 1, shape.causal != 0);
  if (shape.split_sinks != 0 && sequence.key_begins != nullptr && keys.sink_end == 0) {
    // Sinks stay apart without a gap too.
    keys.sink_end = std::clamp<int64_t>(sequence.sink_end, 0, keys.end);
    keys.begin = std::max(keys.begin, keys.sink_end);
  }
  return keys;
}

int64_t overlap(int64_t a_begin, int64_t a_end, int64_t b_begin, int64_t b_end) {
  return std::max<int64_t>(0, std::min(a_end, b_end) - std::max(a_begin, b_begin));
}
// Visible keys in [begin, end).
int64_t visible_in(const VisibleKeys& keys, int64_t begin, int64_t end) {
  return overlap(begin, end, 0, keys.sink_end) + overlap(begin, end, keys.begin, keys.end);
}
// Key blocks in [begin, end) with a visible key.
int64_t blocks_in(const ScheduleShape& shape, const VisibleKeys& keys, const WorkItem& item) {
  const int64_t size = shape.geometry.key_block;
  const auto blocks = [&](int64_t begin, int64_t end) {  // first and last block of a visible range
    begin = std::max<int64_t>(begin, item.key_begin), end = std::min<int64_t>(end, item.key_end);
    return begin < end ? std::pair{begin / size, (end - 1) / size}
                       : std::pair<int64_t, int64_t>{0, -1};
  };
  const auto sinks = blocks(0, keys.sink_end), rest = blocks(keys.begin, keys.end);
  const int64_t count = sinks.second - sinks.first + 1 + rest.second - rest.first + 1;
  return sinks.second >= 0 && rest.second >= 0 && sinks.second == rest.first ? count - 1 : count;
}

struct Checks {
  const ScheduleShape& shape;
  const std::vector<AttnSequence>& sequences;
  HostSchedule& schedule;
  int64_t cost_of(const WorkItem& item) const {
    const VisibleKeys keys = visible_of(shape, sequences[static_cast<size_t>(item.sequence)],
                                        item.row_begin, item.num_rows);
    return std::max(1, shape.geometry.item_cost) + blocks_in(shape, keys, item);
  }
  const WorkItem& item(int32_t index) const { return schedule.items[static_cast<size_t>(index)]; }

  void memory() const {
    ASSERT_LE(schedule.num_items() * int64_t{sizeof(WorkItem)}, schedule.bytes.items);
    ASSERT_LE(schedule.num_reductions() * int64_t{sizeof(ReduceItem)}, schedule.bytes.reductions);
    ASSERT_LE(schedule.num_sources() * int64_t{sizeof(ReduceSource)}, schedule.bytes.sources);
    ASSERT_LE(schedule.num_splits(), schedule.bytes.num_splits);
  }

  void ctas() const {
    const int32_t num_ctas = shape.geometry.num_ctas;
    ASSERT_EQ(schedule.cta_begin.front(), 0);
    ASSERT_EQ(schedule.cta_begin[static_cast<size_t>(num_ctas)], schedule.num_items());
    int64_t line = 0, longest = 0, parts = 0;
    std::vector<int64_t> costs;
    for (int32_t cta = 0; cta < num_ctas; ++cta) {
      const int32_t begin = schedule.cta_begin[static_cast<size_t>(cta)];
      const int32_t end = schedule.cta_begin[static_cast<size_t>(cta) + 1];
      ASSERT_LE(begin, end);
      int64_t cost = 0;
      int slots = 0;
      for (int32_t i = begin; i < end; ++i) {
        cost += cost_of(item(i));
        slots += item(i).split >= 0;
        longest = std::max(longest, cost_of(item(i)));
        // What continues the part of another CTA costs once more, which is not on the line.
        const bool continues = i > 0 && i == begin && shape.fixed_keys <= 0 &&
                               item(i - 1).sequence == item(i).sequence &&
                               item(i - 1).kv_head == item(i).kv_head &&
                               item(i - 1).row_begin == item(i).row_begin &&
                               item(i - 1).sink_part == item(i).sink_part;
        if (continues) line -= std::max(1, shape.geometry.item_cost);
        ++parts;
      }
      line += cost;
      costs.push_back(cost);
      if (shape.fixed_keys <= 0 && shape.split_sinks == 0) {
        ASSERT_LE(slots, 2) << "CTA " << cta;
      }
    }
    const int64_t item_cost = std::max(1, shape.geometry.item_cost), share = line / num_ctas;
    const int64_t least = 2 * item_cost;
    for (const int64_t cost : costs) {
      if (shape.fixed_keys > 0) {
        ASSERT_LE(cost, share + 1 + longest);
      } else if (line >= num_ctas * least) {
        ASSERT_LE(cost, share + 1 + item_cost);
        ASSERT_GE(cost, share - 1 - item_cost);
      } else {
        ASSERT_LE(cost, least + 1 + item_cost);
      }
    }
  }

  // Every unit's items, in the order of the list, and what becomes of them.
  void units() const {
    using Unit = std::tuple<int32_t, int32_t, int32_t>;  // sequence, kv head, first row
    std::map<Unit, std::vector<WorkItem>> units;
    for (int32_t i = 0; i < schedule.num_items(); ++i)
      units[{item(i).sequence, item(i).kv_head, item(i).row_begin}].push_back(item(i));
    size_t expected = 0;
    const int32_t tile = shape.geometry.tile_rows;
    for (size_t s = 0; s < sequences.size(); ++s) {
      const int64_t rows = sequences[s].num_rows * shape.group_size;
      if (!is_planned(shape, sequences[s])) continue;
      for (int32_t head = 0; head < shape.num_kv_heads; ++head)
        for (int64_t row = 0; row < rows; row += tile, ++expected) {
          const auto found = units.find({static_cast<int32_t>(s), head, static_cast<int32_t>(row)});
          ASSERT_NE(found, units.end()) << "sequence " << s << " head " << head << " row " << row;
          for (const WorkItem& part : found->second)
            ASSERT_EQ(part.num_rows, std::min<int64_t>(tile, rows - row));
          unit(visible_of(shape, sequences[s], row, found->second[0].num_rows), found->second);
        }
    }
    ASSERT_EQ(units.size(), expected);
    reductions(units);
  }

  void unit(const VisibleKeys& keys, const std::vector<WorkItem>& items) const {
    int64_t seen = 0, at = 0;
    for (const WorkItem& part : items) {
      ASSERT_GE(part.key_begin, at) << "out of order, or twice";
      at = part.key_end;
      seen += visible_in(keys, part.key_begin, part.key_end);
      if (keys.count() == 0) {
        ASSERT_EQ(part.key_begin, part.key_end);
        continue;
      }
      piece(keys, part);
    }
    ASSERT_EQ(seen, keys.count());
    if (items.size() == 1) {
      ASSERT_LT(items[0].split, 0);
    }
  }

  void piece(const VisibleKeys& keys, const WorkItem& part) const {
    const int64_t block = shape.geometry.key_block;
    ASSERT_LT(part.key_begin, part.key_end);
    const bool after_sinks = shape.split_sinks != 0 && part.key_begin == keys.sink_end;
    ASSERT_TRUE(part.key_begin % block == 0 || after_sinks) << part.key_begin;
    ASSERT_TRUE(part.key_end % block == 0 || part.key_end == keys.end ||
                part.key_end == keys.sink_end);
    ASSERT_LE(part.key_end, keys.end);
    // Neither its first nor its last block is invisible.
    ASSERT_GT(visible_in(keys, part.key_begin,
                         std::min<int64_t>(part.key_end, (part.key_begin / block + 1) * block)),
              0);
    ASSERT_GT(
        visible_in(keys, std::max<int64_t>(part.key_begin, (part.key_end - 1) / block * block),
                   part.key_end),
        0);
    if (shape.fixed_keys > 0) {
      ASSERT_EQ(part.key_begin / shape.fixed_keys, (part.key_end - 1) / shape.fixed_keys);
    }
    if (shape.split_sinks != 0) {
      ASSERT_EQ(part.sink_part, part.key_begin < keys.sink_end ? 1 : 0);
      if (part.sink_part != 0) {
        ASSERT_LE(part.key_end, keys.sink_end);
      }
    } else {
      ASSERT_EQ(part.sink_part, 0);
    }
  }

  template <typename Units>
  void reductions(const Units& units) const {
    std::vector<int> used(static_cast<size_t>(schedule.num_splits())),
        merged(static_cast<size_t>(schedule.num_splits()));
    size_t split = 0;
    for (const auto& [unit, items] : units) {
      split += items.size() > 1;
      if (items.size() == 1) continue;
      for (const WorkItem& part : items) {
        ASSERT_GE(part.split, 0);
        ASSERT_LT(part.split, schedule.num_splits());
        ++used[static_cast<size_t>(part.split)];
      }
    }
    for (const int times : used) ASSERT_EQ(times, 1) << "slots belong to one item each";
    ASSERT_EQ(static_cast<size_t>(schedule.num_reductions()), split);
    for (int32_t i = 0; i < schedule.num_reductions(); ++i) {
      const ReduceItem& merge = schedule.reductions[static_cast<size_t>(i)];
      const auto found = units.find({merge.sequence, merge.kv_head, merge.row_begin});
      ASSERT_NE(found, units.end());
      ASSERT_EQ(static_cast<size_t>(merge.num_sources), found->second.size());
      ASSERT_EQ(merge.num_rows, found->second[0].num_rows);
      for (int32_t s = 0; s < merge.num_sources; ++s) {
        ASSERT_LT(merge.first_source + s, schedule.num_sources());
        const ReduceSource& source = schedule.sources[static_cast<size_t>(merge.first_source + s)];
        ASSERT_EQ(source.split, found->second[static_cast<size_t>(s)].split)
            << "in the order of the keys";
        ASSERT_EQ(source.row, 0);
        ++merged[static_cast<size_t>(source.split)];
      }
    }
    for (const int times : merged) ASSERT_EQ(times, 1);
  }
};

void check(const ScheduleShape& shape, const std::vector<AttnSequence>& sequences,
           HostSchedule* schedule) {
  const Checks checks{shape, sequences, *schedule};
  ASSERT_NO_FATAL_FAILURE(checks.memory());
  ASSERT_NO_FATAL_FAILURE(checks.ctas());
  ASSERT_NO_FATAL_FAILURE(checks.units());
}

void check_random(uint64_t seed, PlannerBatchShape batch_shape) {
  Dice dice(seed);
  batch_shape.causal = dice.chance(0.8);
  const PlannerBatch batch = random_batch(dice, batch_shape);
  const ScheduleShape shape = random_shape(dice, batch_shape);
  SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(shape));
  HostSchedule schedule = make_schedule(batch.sequences, shape);
  ASSERT_NO_FATAL_FAILURE(check(shape, batch.sequences, &schedule));
}

TEST(CudaPlanner, CoversWhatIsVisibleOnceWithEqualShares) {
  for (int64_t seed = 1; seed <= scaled(1500); ++seed)
    ASSERT_NO_FATAL_FAILURE(check_random(static_cast<uint64_t>(seed), {}));
}

TEST(CudaPlanner, CoversManyShortSequences) {
  for (int64_t seed = 1; seed <= scaled(60); ++seed)
    ASSERT_NO_FATAL_FAILURE(
        check_random(static_cast<uint64_t>(seed),
                     {.max_sequences = 700, .max_rows = 20, .max_keys = 300, .decode = 0.8}));
}

TEST(CudaPlanner, CutsLengthsUpTo2To30) {
  for (int64_t seed = 1; seed <= scaled(300); ++seed) {
    Dice dice(static_cast<uint64_t>(seed));
    PlannerBatchShape batch_shape{
        .max_sequences = 20, .max_rows = 100, .max_keys = int64_t{1} << 30};
    const PlannerBatch batch = random_batch(dice, batch_shape);
    ScheduleShape shape = random_shape(dice, batch_shape);
    if (shape.fixed_keys > 0) shape.fixed_keys = shape.geometry.key_block * (1 << 22);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(shape));
    HostSchedule schedule = make_schedule(batch.sequences, shape);
    ASSERT_NO_FATAL_FAILURE(check(shape, batch.sequences, &schedule));
  }
}

// Row by row and key by key, without the rules for tiles.
TEST(CudaPlanner, GivesEveryRowEveryKeyItSees) {
  for (int64_t seed = 1; seed <= scaled(300); ++seed) {
    Dice dice(static_cast<uint64_t>(seed));
    PlannerBatchShape batch_shape{
        .max_sequences = 4, .max_rows = 30, .max_keys = 200, .causal = dice.chance(0.8)};
    const PlannerBatch batch = random_batch(dice, batch_shape);
    const ScheduleShape shape = random_shape(dice, batch_shape);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(shape));
    HostSchedule schedule = make_schedule(batch.sequences, shape);
    // Sequence, head, packed row, key
    std::map<std::tuple<int32_t, int32_t, int64_t, int64_t>, int> times;
    for (int32_t i = 0; i < schedule.num_items(); ++i) {
      const WorkItem& item = schedule.items[static_cast<size_t>(i)];
      for (int64_t row = item.row_begin; row < item.row_begin + item.num_rows; ++row)
        for (int64_t key = item.key_begin; key < item.key_end; ++key)
          ++times[{item.sequence, item.kv_head, row, key}];
    }
    for (size_t s = 0; s < batch.sequences.size(); ++s) {
      const AttnSequence& sequence = batch.sequences[s];
      if (!is_planned(shape, sequence)) continue;
      for (int64_t row = 0; row < sequence.num_rows * shape.group_size; ++row) {
        const int64_t token = row / shape.group_size;
        const int64_t end = sequence.key_ends != nullptr
                                ? sequence.key_ends[token]
                                : sequence.first_key_end + (shape.causal != 0 ? token : 0);
        for (int64_t key = 0; key < end; ++key) {
          if (sequence.key_begins != nullptr && key < sequence.key_begins[token] &&
              key >= sequence.sink_end)
            continue;
          for (int32_t head = 0; head < shape.num_kv_heads; ++head)
            ASSERT_EQ((times[{static_cast<int32_t>(s), head, row, key}]), 1)
                << "sequence " << s << " row " << row << " key " << key;
        }
      }
    }
  }
}

TEST(CudaPlanner, FixedCutsDoNotDependOnTheRestOfTheBatch) {
  for (int64_t seed = 1; seed <= scaled(200); ++seed) {
    Dice dice(static_cast<uint64_t>(seed));
    const PlannerBatchShape batch_shape{.causal = dice.chance(0.8)};
    const PlannerBatch batch = random_batch(dice, batch_shape);
    ScheduleShape shape = random_shape(dice, batch_shape);
    shape.fixed_keys = shape.geometry.key_block * static_cast<int32_t>(dice.pick({1, 4, 16}));
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(shape));
    const HostSchedule together = make_schedule(batch.sequences, shape);
    for (size_t s = 0; s < batch.sequences.size(); ++s) {
      const HostSchedule alone = make_schedule({batch.sequences[s]}, shape);
      int32_t next = 0;
      for (int32_t i = 0; i < together.num_items(); ++i) {
        WorkItem a = together.items[static_cast<size_t>(i)];
        if (a.sequence != static_cast<int32_t>(s)) continue;
        ASSERT_LT(next, alone.num_items());
        const WorkItem& b = alone.items[static_cast<size_t>(next++)];
        ASSERT_EQ(
            std::tie(a.kv_head, a.row_begin, a.num_rows, a.key_begin, a.key_end, a.sink_part),
            std::tie(b.kv_head, b.row_begin, b.num_rows, b.key_begin, b.key_end, b.sink_part));
        ASSERT_EQ(a.split < 0, b.split < 0);
      }
      ASSERT_EQ(next, alone.num_items());
    }
  }
}

// Batches built to come close to each bound; elsewhere that none is exceeded is checked with limits
// that just hold the batch.
TEST(CudaPlanner, NeedsNoLessMemoryThanItAsksFor) {
  const auto plain = [](int64_t rows, int64_t keys) {
    AttnSequence sequence{};
    sequence.num_rows = rows;
    sequence.first_key_end = keys;
    return sequence;
  };
  ScheduleShape shape{1, 1, 1, 0, 0, 0, 1 << 30, {16, 64, 8, 2}};
  // Nine parts of equal length on eight CTAs: each cut divides another part.
  HostSchedule schedule = make_schedule(std::vector<AttnSequence>(9, plain(1, 64 * 1000)), shape);
  EXPECT_EQ(schedule.num_splits(), schedule.bytes.num_splits);
  EXPECT_EQ(schedule.num_reductions() * int64_t{sizeof(ReduceItem)}, schedule.bytes.reductions);
  EXPECT_EQ(schedule.num_items() * int64_t{sizeof(WorkItem)}, schedule.bytes.items);
  // One row more than a tile in every sequence.
  shape.geometry.num_ctas = 7;
  schedule = make_schedule(std::vector<AttnSequence>(5, plain(17, 64 * 1000)), shape);
  EXPECT_EQ(schedule.num_items() * int64_t{sizeof(WorkItem)}, schedule.bytes.items);
  // Fixed cuts in every unit.
  shape.fixed_keys = 512;
  schedule = make_schedule(std::vector<AttnSequence>(5, plain(1, 5119)), shape);
  EXPECT_EQ(schedule.num_splits(), schedule.bytes.num_splits);
  EXPECT_EQ(schedule.num_items() * int64_t{sizeof(WorkItem)}, schedule.bytes.items);
  // Sinks apart.
  shape.fixed_keys = 0;
  shape.split_sinks = 1;
  const std::vector<int32_t> begins(1, 32000);
  AttnSequence sinks = plain(1, 64 * 1000);
  sinks.key_begins = begins.data();
  sinks.sink_end = 4;
  schedule = make_schedule(std::vector<AttnSequence>(9, sinks), shape);
  EXPECT_GE(schedule.num_splits(), schedule.bytes.num_splits - 7);
  EXPECT_EQ(schedule.num_reductions() * int64_t{sizeof(ReduceItem)}, schedule.bytes.reductions);
}

// All members in one tile of a prefix that every CTA has a piece of: each reductions all of these.
TEST(CudaPlanner, NeedsNoLessMemoryForSharedPrefixesThanItAsksFor) {
  std::vector<AttnSequence> members(128);
  std::vector<int32_t> all;
  for (int32_t s = 0; s < 128; ++s) {
    members[static_cast<size_t>(s)].num_rows = 1;
    members[static_cast<size_t>(s)].row_begin = s;
    members[static_cast<size_t>(s)].first_key_end = 64 * 100000 + 1;
    all.push_back(s);
  }
  const ScheduleShape shape{1, 1, 1, 0, 0, 0, 1 << 30, {128, 64, 132, 1}};
  const SharedBatch batch(members, {{0, 64 * 100000, all}}, shape);
  const HostSchedule schedule = make_schedule(batch.sequences, shape, batch.limits(), batch.shares);
  EXPECT_EQ(schedule.num_items(), 129 + 131);
  const int64_t source_bytes = schedule.num_sources() * int64_t{sizeof(ReduceSource)};
  EXPECT_LE(source_bytes, schedule.bytes.sources);
  EXPECT_GT(source_bytes, schedule.bytes.sources * 9 / 10);
}

TEST(CudaPlanner, ManyTilesAndSequencesFitTheirIntegers) {
  std::vector<AttnSequence> sequences(4096);
  std::vector<int32_t> begins;
  for (size_t s = 0; s < sequences.size(); ++s) {
    sequences[s].num_rows = 16;
    sequences[s].first_key_end = (int64_t{1} << 30) - 16;
  }
  const ScheduleShape shape{8, 1, 1, 0, 0, 0, 1 << 30, {1, 16, 264, 5}};  // 65536 tiles
  HostSchedule schedule = make_schedule(sequences, shape);
  EXPECT_EQ(schedule.num_items(), 65536 * 8 + schedule.num_splits() - schedule.num_reductions());
  ASSERT_NO_FATAL_FAILURE((Checks{shape, sequences, schedule}.ctas()));
  ASSERT_NO_FATAL_FAILURE((Checks{shape, sequences, schedule}.memory()));
}

}  // namespace
}  // namespace kvc::cuda::test
