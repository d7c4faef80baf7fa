// State files and the prefix index: what the index knows is shared and not taken twice.
#include "tests/capi/prefix_fixture.h"
#include "tests/capi/state_files.h"

namespace kvc::test {
namespace {

int64_t pinned(const Cache& cache, const Prompt& prompt) {
  Ask ask(prompt);
  int64_t tokens = -1;
  EXPECT_EQ(kvc_prefix_pin(cache.get(), &ask.call, &tokens, nullptr), KVC_OK);
  return tokens;
}

Bytes file_of(int64_t num_pages, const Prompt& prompt) {
  Net net({attention_layer()}, num_pages);
  Cache cache(net.config);
  serve(cache, 1, prompt);
  return saved(cache, {1});
}

TEST(StateFilesOfKnownBlocks, AskForNoPageThatTheIndexHolds) {
  const Prompt prompt = prompt_of(18 * 4);
  const Bytes file = file_of(20, prompt);
  Net net({attention_layer()}, 18);
  Cache cache(net.config);
  const Prompt known(prompt.begin(), prompt.begin() + 4);
  publish(cache, known);
  ASSERT_EQ(pinned(cache, known), 4);
  ASSERT_EQ(stats_of(cache).pages_available, 17);
  expect_ok([&](kvc_error* err) { return load(cache, {1}, file, err); });
  EXPECT_EQ(length_of(cache, 1), 18 * 4);
  EXPECT_EQ(stats_of(cache).pages_available, 0);
  expect_consistent(cache);
  EXPECT_EQ(saved(cache, {1}).size(), file.size());
}

TEST(StateFilesOfKnownBlocks, StillAskForThoseThatItDoesNotHold) {
  const Prompt prompt = prompt_of(18 * 4);
  const Bytes file = file_of(20, prompt);
  Net net({attention_layer()}, 18);
  Cache cache(net.config);
  publish(cache, Prompt(prompt.begin(), prompt.begin() + 8));  // Two blocks, not pinned.
  serve(cache, 7, prompt_of(4, 900000));
  const kvc_error error = expect_refused(cache, KVC_E_NO_PAGES, {"1 pages"}, [&](kvc_error* err) {
    return load(cache, {1}, file, err);
  });
  EXPECT_EQ(error.detail, 1);
  EXPECT_EQ(stats_of(cache).prefix_blocks, 3) << "a refused load evicts nothing";
  drop(cache, 7);
  expect_ok([&](kvc_error* err) { return load(cache, {1}, file, err); });
  expect_consistent(cache);
  EXPECT_EQ(saved(cache, {1}).size(), file.size());
}

TEST(StateFilesOfKnownBlocks, APartialPageStaysShared) {
  Net net({attention_layer()}, 16);
  Cache cache(net.config);
  const Prompt prompt = prompt_of(8);
  serve(cache, 1, prompt);
  ASSERT_EQ(kvc_seq_fork(cache.get(), 1, 2, 6, nullptr), KVC_OK);
  const Bytes file = saved(cache, {1, 2});
  // The index knows the blocks of sequence 1, whose second page both share.
  expect_ok([&](kvc_error* err) { return load(cache, {3, 4}, file, err); });
  EXPECT_EQ(pages_of(cache, 3, 0), pages_of(cache, 4, 0));
  EXPECT_EQ(saved(cache, {3, 4}).size(), file.size());
  for (const kvc_seq seq : {1, 2}) drop(cache, seq);
  grow(cache, 4, prompt_of(3, 7000));
  expect_consistent(cache);
  Net other({attention_layer()}, 16);
  Cache fresh(other.config);
  ASSERT_EQ(load(fresh, {3}, saved(cache, {3})), KVC_OK);
  EXPECT_EQ(saved(fresh, {3}), saved(cache, {3})) << "sequence 4 wrote into a page of its own";
}

// Rows of other weights: nobody hits them, and they don't mix with rows of the new ones.
TEST(StateFilesOfOtherWeights, AreLoadedWithoutTheIndex) {
  Net net({attention_layer()}, 16);
  Cache cache(net.config);
  const Prompt prompt = prompt_of(9);
  serve(cache, 1, prompt);
  const Bytes file = saved(cache, {1});
  drop(cache, 1);
  ASSERT_EQ(kvc_prefix_reset(cache.get(), nullptr), KVC_OK);
  kvc_load_desc desc = load_desc(file);
  desc.flags = KVC_LOAD_NO_PUBLISH;
  expect_ok([&](kvc_error* err) { return load(cache, {1}, desc, err); });
  EXPECT_EQ(length_of(cache, 1), 9);
  EXPECT_EQ(stats_of(cache).prefix_blocks, 0);
  EXPECT_EQ(info_of(cache, 1).known_tokens, 0);
  grow(cache, 1, prompt_of(8, 4000));
  EXPECT_EQ(stats_of(cache).prefix_blocks, 0) << "what follows them has seen them";
  serve(cache, 2, prompt);  // By the new weights.
  const int64_t blocks = stats_of(cache).prefix_blocks;
  EXPECT_EQ(blocks, 2);
  expect_ok([&](kvc_error* err) { return load(cache, {3}, desc, err); });
  for (const int32_t page : pages_of(cache, 3, 0))
    for (const int32_t other : pages_of(cache, 2, 0)) EXPECT_NE(page, other);
  EXPECT_EQ(stats_of(cache).prefix_blocks, blocks);
  // Emptied, it is as any other.
  ASSERT_EQ(kvc_seq_pop(cache.get(), 3, 9, nullptr), KVC_OK);
  grow(cache, 3, prompt_of(4, 9000));
  EXPECT_EQ(stats_of(cache).prefix_blocks, blocks + 1);
  expect_consistent(cache);
  desc.flags = 4;
  expect_refused(cache, KVC_E_UNSUPPORTED, {"desc.flags = 4", "3"},
                 [&](kvc_error* err) { return load(cache, {4}, desc, err); });
}

// Hashes are trusted: they may name an adapter that the keys beside the tokens leave out.
TEST(StateFilesOfGivenHashes, ComeBackAndStillServeNoTextBeforeAnImage) {
  const Prompt prompt = prompt_of(9);
  Net net({attention_layer()}, 16);
  Cache cache(net.config);
  Ask made(prompt), given(prompt), other(prompt);
  made.key(KVC_PREFIX_KEY_ADAPTER, 0, "lora").hashed(2, 4, false);
  given.call.hashes = made.hashes.data();
  given.call.num_hashes = 2;
  add_tokens(cache, 7, 9);
  EXPECT_EQ(inserted(cache, 7, given), 8);
  EXPECT_EQ(attached(cache, 1, given), 8);
  const Bytes file = saved(cache, {1});
  Net of_other({attention_layer()}, 16);
  Cache fresh(of_other.config);
  expect_ok([&](kvc_error* err) { return load(fresh, {1}, file, err); });
  expect_consistent(fresh);
  EXPECT_EQ(saved(fresh, {1}), file);
  EXPECT_EQ(matched(fresh, given.all()), 8);
  EXPECT_EQ(matched(fresh, other.key(KVC_PREFIX_KEY_MEDIA, 3, "dog").all()), 0);
}

TEST(StateFilesOfPartialForwards, HaveZerosWhereNoLayerWrote) {
  Net net({attention_layer(), attention_layer()}, 16);
  Cache clean(net.config), used(net.config);
  append_pattern(used, 7, 64, 99);  // All pages.
  ASSERT_EQ(kvc_seq_remove(used.get(), 7, nullptr), KVC_OK);
  for (Cache* cache : {&clean, &used}) {
    append_pattern(*cache, 1, 6, 41);
    const int64_t count = 9;
    const kvc_seq seq = 1;
    kvc_forward_desc desc{};
    desc.struct_size = sizeof desc;
    desc.num_seqs = 1;
    desc.seqs = &seq;
    desc.append_lengths = &count;
    desc.flags = KVC_FORWARD_PARTIAL;
    ASSERT_EQ(kvc_forward_begin(cache->get(), &desc, &cache->forward, nullptr), KVC_OK);
    Tokens tokens(count);
    ASSERT_EQ(kvc_kv_append(cache->forward, 0, tokens.k.dl(), tokens.v.dl(), nullptr), KVC_OK);
    cache->end();
    ASSERT_EQ(kvc_seq_reserve(cache->get(), 1, 5, nullptr), KVC_OK);
  }
  EXPECT_EQ(saved(clean, {1}), saved(used, {1})) << "nothing of who had the pages before";
}

}  // namespace
}  // namespace kvc::test
