// What a sequence can see, what is dropped, and where it can go on from. Page size 4, lengths set
// by hand.
#include <gtest/gtest.h>

#include <array>
#include <memory>

#include "src/base/error.h"
#include "src/plan/plan.h"
#include "src/sequences/sequences.h"
#include "src/sequences/visibility.h"
#include "tests/unit/spec_support.h"

namespace kvc {
namespace {

struct World {
  explicit World(std::vector<LayerSpec> layers)
      : plan(std::make_shared<Plan>(make(std::move(layers)))),
        allocator(1000),
        states(plan, &allocator, 0, 0),
        sequences(&allocator, &states, nullptr, nullptr, plan->spec(), 4) {}

  static Spec make(std::vector<LayerSpec> layers) {
    Spec spec = spec_of(std::move(layers), 4);
    spec.num_pages = 1000;
    spec.storage = KVC_STORAGE_NONE;
    return spec;
  }

  // A sequence of `length` tokens, nothing dropped yet.
  Sequence& fill(kvc_seq id, int64_t length) {
    sequences.add(id);
    Sequence& sequence = sequences.get(id);
    sequence.length = length;
    sequences.add_to_totals({.length = length});
    for (PageTable& table : sequence.tables) {
      while (table.pages.size() * 4 < length) table.pages.push_back(allocator.take(kNoPage, 0));
    }
    return sequence;
  }

  static std::vector<bool> kept(const PageTable& table) {
    std::vector<bool> result;
    for (int64_t i = 0; i < table.pages.size(); ++i) result.push_back(table.pages[i] != kNoPage);
    return result;
  }

