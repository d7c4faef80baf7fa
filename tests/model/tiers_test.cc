// Caches on a tier that fails, loses, damages and confuses: a hit is right or shorter, and every
// failure is counted.
#include "tests/capi/tiers.h"

#include "src/capi/call.h"
#include "tests/model/allocation_failures.h"
#include "tests/model/fake_tier.h"
#include "tests/support/waiting.h"

namespace kvc::test {
namespace {

void attach_fake(const Cache& cache, FakeStore* store, kvc_tier kind = KVC_TIER_FILE,
                 uint64_t queue_bytes = kMebibyte) {
  kvc_tier_desc desc{};
  desc.struct_size = sizeof desc;
  desc.tier = kind;
  desc.queue_bytes = queue_bytes;
  cache.get()->cache.tiers.attach(desc, std::make_unique<FakeTier>(store));
}

std::vector<int64_t> state_shape{2, 3};
std::vector<kvc_state_spec> states{state_spec(state_shape)};

std::vector<std::vector<kvc_layer>> layer_sets() {
  return {{attention_layer()},
          {attention_layer(), attention_layer(8)},
          {attention_layer(8), attention_layer(0, 6)},
          {mla_layer(), state_layer(states)},
          {state_layer(states)},
          {kept_layer(3), attention_layer()},
          {kept_layer(7), kept_layer(2, 8), kept_layer(40)}};
}

// Prompts are cut from one stream of tokens per family, so that they share blocks.
struct RandomCaches {
  RandomCaches(std::vector<kvc_layer> layers, uint64_t seed, int64_t pages)
      : random(seed), net(std::move(layers), pages) {
    if (random() % 2 == 0) set_host_pages(net.config, 4);
  }
  int64_t below(int64_t end) { return static_cast<int64_t>(random() % static_cast<uint64_t>(end)); }

  std::mt19937_64 random;
  Net net;
};

// One prompt: attached, compared, continued, removed. Returns what hit.
int64_t play(Cache& cache, RandomCaches& world, kvc_seq seq) {
  const auto family = static_cast<int32_t>(1 + world.below(4));
  const int64_t count = 1 + world.below(40);
  const uint64_t flags = world.below(2) == 0 ? 0 : uint64_t{KVC_PREFIX_ALL_TOKENS};
  const Query query(token_ids(count, family), flags);
  const int64_t found = attach(cache, seq, query);
  EXPECT_EQ(pattern_difference(cache, seq, static_cast<uint64_t>(family)), "");
  EXPECT_EQ(length_of(cache, seq), found);
  int64_t missing = 0;
  const int64_t more = std::max<int64_t>(1, count - found);
  if (kvc_seq_can_append(cache.get(), 1, &seq, &more, &missing, nullptr) == KVC_OK &&
      missing == 0) {
    std::vector<int32_t> ids = token_ids(found + more, family);
    ids.erase(ids.begin(), ids.begin() + found);
    append_pattern(cache, seq, more, static_cast<uint64_t>(family), 0, ids);
    EXPECT_EQ(pattern_difference(cache, seq, static_cast<uint64_t>(family)), "");
  }
  expect_sound(cache);
  return found;
}

TEST(FaultyTiers, AHitIsRightOrShorter) {
  int64_t hits = 0;
  kvc_tier_stats sum{};
  const auto met_everything = [&] {
    return hits > 0 && sum.blocks_corrupt > 0 && sum.blocks_failed > 0 && sum.blocks_got > 0 &&
           sum.blocks_missed > 0 && sum.blocks_put_failed > 0 && sum.blocks_timed_out > 0;
  };
  // Writes draw their faults on a thread of their own, and a tier that failed is left alone for a
  // time: what a seed meets differs from run to run.
  for (uint64_t seed = 1; seed <= 60 || (seed <= 2000 && !met_everything()); ++seed) {
    SCOPED_TRACE(seed);
    FakeStore files, servers;
    for (FakeStore* store : {&files, &servers}) {
      store->random.seed(seed);
      store->fails = seed % 3 == 0 ? 8 : 0;
      store->loses = 8;
      store->damages = 8;
      store->swaps = 8;
    }
    const std::vector<kvc_layer> layers = layer_sets()[seed % layer_sets().size()];
    for (uint64_t life = 0; life < 3; ++life) {
      RandomCaches world(layers, seed * 10 + life, 12 + static_cast<int64_t>(seed % 30));
      Cache cache(world.net.config);
      attach_fake(cache, &files);
      if (seed % 2 == 0) attach_fake(cache, &servers, KVC_TIER_REDIS);
      for (int round = 0; round < 30; ++round) {
        hits += play(cache, world, round);
        remove_seq(cache, round);
        // Reads come before the thread that writes, and the first failure ends both.
        if (round == 0) (void)kvc_tier_flush(cache.get(), -1, nullptr);
        if (world.below(3) == 0) evict(cache, world.below(20));
        ASSERT_FALSE(testing::Test::HasFailure());
      }
      const kvc_tier_stats stats = tier_stats(cache);
      sum.blocks_corrupt += stats.blocks_corrupt;
      sum.blocks_failed += stats.blocks_failed;
      sum.blocks_got += stats.blocks_got;
      sum.blocks_missed += stats.blocks_missed;
      sum.blocks_put_failed += stats.blocks_put_failed;
      sum.blocks_timed_out += stats.blocks_timed_out;
    }
  }
  EXPECT_TRUE(met_everything()) << hits << " hits, blocks: " << sum.blocks_corrupt << " corrupt, "
                                << sum.blocks_failed << " failed, " << sum.blocks_got << " got, "
                                << sum.blocks_missed << " missed, " << sum.blocks_put_failed
                                << " not written, " << sum.blocks_timed_out << " timed out";
}

TEST(FaultyTiers, MatchSaysWhatAttachFindsWhileNothingFails) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    FakeStore store;
    const std::vector<kvc_layer> layers = layer_sets()[seed % layer_sets().size()];
    for (uint64_t life = 0; life < 2; ++life) {
      RandomCaches world(layers, seed * 10 + life, 10 + static_cast<int64_t>(seed % 12));
      Cache cache(world.net.config);
      attach_fake(cache, &store);
      for (int round = 0; round < 40; ++round) {
        const auto family = static_cast<int32_t>(1 + world.below(3));
        const Query query(token_ids(1 + world.below(40), family));
        flush_tiers(cache);  // A value that is replaced meanwhile is a miss.
        const int64_t said = match(cache, query);
        ASSERT_EQ(attach(cache, 5000 + round, query), said);
        remove_seq(cache, 5000 + round);
        (void)play(cache, world, round);
        if (world.below(2) == 0) remove_seq(cache, round);
        if (round % 8 == 7) {
          for (int old = round - 7; old <= round; ++old)
            (void)kvc_seq_remove(cache.get(), old, nullptr);
        }
        if (world.below(3) == 0) evict(cache, world.below(20));
        ASSERT_FALSE(testing::Test::HasFailure());
      }
    }
  }
}

