// The prefix cache of models whose layers do not all see all tokens: windows, chunks, states,
// groups with pages of their own length.
#include "tests/capi/prefix_fixture.h"

namespace kvc::test {
namespace {

kvc_config& bookkeeping(Net& net) {
  net.config.storage = KVC_STORAGE_NONE;
  return net.config;
}

kvc_group_info group_of(const Cache& cache, int32_t group) {
  kvc_group_info info{};
  info.struct_size = sizeof info;
  EXPECT_EQ(kvc_plan_group_get(cache.plan(), group, &info, nullptr), KVC_OK);
  return info;
}

TEST(PrefixLayers, AWindowNeedsItsLastTokensOnly) {
  Net net({attention_layer(6)}, 32);
  Cache cache(bookkeeping(net));
  const Prompt prompt = prompt_of(24);
  serve(cache, 1, prompt);
  Ask ask(joined(prompt, {1}));
  EXPECT_EQ(attached(cache, 2, ask), 24);
  EXPECT_EQ(length_of(cache, 2), 24);
  const std::vector<int64_t> one = pages_of(cache, 1, 0), two = pages_of(cache, 2, 0);
  ASSERT_GE(two.size(), 2u) << "tokens 19 to 23";
  EXPECT_EQ(two.back(), one.back());
  EXPECT_EQ(two[two.size() - 2], one[one.size() - 2]);
  kvc_error error{};
  ASSERT_EQ(cache.begin({2}, {1}, &error), KVC_OK) << error.message;
  EXPECT_EQ(table_of(cache, 0, KVC_TABLE_SEQ_LENS), std::vector<int64_t>{25});
  cache.end();
  expect_consistent(cache);
}

TEST(PrefixLayers, EveryGroupHasToServeAHit) {
  Net net({attention_layer(), attention_layer(5)}, 64);
  Cache cache(bookkeeping(net));
  const Prompt prompt = prompt_of(24);
  serve(cache, 1, prompt);  // in one forward: the window has dropped the early pages
  EXPECT_EQ(held(cache, prompt), 24);
  Prompt shorter = prompt;
  shorter.resize(12);
  const int64_t inside = held(cache, shorter);
  EXPECT_LE(inside, 12);
  Ask ask(shorter);
  const int64_t hit = attached(cache, 2, ask.all().whole());
  EXPECT_EQ(hit, inside);
  for (int32_t g = 0; g < 2; ++g) {
    const int64_t window = group_of(cache, g).window, page_size = group_of(cache, g).page_size;
    const int64_t first = window == 0 ? 0 : std::max<int64_t>(0, hit - window + 1);
    EXPECT_GE(static_cast<int64_t>(pages_of(cache, 2, g).size()),
              (hit - first + page_size - 1) / page_size)
        << "group " << g;
  }
  // Forward by forward every block of the window is published before it is dropped.
  const Prompt other = prompt_of(24, 9000);
  ASSERT_EQ(kvc_seq_add(cache.get(), 3, nullptr), KVC_OK);
  for (size_t i = 0; i < 24; i += 4)
    grow(cache, 3,
         Prompt(other.begin() + static_cast<ptrdiff_t>(i),
                other.begin() + static_cast<ptrdiff_t>(i) + 4));
  for (size_t length = 4; length <= 24; length += 4)
    EXPECT_EQ(held(cache, Prompt(other.begin(), other.begin() + static_cast<ptrdiff_t>(length))),
              static_cast<int64_t>(length));
  expect_consistent(cache);
}

TEST(PrefixLayers, WhenAWindowsPagesAreEvictedTheHitIsShorterOrGone) {
  Net net({attention_layer(), attention_layer(5)}, 40);
  Cache cache(bookkeeping(net));
  const Prompt prompt = prompt_of(24);
  publish(cache, prompt);
  ASSERT_EQ(held(cache, prompt), 24);
  int64_t last = 24;
  for (int step = 0; step < 40; ++step) {
    const int64_t evictable = stats_of(cache).pages_cached;
    int64_t freed = -1;
    ASSERT_EQ(kvc_prefix_evict(cache.get(), 1, &freed, nullptr), KVC_OK);
    EXPECT_GE(freed, std::min<int64_t>(1, evictable));
    const int64_t now = held(cache, prompt);
    EXPECT_LE(now, last) << "nothing comes back by itself";
    last = now;
    Ask ask(prompt);
    EXPECT_EQ(attached(cache, 1, ask.all().whole()), now);
    drop(cache, 1);
    expect_consistent(cache);
  }
  EXPECT_EQ(last, 0);
  EXPECT_EQ(stats_of(cache).pages_indexed, 0);
}

// Requests that share a system prompt, with another request between two of them.
TEST(PrefixLayers, HitsInsideABlockDoNotCostThePagesOfTheBlockBefore) {
  Net net({attention_layer(), attention_layer(32)}, 60);
  net.config.page_size = 16;
  Cache cache(bookkeeping(net));
  const Prompt system = prompt_of(50);
  std::vector<int64_t> hits;
  for (int32_t i = 0; i < 10; ++i) {
    hits.push_back(serve(cache, 1, joined(system, prompt_of(50, 100000 * (i + 1)))));
    drop(cache, 1);
    serve(cache, 2, prompt_of(200, -100000 * (i + 1)));
    drop(cache, 2);
  }
  EXPECT_EQ(hits, (std::vector<int64_t>{0, 50, 50, 50, 50, 50, 50, 50, 50, 50}));
  expect_consistent(cache);
}

TEST(PrefixLayers, ABlockIsAWholeNumberOfPagesOfEveryGroup) {
  kvc_layer narrow = attention_layer(8);
  kvc_layer wide = attention_layer();
  wide.num_kv_heads = 2;
  Net net({wide, narrow}, 64);
  Cache cache(bookkeeping(net));
  kvc_plan_info info{};
  info.struct_size = sizeof info;
  ASSERT_EQ(kvc_plan_info_get(cache.plan(), &info, nullptr), KVC_OK);
  for (int32_t g = 0; g < info.num_groups; ++g)
    EXPECT_EQ(info.prefix_block % group_of(cache, g).page_size, 0) << "group " << g;
  const int64_t block = info.prefix_block;
  const Prompt prompt = prompt_of(3 * block + 1);
  serve(cache, 1, prompt);
  serve(cache, 2, Prompt(prompt.begin(), prompt.begin() + 3 * block), "other");
  EXPECT_EQ(held(cache, Prompt(prompt.begin(), prompt.begin() + 3 * block), "other"), 3 * block);
  Ask ask(joined(Prompt(prompt.begin(), prompt.begin() + 3 * block), {5}), "other");
  EXPECT_EQ(attached(cache, 3, ask), 3 * block);
  for (int32_t g = 0; g < info.num_groups; ++g) {
    const std::vector<int64_t> two = pages_of(cache, 2, g), three = pages_of(cache, 3, g);
    ASSERT_FALSE(three.empty());
    EXPECT_EQ(three.back(), two.back()) << "group " << g;
  }
  expect_consistent(cache);
}

// Blocks of which one group has several pages: a prompt that leaves another one between them shares
// the first.
TEST(PrefixLayers, ABlockThatBeginsInsideAnotherOneIsPublishedWithPagesOfItsOwn) {
  kvc_layer wide = attention_layer();
  wide.num_kv_heads = 2;
  Net net({wide, attention_layer(8)}, 64);
  Cache cache(bookkeeping(net));
  int64_t block = 0, inner = INT64_MAX;
  for (int32_t g = 0; g < 2; ++g) {
    block = std::max<int64_t>(block, group_of(cache, g).page_size);
    inner = std::min<int64_t>(inner, group_of(cache, g).page_size);
  }
  ASSERT_LT(inner, block);
  const Prompt first = prompt_of(block),
               second = joined(Prompt(first.begin(), first.begin() + inner),
                               prompt_of(block - inner, 5000));
  serve(cache, 1, first);
  EXPECT_EQ(serve(cache, 2, second), inner);
  EXPECT_EQ(held(cache, second), block);
  EXPECT_EQ(held(cache, first), block);
  expect_consistent(cache);
}

TEST(PrefixLayers, AChunkHitsWhereTheNextTokenSeesNothingOfIt) {
  Net net({attention_layer(0, 8), attention_layer()}, 64);
  Cache cache(bookkeeping(net));
  const Prompt prompt = prompt_of(16);
  serve(cache, 1, prompt);
  EXPECT_EQ(held(cache, prompt), 16);
  Ask ask(joined(prompt, {1}));
  EXPECT_EQ(attached(cache, 2, ask), 16);
  add_tokens(cache, 2, 3);
  expect_consistent(cache);
}

// One ATTENTION layer and one STATE layer [2].
struct StateNet {
  StateNet() : net({attention_layer(), state_layer(specs)}, 32) {}
  std::vector<int64_t> shape{2};
  std::vector<kvc_state_spec> specs{state_spec(shape)};
  Net net;
};

class PrefixStates : public testing::Test {
 protected:
  PrefixStates() {
    model_.net.config.state_stride = 8;
    cache_ = std::make_unique<Cache>(model_.net.config);
  }
  ~PrefixStates() override { expect_consistent(*cache_); }
  kvc_cache* get() const { return cache_->get(); }
  void step(kvc_seq seq, const Prompt& tokens, double value) {
    ASSERT_EQ(begin_tokens(*cache_, {seq}, {static_cast<int64_t>(tokens.size())}, tokens), KVC_OK);
    HostTensor state(Elem::kF32, {1, 2});
    state.for_each([&](int64_t b, int64_t i, int64_t, int64_t) { state.set(value, b, i); });
    ASSERT_EQ(kvc_state_set(cache_->forward, 1, 0, state.dl(), nullptr), KVC_OK);
    cache_->finish();
  }
  double value_of(kvc_seq seq) {
    HostTensor state(Elem::kF32, {2});
    EXPECT_EQ(kvc_debug_get_state(get(), seq, 1, 0, state.dl(), nullptr, nullptr), KVC_OK);
    return state.get(1);
  }

