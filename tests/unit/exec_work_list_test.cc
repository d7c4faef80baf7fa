#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "src/exec/cpu/work_list.h"
#include "tests/support/environment.h"

namespace kvc {
namespace {

using kernels::AttnItem;
using kernels::AttnSequence;
using test::rounds;

struct WorkCase {
  std::vector<AttnSequence> sequences;
  WorkShape shape;
};

WorkCase draw_case(std::mt19937& random) {
  WorkCase drawn;
  const int num_sequences = 1 + static_cast<int>(random() % 6);
  drawn.shape.num_kv_heads = 1 + static_cast<int32_t>(random() % 5);
  drawn.shape.num_q_heads = drawn.shape.num_kv_heads * (1 + static_cast<int32_t>(random() % 9));
  drawn.shape.k_dim = 64;
  drawn.shape.v_dim = 16 << (random() % 5);
  drawn.shape.causal = random() % 4 != 0;
  drawn.shape.is_latent = false;
  drawn.shape.tiles_only = random() % 4 == 0;
  drawn.shape.concurrency = 1 + static_cast<int32_t>(random() % 16);
  int64_t row = 0;
  for (int i = 0; i < num_sequences; ++i) {
    AttnSequence sequence{};
    sequence.row_begin = row;
    sequence.num_rows = random() % 2 ? 1 : 1 + static_cast<int64_t>(random() % 700);
    sequence.first_key_end = random() % 5 == 0 ? (drawn.shape.causal ? 1 : 0)
                                               : 1 + static_cast<int64_t>(random() % 3000);
    row += sequence.num_rows;
    drawn.sequences.push_back(sequence);
  }
  return drawn;
}

int64_t keys_of_row(const WorkCase& drawn, size_t sequence, int64_t row) {
  return drawn.sequences[sequence].first_key_end + (drawn.shape.causal ? row : 0);
}

TEST(WorkList, CoversEveryVisiblePairOfEveryHeadExactlyOnce) {
  for (unsigned seed = 0; seed < rounds(200); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const WorkCase drawn = draw_case(random);
    WorkList list;
    schedule_work(drawn.sequences.data(), static_cast<int64_t>(drawn.sequences.size()), drawn.shape,
                  {}, &list);
    // Per (sequence, row, head): disjoint key ranges that add up to what the row sees.
    std::map<std::tuple<int32_t, int64_t, int32_t>, int64_t> covered;
    for (const AttnItem& item : list.items) {
      ASSERT_LT(item.row_begin, item.row_end);
      ASSERT_LT(item.head_begin, item.head_end);
      ASSERT_EQ(item.partial >= 0, item.merge_group >= 0);
      for (int64_t row = item.row_begin; row < item.row_end; ++row) {
        const int64_t visible = keys_of_row(drawn, static_cast<size_t>(item.sequence), row);
        const int64_t keys = std::max<int64_t>(0, std::min(item.key_end, visible) - item.key_begin);
        for (int32_t head = item.head_begin; head < item.head_end; ++head)
          covered[{item.sequence, row, head}] += keys;
      }
    }
    size_t expected_entries = 0;
    for (size_t s = 0; s < drawn.sequences.size(); ++s) {
      expected_entries +=
          static_cast<size_t>(drawn.sequences[s].num_rows * drawn.shape.num_kv_heads);
    }
    ASSERT_EQ(covered.size(), expected_entries)
        << "a row without visible keys needs an item too: it writes zeros";
    for (const auto& [key, keys] : covered) {
      ASSERT_EQ(keys, keys_of_row(drawn, static_cast<size_t>(std::get<0>(key)), std::get<1>(key)));
    }
  }
}

// A sequence of one row at position `length - 1`, and its window with sinks.
struct Windowed {
  int32_t begin;
  AttnSequence sequence{};