TEST(FaultyTiers, WhatFailsAgainAndAgainIsLeftAlone) {
  Net net({attention_layer()}, 64);
  FakeStore store;
  Cache cache(net.config);
  attach_fake(cache, &store);
  publish(cache, 1, 4, 1);
  flush_tiers(cache);
  store.fails = 100;
  const auto start = std::chrono::steady_clock::now();
  // Three, and one more after each pause that can have ended by now: of 1 s, 2 s, 4 s and so on.
  const auto most_tries = [&] {
    const auto passed = std::chrono::steady_clock::now() - start;
    int64_t tries = 3;
    std::chrono::seconds pause{1}, end{1};
    for (; end <= passed; pause *= 2, end += pause) ++tries;
    return tries;
  };
  for (int i = 0; i < 10; ++i) (void)match(cache, Query(token_ids(8, 2 + i)));
  EXPECT_GE(store.num_finds, 3);
  EXPECT_LE(store.num_finds, most_tries());
  for (int32_t i = 0; i < 10; ++i) {
    publish(cache, 20 + i, 4, 20 + i);
    flush_tiers(cache);
  }
  const int64_t failed = store.num_puts - 1;
  EXPECT_GE(failed, 3);
  EXPECT_LE(failed, most_tries());
  const kvc_tier_stats stats = tier_stats(cache);
  EXPECT_EQ(stats.blocks_put, 1u);
  EXPECT_EQ(stats.blocks_put_failed, static_cast<uint64_t>(failed));
  EXPECT_EQ(stats.blocks_dropped, static_cast<uint64_t>(10 - failed));
  EXPECT_EQ(stats.blocks_failed, static_cast<uint64_t>(store.num_finds));
  store.fails = 0;
  int32_t family = 100;
  EXPECT_TRUE(comes_true([&] {
    publish(cache, 100, 4, ++family);
    flush_tiers(cache);
    remove_seq(cache, 100);
    return tier_stats(cache).blocks_put == 2;
  })) << "it is never written to again";
  EXPECT_TRUE(comes_true([&] {
    evict(cache, 1 << 20);
    return match(cache, Query(token_ids(4, family))) == 4;
  })) << "it is never read from again";
}

TEST(FaultyTiers, AFullQueueDropsBlocks) {
  Net net({attention_layer()}, 64);
  FakeStore store;
  store.holds_puts = true;
  Cache cache(net.config);
  attach_fake(cache, &store, KVC_TIER_FILE, 1);  // The least: two blocks.
  publish(cache, 1, 40, 1);
  expect_error(KVC_E_TIMEOUT, {"after 5 ms"},
               [&](kvc_error* err) { return kvc_tier_flush(cache.get(), 5, err); });
  EXPECT_EQ(tier_stats(cache).blocks_dropped, 8u);
  EXPECT_GT(tier_stats(cache).waiting_bytes, 0u);
  store.holds_puts = false;
  flush_tiers(cache);
  EXPECT_EQ(tier_stats(cache).blocks_put, 2u);
  EXPECT_EQ(tier_stats(cache).waiting_bytes, 0u);
  EXPECT_EQ(tier_stats(cache).stored_bytes, tier_stats(cache).bytes_put);
}

