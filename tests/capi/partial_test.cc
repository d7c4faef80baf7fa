// Forwards that end without K and V in every layer: refused, or said to be partial and never
// published.
#include "tests/capi/prefix_fixture.h"

namespace kvc::test {
namespace {

// `count` rows of K and V that hold `value` go to a layer of the open forward.
void append_value(Cache& cache, int32_t layer, int64_t count, double value) {
  HostTensor rows(Elem::kF32, {count, 1, kDim});
  rows.for_each([&](int64_t t, int64_t h, int64_t d, int64_t) { rows.set(value, t, h, d); });
  kvc_error error{};
  ASSERT_EQ(kvc_kv_append(cache.forward, layer, rows.dl(), rows.dl(), &error), KVC_OK)
      << error.message;
}

kvc_status begin_partial(Cache& cache, kvc_seq seq, const Prompt& tokens,
                         const std::vector<int32_t>& parents = {}) {
  const auto count = static_cast<int64_t>(tokens.size());
  kvc_forward_desc desc{};
  desc.struct_size = sizeof desc;
  desc.num_seqs = 1;
  desc.seqs = &seq;
  desc.append_lengths = &count;
  desc.tokens = tokens.data();
  desc.tree_parents = parents.empty() ? nullptr : parents.data();
  desc.flags = KVC_FORWARD_PARTIAL;
  return kvc_forward_begin(cache.get(), &desc, &cache.forward, nullptr);
}

// The largest element of K of one layer of a sequence.
double largest_k(const Cache& cache, kvc_seq seq, int32_t layer) {
  const int64_t length = length_of(cache, seq);
  HostTensor k(Elem::kF32, {length, 1, kDim});
  EXPECT_EQ(
      kvc_debug_get_layer(cache.get(), seq, layer, 0, length, k.dl(), nullptr, nullptr, nullptr),
      KVC_OK);
  double largest = -1e30;
  k.for_each([&](int64_t t, int64_t h, int64_t d, int64_t) {
    largest = std::max(largest, k.get(t, h, d));
  });
  return largest;
}

// Two layers, blocks of 4 tokens.
class PartialForward : public testing::Test {
 protected:
  ~PartialForward() override { expect_consistent(cache_); }
  kvc_cache* get() const { return cache_.get(); }
  // A partial forward with K and V in layer 0 alone.
  void grow_layer_0(kvc_seq seq, const Prompt& tokens) {
    ASSERT_EQ(begin_partial(cache_, seq, tokens), KVC_OK);
    append_value(cache_, 0, static_cast<int64_t>(tokens.size()), 1);
    cache_.end();
  }

