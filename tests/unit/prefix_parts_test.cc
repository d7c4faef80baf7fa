// The parts of the prefix index: order of eviction, ring of events, metrics, namespaces.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "src/prefix/block_tree.h"
#include "src/prefix/eviction_heap.h"
#include "src/prefix/metrics.h"
#include "src/prefix/namespaces.h"
#include "tests/model/random.h"

namespace kvc {
namespace {

TEST(EvictionHeap, GivesTheSmallestRankWhateverIsAddedMovedErasedAndParked) {
  for (const uint64_t seed : {1u, 2u, 3u}) {
    test::Random random(seed);
    std::vector<int32_t> positions(200, -1);
    EvictionHeap heap(&positions);
    std::map<NodeId, uint64_t> ranks;  // not parked
    std::vector<NodeId> parked;
    std::set<uint64_t> used;
    const auto fresh = [&] {
      uint64_t rank = random.next();
      while (!used.insert(rank).second) rank = random.next();
      return rank;
    };
    for (int step = 0; step < 30000; ++step) {
      const auto node = static_cast<NodeId>(random.range(0, 199));
      const bool is_parked = std::find(parked.begin(), parked.end(), node) != parked.end();
      switch (random.range(0, 5)) {
        case 0:
        case 1: {
          const uint64_t rank = fresh();
          heap.set(node, rank);
          if (!is_parked) ranks[node] = rank;
          break;
        }
        case 2:
          heap.erase(node);
          ranks.erase(node);
          if (is_parked) parked.erase(std::find(parked.begin(), parked.end(), node));
          break;
        case 3:
          if (heap.empty()) break;
          parked.push_back(heap.top());
          ranks.erase(heap.top());
          heap.park_top();
          break;
        case 4:
          if (random.chance(0.9)) break;
          heap.sort_parked();
          for (uint64_t before = 0; heap.num_parked() != 0;) {
            const NodeId next = heap.next_parked();
            ASSERT_LT(before, heap.rank(next));
            before = heap.rank(next);
            ranks[next] = fresh();
            heap.unpark(ranks[next]);
          }
          parked.clear();
          ASSERT_TRUE(heap.is_sound()) << "seed " << seed << " step " << step;
          break;
        default: break;
      }
      ASSERT_EQ(heap.empty(), ranks.empty());
      ASSERT_EQ(heap.num_parked(), parked.size());
      for (const NodeId one : parked) ASSERT_TRUE(heap.contains(one));
      if (ranks.empty()) continue;
      const auto least =
          std::min_element(ranks.begin(), ranks.end(),
                           [](const auto& a, const auto& b) { return a.second < b.second; });
      ASSERT_EQ(heap.top(), least->first) << "seed " << seed << " step " << step;
      ASSERT_EQ(heap.top_rank(), least->second);
    }
  }
}

TEST(EvictionHeap, OrdersByProtectionThenPriorityThenTime) {
  EXPECT_LT(make_rank(false, 100, kStampMask), make_rank(true, 0, 0));
  EXPECT_LT(make_rank(false, 1, kStampMask), make_rank(false, 2, 0));
  EXPECT_LT(make_rank(true, 1, 5), make_rank(true, 1, 6));
  EXPECT_EQ(stamp_of(make_rank(true, 100, 123456789)), 123456789u);
}

TEST(EventLog, OverwritesTheOldestAndShowsItInTheNumbers) {
  EventLog log(3);
  Event event;
  uint64_t number = 0;
  EXPECT_FALSE(log.poll(&event, &number));
  for (int32_t group = 0; group < 5; ++group) {
    event.group = group;
    log.record(event);
  }
  EXPECT_EQ(log.num_made(), 5u);
  EXPECT_EQ(log.num_lost(), 2u);
  for (int32_t group = 2; group < 5; ++group) {
    ASSERT_TRUE(log.poll(&event, &number));
    EXPECT_EQ(event.group, group);
    EXPECT_EQ(number, static_cast<uint64_t>(group) + 1);
  }
  EXPECT_FALSE(log.poll(&event, &number));
  EXPECT_EQ(log.num_lost(), 2u) << "polled ones are not lost";
  log.record(event);
  EXPECT_TRUE(log.poll(&event, &number));
  EXPECT_EQ(number, 6u);
}

TEST(EventLog, WithoutCapacityRecordsNothing) {
  EventLog log(0);
  EXPECT_FALSE(log.is_used());
  log.record({});
  EXPECT_EQ(log.num_made(), 0u);
  EXPECT_EQ(log.num_lost(), 0u);
}

TEST(PrefixMetrics, SumTheLastThousandLookupsApart) {
  PrefixMetrics metrics;
  for (int64_t i = 0; i < 1500; ++i) metrics.count_lookup(i, i / 2);
  kvc_stats stats{};
  metrics.fill(&stats);
  uint64_t query = 0, hit = 0, recent_query = 0, recent_hit = 0;
  for (uint64_t i = 0; i < 1500; ++i) {
    query += i, hit += i / 2;
    if (i >= 500) recent_query += i, recent_hit += i / 2;
  }
  EXPECT_EQ(stats.prefix_lookups, 1500u);
  EXPECT_EQ(stats.prefix_query_tokens, query);
  EXPECT_EQ(stats.prefix_hit_tokens, hit);
  EXPECT_EQ(stats.recent_query_tokens, recent_query);
  EXPECT_EQ(stats.recent_hit_tokens, recent_hit);
}

TEST(PrefixMetrics, CountTimesInBucketsOfDoublingWidth) {
  PrefixMetrics metrics;
  for (const uint64_t milliseconds : {0u, 1u, 2u, 3u, 4u, 1023u, 1024u})
    metrics.count_evicted(milliseconds * kTicksPerMillisecond, 0);
  metrics.count_reuse(UINT64_MAX);
  kvc_stats stats{};
  metrics.fill(&stats);
  EXPECT_EQ(stats.block_lifetime[0], 2u);
  EXPECT_EQ(stats.block_lifetime[1], 2u);
  EXPECT_EQ(stats.block_lifetime[2], 1u);
  EXPECT_EQ(stats.block_lifetime[9], 1u);
  EXPECT_EQ(stats.block_lifetime[10], 1u);
  EXPECT_EQ(stats.block_idle[0], 7u);
  EXPECT_EQ(stats.block_reuse_gap[31], 1u);
  EXPECT_EQ(stats.prefix_evicted, 7u);
}

TEST(Namespaces, AreDroppedWhenTheyHoldNothingAndHaveNoQuota) {
  Namespaces spaces;
  spaces.reserve(2);
  const BlockKey a = namespace_root("a", 1), b = namespace_root("b", 1);
  const int32_t id = spaces.add(a);
  spaces.set_quota(id, 100, nullptr);
  spaces.drop_if_empty(id);
  EXPECT_EQ(spaces.find(a), id);
  EXPECT_EQ(spaces.num_quotas(), 1);
  spaces.set_quota(id, 0, nullptr);
  spaces.drop_if_empty(id);
  EXPECT_EQ(spaces.find(a), -1);
  EXPECT_EQ(spaces.num_quotas(), 0);
  EXPECT_EQ(spaces.add(b), id) << "its place is taken again";
}

TEST(NodePool, RemembersOnWhichTierAPageIs) {
  NodePool nodes(3, 4);
  nodes.reserve(1, false);
  const NodeId node = nodes.take();
  EXPECT_FALSE(nodes.place(node, 2).is_present());
  nodes.set_place(node, 0, {7, kNoPage});
  nodes.set_place(node, 1, {kNoPage, 0});
  EXPECT_EQ(nodes.place(node, 0).device, 7);
  EXPECT_EQ(nodes.place(node, 0).host, kNoPage);
  EXPECT_EQ(nodes.place(node, 1).device, kNoPage);
  EXPECT_EQ(nodes.place(node, 1).host, 0);
  nodes.set_place(node, 0, {});
  nodes.set_place(node, 1, {});
  nodes.release(node);
  EXPECT_EQ(nodes.take(), node);
  for (int32_t index = 0; index < 3; ++index)
    EXPECT_FALSE(nodes.place(node, index).is_present()) << "a new block starts with nothing";
}

TEST(NodePool, KeepsTokenIdsOnlyWhereRoomWasMadeForThem) {
  NodePool nodes(1, 4);
  const int32_t ids[] = {3, 1, 4, 1}, others[] = {5, 9, 2, 6};
  nodes.reserve(1, false);
  const NodeId first = nodes.take();
  nodes.set_tokens(first, ids);
  EXPECT_FALSE(nodes[first].has_tokens) << "known by its key alone";
  nodes.reserve(1, true);
  nodes.set_tokens(first, ids);
  ASSERT_TRUE(nodes[first].has_tokens);
  nodes.reserve(1000, true);  // moves them
  const NodeId second = nodes.take();
  nodes.set_tokens(second, others);
  EXPECT_TRUE(std::equal(ids, ids + 4, nodes.tokens(first)));
  EXPECT_TRUE(std::equal(others, others + 4, nodes.tokens(second)));
}

}  // namespace
}  // namespace kvc