  std::shared_ptr<Plan> plan;
  PageAllocator allocator;
  StatePool states;
  SequenceTable sequences;
};

using Kept = std::vector<bool>;

TEST(Visibility, AWindowCountsTheQueryItself) {
  GroupSpec group;
  group.window = 3;
  const Sequence plain;
  EXPECT_EQ(keys_of_query(group, plain, 10).begin, 8);
  EXPECT_EQ(keys_of_query(group, plain, 1).begin, 0);
  group.window = 1;
  EXPECT_EQ(keys_of_query(group, plain, 10).begin, 10);
}

TEST(Visibility, AChunkStartsAtItsMultiple) {
  GroupSpec group;
  group.chunk = 8;
  const Sequence plain;
  EXPECT_EQ(keys_of_query(group, plain, 7).begin, 0);
  EXPECT_EQ(keys_of_query(group, plain, 8).begin, 8);
  EXPECT_EQ(keys_of_query(group, plain, 23).begin, 16);
}

TEST(Visibility, SinksTakeTheirShareOfTheWindow) {
  Sequence sequence;
  sequence.window = 10;
  sequence.sink = 4;
  const KeyRange keys = keys_of_query(GroupSpec{}, sequence, 20);
  EXPECT_EQ(keys.sink_end, 4);
  EXPECT_EQ(keys.begin, 15) << "4 sinks and 15..20: 10 keys";
}

TEST(Visibility, TheNarrowerOfLayerAndSequenceCounts) {
  GroupSpec group;
  group.window = 4;
  Sequence sequence;
  sequence.window = 10;
  sequence.sink = 2;
  EXPECT_EQ(keys_of_query(group, sequence, 20).begin, 17);
  EXPECT_EQ(keys_of_query(group, sequence, 20).sink_end, 0);
}

TEST(Windows, DropThePagesThatNoLaterQuerySees) {
  World world({window_layer(1, 1, 8, 6)});
  Sequence& sequence = world.fill(1, 18);  // the next query sees 13..18: page 3 on
  world.sequences.trimmer().drop_hidden(sequence);
  EXPECT_EQ(World::kept(sequence.tables[0]), (Kept{false, false, false, true, true}));
  EXPECT_EQ(sequence.tables[0].kept_begin, 12);
  EXPECT_EQ(world.allocator.num_used(), 2);
}

TEST(Windows, KeepTheSinksPages) {
  World world({attention_layer(1, 1, 8, 8)});
  Sequence& sequence = world.fill(1, 30);
  world.sequences.trimmer().set_window(
      world.sequences.get(1), 10, 5);  // sinks 0..4 on pages 0 and 1; the next query sees 26..30
  EXPECT_EQ(World::kept(sequence.tables[0]),
            (Kept{true, true, false, false, false, false, true, true}));
  EXPECT_TRUE(sequence.tables[0].keeps(0, 5));
  EXPECT_FALSE(sequence.tables[0].keeps(0, 6));
}

TEST(Windows, AWiderWindowNeedsTokensThatAreStillThere) {
  World world({attention_layer(1, 1, 8, 8)});
  world.fill(1, 30);
  world.sequences.trimmer().set_window(world.sequences.get(1), 10, 2);
  world.sequences.trimmer().set_window(world.sequences.get(1), 6, 1);
  EXPECT_THROW(world.sequences.trimmer().set_window(world.sequences.get(1), 20, 1), Error);
  EXPECT_THROW(world.sequences.trimmer().set_window(world.sequences.get(1), 6, 3), Error)
      << "the third sink is gone";
  EXPECT_EQ(world.sequences.get(1).window, 6);
}

TEST(Windows, ASmallerSinkFreesItsPages) {
  World world({attention_layer(1, 1, 8, 8)});
  Sequence& sequence = world.fill(1, 40);
  world.sequences.trimmer().set_window(world.sequences.get(1), 20, 9);
  EXPECT_TRUE(World::kept(sequence.tables[0])[2]);
  world.sequences.trimmer().set_window(world.sequences.get(1), 12, 1);
  EXPECT_EQ(World::kept(sequence.tables[0]),
            (Kept{true, false, false, false, false, false, false, true, true, true}));
}

TEST(Windows, PopAndForkGoBackAsFarAsTheWindowReaches) {
  World world({window_layer(1, 1, 8, 6)});
  Sequence& sequence = world.fill(1, 18);
  world.sequences.trimmer().drop_hidden(sequence);  // keeps 12..
  EXPECT_TRUE(world.sequences.resume_points().allows(sequence, 17)) << "sees 12..17";
  EXPECT_FALSE(world.sequences.resume_points().allows(sequence, 16)) << "would see 11";
  EXPECT_TRUE(world.sequences.resume_points().allows(sequence, 0));
  const Neighbours around = world.sequences.resume_points().around(sequence, 10);
  EXPECT_EQ(around.below, 0);
  EXPECT_EQ(around.above, 17);
  EXPECT_THROW(world.sequences.pop(1, 3), Error);
  world.sequences.fork(1, 2, 17);
  EXPECT_EQ(World::kept(world.sequences.get(2).tables[0]), (Kept{false, false, false, true, true}));
  world.sequences.pop(1, 18);
  EXPECT_EQ(world.sequences.get(1).tables[0].kept_begin, 0) << "an empty sequence has lost nothing";
}

TEST(Windows, SinksCanBeForkedWhateverWasDropped) {
  World world({attention_layer(1, 1, 8, 8)});
  world.fill(1, 30);
  world.sequences.trimmer().set_window(world.sequences.get(1), 10, 5);
  world.sequences.fork(1, 2, 4);
  EXPECT_EQ(world.sequences.get(2).length, 4);
  EXPECT_EQ(world.sequences.get(2).window, 10);
  EXPECT_THROW(world.sequences.fork(1, 3, 7), Error);
}

TEST(Checkpoints, AreWhereAStatefulSequenceCanGoOn) {
  World world({attention_layer(1, 1, 8, 8), state_layer({4})});
  Sequence& sequence = world.fill(1, 10);
  world.states.prepare(2);
  sequence.checkpoints.push_back({6, world.states.take()});
  sequence.state = world.states.take();
  for (const auto& [position, below, above] :
       {std::array<int64_t, 3>{5, 0, 6}, {6, 6, 6}, {7, 6, 10}, {10, 10, 10}, {0, 0, 0}}) {
    const Neighbours around = world.sequences.resume_points().around(sequence, position);
    EXPECT_EQ(around.below, below) << position;
    EXPECT_EQ(around.above, above) << position;
  }
  EXPECT_THROW(world.sequences.fork(1, 2, 5), Error);
  world.sequences.fork(1, 2, 6);
  EXPECT_EQ(world.sequences.get(2).state, sequence.checkpoints[0].slot);
  world.sequences.pop(1, 4);
  EXPECT_EQ(world.states.num_used(), 1) << "the state of 10 tokens is gone";
  world.sequences.remove(1);
  world.sequences.remove(2);
  EXPECT_EQ(world.states.num_used(), 0);
}

// The nearest places are found without a look at every token in between; which ones they are, a
// look at every token says.
TEST(Resume, TheNearestPlacesAreThoseThatALookAtEveryTokenFinds) {
  struct Case {
    int64_t window, chunk, second_window, length;
    int64_t sequence_window, sink;
  };
  for (const Case& one :
       {Case{6, 0, 0, 40, 0, 0}, Case{1, 0, 0, 41, 0, 0}, Case{2, 0, 0, 43, 0, 0},
        Case{0, 8, 0, 45, 0, 0}, Case{0, 12, 7, 61, 0, 0}, Case{6, 0, 11, 50, 0, 0},
        Case{0, 0, 0, 47, 9, 3}, Case{0, 0, 0, 47, 9, 0}, Case{5, 0, 0, 44, 9, 2},
        Case{0, 5, 3, 57, 0, 0}, Case{9, 0, 0, 5, 0, 0}}) {
    SCOPED_TRACE(testing::Message() << "window " << one.window << " chunk " << one.chunk << " and "
                                    << one.second_window << ", sequence " << one.sequence_window);
    std::vector<LayerSpec> layers(2);
    layers[0] = attention_layer(1, 1, 8, 8);
    layers[0].window = one.window, layers[0].chunk = one.chunk;
    layers[1] = attention_layer(1, 1, 8, 8);
    layers[1].window = one.second_window;
    World world(layers);
    Sequence& sequence = world.fill(1, one.length);
    if (one.sequence_window != 0)
      world.sequences.trimmer().set_window(world.sequences.get(1), one.sequence_window, one.sink);
    world.sequences.trimmer().drop_hidden(sequence);
    for (int64_t position = 0; position <= one.length; ++position) {
      const auto allows = [&](int64_t at) {
        return world.sequences.resume_points().allows(sequence, at);
      };
      int64_t below = position, above = position;
      while (below >= 0 && !allows(below)) --below;
      while (!allows(above)) ++above;
      const Neighbours around = world.sequences.resume_points().around(sequence, position);
      ASSERT_EQ(around.below, below) << "of " << position;
      ASSERT_EQ(around.above, above) << "of " << position;
    }
  }
}

TEST(Resume, ARefusedPopLooksAtAFewPlacesHoweverLongTheSequenceIs) {
  std::vector<LayerSpec> layers(2);
  layers[0] = attention_layer(1, 1, 8, 8);
  layers[0].window = 6;
  layers[1] = attention_layer(1, 1, 8, 8);
  layers[1].window = 11;
  World world(layers);
  Sequence& sequence = world.fill(1, 1900);
  world.sequences.trimmer().drop_hidden(sequence);
  int64_t looks = 0;
  EXPECT_EQ(world.sequences.resume_points().around(sequence, 900, &looks).below, 0);
  EXPECT_LE(looks, 20);
}

}  // namespace
}  // namespace kvc
