// Every state that a sequence can be in, through a file and back: it is saved again as the same
// bytes, and goes on like the one that stayed.
#include "tests/capi/prefix_fixture.h"
#include "tests/capi/state_files.h"

namespace kvc::test {
namespace {

constexpr uint64_t kSeed = 41;

void checkpoint(Cache& cache, kvc_seq seq) {
  ASSERT_EQ(kvc_state_checkpoint(cache.get(), seq, nullptr), KVC_OK);
}
void pop(Cache& cache, kvc_seq seq, int64_t count) {
  kvc_error error{};
  ASSERT_EQ(kvc_seq_pop(cache.get(), seq, count, &error), KVC_OK) << error.message;
}
void fork(Cache& cache, kvc_seq parent, kvc_seq child, int64_t position) {
  kvc_error error{};
  ASSERT_EQ(kvc_seq_fork(cache.get(), parent, child, position, &error), KVC_OK) << error.message;
}

struct Case {
  const char* name;
  std::function<void(Cache&)> make;  // sequence 1 in its state
};

// Loads into a second cache, whose free pages hold something else. Both then do the same.
void through_a_file(const kvc_config& config, const Case& c) {
  SCOPED_TRACE(c.name);
  Cache first(config), second(config);
  ASSERT_NO_FATAL_FAILURE(c.make(first));
  const Bytes file = saved(first, {1});
  overwrite_free_pages(second);
  expect_ok([&](kvc_error* err) { return load(second, {1}, file, err); });
  EXPECT_TRUE(saved(second, {1}) == file) << "saved again it differs";
  expect_same_info(info_of(first, 1), info_of(second, 1));
  EXPECT_EQ(kvc_cache_check(second.get(), nullptr), KVC_OK);

  const auto both = [&](auto&& call) {
    kvc_error a{}, b{};
    const kvc_status status = call(first, &a);
    EXPECT_EQ(status, call(second, &b)) << a.message << " / " << b.message;
    EXPECT_STREQ(a.message, b.message);
    EXPECT_EQ(a.detail, b.detail);
    return status;
  };
  // Where each may be cut is the same, too.
  for (int64_t position = 0; position <= length_of(first, 1); ++position) {
    if (both([&](Cache& cache, kvc_error* err) {
          return kvc_seq_fork(cache.get(), 1, 90, position, err);
        }) != KVC_OK)
      continue;
    EXPECT_TRUE(saved(first, {90}) == saved(second, {90})) << "cut at " << position;
    for (Cache* cache : {&first, &second})
      ASSERT_EQ(kvc_seq_remove(cache->get(), 90, nullptr), KVC_OK);
  }
  for (const int64_t count : {1, 5}) {
    for (Cache* cache : {&first, &second}) append_pattern(*cache, 1, count, 7);
    EXPECT_TRUE(saved(first, {1}) == saved(second, {1})) << "after " << count << " more tokens";
  }
  both([&](Cache& cache, kvc_error* err) { return kvc_seq_pop(cache.get(), 1, 3, err); });
  EXPECT_TRUE(saved(first, {1}) == saved(second, {1}));
  for (Cache* cache : {&first, &second}) EXPECT_EQ(kvc_cache_check(cache->get(), nullptr), KVC_OK);
}

TEST(StateFilesOfEveryState, ComeBackAndGoOnAlike) {
  const Case cases[] = {
      {"empty", [](Cache& cache) { ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK); }},
      {"empty, initial state kept",
       [](Cache& cache) {
         ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
         checkpoint(cache, 1);
       }},
      {"one token", [](Cache& cache) { append_pattern(cache, 1, 1, kSeed); }},
      {"on a page edge", [](Cache& cache) { append_pattern(cache, 1, 12, kSeed); }},
      {"checkpoints at every position",
       [](Cache& cache) {
         ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
         checkpoint(cache, 1);
         for (int i = 0; i < 10; ++i) {
           append_pattern(cache, 1, 1, kSeed);
           checkpoint(cache, 1);
         }
       }},
      {"popped to a checkpoint",
       [](Cache& cache) {
         append_pattern(cache, 1, 5, kSeed);
         checkpoint(cache, 1);
         append_pattern(cache, 1, 2, kSeed);
         pop(cache, 1, 2);
       }},
      {"popped to its beginning",
       [](Cache& cache) {
         append_pattern(cache, 1, 7, kSeed);
         pop(cache, 1, 7);
       }},
      {"forked inside a page, both went on",
       [](Cache& cache) {
         append_pattern(cache, 2, 6, kSeed);
         fork(cache, 2, 1, -1);
         append_pattern(cache, 1, 3, kSeed);
         append_pattern(cache, 2, 2, 5);
       }},
      {"forked, the parent is gone",
       [](Cache& cache) {
         append_pattern(cache, 2, 6, kSeed);
         fork(cache, 2, 1, -1);
         ASSERT_EQ(kvc_seq_remove(cache.get(), 2, nullptr), KVC_OK);
       }},
      {"encoder tokens", [](Cache& cache) { append_pattern(cache, 1, 3, kSeed, 7); }},
      {"encoder tokens, all decoder tokens popped",
       [](Cache& cache) {
         append_pattern(cache, 1, 3, kSeed, 7);
         pop(cache, 1, 3);
       }},
      {"behind its windows", [](Cache& cache) { append_pattern(cache, 1, 40, kSeed); }},
      {"swapped out and in",
       [](Cache& cache) {
         append_pattern(cache, 1, 9, kSeed, 5);
         checkpoint(cache, 1);
         ASSERT_EQ(swap_out(cache, {1}), KVC_OK);
         overwrite_free_pages(cache);
         ASSERT_EQ(swap_in(cache, {1}), KVC_OK);
       }},
      {"reserved tokens",
       [](Cache& cache) {
         append_pattern(cache, 1, 5, kSeed);
         ASSERT_EQ(kvc_seq_reserve(cache.get(), 1, 6, nullptr), KVC_OK);
       }},
  };
  for (const kvc_pool_layout layout : {KVC_POOL_LAYER_FIRST, KVC_POOL_PAGE_FIRST}) {
    AllKinds model(layout);
    model.net.config.num_pages = 160;
    set_host_pages(model.net.config, 40);
    for (const Case& c : cases) through_a_file(model.net.config, c);
  }
}

TEST(StateFilesOfEveryState, OfPositionsAndWindowsAsWell) {
  const auto tree = [](Cache& cache) {
    append_pattern(cache, 1, 6, kSeed);
    const std::vector<int32_t> parents{-1, 0, 0, 1};
    ASSERT_EQ(cache.begin_with({.seqs = {1}, .lengths = {4}, .parents = parents}), KVC_OK);
    cache.finish();
    const kvc_seq seq = 1;
    const int32_t leaf = 3;
    ASSERT_EQ(kvc_tree_commit(cache.get(), 1, &seq, &leaf, nullptr, nullptr), KVC_OK);
  };
  const Case cases[] = {
      {"a tree was committed", tree},
      {"shifted",
       [](Cache& cache) {
         append_pattern(cache, 1, 14, kSeed);
         kvc_error error{};
         ASSERT_EQ(kvc_seq_shift(cache.get(), 1, 3, 8, -5, &error), KVC_OK) << error.message;
       }},
      {"shifted twice and popped into the first cut",
       [](Cache& cache) {
         append_pattern(cache, 1, 20, kSeed);
         ASSERT_EQ(kvc_seq_shift(cache.get(), 1, 3, 8, -5, nullptr), KVC_OK);
         ASSERT_EQ(kvc_seq_shift(cache.get(), 1, 9, 11, -2, nullptr), KVC_OK);
         pop(cache, 1, 5);
       }},
      {"a window with sink tokens",
       [](Cache& cache) {
         append_pattern(cache, 1, 30, kSeed);
         ASSERT_EQ(kvc_seq_set_window(cache.get(), 1, 9, 2, nullptr), KVC_OK);
         append_pattern(cache, 1, 3, kSeed);
       }},
      {"a window wider than the sequence",
       [](Cache& cache) {
         append_pattern(cache, 1, 3, kSeed);
         ASSERT_EQ(kvc_seq_set_window(cache.get(), 1, 100, 4, nullptr), KVC_OK);
       }},
      {"a window that was given up",
       [](Cache& cache) {
         append_pattern(cache, 1, 5, kSeed);
         ASSERT_EQ(kvc_seq_set_window(cache.get(), 1, 9, 2, nullptr), KVC_OK);
         ASSERT_EQ(kvc_seq_set_window(cache.get(), 1, 5, 0, nullptr), KVC_OK);
         append_pattern(cache, 1, 8, kSeed);
       }},
  };
  for (const kvc_rope_mode mode : {KVC_ROPE_ON_READ, KVC_ROPE_ON_APPEND}) {
    const kvc_rope rope = rope_of(mode);
    kvc_layer layer = attention_layer();
    layer.rope = &rope;
    Net net({layer, layer}, 160);
    for (const Case& c : cases) through_a_file(net.config, c);
  }
}

// A page of rows that no position has rotated moves along when tokens before it are taken out,
// while a fork has it where it was.
TEST(StateFilesOfEveryState, AShiftedSequenceAndItsForkShareAPageAtTwoPositions) {
  for (const kvc_rope_mode mode : {KVC_ROPE_ON_READ, KVC_ROPE_ON_APPEND, KVC_ROPE_NONE}) {
    const kvc_rope rope = rope_of(mode);
    kvc_layer layer = attention_layer();
    if (mode != KVC_ROPE_NONE) layer.rope = &rope;
    Net net({layer}, 32);
    Cache first(net.config), second(net.config);
    append_pattern(first, 1, 16, kSeed);
    fork(first, 1, 2, -1);
    ASSERT_EQ(kvc_seq_shift(first.get(), 1, 4, 8, -4, nullptr), KVC_OK);
    const Bytes file = saved(first, {1, 2});
    EXPECT_EQ(pages_of(first, 1, 0)[1] == pages_of(first, 2, 0)[2], mode != KVC_ROPE_ON_APPEND);
    expect_ok([&](kvc_error* err) { return load(second, {1, 2}, file, err); });
    expect_consistent(second);
    EXPECT_TRUE(saved(second, {1, 2}) == file);
    EXPECT_EQ(stats_of(second).pages_used, stats_of(first).pages_used);
  }
}

TEST(StateFilesOfEveryState, OfPrefixHitsAsWell) {
  const auto hit = [](int64_t tokens) {
    return [tokens](Cache& cache) {
      const Prompt prompt = prompt_of(13);
      append_pattern(cache, 2, 8, kSeed, 0, {prompt.begin(), prompt.begin() + 8});
      append_pattern(cache, 2, 5, kSeed, 0, {prompt.begin() + 8, prompt.end()});
      Ask ask(prompt_of(tokens));
      EXPECT_GT(attached(cache, 1, ask), 0);
    };
  };
  std::vector<int64_t> shape{2, 3};
  std::vector<kvc_state_spec> specs{state_spec(shape)};
  Net with_states({attention_layer(), attention_layer(8), state_layer(specs)}, 160);
  with_states.config.state_stride = 4;
  Net without({attention_layer(), attention_layer(8)}, 160);
  through_a_file(with_states.config, {"on a checkpoint", hit(13)});
  through_a_file(without.config, {"whole blocks", hit(9)});
  through_a_file(without.config, {"inside a block", hit(12)});
}

}  // namespace
}  // namespace kvc::test