TEST(FaultyTiers, ABlockIsWrittenOnceAndAgainWhenItHasAStateAtLast) {
  Net net({attention_layer(), state_layer(states)}, 64);
  FakeStore store;
  Cache cache(net.config);
  attach_fake(cache, &store);
  publish(cache, 1, 6, 1);  // The block's edge lies inside the forward: no state.
  flush_tiers(cache);
  EXPECT_EQ(store.num_puts, 1);
  remove_seq(cache, 1);
  evict(cache, 1 << 20);
  publish(cache, 2, 4, 1);
  flush_tiers(cache);
  EXPECT_EQ(store.num_puts, 2);
  remove_seq(cache, 2);
  evict(cache, 1 << 20);
  publish(cache, 3, 4, 1);
  flush_tiers(cache);
  EXPECT_EQ(store.num_puts, 2);
  remove_seq(cache, 3);
  evict(cache, 1 << 20);
  EXPECT_EQ(hit(cache, 4, 4, 1), 4);
}

TEST(FaultyTiers, AFailedAllocationChangesNothing) {
  for (const std::vector<kvc_layer>& layers : layer_sets()) {
    FakeStore store;
    {
      Net net(layers, 64);
      Cache first(net.config);
      attach_fake(first, &store);
      for (int32_t end = 4; end <= 24; end += 4) {
        std::vector<int32_t> ids = token_ids(end, 7);
        ids.erase(ids.begin(), ids.begin() + end - 4);
        append_pattern(first, 1, 4, 7, 0, ids);
      }
    }
    Net net(layers, 64);
    const Query query(token_ids(24, 7));
    bool is_failed = true;
    int64_t refused = 0;
    for (int64_t n = 1; is_failed; ++n) {
      Cache cache(net.config);
      attach_fake(cache, &store);
      int64_t said = -1, found = -1;
      arm_allocation_failure(n);
      const kvc_status matched = kvc_prefix_match(cache.get(), &query.c, &said, nullptr);
      const kvc_status status = kvc_prefix_attach(cache.get(), 1, &query.c, &found, nullptr);
      is_failed = disarm_allocation_failure();
      ASSERT_TRUE(matched == KVC_OK || (is_failed && matched == KVC_E_NO_MEMORY)) << n;
      ASSERT_TRUE(status == KVC_OK || (is_failed && status == KVC_E_NO_MEMORY)) << n;
      expect_sound(cache);
      if (status == KVC_OK) {
        EXPECT_EQ(pattern_difference(cache, 1, 7), "") << n;
        EXPECT_EQ(found, 24) << n;
        remove_seq(cache, 1);
      }
      refused += status != KVC_OK || matched != KVC_OK ? 1 : 0;
      EXPECT_EQ(kvc_cache_is_empty(cache.get()), 1) << n;
      EXPECT_EQ(hit(cache, 2, 24, 7), 24) << n;
      ASSERT_FALSE(testing::Test::HasFailure());
    }
    EXPECT_GT(refused, 3);
  }
}

TEST(FaultyTiers, AttachingWithoutMemoryChangesNothing) {
  Net net({attention_layer(), attention_layer(8)}, 64);
  bool is_failed = true;
  for (int64_t n = 1; is_failed; ++n) {
    FakeStore store;
    Cache cache(net.config);
    auto tier = std::make_unique<FakeTier>(&store);
    kvc_tier_desc desc{};
    desc.struct_size = sizeof desc;
    desc.tier = KVC_TIER_FILE;
    desc.queue_bytes = kMebibyte;
    arm_allocation_failure(n);
    try {
      cache.get()->cache.tiers.attach(desc, std::move(tier));
      is_failed = disarm_allocation_failure();
    } catch (const std::bad_alloc&) {
      is_failed = disarm_allocation_failure();
      EXPECT_EQ(kvc_tier_detach(cache.get(), KVC_TIER_FILE, nullptr), KVC_E_NOT_FOUND);
      attach_fake(cache, &store);
    }
    publish(cache, 1, 12, 3);
    flush_tiers(cache);
    EXPECT_EQ(tier_stats(cache).blocks_put, 3u);
  }
}

TEST(FaultyTiers, ManyThreadsAskWhileOneCacheWrites) {
  Net net({attention_layer()}, 64);
  FakeStore store;
  Cache cache(net.config);
  attach_fake(cache, &store);
  for (int32_t family = 1; family <= 8; ++family) {
    publish(cache, 1, 16, family);
    remove_seq(cache, 1);
  }
  flush_tiers(cache);
  evict(cache, 1 << 20);
  std::vector<std::thread> threads;
  std::atomic<int64_t> found{0};
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int32_t i = 0; i < 50; ++i)
        found += match(cache, Query(token_ids(16, 1 + (thread + i) % 8)));
      EXPECT_EQ(tier_stats(cache).blocks_corrupt, 0u);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(found, 0);
  flush_tiers(cache);
}

}  // namespace
}  // namespace kvc::test
