// Whole sequences on their way to the host and back: contents, sharing, counts, what a swapped
// sequence may still be asked.
#include "tests/capi/swap.h"

#include <set>

namespace kvc::test {
namespace {

TEST(Swap, ASequenceComesBackAsItWasInEveryKindOfLayer) {
  for (const kvc_pool_layout layout : {KVC_POOL_LAYER_FIRST, KVC_POOL_PAGE_FIRST}) {
    SCOPED_TRACE(layout == KVC_POOL_PAGE_FIRST ? "PAGE_FIRST" : "LAYER_FIRST");
    AllKinds model(layout);
    set_host_pages(model.net.config, 60);
    Cache cache(model.net.config);
    append_pattern(cache, 1, 13, 41, 7);
    append_pattern(cache, 1, 6, 41);
    append_pattern(cache, 2, 5, 42);
    ASSERT_EQ(pattern_difference(cache, 1, 41), "");
    const kvc_seq_info before = info_of(cache, 1);
    const kvc_stats full = stats_of(cache);
    expect_ok([&](kvc_error* err) { return swap_out(cache, {1}, err); });
    const kvc_seq_info away = info_of(cache, 1);
    expect_same_info(before, away);
    EXPECT_EQ(away.is_swapped, 1);
    EXPECT_EQ(length_of(cache, 1), 19);
    const kvc_stats swapped = stats_of(cache);
    EXPECT_EQ(swapped.pages_used, full.pages_used - before.num_pages);
    EXPECT_EQ(swapped.pages_available, full.pages_available + before.num_pages);
    EXPECT_GE(swapped.host_pages_used, before.num_pages);
    EXPECT_EQ(swapped.num_swapped_seqs, 1);
    EXPECT_EQ(swapped.num_seqs, 2);
    EXPECT_EQ(swapped.total_length, full.total_length);
    EXPECT_EQ(swapped.state_slots_used, info_of(cache, 2).num_checkpoints + 1) << "of sequence 2";
    EXPECT_EQ(kvc_cache_is_empty(cache.get()), 0);
    expect_sound(cache);
    overwrite_free_pages(cache);
    EXPECT_EQ(pattern_difference(cache, 2, 42), "") << "the other sequence is left alone";
    expect_ok([&](kvc_error* err) { return swap_in(cache, {1}, err); });
    const kvc_seq_info back = info_of(cache, 1);
    expect_same_info(before, back);
    EXPECT_EQ(back.is_swapped, 0);
    EXPECT_EQ(pattern_difference(cache, 1, 41), "");
    EXPECT_EQ(stats_of(cache).host_pages_used, 0);
    EXPECT_EQ(stats_of(cache).num_swapped_seqs, 0);
    EXPECT_EQ(stats_of(cache).pages_used, full.pages_used);
    EXPECT_EQ(stats_of(cache).state_slots_used, full.state_slots_used);
    append_pattern(cache, 1, 6, 41);
    EXPECT_EQ(pattern_difference(cache, 1, 41), "") << "and grows as ever";
    EXPECT_EQ(pattern_difference(cache, 2, 42), "");
    expect_sound(cache);
  }
}

TEST(Swap, CountsPagesAndRuns) {
  Net net({attention_layer()});
  set_host_pages(net.config, 9);
  Cache cache(net.config);
  EXPECT_EQ(plan_of(cache.plan()).num_host_pages, 9);
  EXPECT_EQ(stats_of(cache).host_pages_total, 9);
  append_pattern(cache, 1, 11, 1);
  append_pattern(cache, 2, 4, 2);
  ASSERT_EQ(swap_out(cache, {1}), KVC_OK);
  EXPECT_EQ(stats_of(cache).host_pages_used, 3);
  EXPECT_EQ(stats_of(cache).pages_swapped_out, 3u);
  EXPECT_EQ(stats_of(cache).pages_swapped_in, 0u);
  const uint64_t runs = stats_of(cache).copy_runs;
  EXPECT_GE(runs, 1u);
  EXPECT_LE(runs, 3u);
  ASSERT_EQ(swap_in(cache, {1}), KVC_OK);
  ASSERT_EQ(swap_out(cache, {2, 1}), KVC_OK);
  EXPECT_EQ(stats_of(cache).pages_swapped_out, 7u);
  EXPECT_EQ(stats_of(cache).pages_swapped_in, 3u);
  EXPECT_GT(stats_of(cache).copy_runs, runs);
  EXPECT_EQ(stats_of(cache).num_swapped_seqs, 2);
  EXPECT_EQ(stats_of(cache).pages_used, 0);
  EXPECT_EQ(kvc_cache_total_length(cache.get()), 15);
}

TEST(Swap, GivesASignalledFence) {
  Net net({attention_layer()});
  set_host_pages(net.config, 9);
  Cache cache(net.config);
  append_pattern(cache, 1, 6, 1);
  const kvc_seq one = 1;
  for (const auto move : {&kvc_swap_out, &kvc_swap_in}) {
    kvc_fence* fence = nullptr;
    expect_ok([&](kvc_error* err) { return move(cache.get(), 1, &one, nullptr, &fence, err); });
    ASSERT_NE(fence, nullptr);
    int32_t done = -1;
    EXPECT_EQ(kvc_fence_query(fence, &done, nullptr), KVC_OK);
    EXPECT_EQ(done, 1);
    EXPECT_EQ(kvc_fence_wait(fence, 0, nullptr), KVC_OK);
    kvc_fence_destroy(fence);
  }
  EXPECT_EQ(pattern_difference(cache, 1, 1), "");
}

TEST(Swap, AnEmptySequenceSwapsToo) {
  Net net({attention_layer()});
  set_host_pages(net.config, 1);
  Cache cache(net.config);
  ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  expect_ok([&](kvc_error* err) { return swap_out(cache, {1}, err); });
  EXPECT_EQ(info_of(cache, 1).is_swapped, 1);
  EXPECT_EQ(stats_of(cache).host_pages_used, 0);
  expect_ok([&](kvc_error* err) { return swap_in(cache, {1}, err); });
  append_pattern(cache, 1, 5, 3);
  EXPECT_EQ(pattern_difference(cache, 1, 3), "");
}

// Sequence 1 has 10 tokens (3 pages), 2 is forked at its end and 3 at token 6 (2 pages).
class SwapForks : public testing::Test {
 protected:
  SwapForks() {
    set_host_pages(net_.config, 20);
    cache_ = std::make_unique<Cache>(net_.config);
    append_pattern(*cache_, 1, 10, 5);
    EXPECT_EQ(kvc_seq_fork(cache_->get(), 1, 2, -1, nullptr), KVC_OK);
    EXPECT_EQ(kvc_seq_fork(cache_->get(), 1, 3, 6, nullptr), KVC_OK);
  }
  void expect_pages(int64_t device, int64_t host) const {
    EXPECT_EQ(stats_of(*cache_).pages_used, device);
    EXPECT_EQ(stats_of(*cache_).host_pages_used, host);
    EXPECT_EQ(kvc_cache_available_pages(cache_->get()), 32 - device);
    expect_sound(*cache_);
  }
  void expect_contents() const {
    for (const kvc_seq seq : {1, 2, 3}) EXPECT_EQ(pattern_difference(*cache_, seq, 5), "") << seq;
  }
  Net net_{{attention_layer(), attention_layer()}};
  std::unique_ptr<Cache> cache_;
};

TEST_F(SwapForks, SwappedTogetherStayShared) {
  expect_pages(3, 0);
  ASSERT_EQ(swap_out(*cache_, {3, 1, 2}), KVC_OK);
  expect_pages(0, 3);
  EXPECT_EQ(info_of(*cache_, 1).num_pages, 3);
  EXPECT_EQ(info_of(*cache_, 3).num_pages, 2);
  EXPECT_EQ(info_of(*cache_, 1).num_shared_pages, 3);
  overwrite_free_pages(*cache_);
  ASSERT_EQ(swap_in(*cache_, {1, 2, 3}), KVC_OK);
  expect_pages(3, 0);
  EXPECT_EQ(stats_of(*cache_).pages_shared, 3);
  EXPECT_EQ(pages_of(*cache_, 1, 0), pages_of(*cache_, 2, 0));
  expect_contents();
  append_pattern(*cache_, 3, 1, 8);  // into a page that it shares
  for (const kvc_seq seq : {1, 2})
    EXPECT_EQ(pattern_difference(*cache_, seq, 5), "") << "of their own";
  expect_pages(4, 0);
}

TEST_F(SwapForks, SwappedOneByOneAreCopiesOfTheirOwn) {
  ASSERT_EQ(swap_out(*cache_, {1}), KVC_OK);
  expect_pages(3, 3);
  EXPECT_EQ(info_of(*cache_, 1).num_shared_pages, 0);
  EXPECT_EQ(pattern_difference(*cache_, 2, 5), "") << "pages that others hold stay";
  ASSERT_EQ(swap_out(*cache_, {2}), KVC_OK);
  expect_pages(2, 6);
  ASSERT_EQ(swap_out(*cache_, {3}), KVC_OK);
  expect_pages(0, 8);
  overwrite_free_pages(*cache_);
  ASSERT_EQ(swap_in(*cache_, {1, 2, 3}), KVC_OK);
  expect_pages(8, 0);
  EXPECT_EQ(stats_of(*cache_).pages_shared, 0);
  expect_contents();
}

TEST_F(SwapForks, ComingBackOneByOneLeavesTheHostPagesToTheOthers) {
  ASSERT_EQ(swap_out(*cache_, {1, 2, 3}), KVC_OK);
  overwrite_free_pages(*cache_);
  ASSERT_EQ(swap_in(*cache_, {2}), KVC_OK);
  expect_pages(3, 3);
  EXPECT_EQ(pattern_difference(*cache_, 2, 5), "");
  ASSERT_EQ(swap_in(*cache_, {1}), KVC_OK);
  expect_pages(6, 2);
  ASSERT_EQ(swap_in(*cache_, {3}), KVC_OK);
  expect_pages(8, 0);
  expect_contents();
}

TEST_F(SwapForks, SomeOfThemMayGoAndComeBackTogether) {
  ASSERT_EQ(swap_out(*cache_, {1, 3}), KVC_OK);
  expect_pages(3, 3);
  ASSERT_EQ(swap_out(*cache_, {2}), KVC_OK);
  expect_pages(0, 6);
  overwrite_free_pages(*cache_);
  ASSERT_EQ(swap_in(*cache_, {2, 3, 1}), KVC_OK);
  expect_pages(6, 0);
  EXPECT_EQ(stats_of(*cache_).pages_shared, 2) << "1 and 3 share what they shared";
  expect_contents();
}

TEST_F(SwapForks, RemovingASwappedOneFreesWhatItHeldAlone) {
  ASSERT_EQ(swap_out(*cache_, {1, 2, 3}), KVC_OK);
  for (const auto& [seq, left] : {std::pair<kvc_seq, int64_t>{1, 3}, {2, 2}, {3, 0}}) {
    expect_ok([&, s = seq](kvc_error* err) { return kvc_seq_remove(cache_->get(), s, err); });
    expect_pages(0, left);
  }
  EXPECT_EQ(kvc_cache_is_empty(cache_->get()), 1);
  EXPECT_EQ(stats_of(*cache_).num_swapped_seqs, 0);
}

TEST_F(SwapForks, ClearForgetsWhatIsOnTheHost) {
  ASSERT_EQ(swap_out(*cache_, {1, 3}), KVC_OK);
  expect_ok([&](kvc_error* err) { return kvc_cache_clear(cache_->get(), err); });
  expect_pages(0, 0);
  EXPECT_EQ(stats_of(*cache_).num_swapped_seqs, 0);
  EXPECT_EQ(kvc_cache_is_empty(cache_->get()), 1);
  append_pattern(*cache_, 1, 9, 6);
  ASSERT_EQ(swap_out(*cache_, {1}), KVC_OK);
  overwrite_free_pages(*cache_);
  ASSERT_EQ(swap_in(*cache_, {1}), KVC_OK);
  EXPECT_EQ(pattern_difference(*cache_, 1, 6), "");
}

TEST_F(SwapForks, ASequenceMayGoWhileOthersAreInAForward) {
  ASSERT_EQ(cache_->begin({1}, {1}), KVC_OK);  // copies the shared last page
  expect_ok([&](kvc_error* err) { return swap_out(*cache_, {2, 3}, err); });
  cache_->abort();
  EXPECT_EQ(pattern_difference(*cache_, 1, 5), "");
  expect_pages(3, 3);
  ASSERT_EQ(cache_->begin({1}, {1}), KVC_OK);
  expect_ok([&](kvc_error* err) { return swap_in(*cache_, {2, 3}, err); });
  cache_->abort();
  expect_pages(6, 0);
  expect_contents();
}

TEST_F(SwapForks, TheDevicePoolMayShrinkMeanwhile) {
  ASSERT_EQ(swap_out(*cache_, {1, 2, 3}), KVC_OK);
  ASSERT_EQ(kvc_cache_resize(cache_->get(), 2, nullptr), KVC_OK);
  EXPECT_EQ(swap_in(*cache_, {3}), KVC_OK) << "2 pages";
  EXPECT_EQ(pattern_difference(*cache_, 3, 5), "");
  ASSERT_EQ(kvc_cache_resize(cache_->get(), 32, nullptr), KVC_OK);
  ASSERT_EQ(swap_in(*cache_, {1, 2}), KVC_OK);
  expect_pages(5, 0);
  expect_contents();
}

TEST(Swap, DroppedPagesStayDropped) {
  Net net({attention_layer()});
  set_host_pages(net.config, 20);
  Cache cache(net.config);
  append_pattern(cache, 1, 30, 7);
  ASSERT_EQ(kvc_seq_set_window(cache.get(), 1, 10, 2, nullptr), KVC_OK);
  const kvc_seq_info before = info_of(cache, 1);
  ASSERT_LT(before.num_pages, 8);
  ASSERT_EQ(swap_out(cache, {1}), KVC_OK);
  EXPECT_EQ(stats_of(cache).host_pages_used, before.num_pages);
  overwrite_free_pages(cache);
  ASSERT_EQ(swap_in(cache, {1}), KVC_OK);
  expect_same_info(before, info_of(cache, 1));
  EXPECT_EQ(pattern_difference(cache, 1, 7), "");
  int64_t nearest = 0;
  ASSERT_EQ(kvc_seq_can(cache.get(), 1, KVC_SEQ_POP, 12, &nearest, nullptr), KVC_OK);
  EXPECT_NE(nearest, 12) << "tokens that the window has dropped are still gone";
  append_pattern(cache, 1, 9, 7);
  EXPECT_EQ(pattern_difference(cache, 1, 7), "");
  expect_sound(cache);
}

// One layer of tokens, one of states; checkpoints where forwards end on multiples of 4.
class SwapStates : public testing::Test {
 protected:
  SwapStates() {
    set_host_pages(net_.config, 20);
    cache_ = std::make_unique<Cache>(net_.config);
    for (const int64_t count : {4, 2, 2, 3}) append_pattern(*cache_, 1, count, 6);
  }
  std::vector<int64_t> shape_{2, 3};
  std::vector<kvc_state_spec> specs_{state_spec(shape_)};
  Net net_{{attention_layer(), state_layer(specs_)}};
  std::unique_ptr<Cache> cache_;
};

TEST_F(SwapStates, CheckpointsGoAndComeBackToo) {
  const kvc_stats before = stats_of(*cache_);
  EXPECT_EQ(info_of(*cache_, 1).num_checkpoints, 2);
  ASSERT_EQ(swap_out(*cache_, {1}), KVC_OK);
  EXPECT_EQ(stats_of(*cache_).state_slots_used, 0);
  append_pattern(*cache_, 9, 8, 999);
  ASSERT_EQ(kvc_seq_remove(cache_->get(), 9, nullptr), KVC_OK);
  ASSERT_EQ(swap_in(*cache_, {1}), KVC_OK);
  EXPECT_EQ(stats_of(*cache_).state_slots_used, before.state_slots_used);
  EXPECT_EQ(stats_of(*cache_).host_pages_used, 0);
  EXPECT_EQ(pattern_difference(*cache_, 1, 6), "") << "the state at the end";
  for (const int64_t position : {8, 4}) {
    ASSERT_EQ(kvc_seq_fork(cache_->get(), 1, 20 + position, position, nullptr), KVC_OK);
    EXPECT_EQ(pattern_difference(*cache_, 20 + position, 6), "") << "the state at the checkpoint";
  }
  expect_sound(*cache_);
}

TEST_F(SwapStates, ForksSwappedTogetherShareTheirStatesAgain) {
  ASSERT_EQ(kvc_seq_fork(cache_->get(), 1, 2, -1, nullptr), KVC_OK);
  ASSERT_EQ(kvc_seq_fork(cache_->get(), 1, 3, 8, nullptr), KVC_OK);
  const int64_t slots = stats_of(*cache_).state_slots_used;
  ASSERT_EQ(slots, 3);
  ASSERT_EQ(swap_out(*cache_, {1, 2, 3}), KVC_OK);
  EXPECT_EQ(stats_of(*cache_).state_slots_used, 0);
  ASSERT_EQ(swap_in(*cache_, {1, 2, 3}), KVC_OK);
  EXPECT_EQ(stats_of(*cache_).state_slots_used, slots);
  for (const kvc_seq seq : {1, 2, 3}) EXPECT_EQ(pattern_difference(*cache_, seq, 6), "");
  ASSERT_EQ(swap_out(*cache_, {1, 3}), KVC_OK);
  EXPECT_EQ(stats_of(*cache_).state_slots_used, slots) << "sequence 2 holds them all";
  ASSERT_EQ(swap_in(*cache_, {1}), KVC_OK);
  ASSERT_EQ(swap_in(*cache_, {3}), KVC_OK);
  EXPECT_EQ(stats_of(*cache_).state_slots_used, 3 + 3 + 2);
  for (const kvc_seq seq : {1, 2, 3}) EXPECT_EQ(pattern_difference(*cache_, seq, 6), "");
  expect_sound(*cache_);
}

TEST_F(SwapStates, WithoutSlotsForThemTheSequenceStaysOnTheHost) {
  net_.config.num_state_slots = 5;
  net_.config.state_stride = -1;  // checkpoints on request are never given up
  Cache cache(net_.config);
  const auto fill = [&](kvc_seq seq, uint64_t seed) {
    for (const int64_t count : {4, 4, 3}) {
      append_pattern(cache, seq, count, seed);
      if (count < 4) continue;
      ASSERT_EQ(kvc_state_checkpoint(cache.get(), seq, nullptr), KVC_OK);
    }
    ASSERT_EQ(info_of(cache, seq).num_checkpoints, 2);
  };
  fill(1, 6);
  ASSERT_EQ(stats_of(cache).state_slots_used, 3);
  ASSERT_EQ(swap_out(cache, {1}), KVC_OK);
  fill(2, 7);
  const kvc_error error = expect_refused(cache, KVC_E_NO_PAGES, {"state"},
                                         [&](kvc_error* err) { return swap_in(cache, {1}, err); });
  EXPECT_EQ(error.detail, 1);
  ASSERT_EQ(kvc_seq_remove(cache.get(), 2, nullptr), KVC_OK);
  ASSERT_EQ(swap_in(cache, {1}), KVC_OK);
  EXPECT_EQ(pattern_difference(cache, 1, 6), "");
}

}  // namespace
}  // namespace kvc::test
