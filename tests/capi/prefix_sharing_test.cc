// Pages that sequences and the prefix index share: copies on write, equal blocks kept once, what is
// never published.
#include "tests/capi/prefix_fixture.h"
#include "tests/capi/swap.h"

namespace kvc::test {
namespace {

// With storage: K and V of a token are its value, so that a page of other tokens is seen.
class SharedPrefix : public testing::Test {
 protected:
  explicit SharedPrefix(int64_t host_pages = 0)
      : net_({attention_layer()}, 16),
        cache_((set_host_pages(net_.config, host_pages), net_.config)) {}
  ~SharedPrefix() override { expect_consistent(cache_); }
  kvc_cache* get() const { return cache_.get(); }

  void write(const Prompt& tokens, double mark = 0) {
    const auto rows = static_cast<int64_t>(tokens.size());
    HostTensor k(Elem::kF32, {rows, 1, kDim}), v(Elem::kF32, {rows, 1, kDim});
    k.for_each([&](int64_t i, int64_t h, int64_t d, int64_t) {
      k.set(tokens[static_cast<size_t>(i)] + mark, i, h, d);
      v.set(-tokens[static_cast<size_t>(i)] - mark, i, h, d);
    });
    kvc_error error{};
    ASSERT_EQ(kvc_kv_append(cache_.forward, 0, k.dl(), v.dl(), &error), KVC_OK) << error.message;
  }
  // One forward with rows; `mark` tells them from those of another computation.
  void compute(kvc_seq seq, const Prompt& tokens, double mark = 0, bool give_ids = true) {
    ASSERT_EQ(begin_tokens(cache_, {seq}, {static_cast<int64_t>(tokens.size())},
                           give_ids ? tokens : Prompt{}),
              KVC_OK);
    write(tokens, mark);
    cache_.end();
  }
  void expect_rows(kvc_seq seq, const Prompt& tokens, double mark = 0) {
    const auto count = static_cast<int64_t>(tokens.size());
    ASSERT_EQ(length_of(cache_, seq), count);
    HostTensor k(Elem::kF32, {1, count, 1, kDim}), v(Elem::kF32, {1, count, 1, kDim});
    ASSERT_EQ(kvc_debug_get_kv(get(), seq, 0, count, k.dl(), v.dl(), nullptr, nullptr), KVC_OK);
    for (int64_t i = 0; i < count; ++i) {
      EXPECT_EQ(k.get(0, i, 0, kDim - 1), tokens[static_cast<size_t>(i)] + mark) << "token " << i;
      EXPECT_EQ(v.get(0, i, 0, 0), -tokens[static_cast<size_t>(i)] - mark) << "token " << i;
    }
  }

