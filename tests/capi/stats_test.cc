// kvc_stats: fragmentation, the prefix index, its lookups, evictions and their times, the host
// pool, events.
#include <chrono>
#include <numeric>
#include <thread>

#include "tests/capi/prefix_support.h"

namespace kvc::test {
namespace {

uint64_t sum_of(const uint64_t (&histogram)[32]) {
  return std::accumulate(std::begin(histogram), std::end(histogram), uint64_t{0});
}

// 32 pages of 4 tokens: a block is a page.
class Stats : public testing::Test {
 protected:
  explicit Stats(int64_t host_pages = 0, int64_t event_capacity = 0) {
    if (host_pages > 0) set_host_pages(net_.config, host_pages);
    net_.config.event_capacity = event_capacity;
    cache_ = std::make_unique<Cache>(net_.config);
  }
  ~Stats() override { expect_sound(*cache_); }
  kvc_stats stats() const { return stats_of(*cache_); }
  Net net_{{attention_layer()}};
  std::unique_ptr<Cache> cache_;
};

TEST_F(Stats, BeginAtNought) {
  const kvc_stats s = stats();
  EXPECT_EQ(s.pages_total, 32);
  EXPECT_EQ(s.pages_available, 32);
  for (const int64_t value :
       {s.slots_unused, s.pages_indexed, s.pages_cached, s.prefix_blocks, s.prefix_blocks_host,
        s.prefix_pinned, s.host_pages_total, s.host_pages_used, s.num_swapped_seqs})
    EXPECT_EQ(value, 0);
  for (const uint64_t value : {s.prefix_lookups,
                               s.prefix_query_tokens,
                               s.prefix_hit_tokens,
                               s.recent_query_tokens,
                               s.recent_hit_tokens,
                               s.prefix_stored,
                               s.prefix_duplicates,
                               s.prefix_evicted,
                               s.prefix_rejected,
                               s.prefix_demoted,
                               s.prefix_promoted,
                               s.pages_swapped_out,
                               s.pages_swapped_in,
                               s.copy_runs,
                               s.events_made,
                               s.events_lost,
                               sum_of(s.block_lifetime),
                               sum_of(s.block_idle),
                               sum_of(s.block_reuse_gap),
                               s.cos_sin_bytes,
                               s.values_saturated})
    EXPECT_EQ(value, 0u);
}

TEST_F(Stats, UnusedSlotsLieBehindTheLastTokens) {
  add_tokens(*cache_, 1, 1);
  EXPECT_EQ(stats().slots_unused, 3);
  add_tokens(*cache_, 1, 3);
  EXPECT_EQ(stats().slots_unused, 0) << "a full page";
  add_tokens(*cache_, 1, 2);
  add_tokens(*cache_, 2, 7);
  EXPECT_EQ(stats().slots_unused, 2 + 1);
  ASSERT_EQ(kvc_seq_pop(cache_->get(), 2, 2, nullptr), KVC_OK);
  EXPECT_EQ(stats().slots_unused, 2 + 3);
  remove_seq(*cache_, 1);
  EXPECT_EQ(stats().slots_unused, 3);
  ASSERT_EQ(kvc_cache_clear(cache_->get(), nullptr), KVC_OK);
  EXPECT_EQ(stats().slots_unused, 0);
}

TEST(StatsOfGroups, UnusedSlotsAreCountedInEveryGroup) {
  Net net({attention_layer(), attention_layer(8)});
  net.config.flags = KVC_CONFIG_PAD_PAGES;  // 4 tokens in every page
  Cache cache(net.config);
  add_tokens(cache, 1, 14);
  EXPECT_EQ(stats_of(cache).slots_unused, 2 + 2);
}

TEST_F(Stats, PublishedPagesAreCachedAndEvictableWhenNobodyHoldsThem) {
  append_ids(*cache_, 1, token_ids(11, 1));
  kvc_stats s = stats();
  EXPECT_EQ(s.prefix_blocks, 2);
  EXPECT_EQ(s.pages_indexed, 2);
  EXPECT_EQ(s.pages_cached, 0) << "the sequence holds them";
  EXPECT_EQ(s.prefix_stored, 2u);
  EXPECT_EQ(s.pages_used, 3);
  EXPECT_EQ(s.pages_available, 29);
  EXPECT_EQ(info_of(*cache_, 1).known_tokens, 11);
  remove_seq(*cache_, 1);
  s = stats();
  EXPECT_EQ(s.pages_indexed, 2);
  EXPECT_EQ(s.pages_cached, 2);
  EXPECT_EQ(s.pages_used, 0);
  EXPECT_EQ(s.pages_available, 32) << "evictable pages are free";
  EXPECT_EQ(kvc_cache_available_pages(cache_->get()), 32);
  EXPECT_EQ(kvc_cache_is_empty(cache_->get()), 1);
  EXPECT_EQ(evict(*cache_, 1), 1);
  s = stats();
  EXPECT_EQ(s.prefix_blocks, 1);
  EXPECT_EQ(s.pages_indexed, 1);
  EXPECT_EQ(s.prefix_evicted, 1u);
  EXPECT_EQ(s.prefix_stored, 2u);
  EXPECT_EQ(sum_of(s.block_lifetime), 1u);
  EXPECT_EQ(sum_of(s.block_idle), 1u);
  EXPECT_EQ(sum_of(s.block_reuse_gap), 0u);
  ASSERT_EQ(kvc_prefix_reset(cache_->get(), nullptr), KVC_OK);
  EXPECT_EQ(stats().prefix_blocks, 0);
  EXPECT_EQ(stats().pages_indexed, 0);
}

TEST_F(Stats, PagesThatAreNeededEvictOthers) {
  append_ids(*cache_, 1, token_ids(64, 1));
  remove_seq(*cache_, 1);
  add_tokens(*cache_, 2, 4 * 20);
  const kvc_stats s = stats();
  EXPECT_EQ(s.pages_used, 20);
  EXPECT_EQ(s.pages_available, 12);
  EXPECT_EQ(s.prefix_evicted, 4u) << "16 were cached and 16 vacant";
  EXPECT_EQ(s.pages_cached, 12);
  EXPECT_EQ(s.no_pages, 0u);
  EXPECT_EQ(sum_of(s.block_lifetime), 4u);
  EXPECT_EQ(sum_of(s.block_idle), 4u);
}

TEST_F(Stats, DuplicatesAreCountedAndHeldOnce) {
  append_ids(*cache_, 1, token_ids(8, 1));
  append_ids(*cache_, 2, token_ids(9, 1));
  const kvc_stats s = stats();
  EXPECT_EQ(s.prefix_stored, 2u);
  EXPECT_EQ(s.prefix_duplicates, 2u);
  EXPECT_EQ(s.pages_used, 3) << "sequence 2 has taken the index's pages over";
  EXPECT_EQ(s.pages_shared, 2);
}

TEST_F(Stats, LookupsCountTheirTokens) {
  append_ids(*cache_, 1, token_ids(12, 1));
  const Query all(token_ids(12, 1)), longer(token_ids(14, 1)), other(token_ids(6, 2));
  EXPECT_EQ(match(*cache_, all), 12);
  EXPECT_EQ(stats().prefix_lookups, 0u) << "kvc_prefix_match counts in no metric";
  EXPECT_EQ(attach(*cache_, 2, all), 12);
  EXPECT_EQ(attach(*cache_, 3, longer), 12);
  EXPECT_EQ(attach(*cache_, 4, other), 0);
  const kvc_stats s = stats();
  EXPECT_EQ(s.prefix_lookups, 3u);
  EXPECT_EQ(s.prefix_query_tokens, 12u + 14u + 6u);
  EXPECT_EQ(s.prefix_hit_tokens, 24u);
  EXPECT_EQ(s.recent_query_tokens, 32u);
  EXPECT_EQ(s.recent_hit_tokens, 24u);
  EXPECT_EQ(sum_of(s.block_reuse_gap), 2u) << "the last block of each hit";
  EXPECT_EQ(s.num_seqs, 4);
  EXPECT_EQ(s.total_length, 36);
  EXPECT_EQ(s.pages_used, 3);
}

TEST_F(Stats, TheRecentFiguresCoverTheLastThousandLookups) {
  append_ids(*cache_, 1, token_ids(8, 1));
  const Query hit(token_ids(8, 1)), miss(token_ids(3, 2));
  for (int i = 0; i < 300; ++i) {
    attach(*cache_, 2, hit);
    remove_seq(*cache_, 2);
  }
  for (int i = 0; i < 900; ++i) {
    attach(*cache_, 2, miss);
    remove_seq(*cache_, 2);
  }
  const kvc_stats s = stats();
  EXPECT_EQ(s.prefix_lookups, 1200u);
  EXPECT_EQ(s.prefix_query_tokens, 300u * 8 + 900u * 3);
  EXPECT_EQ(s.prefix_hit_tokens, 300u * 8);
  EXPECT_EQ(s.recent_query_tokens, 100u * 8 + 900u * 3);
  EXPECT_EQ(s.recent_hit_tokens, 100u * 8);
}

TEST_F(Stats, ARefusedAttachIsNoLookup) {
  append_ids(*cache_, 1, token_ids(8, 1));
  const Query query(token_ids(8, 1));
  int64_t tokens = -1;
  expect_refused(*cache_, KVC_E_ALREADY_EXISTS, {"1"}, [&](kvc_error* err) {
    return kvc_prefix_attach(cache_->get(), 1, &query.c, &tokens, err);
  });
  EXPECT_EQ(stats().prefix_lookups, 0u);
}

TEST_F(Stats, PinnedBlocksAreCountedAndNotFree) {
  append_ids(*cache_, 1, token_ids(12, 1));
  remove_seq(*cache_, 1);
  const Query two(token_ids(8, 1));
  ASSERT_EQ(kvc_prefix_pin(cache_->get(), &two.c, nullptr, nullptr), KVC_OK);
  kvc_stats s = stats();
  EXPECT_EQ(s.prefix_pinned, 2);
  EXPECT_EQ(s.pages_cached, 1);
  EXPECT_EQ(s.pages_available, 30);
  ASSERT_EQ(kvc_prefix_pin(cache_->get(), &two.c, nullptr, nullptr), KVC_OK);
  EXPECT_EQ(stats().prefix_pinned, 2) << "blocks, however often they are pinned";
  EXPECT_EQ(evict(*cache_, 5), 1);
  for (int i = 0; i < 2; ++i)
    ASSERT_EQ(kvc_prefix_unpin(cache_->get(), &two.c, nullptr, nullptr), KVC_OK);
  s = stats();
  EXPECT_EQ(s.prefix_pinned, 0);
  EXPECT_EQ(s.pages_available, 32);
}

TEST_F(Stats, BlocksThatAQuotaKeepsOutAreRejected) {
  const uint64_t page = plan_of(cache_->plan()).page_bytes;
  ASSERT_EQ(kvc_prefix_quota_set(cache_->get(), "a", 1, 2 * page, nullptr), KVC_OK);
  const Query empty({}, KVC_PREFIX_ALL_TOKENS, "a");
  int64_t tokens = -1;
  kvc_prefix_query query = empty.c;
  const int32_t none = 0;
  query.tokens = &none;
  ASSERT_EQ(kvc_prefix_attach(cache_->get(), 1, &query, &tokens, nullptr), KVC_OK);
  append_ids(*cache_, 1, token_ids(16, 1));
  const kvc_stats s = stats();
  EXPECT_EQ(s.prefix_blocks, 2) << "the quota holds two, and those in use are not replaced";
  EXPECT_EQ(s.pages_indexed, 2);
  EXPECT_GE(s.prefix_rejected, 1u);
}

TEST_F(Stats, TimesFallIntoBucketsOfPowersOfTwoMilliseconds) {
  using std::chrono::milliseconds;
  // Before the first block, so that no time of a block is longer than what has passed since.
  const auto start = std::chrono::steady_clock::now();
  append_ids(*cache_, 1, token_ids(4, 1));
  std::this_thread::sleep_for(milliseconds(40));
  const Query query(token_ids(4, 1));
  attach(*cache_, 2, query);
  const auto since = [&] {
    return static_cast<int>(
        std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - start).count());
  };
  const auto bucket = [](int ms) {
    int index = 0;
    while (ms >= 2) ms /= 2, ++index;
    return static_cast<size_t>(index);
  };
  const auto in = [&](const uint64_t(&histogram)[32], size_t least, size_t most) {
    uint64_t sum = 0;
    for (size_t i = least; i <= most; ++i) sum += histogram[i];
    return sum;
  };
  EXPECT_EQ(in(stats().block_reuse_gap, bucket(39), bucket(since() + 1)), 1u);
  for (const kvc_seq seq : {1, 2}) remove_seq(*cache_, seq);
  std::this_thread::sleep_for(milliseconds(70));
  EXPECT_EQ(evict(*cache_, 1), 1);
  EXPECT_EQ(in(stats().block_lifetime, bucket(109), bucket(since() + 1)), 1u);
  EXPECT_EQ(in(stats().block_idle, bucket(69), bucket(since() + 1)), 1u);
}

class StatsWithHost : public Stats {
 protected:
  StatsWithHost() : Stats(6) {}
};

TEST_F(StatsWithHost, EvictedPagesGoToTheHostAndComeBack) {
  append_ids(*cache_, 1, token_ids(16, 1));
  remove_seq(*cache_, 1);
  EXPECT_EQ(evict(*cache_, 3), 3);
  kvc_stats s = stats();
  EXPECT_EQ(s.host_pages_total, 6);
  EXPECT_EQ(s.host_pages_used, 3);
  EXPECT_EQ(s.prefix_demoted, 3u);
  EXPECT_EQ(s.prefix_blocks, 4) << "both tiers";
  EXPECT_EQ(s.prefix_blocks_host, 3);
  EXPECT_EQ(s.pages_indexed, 1);
  EXPECT_EQ(s.prefix_evicted, 0u) << "nothing has left the index";
  const Query query(token_ids(16, 1));
  EXPECT_EQ(attach(*cache_, 2, query), 16);
  s = stats();
  EXPECT_EQ(s.prefix_promoted, 3u);
  EXPECT_EQ(s.prefix_blocks_host, 0);
  EXPECT_EQ(s.host_pages_used, 0);
  EXPECT_EQ(s.pages_indexed, 4);
}

TEST_F(StatsWithHost, SwappedSequencesLeaveNoSlotsUnused) {
  append_pattern(*cache_, 1, 6, 1);
  append_pattern(*cache_, 2, 5, 2);
  EXPECT_EQ(stats().slots_unused, 2 + 3);
  ASSERT_EQ(swap_out(*cache_, {2}), KVC_OK);
  EXPECT_EQ(stats().slots_unused, 2) << "of used pages, which are the device's";
  ASSERT_EQ(swap_in(*cache_, {2}), KVC_OK);
  EXPECT_EQ(stats().slots_unused, 2 + 3);
}

TEST_F(StatsWithHost, TheIndexMakesRoomForSwappedSequences) {
  append_ids(*cache_, 1, token_ids(20, 1));
  remove_seq(*cache_, 1);
  EXPECT_EQ(evict(*cache_, 5), 5);
  EXPECT_EQ(stats().host_pages_used, 5);
  append_pattern(*cache_, 2, 14, 9);
  ASSERT_EQ(swap_out(*cache_, {2}), KVC_OK) << "what the index holds on the host is no obstacle";
  kvc_stats s = stats();
  EXPECT_LE(s.host_pages_used, 6);
  EXPECT_GE(s.host_pages_used, 4);
  EXPECT_EQ(s.num_swapped_seqs, 1);
  EXPECT_EQ(s.pages_swapped_out, 4u);
  overwrite_free_pages(*cache_);
  ASSERT_EQ(swap_in(*cache_, {2}), KVC_OK);
  EXPECT_EQ(pattern_difference(*cache_, 2, 9), "");
  ASSERT_EQ(kvc_prefix_reset(cache_->get(), nullptr), KVC_OK);
  EXPECT_EQ(stats().host_pages_used, 0);
}

TEST_F(StatsWithHost, PagesOfTheIndexStayThereWhenTheirSequenceSwaps) {
  append_ids(*cache_, 1, token_ids(10, 1));
  ASSERT_EQ(swap_out(*cache_, {1}), KVC_OK);
  kvc_stats s = stats();
  EXPECT_EQ(s.pages_indexed, 2);
  EXPECT_EQ(s.pages_cached, 2);
  EXPECT_EQ(s.pages_used, 0);
  EXPECT_EQ(s.host_pages_used, 3);
  const Query query(token_ids(10, 1));
  EXPECT_EQ(match(*cache_, query), 8);
  ASSERT_EQ(swap_in(*cache_, {1}), KVC_OK);
  s = stats();
  EXPECT_EQ(s.pages_cached, 0) << "the sequence has taken the index's pages over";
  EXPECT_EQ(s.pages_indexed, 2);
  EXPECT_EQ(s.pages_used, 3);
  EXPECT_EQ(s.prefix_stored, 2u);
  EXPECT_EQ(match(*cache_, query), 8);
}

TEST_F(StatsWithHost, WhatTheIndexLostMeanwhileIsPublishedAgain) {
  append_ids(*cache_, 1, token_ids(10, 1));
  ASSERT_EQ(swap_out(*cache_, {1}), KVC_OK);
  EXPECT_EQ(evict(*cache_, 2), 2);
  ASSERT_EQ(swap_in(*cache_, {1}), KVC_OK);
  EXPECT_EQ(match(*cache_, Query(token_ids(10, 1))), 8);
  EXPECT_EQ(stats().pages_indexed, 2);
  EXPECT_EQ(stats().pages_cached, 0);
}

TEST_F(StatsWithHost, TheBlocksOfASwappedSequenceWereInUseUntilThen) {
  append_ids(*cache_, 1, token_ids(4, 1));
  append_ids(*cache_, 2, token_ids(4, 2));
  remove_seq(*cache_, 2);
  ASSERT_EQ(swap_out(*cache_, {1}), KVC_OK);
  append_pattern(*cache_, 3, 4 * 31, 3);  // all but one of the 32 pages
  EXPECT_EQ(stats().pages_indexed, 1);
  remove_seq(*cache_, 3);
  EXPECT_EQ(match(*cache_, Query(token_ids(4, 2))), 4) << "evicted first, to the host";
  EXPECT_EQ(stats().prefix_blocks_host, 1);
  ASSERT_EQ(kvc_seq_remove(cache_->get(), 1, nullptr), KVC_OK);
  EXPECT_EQ(attach(*cache_, 4, Query(token_ids(4, 1))), 4);
  EXPECT_EQ(stats().prefix_promoted, 0u) << "it never left the device";
}

TEST_F(StatsWithHost, ASwappedSequenceKeepsItsNamespace) {
  const Query start(token_ids(1, 1), KVC_PREFIX_ALL_TOKENS, "tenant");
  EXPECT_EQ(attach(*cache_, 1, start), 0);
  std::vector<int32_t> ids = token_ids(12, 1);
  append_ids(*cache_, 1, {ids.begin(), ids.begin() + 6});
  ASSERT_EQ(swap_out(*cache_, {1}), KVC_OK);
  ASSERT_EQ(swap_in(*cache_, {1}), KVC_OK);
  append_ids(*cache_, 1, {ids.begin() + 6, ids.end()});
  const Query inside(ids, KVC_PREFIX_ALL_TOKENS, "tenant"), outside(ids);
  EXPECT_EQ(match(*cache_, inside), 12);
  EXPECT_EQ(match(*cache_, outside), 0);
}

class StatsOfEvents : public Stats {
 protected:
  StatsOfEvents() : Stats(0, 5) {}
};

TEST_F(StatsOfEvents, MadeAndLostEventsAreCounted) {
  append_ids(*cache_, 1, token_ids(12, 1));
  EXPECT_EQ(stats().events_made, 3u);
  EXPECT_EQ(stats().events_lost, 0u);
  append_ids(*cache_, 2, token_ids(16, 2));
  EXPECT_EQ(stats().events_made, 7u);
  EXPECT_EQ(stats().events_lost, 2u) << "5 are kept";
  kvc_event events[8] = {};
  for (kvc_event& event : events) event.struct_size = sizeof event;
  size_t count = 8;
  ASSERT_EQ(kvc_events_poll(cache_->get(), events, &count, nullptr), KVC_OK);
  EXPECT_EQ(count, 5u);
  EXPECT_EQ(events[0].number, 3u);
  EXPECT_EQ(events[4].number, 7u);
  append_ids(*cache_, 3, token_ids(20, 3));
  EXPECT_EQ(stats().events_made, 12u);
  EXPECT_EQ(stats().events_lost, 2u) << "what was polled is not lost";
}

TEST_F(Stats, WithoutACapacityNoEventsAreMade) {
  append_ids(*cache_, 1, token_ids(12, 1));
  EXPECT_EQ(stats().events_made, 0u);
  EXPECT_EQ(stats().events_lost, 0u);
}

TEST_F(Stats, AnOlderCallersStructEndsWhereItEnds) {
  kvc_stats s{};
  s.struct_size = offsetof(kvc_stats, slots_unused);
  s.slots_unused = 77;
  ASSERT_EQ(kvc_cache_stats_get(cache_->get(), &s, nullptr), KVC_OK);
  EXPECT_EQ(s.slots_unused, 77);
  EXPECT_EQ(s.struct_size, offsetof(kvc_stats, slots_unused));
}

}  // namespace
}  // namespace kvc::test
