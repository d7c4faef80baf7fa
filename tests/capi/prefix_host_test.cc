// Hits on the host: kvc_prefix_match says what kvc_prefix_attach then finds.
#include "tests/capi/prefix_support.h"

namespace kvc::test {
namespace {

// Pages of 4 tokens on the device and on the host.
struct TwoTiers {
  TwoTiers(int64_t pages, int64_t host_pages, std::vector<kvc_layer> layers = {attention_layer()})
      : net(std::move(layers), pages) {
    set_host_pages(net.config, host_pages);
    cache = std::make_unique<Cache>(net.config);
  }
  // A prompt whose blocks all lie on the host.
  void publish_on_host(const std::vector<int32_t>& ids, const std::string& salt = "",
                       int32_t priority = 0) {
    Query query(ids, KVC_PREFIX_ALL_TOKENS, salt);
    query.c.priority = priority;
    ASSERT_EQ(attach(*cache, 1000, query), 0);
    append_ids(*cache, 1000, ids);
    remove_seq(*cache, 1000);
    evict(*cache, 1 << 20);
  }
  // What match says, checked against attach.
  int64_t hit(const std::vector<int32_t>& ids, uint64_t flags = 0, const std::string& salt = "") {
    Query query(ids, flags, salt);
    const int64_t said = match(*cache, query);
    EXPECT_EQ(attach(*cache, 2000, query), said);
    EXPECT_EQ(kvc_cache_check(cache->get(), nullptr), KVC_OK);
    remove_seq(*cache, 2000);
    return said;
  }

  Net net;
  std::unique_ptr<Cache> cache;
};

TEST(HostPrefix, MatchCountsNoPagesThatCannotComeBack) {
  for (int64_t busy = 0; busy <= 6; ++busy) {
    for (const uint64_t flags : {uint64_t{0}, uint64_t{KVC_PREFIX_ALL_TOKENS}}) {
      TwoTiers tiers(6, 8);
      tiers.publish_on_host(token_ids(16, 1));
      ASSERT_EQ(stats_of(*tiers.cache).prefix_blocks_host, 4);
      if (busy > 0) add_tokens(*tiers.cache, 1, 4 * busy);
      const int64_t most = flags == 0 ? 15 : 16;
      EXPECT_EQ(tiers.hit(token_ids(16, 1), flags), std::min(most, 4 * (6 - busy)))
          << busy << " pages are held";
    }
  }
}

TEST(HostPrefix, BlocksThatOnlyTheIndexHoldsMakeRoom) {
  TwoTiers tiers(6, 8);
  tiers.publish_on_host(token_ids(16, 1));
  append_ids(*tiers.cache, 1, token_ids(20, 2));
  EXPECT_EQ(tiers.hit(token_ids(16, 1), KVC_PREFIX_ALL_TOKENS), 4);
  remove_seq(*tiers.cache, 1);
  EXPECT_EQ(tiers.hit(token_ids(16, 1), KVC_PREFIX_ALL_TOKENS), 16);
}

TEST(HostPrefix, AQuotaLeavesRoomForAPartOfAHit) {
  for (int64_t quota = 1; quota <= 5; ++quota) {
    TwoTiers tiers(8, 8);
    tiers.publish_on_host(token_ids(16, 1), "A");
    const uint64_t bytes = static_cast<uint64_t>(quota) * plan_of(tiers.cache->plan()).page_bytes;
    ASSERT_EQ(kvc_prefix_quota_set(tiers.cache->get(), "A", 1, bytes, nullptr), KVC_OK);
    EXPECT_EQ(tiers.hit(token_ids(16, 1), KVC_PREFIX_ALL_TOKENS, "A"),
              std::min<int64_t>(16, 4 * quota));
    // Blocks in use of the same namespace count.
    Query other(token_ids(4, 2), KVC_PREFIX_ALL_TOKENS, "A");
    ASSERT_EQ(attach(*tiers.cache, 1, other), 0);
    append_ids(*tiers.cache, 1, token_ids(4, 2));
    tiers.hit(token_ids(16, 1), KVC_PREFIX_ALL_TOKENS, "A");
  }
}

TEST(HostPrefix, WhatComesDisplacesNoBlockOfHigherPriority) {
  TwoTiers tiers(6, 1);
  tiers.publish_on_host(token_ids(4, 1), "", 5);
  tiers.publish_on_host(token_ids(4, 2), "", 0);
  EXPECT_EQ(tiers.hit(token_ids(4, 2), KVC_PREFIX_ALL_TOKENS), 0);
  EXPECT_EQ(tiers.hit(token_ids(4, 1), KVC_PREFIX_ALL_TOKENS), 4);
}

TEST(HostPrefix, MatchAndAttachAgreeInCachesOfManyShapes) {
  Random random(7);
  for (int round = 0; round < 60; ++round) {
    std::vector<kvc_layer> layers{attention_layer()};
    if (round % 3 == 1) layers.push_back(attention_layer(6));
    if (round % 3 == 2) layers = {attention_layer(10)};
    TwoTiers tiers(random.range(12, 20), random.range(4, 16), layers);
    std::vector<kvc_seq> held;
    for (int step = 0; step < 30; ++step) {
      const auto family = static_cast<int32_t>(random.range(1, 3));
      const std::vector<int32_t> ids = token_ids(random.range(1, 30), family);
      const kvc_seq seq = 10 + step;
      Query query(ids, random.chance(0.5) ? KVC_PREFIX_ALL_TOKENS : 0);
      const int64_t said = match(*tiers.cache, query);
      const int64_t found = attach(*tiers.cache, seq, query);
      ASSERT_EQ(found, said) << "round " << round << " step " << step;
      held.push_back(seq);
      const std::vector<int32_t> rest(ids.begin() + found, ids.end());
      const auto count = static_cast<int64_t>(rest.size());
      int64_t missing = 1;
      if (count > 0) {
        const kvc_status can =
            kvc_seq_can_append(tiers.cache->get(), 1, &seq, &count, &missing, nullptr);
        if (can == KVC_OK && missing == 0) append_ids(*tiers.cache, seq, rest);
      }
      while (held.size() > 2 || (!held.empty() && random.chance(0.4))) {
        remove_seq(*tiers.cache, held.front());
        held.erase(held.begin());
      }
      if (random.chance(0.3)) evict(*tiers.cache, random.range(1, 6));
      ASSERT_EQ(kvc_cache_check(tiers.cache->get(), nullptr), KVC_OK);
    }
  }
}

}  // namespace
}  // namespace kvc::test