  Net net_;
  Cache cache_;
};

TEST_F(SharedPrefix, AHitReadsTheRowsThatWereComputedBefore) {
  const Prompt prompt = prompt_of(11);
  Ask ask(prompt);
  attached(cache_, 1, ask);
  compute(1, prompt, 0.25);
  drop(cache_, 1);
  ASSERT_EQ(attached(cache_, 2, ask), 8);
  expect_rows(2, Prompt(prompt.begin(), prompt.begin() + 8), 0.25);
}

TEST_F(SharedPrefix, TheFirstTokensOfABlockAreCopiedBeforeSomebodyWritesBehindThem) {
  const Prompt prompt = prompt_of(8);
  Ask ask(prompt);
  attached(cache_, 1, ask);
  compute(1, prompt);
  const Prompt other = joined(Prompt(prompt.begin(), prompt.begin() + 6), {-1, -2});
  Ask second(other);
  ASSERT_EQ(attached(cache_, 2, second), 6) << "two tokens of the second block";
  EXPECT_EQ(pages_of(cache_, 2, 0), pages_of(cache_, 1, 0));
  EXPECT_EQ(stats_of(cache_).pages_used, 2);
  int64_t missing = -1;
  const kvc_seq seq = 2;
  const int64_t more = 2;
  ASSERT_EQ(kvc_seq_can_append(get(), 1, &seq, &more, &missing, nullptr), KVC_OK);
  EXPECT_EQ(missing, 0);
  compute(2, {-1, -2});
  EXPECT_EQ(stats_of(cache_).pages_copied, 1u);
  EXPECT_EQ(stats_of(cache_).pages_used, 3);
  expect_rows(1, prompt);
  expect_rows(2, other);
  EXPECT_EQ(held(cache_, prompt), 8);
  EXPECT_EQ(held(cache_, other), 8);
  drop(cache_, 1);
  drop(cache_, 2);
  ASSERT_EQ(attached(cache_, 3, ask.all()), 8);
  expect_rows(3, prompt);
  ASSERT_EQ(attached(cache_, 4, second.all()), 8);
  expect_rows(4, other);
}

TEST_F(SharedPrefix, APageThatOnlyTheIndexKnowsIsCopiedToo) {
  const Prompt prompt = prompt_of(8);
  Ask ask(prompt), begin(joined(Prompt(prompt.begin(), prompt.begin() + 6), {-1}));
  attached(cache_, 1, ask);
  compute(1, prompt);
  drop(cache_, 1);
  ASSERT_EQ(attached(cache_, 2, begin), 6);
  compute(2, {-1, -2});
  ASSERT_EQ(attached(cache_, 3, ask.all()), 8) << "nothing was evicted: pages are free";
  expect_rows(3, prompt);
  expect_rows(2, joined(Prompt(prompt.begin(), prompt.begin() + 6), {-1, -2}));
}

TEST_F(SharedPrefix, AnAbortLeavesThePageOfATailHitAsItWas) {
  const Prompt prompt = prompt_of(8);
  Ask ask(prompt), begin(joined(Prompt(prompt.begin(), prompt.begin() + 6), {-1}));
  attached(cache_, 1, ask);
  compute(1, prompt);
  drop(cache_, 1);
  ASSERT_EQ(attached(cache_, 2, begin), 6);
  const std::vector<int64_t> pages = pages_of(cache_, 2, 0);
  ASSERT_EQ(begin_tokens(cache_, {2}, {2}, {-1, -2}), KVC_OK);
  write({-1, -2});
  cache_.abort();
  EXPECT_EQ(pages_of(cache_, 2, 0), pages);
  EXPECT_EQ(held(cache_, joined(Prompt(prompt.begin(), prompt.begin() + 6), {-1, -2})), 4);
  ASSERT_EQ(attached(cache_, 3, ask.all()), 8);
  expect_rows(3, prompt);
}

TEST_F(SharedPrefix, EqualBlocksAreKeptOnce) {
  const Prompt prompt = prompt_of(9);
  for (const kvc_seq seq : {1, 2}) ASSERT_EQ(kvc_seq_add(get(), seq, nullptr), KVC_OK);
  ASSERT_EQ(begin_tokens(cache_, {1, 2}, {9, 9}, joined(prompt, prompt)), KVC_OK);
  write(joined(prompt, prompt));
  EXPECT_EQ(stats_of(cache_).pages_used, 6);
  cache_.end();
  EXPECT_EQ(stats_of(cache_).pages_used, 4) << "two pages are the other's now";
  EXPECT_EQ(stats_of(cache_).prefix_blocks, 2);
  EXPECT_EQ(stats_of(cache_).prefix_stored, 2u);
  EXPECT_EQ(stats_of(cache_).prefix_duplicates, 2u);
  const std::vector<int64_t> one = pages_of(cache_, 1, 0), two = pages_of(cache_, 2, 0);
  EXPECT_EQ(one[0], two[0]);
  EXPECT_EQ(one[1], two[1]);
  EXPECT_NE(one[2], two[2]) << "the block that is not full";
  expect_rows(1, prompt);
  expect_rows(2, prompt);
  // The same by an insert of what was computed without ids.
  ASSERT_EQ(kvc_seq_add(get(), 3, nullptr), KVC_OK);
  compute(3, prompt, 0, false);
  EXPECT_EQ(stats_of(cache_).pages_used, 7);
  Ask ask(prompt);
  EXPECT_EQ(inserted(cache_, 3, ask), 8);
  EXPECT_EQ(stats_of(cache_).pages_used, 5);
  expect_rows(3, prompt);
}

TEST_F(SharedPrefix, APopIntoAPublishedPageLeavesTheIndexItsBlock) {
  const Prompt prompt = prompt_of(8);
  Ask ask(prompt);
  attached(cache_, 1, ask);
  compute(1, prompt);
  ASSERT_EQ(kvc_seq_pop(get(), 1, 3, nullptr), KVC_OK);
  EXPECT_EQ(info_of(cache_, 1).known_tokens, 5);
  const Prompt other = joined(Prompt(prompt.begin(), prompt.begin() + 5), {-1, -2, -3});
  compute(1, {-1, -2, -3});
  expect_rows(1, other);
  EXPECT_EQ(held(cache_, other), 8);
  Ask again(prompt);
  const int64_t hit = attached(cache_, 2, again.all());
  EXPECT_GE(hit, 5) << "the block may be gone, what others hit in its place not";
  expect_rows(2, Prompt(prompt.begin(), prompt.begin() + hit));
}

TEST_F(SharedPrefix, AForkPublishesItsOwnContinuation) {
  const Prompt prompt = prompt_of(10);
  Ask ask(prompt, "a");
  attached(cache_, 1, ask);
  compute(1, prompt);
  ASSERT_EQ(kvc_seq_fork(get(), 1, 2, 6, nullptr), KVC_OK);
  EXPECT_EQ(info_of(cache_, 2).known_tokens, 6);
  const Prompt other = joined(Prompt(prompt.begin(), prompt.begin() + 6), {-1, -2});
  compute(2, {-1, -2});
  expect_rows(1, prompt);
  expect_rows(2, other);
  EXPECT_EQ(held(cache_, prompt, "a"), 8);
  EXPECT_EQ(held(cache_, other, "a"), 8) << "in the parent's namespace";
  EXPECT_EQ(held(cache_, other), 0);
  // Both write into the page they share in one batch.
  ASSERT_EQ(kvc_seq_fork(get(), 1, 3, -1, nullptr), KVC_OK);
  ASSERT_EQ(begin_tokens(cache_, {1, 3}, {2, 2}, {7, 8, 7, 9}), KVC_OK);
  write({7, 8, 7, 9});
  cache_.end();
  expect_rows(1, joined(prompt, {7, 8}));
  expect_rows(3, joined(prompt, {7, 9}));
  EXPECT_EQ(held(cache_, joined(prompt, {7, 8}), "a"), 12);
  EXPECT_EQ(held(cache_, joined(prompt, {7, 9}), "a"), 12);
}

TEST_F(SharedPrefix, DraftsAreNotPublishedBeforeTheyAreAccepted) {
  const Prompt prompt = prompt_of(6);
  Ask ask(prompt);
  attached(cache_, 1, ask);
  compute(1, prompt);
  // 10 - 11 - 12, and 20 below 10.
  ASSERT_EQ(begin_tokens(cache_, {1}, {4}, {10, 11, 20, 12}, {-1, 0, 0, 1}), KVC_OK);
  write({10, 11, 20, 12});
  cache_.end();
  EXPECT_EQ(held(cache_, joined(prompt, {10, 11})), 4);
  EXPECT_EQ(held(cache_, joined(prompt, {10, 20})), 4);
  const kvc_seq seq = 1;
  const int32_t leaf = 2;
  ASSERT_EQ(kvc_tree_commit(get(), 1, &seq, &leaf, nullptr, nullptr), KVC_OK);
  EXPECT_EQ(info_of(cache_, 1).known_tokens, 8);
  EXPECT_EQ(held(cache_, joined(prompt, {10, 20})), 8);
  EXPECT_EQ(held(cache_, joined(prompt, {10, 11})), 4) << "a draft that was not accepted";
  expect_rows(1, joined(prompt, {10, 20}));
  Ask hit(joined(prompt, {10, 20}));
  ASSERT_EQ(attached(cache_, 2, hit.all()), 8);
  expect_rows(2, joined(prompt, {10, 20}));
}

TEST_F(SharedPrefix, AnAbortedForwardPublishesNothing) {
  const Prompt prompt = prompt_of(9);
  Ask ask(prompt);
  attached(cache_, 1, ask);
  const kvc_stats before = stats_of(cache_);
  ASSERT_EQ(begin_tokens(cache_, {1}, {9}, prompt), KVC_OK);
  write(prompt);
  EXPECT_EQ(held(cache_, prompt), 0) << "nor does an open one";
  cache_.abort();
  EXPECT_EQ(held(cache_, prompt), 0);
  EXPECT_EQ(stats_of(cache_).prefix_blocks, before.prefix_blocks);
  EXPECT_EQ(info_of(cache_, 1).known_tokens, 0);
  compute(1, prompt);
  EXPECT_EQ(held(cache_, prompt), 8) << "it is as if it had not begun";
}

TEST_F(SharedPrefix, WhatIsOlderThanAResetIsNeverPublished) {
  const Prompt prompt = prompt_of(12);
  Ask ask(prompt);
  attached(cache_, 1, ask);
  compute(1, Prompt(prompt.begin(), prompt.begin() + 6));
  expect_ok([&](kvc_error* err) { return kvc_prefix_reset(get(), err); });
  EXPECT_EQ(held(cache_, prompt), 0);
  EXPECT_EQ(stats_of(cache_).prefix_blocks, 0);
  EXPECT_EQ(stats_of(cache_).pages_indexed, 0);
  EXPECT_EQ(stats_of(cache_).pages_used, 2) << "the sequence keeps its pages";
  compute(1, Prompt(prompt.begin() + 6, prompt.end()));
  EXPECT_EQ(held(cache_, prompt), 0) << "its new tokens were computed from old ones";
  expect_rows(1, prompt);
  ASSERT_EQ(attached(cache_, 2, ask), 0);
  compute(2, prompt, 0.5);
  EXPECT_EQ(held(cache_, prompt), 12);
  ASSERT_EQ(attached(cache_, 3, ask.all()), 12);
  expect_rows(3, prompt, 0.5);
  expect_rows(1, prompt);
}

TEST_F(SharedPrefix, ClearForgetsTheIndex) {
  publish(cache_, prompt_of(9));
  ASSERT_EQ(kvc_cache_clear(get(), nullptr), KVC_OK);
  EXPECT_EQ(held(cache_, prompt_of(9)), 0);
  EXPECT_EQ(stats_of(cache_).prefix_blocks, 0);
  EXPECT_EQ(kvc_cache_available_pages(get()), 16);
}

TEST_F(SharedPrefix, WrittenAndMovedTokensAreNotPublished) {
  const Prompt prompt = prompt_of(12);
  Ask ask(prompt), begin(Prompt(prompt.begin(), prompt.begin() + 8));
  attached(cache_, 1, begin);
  compute(1, Prompt(prompt.begin(), prompt.begin() + 8));
  ASSERT_EQ(attached(cache_, 2, begin.all()), 8);
  HostTensor k(Elem::kF32, {1, 1, 1, kDim}), v(Elem::kF32, {1, 1, 1, kDim});
  k.for_each([&](int64_t i, int64_t j, int64_t h, int64_t d) {
    k.set(777, i, j, h, d);
    v.set(777, i, j, h, d);
  });
  ASSERT_EQ(kvc_debug_set_kv(get(), 2, 5, k.dl(), v.dl(), nullptr, nullptr), KVC_OK);
  expect_rows(1, Prompt(prompt.begin(), prompt.begin() + 8));
  compute(2, Prompt(prompt.begin() + 8, prompt.end()));
  EXPECT_EQ(held(cache_, prompt), 8) << "what was computed from written values is not published";
  expect_refused(cache_, KVC_E_INVALID_STATE, {"sequence 2"}, [&](kvc_error* err) {
    return kvc_prefix_insert(get(), 2, &ask.call, nullptr, err);
  });
  ASSERT_EQ(attached(cache_, 3, begin.all()), 8);
  expect_rows(3, Prompt(prompt.begin(), prompt.begin() + 8));
  ASSERT_EQ(kvc_seq_shift(get(), 3, 0, 1, -1, nullptr), KVC_OK);
  compute(3, Prompt(prompt.begin() + 8, prompt.end()));
  EXPECT_EQ(held(cache_, joined(Prompt(prompt.begin() + 1, prompt.end()), {0})), 0);
  expect_rows(1, Prompt(prompt.begin(), prompt.begin() + 8));
  ASSERT_EQ(attached(cache_, 4, begin.all()), 8);
  expect_rows(4, Prompt(prompt.begin(), prompt.begin() + 8));
}

// Values written into the only copy must not be found by those tokens any more.
TEST_F(SharedPrefix, WritingIntoAPublishedPageHidesItsBlockOrCopiesIt) {
  const Prompt prompt = prompt_of(8);
  Ask ask(prompt);
  attached(cache_, 1, ask);
  compute(1, prompt);
  HostTensor k(Elem::kF32, {1, 1, 1, kDim});
  k.for_each([&](int64_t i, int64_t j, int64_t h, int64_t d) { k.set(777, i, j, h, d); });
  ASSERT_EQ(kvc_debug_set_kv(get(), 1, 2, k.dl(), nullptr, nullptr, nullptr), KVC_OK);
  const int64_t hit = attached(cache_, 2, ask.all());
  expect_rows(2, Prompt(prompt.begin(), prompt.begin() + hit));
}

TEST_F(SharedPrefix, ASequenceWithAWindowPublishesNothingMore) {
  const Prompt prompt = prompt_of(20);
  Ask ask(prompt);
  attached(cache_, 1, ask);
  compute(1, Prompt(prompt.begin(), prompt.begin() + 8));
  ASSERT_EQ(kvc_seq_set_window(get(), 1, 5, 1, nullptr), KVC_OK);
  compute(1, Prompt(prompt.begin() + 8, prompt.end()));
  EXPECT_EQ(held(cache_, prompt), 8) << "what came before is what it was";
  ASSERT_EQ(attached(cache_, 2, ask), 8);
  expect_rows(2, Prompt(prompt.begin(), prompt.begin() + 8));
}

TEST_F(SharedPrefix, BytesOfTokenIdsAreCopied) {
  Prompt prompt = prompt_of(9);
  const Prompt same = prompt;
  ASSERT_EQ(kvc_seq_add(get(), 1, nullptr), KVC_OK);
  ASSERT_EQ(begin_tokens(cache_, {1}, {9}, prompt), KVC_OK);
  std::fill(prompt.begin(), prompt.end(), -1);
  write(same);
  cache_.end();
  EXPECT_EQ(held(cache_, same), 8);
}

class SharedPrefixWithHost : public SharedPrefix {
 protected:
  SharedPrefixWithHost() : SharedPrefix(8) {}
  // Published, then moved to the host, and every page of the device written over.
  void publish_to_host(const Prompt& prompt) {
    ASSERT_EQ(kvc_seq_add(get(), 1, nullptr), KVC_OK);
    compute(1, prompt);
    drop(cache_, 1);
    int64_t freed = -1;
    const int64_t pages = static_cast<int64_t>(prompt.size()) / 4;
    ASSERT_EQ(kvc_prefix_evict(get(), pages, &freed, nullptr), KVC_OK);
    ASSERT_EQ(freed, pages);
    ASSERT_EQ(stats_of(cache_).host_pages_used, pages);
    overwrite_free_pages(cache_);
  }
};

TEST_F(SharedPrefixWithHost, AHitOnTheHostReadsTheRowsThatWereComputedBefore) {
  const Prompt prompt = prompt_of(11);
  const Prompt full(prompt.begin(), prompt.begin() + 8);
  publish_to_host(full);
  Ask ask(prompt);
  ASSERT_EQ(attached(cache_, 2, ask), 8);
  EXPECT_EQ(stats_of(cache_).prefix_promoted, 2u);
  expect_rows(2, full);
}

TEST_F(SharedPrefixWithHost, APageOfWhichAPartHitsComesBackAsAWhole) {
  const Prompt prompt = prompt_of(8);
  const Prompt begin(prompt.begin(), prompt.begin() + 5);
  publish_to_host(prompt);
  Ask part(joined(begin, {-1})), whole(prompt);
  ASSERT_EQ(attached(cache_, 2, part), 5);
  EXPECT_EQ(stats_of(cache_).prefix_promoted, 2u);
  expect_rows(2, begin);
  ASSERT_EQ(attached(cache_, 3, whole.all()), 8);
  EXPECT_EQ(stats_of(cache_).prefix_promoted, 2u) << "all of it is there already";
  compute(2, {-1, -2});
  expect_rows(2, joined(begin, {-1, -2}));
  expect_rows(3, prompt);
}

}  // namespace
}  // namespace kvc::test
