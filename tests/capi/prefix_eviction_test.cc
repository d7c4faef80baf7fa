// Which blocks leave the prefix index, and which stay: order of use, priorities, pins, quotas,
// leaves first.
#include "tests/capi/prefix_fixture.h"

namespace kvc::test {
namespace {

class Eviction : public Prefix {
 protected:
  // A prompt of two blocks.
  static Prompt two(int32_t first) { return prompt_of(8, first); }
  // Takes so many pages with a sequence of its own, without publishing.
  void press(int64_t pages) {
    add_tokens(cache_, kPressure, pages * kBlock);
    drop(cache_, kPressure);
  }
  int64_t evicted(int64_t pages) {
    int64_t freed = -1;
    expect_ok([&](kvc_error* err) { return kvc_prefix_evict(get(), pages, &freed, err); });
    return freed;
  }
  uint64_t quota_blocks(int64_t blocks) const {
    return stats_of(cache_).page_bytes * static_cast<uint64_t>(blocks);
  }
  static constexpr kvc_seq kPressure = 999;
};

TEST_F(Eviction, PagesAreTakenFromTheLeastRecentlyUsedPrompt) {
  publish(cache_, two(100));
  publish(cache_, two(200));
  publish(cache_, two(300));
  Ask ask(two(100));
  attached(cache_, 1, ask.all());  // used again
  drop(cache_, 1);
  press(kPages - 4);
  EXPECT_EQ(held(cache_, two(100)), 8);
  EXPECT_EQ(held(cache_, two(200)), 0);
  EXPECT_EQ(held(cache_, two(300)), 8);
  EXPECT_EQ(stats_of(cache_).prefix_evicted, 2u);
}

TEST_F(Eviction, AskingIsNoUse) {
  publish(cache_, two(100));
  publish(cache_, two(200));
  EXPECT_EQ(held(cache_, two(100)), 8);
  press(kPages - 2);
  EXPECT_EQ(held(cache_, two(100)), 0);
  EXPECT_EQ(held(cache_, two(200)), 8);
}

TEST_F(Eviction, FreePagesAreTakenBeforeCachedOnes) {
  publish(cache_, two(100));
  press(kPages - 2);
  EXPECT_EQ(held(cache_, two(100)), 8);
  EXPECT_EQ(stats_of(cache_).prefix_evicted, 0u);
}

TEST_F(Eviction, TheEndOfAPromptLeavesBeforeItsBeginning) {
  const Prompt prompt = prompt_of(16);
  publish(cache_, prompt);
  for (int64_t left = 12; left >= 0; left -= 4) {
    EXPECT_EQ(evicted(1), 1);
    EXPECT_EQ(held(cache_, prompt), left);
  }
  EXPECT_EQ(evicted(1), 0) << "nothing is left";
}

TEST_F(Eviction, EvictSaysHowManyPagesLeft) {
  publish(cache_, prompt_of(16));
  publish(cache_, prompt_of(16, 5000));
  EXPECT_EQ(evicted(0), 0);
  EXPECT_EQ(evicted(3), 3);
  EXPECT_EQ(stats_of(cache_).pages_indexed, 5);
  EXPECT_EQ(available_pages(), kPages) << "they were free before";
  EXPECT_EQ(evicted(100), 5);
  EXPECT_EQ(stats_of(cache_).prefix_blocks, 0);
  EXPECT_EQ(kvc_prefix_evict(get(), 1, nullptr, nullptr), KVC_OK) << "out_freed may be NULL";
  int64_t freed = -1;
  expect_refused(cache_, KVC_E_OUT_OF_RANGE, {"pages", "-1"},
                 [&](kvc_error* err) { return kvc_prefix_evict(get(), -1, &freed, err); });
  EXPECT_EQ(freed, -1);
}

TEST_F(Eviction, WhatASequenceHoldsStays) {
  serve(cache_, 1, prompt_of(9));
  publish(cache_, prompt_of(8, 5000));
  EXPECT_EQ(evicted(100), 2);
  EXPECT_EQ(held(cache_, prompt_of(9)), 8);
  EXPECT_EQ(held(cache_, prompt_of(8, 5000)), 0);
}

TEST_F(Eviction, LowerPriorityGoesFirst) {
  publish(cache_, two(100), {}, 50);
  publish(cache_, two(200), {}, 0);
  publish(cache_, two(300), {}, 100);
  publish(cache_, two(400), {}, 50);
  press(kPages - 6);
  EXPECT_EQ(held(cache_, two(200)), 0) << "the lowest priority";
  EXPECT_EQ(held(cache_, two(100)), 8);
  press(kPages - 4);
  EXPECT_EQ(held(cache_, two(100)), 0) << "of equal priority the one used longer ago";
  EXPECT_EQ(held(cache_, two(400)), 8);
  EXPECT_EQ(held(cache_, two(300)), 8);
}

TEST_F(Eviction, AHitRaisesThePriority) {
  publish(cache_, two(100), {}, 0);
  publish(cache_, two(200), {}, 10);
  Ask ask(two(100));
  attached(cache_, 1, ask.all().priority(20));
  drop(cache_, 1);
  Ask lower(two(200));
  attached(cache_, 1, lower.all().priority(1));
  drop(cache_, 1);
  EXPECT_EQ(evicted(2), 2);
  EXPECT_EQ(held(cache_, two(100)), 8);
  EXPECT_EQ(held(cache_, two(200)), 0) << "a lower priority lowers nothing, and is below 20";
}

TEST_F(Eviction, PinnedBlocksAreNeitherFreeNorEvicted) {
  publish(cache_, two(100));
  publish(cache_, two(200));
  Ask ask(joined(two(100), {1, 2, 3}));
  int64_t pinned = -1;
  expect_ok([&](kvc_error* err) { return kvc_prefix_pin(get(), &ask.call, &pinned, err); });
  EXPECT_EQ(pinned, 8);
  EXPECT_EQ(stats_of(cache_).prefix_pinned, 2);
  EXPECT_EQ(available_pages(), kPages - 2);
  EXPECT_EQ(evicted(100), 2);
  EXPECT_EQ(held(cache_, two(100)), 8);
  press(kPages - 2);
  EXPECT_EQ(held(cache_, two(100)), 8);
  EXPECT_EQ(cache_.begin({}, {}), KVC_E_INVALID_ARGUMENT);
  ASSERT_EQ(kvc_seq_add(get(), 1, nullptr), KVC_OK);
  kvc_error error{};
  EXPECT_EQ(cache_.begin({1}, {(kPages - 1) * kBlock}, &error), KVC_E_NO_PAGES);
  EXPECT_EQ(error.detail, 1);
  expect_consistent(cache_);
  int64_t unpinned = -1;
  expect_ok([&](kvc_error* err) { return kvc_prefix_unpin(get(), &ask.call, &unpinned, err); });
  EXPECT_EQ(unpinned, 8);
  EXPECT_EQ(stats_of(cache_).prefix_pinned, 0);
  EXPECT_EQ(available_pages(), kPages);
  EXPECT_EQ(cache_.begin({1}, {(kPages - 1) * kBlock}), KVC_OK);
  cache_.abort();
}

TEST_F(Eviction, PinsCount) {
  publish(cache_, two(100));
  Ask ask(two(100)), half(prompt_of(4));
  int64_t tokens = -1;
  for (int i = 0; i < 2; ++i) ASSERT_EQ(kvc_prefix_pin(get(), &ask.call, &tokens, nullptr), KVC_OK);
  EXPECT_EQ(tokens, 8) << "the last token counts: nothing is computed";
  ASSERT_EQ(kvc_prefix_pin(get(), &half.call, nullptr, nullptr), KVC_OK);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(stats_of(cache_).prefix_pinned, 2);
    ASSERT_EQ(kvc_prefix_unpin(get(), &ask.call, &tokens, nullptr), KVC_OK);
    EXPECT_EQ(tokens, 8);
  }
  EXPECT_EQ(stats_of(cache_).prefix_pinned, 1);
  EXPECT_EQ(evicted(100), 1);
  EXPECT_EQ(held(cache_, two(100)), 4);
  ASSERT_EQ(kvc_prefix_unpin(get(), &ask.call, &tokens, nullptr), KVC_OK);
  EXPECT_EQ(tokens, 4) << "the leading blocks that were pinned";
  ASSERT_EQ(kvc_prefix_unpin(get(), &ask.call, &tokens, nullptr), KVC_OK);
  EXPECT_EQ(tokens, 0);
  Ask unknown(prompt_of(8, 7000));
  ASSERT_EQ(kvc_prefix_pin(get(), &unknown.call, &tokens, nullptr), KVC_OK);
  EXPECT_EQ(tokens, 0) << "what is not there is not pinned";
  EXPECT_EQ(stats_of(cache_).prefix_pinned, 0);
}

TEST_F(Eviction, UnpinningPartOfAPinKeepsTheIndexSound) {
  publish(cache_, two(100));
  Ask ask(two(100)), half(prompt_of(4));
  ASSERT_EQ(kvc_prefix_pin(get(), &ask.call, nullptr, nullptr), KVC_OK);
  ASSERT_EQ(kvc_prefix_unpin(get(), &half.call, nullptr, nullptr), KVC_OK);
  expect_consistent(cache_);
  const int64_t length = available_pages() * kBlock;
  ASSERT_EQ(kvc_seq_add(get(), 1, nullptr), KVC_OK);
  EXPECT_EQ(cache_.begin({1}, {length}), KVC_OK) << "pages that count as free can be taken";
  cache_.abort();
}

TEST_F(Eviction, AResetForgetsPins) {
  publish(cache_, two(100));
  Ask ask(two(100));
  ASSERT_EQ(kvc_prefix_pin(get(), &ask.call, nullptr, nullptr), KVC_OK);
  ASSERT_EQ(kvc_prefix_reset(get(), nullptr), KVC_OK);
  EXPECT_EQ(available_pages(), kPages);
  EXPECT_EQ(stats_of(cache_).prefix_pinned, 0);
  EXPECT_EQ(held(cache_, two(100)), 0);
}

TEST_F(Eviction, OneTenantsFloodEvictsItsOwnBlocks) {
  ASSERT_EQ(kvc_prefix_quota_set(get(), "a", 1, quota_blocks(4), nullptr), KVC_OK);
  publish(cache_, two(100), "a");
  for (int32_t i = 0; i < 20; ++i) publish(cache_, two(1000 + 100 * i), "b");
  EXPECT_EQ(held(cache_, two(100), "a"), 8) << "other namespaces evict their own first";
  EXPECT_EQ(held(cache_, two(2900), "b"), 8);
  for (int32_t i = 0; i < 20; ++i) publish(cache_, two(1000 + 100 * i), "a");
  int64_t own = 0;
  for (int32_t i = 0; i < 20; ++i) own += held(cache_, two(1000 + 100 * i), "a") / kBlock;
  own += held(cache_, two(100), "a") / kBlock;
  EXPECT_LE(own, 4) << "a quota is also a limit";
  EXPECT_EQ(held(cache_, two(2900), "a"), 8) << "the newest replaced the oldest";
}

TEST_F(Eviction, PressureTakesBlocksWithAQuotaLast) {
  ASSERT_EQ(kvc_prefix_quota_set(get(), "a", 1, quota_blocks(8), nullptr), KVC_OK);
  publish(cache_, two(100), "a");
  publish(cache_, two(200), "b", 100);
  press(kPages - 2);
  EXPECT_EQ(held(cache_, two(100), "a"), 8) << "older and of lower priority, but within its quota";
  EXPECT_EQ(held(cache_, two(200), "b"), 0);
  press(kPages);
  EXPECT_EQ(held(cache_, two(100), "a"), 0) << "when nothing else can be evicted";
}

TEST_F(Eviction, WhatDoesNotFitAQuotaIsNotPublished) {
  ASSERT_EQ(kvc_prefix_quota_set(get(), "a", 1, quota_blocks(2), nullptr), KVC_OK);
  serve(cache_, 1, prompt_of(16), "a");
  EXPECT_EQ(stats_of(cache_).prefix_blocks, 2);
  EXPECT_GE(stats_of(cache_).prefix_rejected, 1u);
  EXPECT_EQ(held(cache_, prompt_of(16), "a"), 8) << "the beginning is worth most";
  expect_consistent(cache_);
  drop(cache_, 1);
  ASSERT_EQ(kvc_prefix_quota_set(get(), "a", 1, 0, nullptr), KVC_OK) << "no quota again";
  publish(cache_, prompt_of(16), "a");
  EXPECT_EQ(held(cache_, prompt_of(16), "a"), 16);
}

TEST_F(Eviction, ShrinkingAQuotaEvictsAtOnce) {
  publish(cache_, two(100), "a");
  publish(cache_, two(200), "a");
  publish(cache_, two(300), "b");
  ASSERT_EQ(kvc_prefix_quota_set(get(), "a", 1, quota_blocks(2), nullptr), KVC_OK);
  EXPECT_EQ(held(cache_, two(100), "a"), 0);
  EXPECT_EQ(held(cache_, two(200), "a"), 8);
  EXPECT_EQ(held(cache_, two(300), "b"), 8);
  serve(cache_, 1, joined(two(200), {1}), "a");
  ASSERT_EQ(kvc_prefix_quota_set(get(), "a", 1, 1, nullptr), KVC_OK) << "less than a page";
  EXPECT_EQ(held(cache_, two(200), "a"), 8) << "in use";
  expect_consistent(cache_);
}

TEST_F(Eviction, QuotasAreRefusedByName) {
  const std::string salt(4097, 's');
  expect_refused(cache_, KVC_E_OUT_OF_RANGE, {"salt", "4097", "4096"}, [&](kvc_error* err) {
    return kvc_prefix_quota_set(get(), salt.data(), salt.size(), 1, err);
  });
  expect_refused(cache_, KVC_E_INVALID_ARGUMENT, {"salt", "3"},
                 [&](kvc_error* err) { return kvc_prefix_quota_set(get(), nullptr, 3, 1, err); });
  EXPECT_EQ(kvc_prefix_quota_set(get(), nullptr, 0, 1000, nullptr), KVC_OK)
      << "the empty namespace has one too";
  EXPECT_EQ(kvc_prefix_quota_set(get(), nullptr, 0, 0, nullptr), KVC_OK);
  for (int i = 0; i < 4096; ++i) {
    const std::string name = std::to_string(i);
    ASSERT_EQ(kvc_prefix_quota_set(get(), name.data(), name.size(), 1000, nullptr), KVC_OK) << i;
  }
  expect_refused(cache_, KVC_E_OUT_OF_RANGE, {"4096"}, [&](kvc_error* err) {
    return kvc_prefix_quota_set(get(), "one more", 8, 1000, err);
  });
  EXPECT_EQ(kvc_prefix_quota_set(get(), "7", 1, 2000, nullptr), KVC_OK)
      << "changing one is no more";
  ASSERT_EQ(kvc_prefix_quota_set(get(), "8", 1, 0, nullptr), KVC_OK);
  EXPECT_EQ(kvc_prefix_quota_set(get(), "one more", 8, 1000, nullptr), KVC_OK);
}

TEST_F(Eviction, AShrunkPoolForgetsThePagesThatAreGone) {
  publish(cache_, prompt_of(kPages * kBlock));
  EXPECT_EQ(stats_of(cache_).pages_indexed, kPages);
  expect_ok([&](kvc_error* err) { return kvc_cache_resize(get(), 6, err); });
  EXPECT_EQ(available_pages(), 6);
  EXPECT_LE(stats_of(cache_).pages_indexed, 6);
  EXPECT_LE(held(cache_, prompt_of(kPages * kBlock)), 6 * kBlock);
  Ask ask(prompt_of(kPages * kBlock));
  attached(cache_, 1, ask);
  for (const int64_t page : pages_of(cache_, 1, 0)) EXPECT_LT(page, 6);
  expect_consistent(cache_);
}

TEST_F(Eviction, AShrunkPoolKeepsTheBlocksThatSomebodyHolds) {
  net_.config.storage = KVC_STORAGE_OWNED;
  Cache cache(net_.config);
  const Prompt gone = prompt_of(4 * kBlock, 500), pinned = prompt_of(2 * kBlock, 700),
               used = prompt_of(8 * kBlock);
  for (const Prompt& prompt : {gone, pinned, used}) publish(cache, prompt);
  Ask hold(pinned);
  int64_t num_pinned = 0;
  expect_ok(
      [&](kvc_error* err) { return kvc_prefix_pin(cache.get(), &hold.call, &num_pinned, err); });
  ASSERT_EQ(num_pinned, 2 * kBlock);
  Ask ask(joined(used, {1}));
  attached(cache, 1, ask);
  expect_ok([&](kvc_error* err) { return kvc_cache_resize(cache.get(), 10, err); });
  expect_consistent(cache);
  EXPECT_EQ(kvc_cache_available_pages(cache.get()), 0);
  for (const int64_t page : pages_of(cache, 1, 0)) EXPECT_LT(page, 10);
  EXPECT_EQ(held(cache, used), 8 * kBlock);
  EXPECT_EQ(held(cache, pinned), 2 * kBlock);
  EXPECT_EQ(held(cache, gone), 0);
}

TEST_F(Eviction, BeginFindsItsPagesInTheIndex) {
  publish(cache_, prompt_of(kPages * kBlock));
  EXPECT_EQ(available_pages(), kPages);
  const kvc_seq seq = 1;
  const int64_t length = kPages * kBlock;
  ASSERT_EQ(kvc_seq_add(get(), seq, nullptr), KVC_OK);
  int64_t missing = -1;
  ASSERT_EQ(kvc_seq_can_append(get(), 1, &seq, &length, &missing, nullptr), KVC_OK);
  EXPECT_EQ(missing, 0);
  ASSERT_EQ(cache_.begin({seq}, {length}), KVC_OK);
  EXPECT_EQ(held(cache_, prompt_of(kPages * kBlock)), 0);
  cache_.finish();
  EXPECT_EQ(stats_of(cache_).prefix_blocks, 0);
  EXPECT_EQ(stats_of(cache_).prefix_evicted, static_cast<uint64_t>(kPages));
  kvc_stats stats = stats_of(cache_);
  uint64_t lifetimes = 0, idle = 0;
  for (int i = 0; i < 32; ++i) {
    lifetimes += stats.block_lifetime[i];
    idle += stats.block_idle[i];
  }
  EXPECT_EQ(lifetimes, static_cast<uint64_t>(kPages));
  EXPECT_EQ(idle, static_cast<uint64_t>(kPages));
}

}  // namespace
}  // namespace kvc::test