  StateNet model_;
  std::unique_ptr<Cache> cache_;
};

TEST_F(PrefixStates, AHitEndsAtACheckpoint) {
  const Prompt prompt = prompt_of(20);
  const auto part = [&](ptrdiff_t begin, ptrdiff_t end) {
    return Prompt(prompt.begin() + begin, prompt.begin() + end);
  };
  Ask ask(prompt);
  ASSERT_EQ(attached(*cache_, 1, ask), 0);
  step(1, part(0, 8), 8);
  step(1, part(8, 18), 18);
  step(1, part(18, 20), 20);
  EXPECT_EQ(held(*cache_, prompt), 8)
      << "position 16 lies inside a forward, 20 is no multiple of the stride";
  ASSERT_EQ(attached(*cache_, 2, ask), 8) << "no hit inside a block either: there is no state";
  EXPECT_EQ(value_of(2), 8);
  step(2, {-1}, -1);
  EXPECT_EQ(value_of(1), 20);
  drop(*cache_, 1);
  drop(*cache_, 2);
  ASSERT_EQ(attached(*cache_, 3, ask), 8);
  EXPECT_EQ(value_of(3), 8) << "only the index holds it";
}

TEST_F(PrefixStates, ACheckpointOfTheHostsOwnServesAHit) {
  const Prompt prompt = prompt_of(12);
  Ask ask(joined(prompt, {1}));
  ASSERT_EQ(attached(*cache_, 1, ask), 0);
  step(1, prompt, 12);
  ASSERT_EQ(kvc_state_checkpoint(get(), 1, nullptr), KVC_OK);
  EXPECT_EQ(held(*cache_, prompt), 12) << "on the edge of a block that was published without it";
  ASSERT_EQ(attached(*cache_, 2, ask), 12);
  EXPECT_EQ(value_of(2), 12);
}

TEST_F(PrefixStates, ACheckpointPublishesOnlyWhatMayBePublished) {
  const Prompt prompt = prompt_of(12);
  Ask ask(prompt);
  ASSERT_EQ(attached(*cache_, 1, ask), 0);
  step(1, prompt, 12);
  ASSERT_EQ(kvc_prefix_reset(get(), nullptr), KVC_OK);
  ASSERT_EQ(kvc_state_checkpoint(get(), 1, nullptr), KVC_OK);
  EXPECT_EQ(stats_of(*cache_).prefix_blocks, 0) << "older than a reset";
  // What was evicted since is published anew, beside an open forward that counts on room of its
  // own.
  const Prompt other = prompt_of(12, 7000);
  ASSERT_EQ(kvc_seq_add(get(), 2, nullptr), KVC_OK);
  step(2, other, 12);
  ASSERT_EQ(kvc_seq_add(get(), 3, nullptr), KVC_OK);
  ASSERT_EQ(begin_tokens(*cache_, {3}, {8}, prompt_of(8, 9000)), KVC_OK);
  ASSERT_EQ(kvc_state_checkpoint(get(), 2, nullptr), KVC_OK);
  cache_->finish();
  EXPECT_EQ(held(*cache_, other), 12);
  EXPECT_EQ(stats_of(*cache_).prefix_blocks, 5);
}

TEST_F(PrefixStates, AStateThatDebuggingSetsIsNotThatOfThePublishedBlock) {
  const Prompt prompt = prompt_of(8);
  Ask ask(joined(prompt, {1}));
  ASSERT_EQ(attached(*cache_, 1, ask), 0);
  step(1, prompt, 8);
  HostTensor state(Elem::kF32, {2});
  state.for_each([&](int64_t i, int64_t, int64_t, int64_t) { state.set(-5, i); });
  ASSERT_EQ(kvc_debug_set_state(get(), 1, 1, 0, state.dl(), nullptr, nullptr), KVC_OK);
  EXPECT_EQ(value_of(1), -5);
  ASSERT_EQ(attached(*cache_, 2, ask), 8);
  EXPECT_EQ(value_of(2), 8);
  step(1, prompt_of(8, 3000), 16);
  EXPECT_EQ(held(*cache_, joined(prompt, prompt_of(8, 3000))), 8)
      << "nor is what was computed from it published";
}

TEST_F(PrefixStates, StatesOfTheIndexAreNotUsedAndGoWithIt) {
  const Prompt prompt = prompt_of(16);
  Ask ask(prompt);
  ASSERT_EQ(attached(*cache_, 1, ask), 0);
  step(1, Prompt(prompt.begin(), prompt.begin() + 8), 8);
  step(1, Prompt(prompt.begin() + 8, prompt.end()), 16);
  EXPECT_EQ(held(*cache_, prompt), 16);
  drop(*cache_, 1);
  EXPECT_EQ(stats_of(*cache_).state_slots_used, 0) << "what only the index holds is free";
  EXPECT_EQ(stats_of(*cache_).state_slots_cached, 2);
  EXPECT_EQ(held(*cache_, prompt), 16);
  int64_t freed = 0;
  ASSERT_EQ(kvc_prefix_evict(get(), 1, &freed, nullptr), KVC_OK);
  EXPECT_LE(held(*cache_, prompt), 8);
  ASSERT_EQ(kvc_prefix_reset(get(), nullptr), KVC_OK);
  EXPECT_EQ(held(*cache_, prompt), 0);
  EXPECT_EQ(kvc_cache_is_empty(get()), 1);
}

TEST_F(PrefixStates, APopReachesTheCheckpointsOfAHit) {
  const Prompt prompt = prompt_of(16);
  Ask ask(joined(prompt, {1}));
  ASSERT_EQ(attached(*cache_, 1, ask), 0);
  step(1, Prompt(prompt.begin(), prompt.begin() + 8), 8);
  step(1, Prompt(prompt.begin() + 8, prompt.end()), 16);
  ASSERT_EQ(attached(*cache_, 2, ask), 16);
  EXPECT_EQ(value_of(2), 16);
  int64_t nearest = -1;
  ASSERT_EQ(kvc_seq_can(get(), 2, KVC_SEQ_POP, 8, &nearest, nullptr), KVC_OK);
  if (nearest == 8) {
    ASSERT_EQ(kvc_seq_pop(get(), 2, 8, nullptr), KVC_OK);
    EXPECT_EQ(value_of(2), 8);
  }
  EXPECT_EQ(value_of(1), 16);
}

// Blocks of a model of states alone have no pages, and only those that end at a checkpoint have a
// state.
TEST(PrefixStatesAlone, APinnedBlockThatHoldsNothingStaysWhereAQuotaNeedsRoom) {
  const std::vector<int64_t> shape{3};
  const std::vector<kvc_state_spec> specs{state_spec(shape)};
  Net net({state_layer(specs), layer_of_kind(KVC_LAYER_NONE)}, 0);
  net.config.state_stride = 1024;
  Cache cache(bookkeeping(net));
  const uint64_t bytes = stats_of(cache).state_slot_bytes;
  ASSERT_EQ(kvc_prefix_quota_set(cache.get(), "a", 1, bytes, nullptr), KVC_OK);
  kvc_plan_info info{};
  info.struct_size = sizeof info;
  ASSERT_EQ(kvc_plan_info_get(cache.plan(), &info, nullptr), KVC_OK);
  const int64_t block = info.prefix_block;
  publish(cache, prompt_of(block), "a");
  Ask ask(prompt_of(block), "a");
  int64_t pinned = -1;
  ASSERT_EQ(kvc_prefix_pin(cache.get(), &ask.call, &pinned, nullptr), KVC_OK);
  EXPECT_EQ(pinned, block);
  for (const int32_t first : {5000, 9000}) {
    serve(cache, 1, prompt_of(block, first), "a");
    ASSERT_EQ(kvc_state_checkpoint(cache.get(), 1, nullptr), KVC_OK);
    drop(cache, 1);
    EXPECT_EQ(held(cache, prompt_of(block, first), "a"), block);
  }
  EXPECT_EQ(held(cache, prompt_of(block, 5000), "a"), 0) << "there is room for one state";
  EXPECT_EQ(stats_of(cache).prefix_pinned, 1);
  expect_consistent(cache);
}

TEST(PrefixLayers, LatentsAreSharedLikeKeys) {
  Net net({mla_layer(), mla_layer()}, 16);
  Cache cache(net.config);
  const Prompt prompt = prompt_of(9);
  Ask ask(prompt);
  ASSERT_EQ(attached(cache, 1, ask), 0);
  ASSERT_EQ(begin_tokens(cache, {1}, {9}, prompt), KVC_OK);
  HostTensor latent(Elem::kF32, {9, 1, kRank + kRopeDim});
  Random random(3);
  latent.fill_random(random);
  for (int32_t layer = 0; layer < 2; ++layer)
    ASSERT_EQ(kvc_mla_append(cache.forward, layer, latent.dl(), nullptr), KVC_OK);
  cache.end();
  drop(cache, 1);
  ASSERT_EQ(attached(cache, 2, ask), 8);
  HostTensor got(Elem::kF32, {2, 8, kRank + kRopeDim});
  ASSERT_EQ(kvc_debug_get_mla(cache.get(), 2, 0, 8, got.dl(), nullptr, nullptr), KVC_OK);
  for (int64_t layer = 0; layer < 2; ++layer)
    for (int64_t t = 0; t < 8; ++t) EXPECT_EQ(got.get(layer, t, 5), latent.get(t, 0, 5));
  expect_consistent(cache);
}

TEST(PrefixLayers, AttentionOverAHitIsAttentionOverTheWholePrompt) {
  Net net({attention_layer()}, 16);
  Cache cache(net.config);
  const Prompt prompt = prompt_of(10);
  Tokens rows(10);
  HostTensor whole(Elem::kF32, {10, kHeads, kDim}), rest(Elem::kF32, {10, kHeads, kDim});
  Ask ask(prompt);
  ASSERT_EQ(attached(cache, 1, ask), 0);
  ASSERT_EQ(begin_tokens(cache, {1}, {10}, prompt), KVC_OK);
  ASSERT_EQ(kvc_attn(cache.forward, 0, nullptr, rows.q.dl(), rows.k.dl(), rows.v.dl(), whole.dl(),
                     nullptr, nullptr),
            KVC_OK);
  cache.end();
  drop(cache, 1);
  ASSERT_EQ(attached(cache, 2, ask), 8);
  attend_rows(cache, 2, 0, rows, 8, 2, rest);
  for (int64_t row = 8; row < 10; ++row) {
    expect_row(rest, row, {rows, key_range(0, row + 1)}, row);
    for (int64_t d = 0; d < kDim; ++d) EXPECT_NEAR(rest.get(row, 1, d), whole.get(row, 1, d), 1e-5);
  }
  expect_consistent(cache);
}

}  // namespace
}  // namespace kvc::test