  Net net_{{attention_layer(), attention_layer()}, 16};
  Cache cache_{net_.config};
};

TEST_F(PartialForward, ALayerThatOneTenantForgetsIsNotReadByAnother) {
  const Prompt theirs = prompt_of(8), prompt = prompt_of(8, 5000);
  ASSERT_EQ(kvc_seq_add(get(), 1, nullptr), KVC_OK);
  ASSERT_EQ(begin_tokens(cache_, {1}, {8}, theirs), KVC_OK);
  for (int32_t layer = 0; layer < 2; ++layer) append_value(cache_, layer, 8, 777);
  cache_.end();
  drop(cache_, 1);
  ASSERT_EQ(kvc_prefix_reset(get(), nullptr), KVC_OK);
  // Another tenant, in the same pages.
  Ask ask(prompt, "tenant 2");
  ASSERT_EQ(attached(cache_, 2, ask), 0);
  ASSERT_EQ(begin_tokens(cache_, {2}, {8}, prompt), KVC_OK);
  append_value(cache_, 0, 8, 1);
  expect_refused(cache_, KVC_E_INVALID_STATE,
                 {"1 of 2 layers", "layer 1", "8 tokens", "KVC_FORWARD_PARTIAL"},
                 [&](kvc_error* err) { return kvc_forward_end(cache_.forward, err); });
  cache_.abort();
  grow_layer_0(2, prompt);
  EXPECT_EQ(held(cache_, prompt, "tenant 2"), 0);
  Ask again(prompt, "tenant 2");
  EXPECT_EQ(attached(cache_, 3, again.all()), 0);
  EXPECT_EQ(stats_of(cache_).prefix_blocks, 0);
}

TEST_F(PartialForward, EndNamesTheLayersAndGoesOnAfterTheyAreAppended) {
  ASSERT_EQ(kvc_seq_add(get(), 1, nullptr), KVC_OK);
  ASSERT_EQ(begin_tokens(cache_, {1}, {4}, prompt_of(4)), KVC_OK);
  kvc_error error = expect_refused(cache_, KVC_E_INVALID_STATE, {"2 of 2 layers", "layer 0 to 1"},
                                   [&](auto* err) { return kvc_forward_end(cache_.forward, err); });
  EXPECT_EQ(error.detail, 0);
  append_value(cache_, 0, 4, 3);
  error = expect_refused(cache_, KVC_E_INVALID_STATE, {"1 of 2 layers", "layer 1"},
                         [&](kvc_error* err) { return kvc_forward_end(cache_.forward, err); });
  EXPECT_EQ(error.detail, 1);
  append_value(cache_, 1, 4, 4);
  expect_ok([&](kvc_error* err) { return kvc_forward_end(cache_.forward, err); });
  EXPECT_EQ(held(cache_, prompt_of(4)), 4);
}

TEST(PartialLayers, AreAskedForByTheirKinds) {
  const std::vector<int64_t> shape{2};
  const std::vector<kvc_state_spec> states{state_spec(shape)};
  Net net({layer_of_kind(KVC_LAYER_NONE), attention_layer(), shared_layer(1), mla_layer(),
           cross_layer(), state_layer(states)});
  Cache cache(net.config);
  ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  const auto refused = [&](std::initializer_list<const char*> parts) {
    expect_refused(cache, KVC_E_INVALID_STATE, parts,
                   [&](kvc_error* err) { return kvc_forward_end(cache.forward, err); });
  };
  ASSERT_EQ(cache.begin_with({{1}, {3}, {}, {5}}), KVC_OK);
  refused({"3 of 6 layers", "layer 1, 3 to 4", "3 tokens"});
  ASSERT_EQ(append_some(cache, 1, nullptr), KVC_OK);
  ASSERT_EQ(append_some(cache, 3, nullptr), KVC_OK);
  refused({"1 of 6 layers", "layer 4"});
  ASSERT_EQ(append_some(cache, 4, nullptr), KVC_OK);
  cache.end();
  // The encoder's tokens are there: nothing more is written to a CROSS layer.
  ASSERT_EQ(cache.begin({1}, {1}), KVC_OK);
  ASSERT_EQ(append_some(cache, 1, nullptr), KVC_OK);
  refused({"1 of 6 layers", "layer 3"});
  ASSERT_EQ(append_some(cache, 3, nullptr), KVC_OK);
  cache.end();
  EXPECT_EQ(length_of(cache, 1), 4);
}

TEST(PartialLayers, OfAPipelineStageHaveTheirGlobalIds) {
  Net net({attention_layer(), attention_layer(), attention_layer(), attention_layer()});
  net.config.layer_begin = 1;
  net.config.layer_end = 4;
  Cache cache(net.config);
  ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  ASSERT_EQ(cache.begin({1}, {1}), KVC_OK);
  ASSERT_EQ(append_some(cache, 2, nullptr), KVC_OK);
  const kvc_error error =
      expect_error(KVC_E_INVALID_STATE, {"2 of 3 layers", "layer 1, 3)"},
                   [&](auto* err) { return kvc_forward_end(cache.forward, err); });
  EXPECT_EQ(error.detail, 1);
}

TEST(PartialHosts, ThatCanWritePagesThemselvesAreNotAsked) {
  Net none({attention_layer()});
  none.config.storage = KVC_STORAGE_NONE;
  Net exported({attention_layer()});
  for (Net* net : {&none, &exported}) {
    Cache cache(net->config);
    ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
    if (net == &exported) {
      ASSERT_EQ(begin_tokens(cache, {1}, {8}, prompt_of(8)), KVC_OK);
      expect_error(KVC_E_INVALID_STATE, {"layer 0"},
                   [&](kvc_error* err) { return kvc_forward_end(cache.forward, err); });
      cache.abort();
      DLManagedTensorVersioned* pool = nullptr;
      ASSERT_EQ(kvc_export_pool(cache.get(), 0, KVC_POOL_KV, &pool, nullptr), KVC_OK);
      pool->deleter(pool);
    }
    ASSERT_EQ(begin_tokens(cache, {1}, {8}, prompt_of(8)), KVC_OK);
    cache.end();
    EXPECT_EQ(held(cache, prompt_of(8)), 8);
    // They may say that they have not written all.
    ASSERT_EQ(kvc_seq_add(cache.get(), 2, nullptr), KVC_OK);
    ASSERT_EQ(begin_partial(cache, 2, prompt_of(8, 5000)), KVC_OK);
    cache.end();
    EXPECT_EQ(held(cache, prompt_of(8, 5000)), 0);
  }
}

TEST_F(PartialForward, PublishesNothingLaterEither) {
  const Prompt prompt = prompt_of(16);
  const auto part = [&](size_t begin, size_t end) {
    return Prompt(prompt.begin() + static_cast<ptrdiff_t>(begin),
                  prompt.begin() + static_cast<ptrdiff_t>(end));
  };
  ASSERT_EQ(kvc_seq_add(get(), 1, nullptr), KVC_OK);
  grow(cache_, 1, part(0, 6));
  EXPECT_EQ(held(cache_, prompt), 4);
  grow_layer_0(1, part(6, 10));
  EXPECT_EQ(held(cache_, prompt), 4);
  EXPECT_EQ(info_of(cache_, 1).known_tokens, 6) << "the others' blocks can never be published";
  grow(cache_, 1, part(10, 16));
  EXPECT_EQ(held(cache_, prompt), 4) << "at the end of a later, complete forward";
  Ask ask(prompt);
  EXPECT_EQ(inserted(cache_, 1, ask), 4) << "by kvc_prefix_insert";
  EXPECT_EQ(held(cache_, prompt), 4);
  ASSERT_EQ(kvc_seq_fork(get(), 1, 2, -1, nullptr), KVC_OK);
  Ask of_fork(prompt);
  EXPECT_EQ(inserted(cache_, 2, of_fork), 4) << "by a fork";
  grow(cache_, 2, {1, 2, 3, 4});
  EXPECT_EQ(held(cache_, prompt), 4);
  EXPECT_EQ(stats_of(cache_).prefix_blocks, 1);
  // A fork of what is written, and a pop back to it, are as good as new.
  ASSERT_EQ(kvc_seq_fork(get(), 1, 3, 6, nullptr), KVC_OK);
  grow(cache_, 3, part(6, 16));
  EXPECT_EQ(held(cache_, prompt), 16);
  const Prompt other = joined(part(0, 6), prompt_of(10, 7000));
  ASSERT_EQ(kvc_seq_pop(get(), 1, 9, nullptr), KVC_OK);
  grow(cache_, 1, Prompt(other.begin() + 7, other.end()));
  EXPECT_EQ(stats_of(cache_).prefix_blocks, 4) << "token 6 is unwritten";
  ASSERT_EQ(kvc_seq_pop(get(), 1, 10, nullptr), KVC_OK);
  grow(cache_, 1, Prompt(other.begin() + 6, other.end()));
  EXPECT_EQ(held(cache_, other), 16);
}

TEST(PartialSwap, ASequenceThatComesBackPublishesNoMoreThanBefore) {
  Net net({attention_layer(), attention_layer()}, 16);
  net.config.host_byte_budget = 1 << 20;
  Cache cache(net.config);
  ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  const Prompt prompt = prompt_of(12);
  grow(cache, 1, Prompt(prompt.begin(), prompt.begin() + 4));
  ASSERT_EQ(begin_partial(cache, 1, Prompt(prompt.begin() + 4, prompt.begin() + 8)), KVC_OK);
  append_value(cache, 1, 4, 1);
  cache.end();
  grow(cache, 1, Prompt(prompt.begin() + 8, prompt.end()));
  const kvc_seq seq = 1;
  ASSERT_EQ(kvc_swap_out(cache.get(), 1, &seq, nullptr, nullptr, nullptr), KVC_OK);
  ASSERT_EQ(kvc_swap_in(cache.get(), 1, &seq, nullptr, nullptr, nullptr), KVC_OK);
  EXPECT_EQ(held(cache, prompt), 4);
  EXPECT_EQ(stats_of(cache).prefix_blocks, 1);
  expect_consistent(cache);
}

TEST_F(PartialForward, NodesOfATreeAreUnwrittenOneByOne) {
  const Prompt prompt = prompt_of(3);
  const kvc_seq seq = 1;
  for (const int32_t leaf : {1, 3}) {
    ASSERT_EQ(kvc_seq_add(get(), seq, nullptr), KVC_OK);
    grow(cache_, seq, prompt);
    // 10 - 11 are written in all layers, 20 - 21 in layer 0 alone.
    ASSERT_EQ(begin_tokens(cache_, {seq}, {2}, {10, 11}, {-1, 0}), KVC_OK);
    cache_.finish();
    ASSERT_EQ(begin_partial(cache_, seq, {20, 21}, {0, 2}), KVC_OK);
    append_value(cache_, 0, 2, 1);
    cache_.end();
    ASSERT_EQ(kvc_tree_commit(get(), 1, &seq, &leaf, nullptr, nullptr), KVC_OK);
    grow(cache_, seq, {30, 31, 32, 33});
    const Prompt path = leaf == 1 ? Prompt{10, 11} : Prompt{10, 20, 21};
    EXPECT_EQ(held(cache_, joined(joined(prompt, path), {30, 31, 32, 33})), leaf == 1 ? 8 : 4)
        << "leaf " << leaf;
    drop(cache_, seq);
    ASSERT_EQ(kvc_prefix_reset(get(), nullptr), KVC_OK);
  }
}

TEST_F(PartialForward, WithAllLayersPublishesAtTheNextEnd) {
  ASSERT_EQ(kvc_seq_add(get(), 1, nullptr), KVC_OK);
  ASSERT_EQ(begin_partial(cache_, 1, prompt_of(4)), KVC_OK);
  for (int32_t layer = 0; layer < 2; ++layer) append_value(cache_, layer, 4, 1);
  cache_.end();
  EXPECT_EQ(held(cache_, prompt_of(4)), 0);
  grow(cache_, 1, {1});
  EXPECT_EQ(held(cache_, prompt_of(4)), 4) << "nothing of it is unwritten";
}

TEST_F(PartialForward, WhatDebuggingWritesIsNotPublished) {
  ASSERT_EQ(kvc_seq_add(get(), 1, nullptr), KVC_OK);
  grow_layer_0(1, prompt_of(8));
  HostTensor rows(Elem::kF32, {8, 1, kDim});
  Random random(1);
  rows.fill_random(random);
  ASSERT_EQ(kvc_debug_set_layer(get(), 1, 1, 0, rows.dl(), rows.dl(), nullptr, nullptr), KVC_OK);
  grow(cache_, 1, {1, 2, 3, 4});
  EXPECT_EQ(stats_of(cache_).prefix_blocks, 0);
}

TEST_F(PartialForward, AShiftKeepsUnwrittenTokensUnwritten) {
  ASSERT_EQ(kvc_seq_add(get(), 1, nullptr), KVC_OK);
  grow(cache_, 1, prompt_of(6));
  grow_layer_0(1, {1, 2, 3, 4});
  ASSERT_EQ(kvc_seq_shift(get(), 1, 0, 4, -4, nullptr), KVC_OK);
  expect_consistent(cache_);
  ASSERT_EQ(kvc_seq_shift(get(), 1, 1, 6, -5, nullptr), KVC_OK);
  EXPECT_EQ(length_of(cache_, 1), 1);
  expect_consistent(cache_);
}

TEST(PartialFlags, OthersAreRefusedByName) {
  Net net({attention_layer()});
  Cache cache(net.config);
  ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  Request request{{1}, {1}};
  request.flags = 8;
  expect_refused(cache, KVC_E_UNSUPPORTED, {"flags = 8", "KVC_FORWARD_PARTIAL "},
                 [&](kvc_error* err) { return cache.begin_with(request, err); });
}

// ------------------------------------------------------------------------------------------ pages
// in zeros

// What a partial forward reads in the layer that it left out, in pages that held 777. The cache
// leaves the rows of an exported pool to the host.
double read_back(kvc_config config, uint64_t flags, bool is_exported) {
  config.flags = flags;
  Cache cache(config);
  if (is_exported) {
    DLManagedTensorVersioned* pool = nullptr;
    EXPECT_EQ(kvc_export_pool(cache.get(), 0, KVC_POOL_KV, &pool, nullptr), KVC_OK);
    pool->deleter(pool);
  }
  EXPECT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  EXPECT_EQ(cache.begin({1}, {30}), KVC_OK);
  for (int32_t layer = 0; layer < 2; ++layer) append_value(cache, layer, 30, 777);
  cache.end();
  EXPECT_EQ(kvc_seq_remove(cache.get(), 1, nullptr), KVC_OK);
  EXPECT_EQ(kvc_seq_add(cache.get(), 2, nullptr), KVC_OK);
  EXPECT_EQ(begin_partial(cache, 2, prompt_of(30)), KVC_OK);
  append_value(cache, 0, 30, 1);
  cache.end();
  EXPECT_EQ(largest_k(cache, 2, 0), 1);
  return largest_k(cache, 2, 1);
}

TEST(ClearedPages, ShowNothingOfWhoHadThemBefore) {
  for (const kvc_pool_layout layout : {KVC_POOL_LAYER_FIRST, KVC_POOL_PAGE_FIRST}) {
    for (const int32_t threads : {1, 3}) {
      Net net({attention_layer(), attention_layer()}, 8);
      net.config.pool_layout = layout;
      net.config.num_threads = threads;
      EXPECT_EQ(read_back(net.config, 0, true), 777) << "so the test can fail";
      EXPECT_EQ(read_back(net.config, 0, false), 0);
      EXPECT_EQ(read_back(net.config, KVC_CONFIG_CLEAR_PAGES, true), 0);
    }
  }
}

TEST(ClearedPages, OfTheHostAreClearedWithoutWhatLiesBetweenThem) {
  Net net({attention_layer(), attention_layer()}, 8);
  net.config.storage = KVC_STORAGE_BORROWED;
  constexpr int64_t kFloats = 2 * 4 * kDim, kGap = 8;
  std::vector<float> memory[2];
  int64_t shape[] = {8, kFloats}, strides[] = {kFloats + kGap, 1};
  DLTensor tensors[2]{};
  const DLTensor* pools[] = {&tensors[0], &tensors[1]};
  for (size_t i = 0; i < 2; ++i) {
    memory[i].assign(8 * (kFloats + kGap), 777);
    tensors[i] = {memory[i].data(), {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, shape, strides, 0};
  }
  net.config.num_pages = 0;
  net.config.pool_tensors = pools;
  net.config.num_pool_tensors = 2;
  net.config.flags = KVC_CONFIG_CLEAR_PAGES;
  Cache cache(net.config);
  ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  ASSERT_EQ(cache.begin({1}, {9}), KVC_OK) << "three pages";
  for (const std::vector<float>& pool : memory) {
    EXPECT_EQ(std::count(pool.begin(), pool.end(), 0.0f), 3 * kFloats);
    EXPECT_EQ(std::count(pool.begin(), pool.end(), 777.0f), 5 * kFloats + 8 * kGap);
  }
}

TEST(ClearedPages, OfLargePoolsAreClearedByManyThreads) {
  kvc_layer wide = attention_layer();
  wide.k_dim = 256;
  Net net({wide}, 600);
  net.config.num_threads = 4;
  net.config.flags = KVC_CONFIG_CLEAR_PAGES;
  Cache cache(net.config);
  std::vector<kvc_seq> seqs;
  for (kvc_seq seq = 0; seq < 2; ++seq) {
    ASSERT_EQ(kvc_seq_add(cache.get(), seq, nullptr), KVC_OK);
    ASSERT_EQ(cache.begin({seq}, {2000}), KVC_OK);
    HostTensor rows(Elem::kF32, {2000, 1, 256});
    rows.for_each([&](int64_t t, int64_t h, int64_t d, int64_t) { rows.set(777, t, h, d); });
    if (seq == 0) {
      ASSERT_EQ(kvc_kv_append(cache.forward, 0, rows.dl(), rows.dl(), nullptr), KVC_OK);
      cache.end();
      drop(cache, seq);
      continue;
    }
    cache.abort();
    ASSERT_EQ(begin_partial(cache, seq, prompt_of(2000)), KVC_OK);
    cache.end();
    ASSERT_EQ(
        kvc_debug_get_layer(cache.get(), seq, 0, 0, 2000, rows.dl(), nullptr, nullptr, nullptr),
        KVC_OK);
    rows.for_each(
        [&](int64_t t, int64_t h, int64_t d, int64_t) { ASSERT_EQ(rows.get(t, h, d), 0); });
  }
}

TEST(ClearedPages, KeepWhatASequenceHasWritten) {
  Net net({attention_layer(), attention_layer()}, 16);
  net.config.flags = KVC_CONFIG_CLEAR_PAGES;
  Cache cache(net.config);
  ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  for (const int64_t count : {6, 1, 3}) {
    ASSERT_EQ(cache.begin({1}, {count}), KVC_OK);
    for (int32_t layer = 0; layer < 2; ++layer) append_value(cache, layer, count, 5);
    cache.end();
  }
  ASSERT_EQ(kvc_seq_fork(cache.get(), 1, 2, 9, nullptr), KVC_OK);
  ASSERT_EQ(cache.begin({2}, {1}), KVC_OK) << "copies the last page";
  for (int32_t layer = 0; layer < 2; ++layer) append_value(cache, layer, 1, 6);
  cache.end();
  HostTensor k(Elem::kF32, {10, 1, kDim});
  for (const kvc_seq seq : {1, 2}) {
    ASSERT_EQ(kvc_debug_get_layer(cache.get(), seq, 1, 0, 10, k.dl(), nullptr, nullptr, nullptr),
              KVC_OK);
    for (int64_t t = 0; t < 10; ++t)
      EXPECT_EQ(k.get(t, 0, 3), seq == 2 && t == 9 ? 6 : 5) << seq << " " << t;
  }
}

TEST(ClearedPages, NeedAPool) {
  Net net({attention_layer()});
  net.config.flags = KVC_CONFIG_CLEAR_PAGES;
  net.config.storage = KVC_STORAGE_NONE;
  expect_error(KVC_E_UNSUPPORTED, {"config.storage = 2", "KVC_CONFIG_CLEAR_PAGES (2)"},
               [&](kvc_error* err) { return plan_status(net.config, err); });
  net.config.storage = KVC_STORAGE_OWNED;
  net.config.flags = 8;
  expect_error(KVC_E_UNSUPPORTED, {"config.flags = 8", "CLEAR_PAGES (2)"},
               [&](kvc_error* err) { return plan_status(net.config, err); });
}

}  // namespace
}  // namespace kvc::test