  Windowed(int64_t length, int64_t window, int64_t sinks)
      : begin(static_cast<int32_t>(length - window)) {
    sequence.num_rows = 1;
    sequence.first_key_end = length;
    sequence.key_begins = &begin;
    sequence.sink_end = sinks;
  }
};

constexpr WorkShape kGroupOfFour = {.num_q_heads = 4,
                                    .num_kv_heads = 1,
                                    .k_dim = 64,
                                    .v_dim = 64,
                                    .causal = true,
                                    .tiles_only = false,
                                    .is_latent = false,
                                    .concurrency = 1};

std::vector<KvChunk> pieces_of(const WorkList& list) {
  std::vector<KvChunk> pieces;
  for (const AttnItem& item : list.items)
    pieces.push_back({item.key_begin, item.key_end, item.sink_part != 0});
  std::sort(pieces.begin(), pieces.end(),
            [](const KvChunk& a, const KvChunk& b) { return a.begin < b.begin; });
  return pieces;
}

TEST(WorkList, CostsOfAWindowLayerGrowWithItsWindowOnly) {
  for (const int64_t length : {int64_t{5000}, int64_t{1000000000}}) {
    const Windowed windowed(length, 1024, 0);
    WorkList list;
    schedule_work(&windowed.sequence, 1, kGroupOfFour, {}, &list);
    EXPECT_LE(list.items.size(), 3u);
    EXPECT_EQ(pieces_of(list).front().begin, length - 1024);
    EXPECT_LT(list.seconds, 1e-3);
  }
}

TEST(WorkList, CutsAWindowAtAbsoluteMultiplesOfTheSplit) {
  const Windowed windowed(2000, 1100, 0);
  WorkList list;
  schedule_work(&windowed.sequence, 1, kGroupOfFour, {}, &list);
  const std::vector<KvChunk> expected = {
      {900, 1024, false}, {1024, 1536, false}, {1536, 2000, false}};
  EXPECT_EQ(pieces_of(list), expected);
}

TEST(WorkList, PutsSinksIntoTheFirstItemUnlessTheirQueriesTurnDifferently) {
  Windowed windowed(2000, 1100, 4);
  WorkShape shape = kGroupOfFour;
  WorkList list;
  schedule_work(&windowed.sequence, 1, shape, {}, &list);
  const std::vector<KvChunk> joined = {{0, 1024, false}, {1024, 1536, false}, {1536, 2000, false}};
  EXPECT_EQ(pieces_of(list), joined);
  windowed.sequence.sink_q_end = 4;
  schedule_work(&windowed.sequence, 1, shape, {}, &list);
  const std::vector<KvChunk> split = {
      {0, 4, true}, {900, 1024, false}, {1024, 1536, false}, {1536, 2000, false}};
  EXPECT_EQ(pieces_of(list), split);
  shape.tiles_only = true;
  schedule_work(&windowed.sequence, 1, shape, {}, &list);
  const std::vector<KvChunk> tiles = {{0, 4, true}, {896, 2000, false}};
  EXPECT_EQ(pieces_of(list), tiles);
  EXPECT_EQ(list.groups.size(), 1u);
}

// Keys that were moved apart by a shift.
TEST(WorkList, CutsWhereQueriesTurnDifferently) {
  WorkShape shape = kGroupOfFour;
  for (const bool tiles_only : {false, true}) {
    shape.tiles_only = tiles_only;
    const auto pieces = [&](int64_t length, int64_t window, int64_t sinks, int64_t sink_q_end) {
      Windowed windowed(length, window, sinks);
      windowed.sequence.sink_q_end = sink_q_end;
      if (window == 0) windowed.sequence.key_begins = nullptr;
      WorkList list;
      schedule_work(&windowed.sequence, 1, shape, {}, &list);
      return pieces_of(list);
    };
    using Pieces = std::vector<KvChunk>;
    EXPECT_EQ(pieces(300, 0, 0, 100), (Pieces{{0, 100, true}, {100, 300, false}}));
    EXPECT_EQ(pieces(300, 0, 0, 300), (Pieces{{0, 300, true}})) << "all of them";
    // Inside the window, before it, and in the sinks.
    const int64_t begin = tiles_only ? 192 : 200;
    EXPECT_EQ(pieces(300, 100, 0, 250), (Pieces{{begin, 250, true}, {250, 300, false}}));
    EXPECT_EQ(pieces(300, 100, 0, 150), (Pieces{{begin, 300, false}}));
    EXPECT_EQ(pieces(300, 100, 4, 250),
              tiles_only ? (Pieces{{0, 250, true}, {250, 300, false}})
                         : (Pieces{{0, 4, true}, {200, 250, true}, {250, 300, false}}));
    EXPECT_EQ(pieces(300, 100, 4, 2),
              tiles_only ? (Pieces{{0, 2, true}, {2, 300, false}})
                         : (Pieces{{0, 2, true}, {2, 4, false}, {200, 300, false}}));
  }
}

TEST(WorkList, ReadsASharedPrefixOnceAndFeedsEveryMember) {
  std::vector<AttnSequence> sequences(5);
  for (size_t i = 0; i < 4; ++i) {
    sequences[i].row_begin = static_cast<int64_t>(i);
    sequences[i].num_rows = 1;
    sequences[i].first_key_end = 5000 + static_cast<int64_t>(i) * 700;
  }
  sequences[4].num_rows = 3;
  sequences[4].first_key_end = 4096;
  const SharedPrefix prefix{
      .sequence = 4, .key_begin = 0, .key_end = 4096, .members = {{0, 0}, {2, 1}, {3, 2}}};
  WorkList list;
  schedule_work(sequences.data(), 5, kGroupOfFour, {&prefix, 1}, &list);
  int64_t prefix_keys = 0;
  std::vector<int64_t> first_own_key(5, INT64_MAX), fed(list.groups.size(), 0);
  for (const AttnItem& item : list.items) {
    if (item.sequence == 4) {
      prefix_keys += item.key_end - item.key_begin;
      EXPECT_EQ(item.num_merge_groups, 3);
      EXPECT_EQ(item.row_end - item.row_begin, 3);
    }
    int64_t& first = first_own_key[static_cast<size_t>(item.sequence)];
    first = std::min(first, item.key_begin);
    for (int32_t group = 0; item.merge_group >= 0 && group < item.num_merge_groups; ++group)
      ++fed[static_cast<size_t>(item.merge_group + group)];
  }
  EXPECT_EQ(prefix_keys, 4096);
  EXPECT_EQ(first_own_key, (std::vector<int64_t>{4096, 0, 4096, 4096, 0}));
  for (size_t group = 0; group < list.groups.size(); ++group)
    EXPECT_EQ(fed[group], list.groups[group].num_splits) << "group " << group;
}

TEST(WorkList, GivesEverySplitItsOwnPartialInsideTheWorkspace) {
  for (unsigned seed = 0; seed < rounds(100); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const WorkCase drawn = draw_case(random);
    WorkList list;
    schedule_work(drawn.sequences.data(), static_cast<int64_t>(drawn.sequences.size()), drawn.shape,
                  {}, &list);
    std::set<std::pair<int64_t, int64_t>> used;
    std::vector<int32_t> splits(list.groups.size(), 0);
    for (const AttnItem& item : list.items) {
      if (item.partial < 0) continue;
      const int64_t heads = int64_t{item.head_end - item.head_begin} * drawn.shape.group_size();
      const int64_t size = (item.row_end - item.row_begin) * heads * (2 + drawn.shape.v_dim);
      ASSERT_LE(item.partial + size, list.partial_floats);
      ASSERT_TRUE(used.insert({item.partial, item.partial + size}).second);
      const auto& group = list.groups[static_cast<size_t>(item.merge_group)];
      ASSERT_EQ(item.num_merge_groups, 1);
      ASSERT_EQ(
          item.partial,
          list.split_offsets[static_cast<size_t>(group.first_split + item.key_begin / kSplitKeys)]);
      ++splits[static_cast<size_t>(item.merge_group)];
    }
    int64_t end = 0;
    for (const auto& [begin, next] : used) {
      ASSERT_GE(begin, end) << "partials overlap";
      end = next;
    }
    for (size_t g = 0; g < list.groups.size(); ++g) ASSERT_EQ(splits[g], list.groups[g].num_splits);
  }
}

TEST(WorkList, CutsASequenceAtTheSameKeysWhateverTheBatchAndTheThreads) {
  std::mt19937 random(5);
  for (int round = 0; round < 50; ++round) {
    WorkCase drawn = draw_case(random);
    const auto cuts = [&](const std::vector<AttnSequence>& sequences, int32_t concurrency,
                          int32_t wanted) {
      WorkShape shape = drawn.shape;
      shape.concurrency = concurrency;
      WorkList list;
      schedule_work(sequences.data(), static_cast<int64_t>(sequences.size()), shape, {}, &list);
      std::set<std::pair<int64_t, int64_t>> keys;
      bool tile = false;
      for (size_t i = 0; i < list.items.size(); ++i) {
        if (list.items[i].sequence != wanted) continue;
        keys.insert({list.items[i].key_begin, list.items[i].key_end});
        tile = tile || static_cast<int64_t>(i) < list.num_tile_items;
      }
      return std::pair(keys, tile);
    };
    const auto alone = cuts({drawn.sequences[0]}, 1, 0);
    EXPECT_EQ(cuts(drawn.sequences, 1, 0), alone);
    EXPECT_EQ(cuts(drawn.sequences, 16, 0), alone);
  }
}

}  // namespace
}  // namespace kvc
