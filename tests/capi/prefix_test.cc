// kvcache.h, section "Prefix cache": keys of blocks, what a query finds, and every refusal.
#include "tests/capi/prefix_fixture.h"

namespace kvc::test {
namespace {

std::string hex(const uint8_t* bytes, size_t size) {
  static const char* digits = "0123456789abcdef";
  std::string text;
  for (size_t i = 0; i < size; ++i) {
    text += digits[bytes[i] >> 4];
    text += digits[bytes[i] & 15];
  }
  return text;
}

std::vector<std::string> keys_of(const Ask& ask, int32_t block) {
  size_t len = 0;
  const auto count = static_cast<size_t>(ask.call.num_tokens);
  const auto hash = [&](uint8_t* out, kvc_error* err) {
    return kvc_prefix_hash(ask.call.tokens, count, block, ask.call.salt, ask.call.salt_size,
                           ask.call.keys, ask.call.num_keys, out, &len, err);
  };
  expect_ok([&](kvc_error* err) { return hash(nullptr, err); });
  EXPECT_EQ(len, count / static_cast<size_t>(block));
  std::vector<uint8_t> out(len * KVC_HASH_BYTES + 1, 0xEE);
  expect_ok([&](kvc_error* err) { return hash(out.data(), err); });
  EXPECT_EQ(out.back(), 0xEE) << "behind the last key";
  std::vector<std::string> keys;
  for (size_t i = 0; i < len; ++i)
    keys.push_back(hex(out.data() + i * KVC_HASH_BYTES, KVC_HASH_BYTES));
  return keys;
}

using Keys = std::vector<std::string>;

// Computed with another SHA-256 over the bytes that the header lists.
TEST(PrefixHash, IsTheOneOfTheHeader) {
  EXPECT_EQ(keys_of(Ask({1, 2, 3, 4, 5, 6, 7, 8, 9}), 4),
            (Keys{"6f60bc2baff54d196beb0e8fe4be10c5500201beaa3cc7753fc7b3f87c15a10b",
                  "69efec58c970a1412cdd3cb8f45a5296df81a7231531dcf98f871e258d35fb6c"}));
  EXPECT_EQ(keys_of(Ask({1, 2, 3, 4, 5, 6, 7, 8}, "tenant"), 4),
            (Keys{"d841f67b208326c40e8ba5dda107640319b4be3432c48515d5dc4bca7d142dc7",
                  "e58baadacc0f63d4b9ecd1caed84d5a5e282701ed9f7a9989ff90c6421e38fd9"}));
  Ask keyed({1, -2, 2147483647, -2147483647 - 1});
  keyed.key(KVC_PREFIX_KEY_MEDIA, 3, "image").key(KVC_PREFIX_KEY_ADAPTER, 0, "adapter");
  keyed.key(KVC_PREFIX_KEY_USER, 3, "");
  const Keys wanted{"7c7f8472919fd4bc875f8a890dd2d78cfadf96f32ab8fc5851cd79fdee089919",
                    "f0987a039214f9eafba2b748f1023d49e304d553a625acef3e26f98e9f5553e7"};
  EXPECT_EQ(keys_of(keyed, 2), wanted);
  std::reverse(keyed.keys.begin(), keyed.keys.end());
  EXPECT_EQ(keys_of(keyed, 2), wanted) << "in any order";
  EXPECT_EQ(keys_of(Ask({0}), 1),
            Keys{"8f6c775c0a498c7fd7d707ef4d92b092bee4f59a1330aa343118f91f9c78f74d"});
  EXPECT_EQ(keys_of(Ask({}), 1), Keys{});
  EXPECT_EQ(keys_of(Ask({1, 2, 3}), 4), Keys{}) << "no full block";
}

TEST(PrefixHash, RefusesBadArguments) {
  const Prompt tokens = prompt_of(8);
  const std::string bytes(5000, 'x');
  size_t len = 2;
  std::vector<uint8_t> out(64, 0xEE);
  const auto hash = [&](const Ask& ask, int32_t block, kvc_error* err) {
    return kvc_prefix_hash(ask.call.tokens, static_cast<size_t>(ask.call.num_tokens), block,
                           ask.call.salt, ask.call.salt_size, ask.call.keys, ask.call.num_keys,
                           out.data(), &len, err);
  };
  const auto refuse = [&](kvc_status status, std::initializer_list<const char*> parts,
                          const Ask& ask, int32_t block = 4) {
    expect_error(status, parts, [&](kvc_error* err) { return hash(ask, block, err); });
    EXPECT_EQ(len, 2u);
    EXPECT_EQ(out[0], 0xEE);
  };
  refuse(KVC_E_INVALID_ARGUMENT, {"block_tokens = 0"}, Ask(tokens), 0);
  refuse(KVC_E_INVALID_ARGUMENT, {"block_tokens = -3"}, Ask(tokens), -3);
  Ask no_tokens(tokens);
  no_tokens.call.tokens = nullptr;
  refuse(KVC_E_INVALID_ARGUMENT, {"tokens", "8"}, no_tokens);
  Ask no_salt(tokens);
  no_salt.call.salt = nullptr;
  no_salt.call.salt_size = 3;
  refuse(KVC_E_INVALID_ARGUMENT, {"salt", "3"}, no_salt);
  refuse(KVC_E_OUT_OF_RANGE, {"salt", "4097", "4096"}, Ask(tokens, bytes.substr(0, 4097)));
  Ask no_keys(tokens);
  no_keys.call.num_keys = 2;
  refuse(KVC_E_INVALID_ARGUMENT, {"keys", "2"}, no_keys);
  Ask untyped(tokens);
  refuse(KVC_E_INVALID_ARGUMENT, {"keys[0].type", "0"}, untyped.key(0, 0, "x"));
  Ask early(tokens);
  refuse(KVC_E_OUT_OF_RANGE, {"keys[1].offset", "-1"}, early.key(1, 0, "x").key(1, -1, "x"));
  Ask large(tokens);
  large.key(1, 0, bytes.c_str());
  refuse(KVC_E_OUT_OF_RANGE, {"keys[0].size", "5000", "4096"}, large);
  Ask no_data(tokens);
  no_data.key(1, 0, "x").keys[0].data = nullptr;
  refuse(KVC_E_INVALID_ARGUMENT, {"keys[0].data", "1"}, no_data);
  Ask unsized(tokens);
  unsized.key(1, 0, "x").keys[0].struct_size = 4;
  refuse(KVC_E_INVALID_ARGUMENT, {"keys[0]", "4"}, unsized);
  Ask many(tokens);
  for (int i = 0; i < 1025; ++i) many.key(1, i, "x");
  refuse(KVC_E_OUT_OF_RANGE, {"num_keys", "1025", "1024"}, many);
  expect_error(KVC_E_INVALID_ARGUMENT, {"len"}, [&](kvc_error* err) {
    return kvc_prefix_hash(tokens.data(), 8, 4, nullptr, 0, nullptr, 0, out.data(), nullptr, err);
  });
  len = 1;
  expect_error(KVC_E_BUFFER_TOO_SMALL, {"1", "2"}, [&](kvc_error* err) {
    len = 1;
    return kvc_prefix_hash(tokens.data(), 8, 4, nullptr, 0, nullptr, 0, out.data(), &len, err);
  });
  EXPECT_EQ(len, 2u);
  EXPECT_EQ(out[0], 0xEE);
}

// Largest values that are allowed.
TEST(PrefixHash, TakesTheLongestSaltAndKeys) {
  Ask ask(prompt_of(8), std::string(4096, 's'));
  const std::string data(4096, 'd');
  for (int i = 0; i < 1024; ++i) ask.key(KVC_PREFIX_KEY_USER, i % 9, data.c_str());
  EXPECT_EQ(keys_of(ask, 4).size(), 2u);
}

TEST_F(Prefix, AnEmptyIndexHitsNothingAndStillAddsTheSequence) {
  Ask ask(prompt_of(9));
  EXPECT_EQ(matched(cache_, ask), 0);
  int64_t tokens = -1;
  expect_ok([&](kvc_error* err) { return kvc_prefix_attach(get(), 1, &ask.call, &tokens, err); });
  EXPECT_EQ(tokens, 0);
  EXPECT_EQ(info_of(cache_, 1).length, 0);
  EXPECT_EQ(info_of(cache_, 1).known_tokens, 0);
  EXPECT_EQ(kvc_prefix_attach(get(), 2, &ask.call, nullptr, nullptr), KVC_OK)
      << "out_tokens may be NULL";
  Ask nothing({});
  EXPECT_EQ(attached(cache_, 3, nothing), 0);
  EXPECT_EQ(available_pages(), kPages);
}

TEST_F(Prefix, AForwardPublishesItsFullBlocks) {
  const Prompt prompt = prompt_of(10);
  serve(cache_, 1, prompt);
  EXPECT_EQ(info_of(cache_, 1).known_tokens, 10);
  kvc_stats stats = stats_of(cache_);
  EXPECT_EQ(stats.prefix_blocks, 2);
  EXPECT_EQ(stats.prefix_stored, 2u);
  EXPECT_EQ(stats.pages_indexed, 2);
  EXPECT_EQ(stats.pages_cached, 0) << "in use";
  EXPECT_EQ(held(cache_, prompt), 8);
  drop(cache_, 1);
  EXPECT_EQ(available_pages(), kPages) << "what only the index holds is free";
  EXPECT_EQ(kvc_cache_is_empty(get()), 1);
  stats = stats_of(cache_);
  EXPECT_EQ(stats.pages_cached, 2);
  EXPECT_EQ(stats.pages_used, 0);
  Ask ask(prompt);
  EXPECT_EQ(attached(cache_, 2, ask), 8);
  EXPECT_EQ(info_of(cache_, 2).length, 8);
  EXPECT_EQ(info_of(cache_, 2).known_tokens, 8);
  EXPECT_EQ(pages_of(cache_, 2, 0).size(), 2u);
  EXPECT_EQ(available_pages(), kPages - 2);
  stats = stats_of(cache_);
  EXPECT_EQ(stats.prefix_lookups, 2u);
  EXPECT_EQ(stats.prefix_query_tokens, 20u);
  EXPECT_EQ(stats.prefix_hit_tokens, 8u);
  EXPECT_EQ(stats.recent_query_tokens, 20u);
  EXPECT_EQ(stats.recent_hit_tokens, 8u);
}

TEST_F(Prefix, TheLastTokenIsLeftToBeComputedUnlessAskedOtherwise) {
  const Prompt prompt = prompt_of(8);
  publish(cache_, prompt);
  Ask ask(prompt), all(prompt), whole(prompt), both(prompt);
  EXPECT_EQ(matched(cache_, ask), 7);
  EXPECT_EQ(matched(cache_, all.all()), 8);
  EXPECT_EQ(matched(cache_, whole.whole()), 4);
  EXPECT_EQ(matched(cache_, both.all().whole()), 8);
  Ask one({prompt[0]}), one_all({prompt[0]});
  EXPECT_EQ(matched(cache_, one), 0);
  EXPECT_EQ(matched(cache_, one_all.all()), 1);
}

TEST_F(Prefix, AHitEndsAtTheFirstTokenThatDiffers) {
  const Prompt prompt = prompt_of(12);
  publish(cache_, prompt);
  for (size_t at = 0; at < 12; ++at) {
    Prompt other = prompt;
    other[at] = -5;
    Ask ask(other), whole(other);
    EXPECT_EQ(matched(cache_, ask.all()), static_cast<int64_t>(at));
    EXPECT_EQ(matched(cache_, whole.all().whole()), static_cast<int64_t>(at) / 4 * 4);
  }
  Ask longer(joined(prompt, {1, 2, 3, 4, 5}));
  EXPECT_EQ(matched(cache_, longer.all()), 12);
  Ask behind(Prompt(prompt.begin() + 4, prompt.end()));
  EXPECT_EQ(matched(cache_, behind.all()), 0)
      << "the same block behind other tokens is another block";
}

TEST_F(Prefix, NamespacesShareNothing) {
  const Prompt prompt = prompt_of(9);
  serve(cache_, 1, prompt, "a");
  EXPECT_EQ(held(cache_, prompt, "a"), 8);
  for (const char* other : {"", "b", "aa", "A"}) EXPECT_EQ(held(cache_, prompt, other), 0) << other;
  EXPECT_EQ(held(cache_, prompt, std::string("a\0", 2)), 0);
  serve(cache_, 2, prompt, "b");
  EXPECT_NE(pages_of(cache_, 1, 0), pages_of(cache_, 2, 0));
  EXPECT_EQ(held(cache_, prompt, "b"), 8);
  EXPECT_EQ(stats_of(cache_).prefix_blocks, 4);
}

TEST_F(Prefix, ASequenceThatWasAddedPublishesInTheNamespaceWithoutSalt) {
  const Prompt prompt = prompt_of(9);
  ASSERT_EQ(kvc_seq_add(get(), 1, nullptr), KVC_OK);
  grow(cache_, 1, prompt);
  EXPECT_EQ(held(cache_, prompt), 8);
  EXPECT_EQ(held(cache_, prompt, "a"), 0);
}

TEST_F(Prefix, ExtraKeysBelongToTheBlockOfTheirOffset) {
  const Prompt prompt = prompt_of(17);
  Ask image(prompt);
  image.key(KVC_PREFIX_KEY_MEDIA, 9, "cat");
  EXPECT_EQ(attached(cache_, 1, image), 0);
  grow(cache_, 1, prompt);
  Ask plain(prompt), other(prompt), same(prompt), earlier(prompt), typed(prompt), later(prompt);
  EXPECT_EQ(matched(cache_, same.key(KVC_PREFIX_KEY_MEDIA, 9, "cat").all()), 16);
  EXPECT_EQ(matched(cache_, plain.all().whole()), 8) << "the blocks before the image are the same";
  EXPECT_EQ(matched(cache_, other.key(KVC_PREFIX_KEY_MEDIA, 9, "dog").all().whole()), 8);
  EXPECT_EQ(matched(cache_, earlier.key(KVC_PREFIX_KEY_MEDIA, 3, "cat").all().whole()), 0);
  EXPECT_EQ(matched(cache_, typed.key(KVC_PREFIX_KEY_USER, 9, "cat").all().whole()), 8);
  later.key(KVC_PREFIX_KEY_MEDIA, 9, "cat").key(KVC_PREFIX_KEY_MEDIA, 40, "dog");
  EXPECT_EQ(matched(cache_, later.all()), 16) << "a key behind the prompt does not matter yet";
}

TEST_F(Prefix, ATailHitStopsBeforeAnExtraKeyThatDiffers) {
  const Prompt prompt = prompt_of(9);
  Ask image(prompt);
  image.key(KVC_PREFIX_KEY_MEDIA, 6, "cat");
  attached(cache_, 1, image);
  grow(cache_, 1, prompt);
  Ask same(prompt), plain(prompt), other(prompt);
  EXPECT_EQ(matched(cache_, same.key(KVC_PREFIX_KEY_MEDIA, 6, "cat").all()), 8);
  EXPECT_EQ(matched(cache_, plain.all()), 6) << "the text before the image";
  EXPECT_EQ(matched(cache_, other.key(KVC_PREFIX_KEY_MEDIA, 6, "dog").all()), 6);
  Ask earlier(prompt), typed(prompt), second(prompt), shorter({prompt.begin(), prompt.begin() + 7});
  EXPECT_EQ(matched(cache_, earlier.key(KVC_PREFIX_KEY_MEDIA, 5, "cat").all()), 5);
  EXPECT_EQ(matched(cache_, typed.key(KVC_PREFIX_KEY_USER, 6, "cat").all()), 6);
  second.key(KVC_PREFIX_KEY_MEDIA, 6, "cat").key(KVC_PREFIX_KEY_MEDIA, 7, "dog");
  EXPECT_EQ(matched(cache_, second.all()), 6) << "only the whole key tells that both have the cat";
  shorter.key(KVC_PREFIX_KEY_MEDIA, 6, "cat").key(KVC_PREFIX_KEY_MEDIA, 7, "dog");
  EXPECT_EQ(matched(cache_, shorter.all()), 6)
      << "a key behind the prompt belongs to the block too";
}

TEST_F(Prefix, TextBeforeAnImageHitsUnderAnotherImage) {
  const Prompt prompt = prompt_of(5);
  Ask cat(prompt), dog(prompt), text(prompt);
  attached(cache_, 1, cat.key(KVC_PREFIX_KEY_MEDIA, 3, "cat"));
  grow(cache_, 1, prompt);
  EXPECT_EQ(matched(cache_, dog.key(KVC_PREFIX_KEY_MEDIA, 3, "dog").all()), 3);
  EXPECT_EQ(attached(cache_, 2, dog), 3);
  grow(cache_, 2, Prompt(prompt.begin() + 3, prompt.end()));
  EXPECT_EQ(matched(cache_, text.all()), 3);
  expect_consistent(cache_);
}

// Only the hash knows what else such a block depends on.
TEST_F(Prefix, ABlockThatWasGivenByItsHashServesNoTextBeforeAnImage) {
  const Prompt prompt = prompt_of(5);
  Ask made(prompt), given(prompt), other(prompt);
  made.key(KVC_PREFIX_KEY_ADAPTER, 0, "lora").hashed(1, kBlock, false);
  given.call.hashes = made.call.hashes;
  given.call.num_hashes = 1;
  add_tokens(cache_, 1, 5);
  EXPECT_EQ(inserted(cache_, 1, given), 4);
  EXPECT_EQ(matched(cache_, other.key(KVC_PREFIX_KEY_MEDIA, 3, "dog").all()), 0);
}

TEST_F(Prefix, HashesFindWhatTokensFind) {
  const Prompt prompt = prompt_of(15);
  serve(cache_, 1, prompt, "a");
  for (size_t count = 0; count <= 3; ++count) {
    Ask ask(prompt, "a");
    EXPECT_EQ(matched(cache_, ask.all().hashed(count, kBlock, false)), 12)
        << count << " hashes given";
  }
  Ask only(prompt, "a");
  EXPECT_EQ(attached(cache_, 2, only.hashed(0, kBlock, true)), 12);
  Ask exact(Prompt(prompt.begin(), prompt.begin() + 12), "a");
  EXPECT_EQ(matched(cache_, exact.hashed(0, kBlock, true)), 8)
      << "a token is left, and no hit inside a block";
  // They are trusted: other tokens beside them are not looked at.
  Ask lie(joined(prompt_of(12, 5000), {1}), "a");
  lie.hashed(3, kBlock, false);
  Ask truth(prompt, "a");
  truth.hashed(3, kBlock, false);
  lie.call.hashes = truth.hashes.data();
  EXPECT_EQ(matched(cache_, lie.all()), 12);
}

TEST_F(Prefix, BlocksPublishedByHashesAloneHitAsAWhole) {
  const Prompt prompt = prompt_of(13);
  add_tokens(cache_, 1, 13);
  Ask only(prompt);
  EXPECT_EQ(inserted(cache_, 1, only.hashed(0, kBlock, true)), 12);
  EXPECT_EQ(held(cache_, prompt), 12);
  Ask shorter(Prompt(prompt.begin(), prompt.begin() + 11));
  EXPECT_EQ(matched(cache_, shorter.all()), 8) << "nobody knows the tokens inside";
}

TEST_F(Prefix, HashesOfTwoPromptsServeUpToTheFirstOfTheOther) {
  serve(cache_, 1, prompt_of(8));
  serve(cache_, 2, prompt_of(8, 5000));
  Ask mixed(prompt_of(8)), other(prompt_of(8, 5000));
  mixed.hashed(0, kBlock, true).all();
  other.hashed(0, kBlock, true);
  std::copy_n(other.hashes.begin() + KVC_HASH_BYTES, KVC_HASH_BYTES,
              mixed.hashes.begin() + KVC_HASH_BYTES);
  EXPECT_EQ(matched(cache_, mixed), 4);
  int64_t tokens = -1;
  ASSERT_EQ(kvc_prefix_pin(get(), &mixed.call, &tokens, nullptr), KVC_OK);
  EXPECT_EQ(tokens, 4);
  EXPECT_EQ(stats_of(cache_).prefix_pinned, 1);
  ASSERT_EQ(kvc_prefix_unpin(get(), &mixed.call, &tokens, nullptr), KVC_OK);
  EXPECT_EQ(tokens, 4);
  add_tokens(cache_, 3, 8);
  EXPECT_EQ(inserted(cache_, 3, mixed), 4);
}

TEST_F(Prefix, InsertPublishesWhatTheHostComputed) {
  const Prompt prompt = prompt_of(11);
  add_tokens(cache_, 1, 11);
  EXPECT_EQ(info_of(cache_, 1).known_tokens, 0);
  EXPECT_EQ(held(cache_, prompt, "a"), 0);
  Ask part(Prompt(prompt.begin(), prompt.begin() + 6), "a");
  EXPECT_EQ(inserted(cache_, 1, part), 4);
  EXPECT_EQ(info_of(cache_, 1).known_tokens, 6);
  Ask ask(prompt, "a");
  int64_t tokens = -1;
  expect_ok([&](kvc_error* err) { return kvc_prefix_insert(get(), 1, &ask.call, &tokens, err); });
  EXPECT_EQ(tokens, 8);
  EXPECT_EQ(info_of(cache_, 1).known_tokens, 11);
  EXPECT_EQ(held(cache_, prompt, "a"), 8);
  EXPECT_EQ(kvc_prefix_insert(get(), 1, &ask.call, nullptr, nullptr), KVC_OK) << "twice is once";
  EXPECT_EQ(stats_of(cache_).prefix_blocks, 2);
  grow(cache_, 1, {-1});
  EXPECT_EQ(held(cache_, joined(prompt, {-1}), "a"), 12) << "later forwards publish there";
}

TEST_F(Prefix, ASequenceThatGrewWithoutIdsPublishesNoLaterBlock) {
  const Prompt prompt = prompt_of(16);
  ASSERT_EQ(kvc_seq_add(get(), 1, nullptr), KVC_OK);
  grow(cache_, 1, Prompt(prompt.begin(), prompt.begin() + 6));
  add_tokens(cache_, 1, 2);
  grow(cache_, 1, Prompt(prompt.begin() + 8, prompt.end()));
  EXPECT_EQ(held(cache_, prompt), 4);
  EXPECT_EQ(info_of(cache_, 1).known_tokens, 6);
  EXPECT_EQ(info_of(cache_, 1).length, 16);
}

TEST_F(Prefix, QueriesAreRefusedByName) {
  const Prompt prompt = prompt_of(9);
  serve(cache_, 1, prompt);
  const auto refuse = [&](kvc_status status, std::initializer_list<const char*> parts,
                          const Ask& ask) {
    int64_t tokens = -1;
    const kvc_prefix_query* query = &ask.call;
    expect_refused(cache_, status, parts,
                   [&](kvc_error* err) { return kvc_prefix_match(get(), query, &tokens, err); });
    expect_refused(cache_, status, parts, [&](kvc_error* err) {
      return kvc_prefix_attach(get(), 7, query, &tokens, err);
    });
    expect_refused(cache_, status, parts, [&](kvc_error* err) {
      return kvc_prefix_insert(get(), 1, query, &tokens, err);
    });
    expect_refused(cache_, status, parts,
                   [&](kvc_error* err) { return kvc_prefix_pin(get(), query, &tokens, err); });
    expect_refused(cache_, status, parts,
                   [&](kvc_error* err) { return kvc_prefix_unpin(get(), query, &tokens, err); });
    EXPECT_EQ(tokens, -1);
  };
  const auto changed = [&](auto change, kvc_status status,
                           std::initializer_list<const char*> parts) {
    Ask ask(prompt);
    change(ask);
    refuse(status, parts, ask);
  };
  changed([](Ask& ask) { ask.call.tokens = nullptr; }, KVC_E_INVALID_ARGUMENT, {"tokens", "9"});
  changed([](Ask& ask) { ask.call.num_tokens = -1; }, KVC_E_OUT_OF_RANGE, {"num_tokens", "-1"});
  changed([](Ask& ask) { ask.call.flags = 4; }, KVC_E_UNSUPPORTED, {"flags", "4"});
  changed([](Ask& ask) { ask.call.reserved = 3; }, KVC_E_UNSUPPORTED, {"reserved", "3"});
  changed([](Ask& ask) { ask.call.priority = 101; }, KVC_E_OUT_OF_RANGE,
          {"priority", "101", "100"});
  changed([](Ask& ask) { ask.call.priority = -1; }, KVC_E_OUT_OF_RANGE, {"priority", "-1"});
  changed([](Ask& ask) { ask.call.salt = nullptr, ask.call.salt_size = 2; }, KVC_E_INVALID_ARGUMENT,
          {"salt", "2"});
  changed([](Ask& ask) { ask.call.salt_size = 4097; }, KVC_E_OUT_OF_RANGE,
          {"salt", "4097", "4096"});
  changed([](Ask& ask) { ask.call.num_keys = 1; }, KVC_E_INVALID_ARGUMENT, {"keys", "1"});
  changed([](Ask& ask) { ask.key(0, 0, "x"); }, KVC_E_INVALID_ARGUMENT, {"keys[0].type", "0"});
  changed([](Ask& ask) { ask.key(1, -9, "x"); }, KVC_E_OUT_OF_RANGE, {"keys[0].offset", "-9"});
  changed([](Ask& ask) { ask.key(1, 0, "x").keys[0].reserved = 8; }, KVC_E_UNSUPPORTED,
          {"keys[0].reserved", "8"});
  changed([](Ask& ask) { ask.hashed(3, kBlock, false); }, KVC_E_OUT_OF_RANGE,
          {"num_hashes", "3", "2"});
  changed([](Ask& ask) { ask.hashed(1, kBlock, false).call.hashes = nullptr; },
          KVC_E_INVALID_ARGUMENT, {"hashes", "1"});
  changed(
      [](Ask& ask) {
        ask.hashed(0, kBlock, true);
        ask.call.num_hashes = 1;
      },
      KVC_E_INVALID_ARGUMENT, {"num_hashes", "1", "2"});
  kvc_ext ext{5, nullptr};
  changed([&](Ask& ask) { ask.call.ext = &ext; }, KVC_E_UNSUPPORTED, {"ext", "5"});
  changed([](Ask& ask) { ask.call.struct_size = 4; }, KVC_E_INVALID_ARGUMENT, {"query", "4"});
}

TEST_F(Prefix, QueriesFollowTheRulesOfStructs) {
  const Prompt prompt = prompt_of(9);
  publish(cache_, prompt);
  struct Newer {
    kvc_prefix_query query;
    uint64_t unknown;
  };
  Ask ask(prompt);
  Newer newer{ask.call, 0};
  newer.query.struct_size = sizeof newer;
  int64_t tokens = -1;
  EXPECT_EQ(kvc_prefix_match(get(), &newer.query, &tokens, nullptr), KVC_OK);
  EXPECT_EQ(tokens, 8);
  newer.unknown = 1;
  expect_error(KVC_E_VERSION, {"query"},
               [&](kvc_error* err) { return kvc_prefix_match(get(), &newer.query, &tokens, err); });
  // A caller of an older header, whose struct ends behind the tokens: no hashes, no salt.
  ask.call.struct_size = offsetof(kvc_prefix_query, hashes);
  ask.call.salt_size = 99;
  EXPECT_EQ(matched(cache_, ask), 8);
  // Keys with a tail of their own.
  struct NewerKey {
    kvc_prefix_key key;
    uint64_t unknown;
  };
  NewerKey keys[2]{{{sizeof(NewerKey), 1, 0, 0, "a", 1}, 0},
                   {{sizeof(NewerKey), 1, 0, 1, "b", 1}, 0}};
  Ask keyed(prompt);
  keyed.call.keys = &keys[0].key;
  keyed.call.num_keys = 2;
  EXPECT_EQ(matched(cache_, keyed), 0);
  keys[1].unknown = 7;
  expect_error(KVC_E_VERSION, {"keys[1]"},
               [&](kvc_error* err) { return kvc_prefix_match(get(), &keyed.call, &tokens, err); });
}

TEST_F(Prefix, NullIsAnsweredNotCrashed) {
  Ask ask(prompt_of(9));
  int64_t tokens = -1;
  const auto refuse = [&](const char* part, const Call& fn) {
    expect_refused(cache_, KVC_E_INVALID_ARGUMENT, {part}, fn);
  };
  refuse("cache",
         [&](kvc_error* err) { return kvc_prefix_match(nullptr, &ask.call, &tokens, err); });
  refuse("query", [&](kvc_error* err) { return kvc_prefix_match(get(), nullptr, &tokens, err); });
  refuse("out_tokens",
         [&](kvc_error* err) { return kvc_prefix_match(get(), &ask.call, nullptr, err); });
  refuse("cache",
         [&](kvc_error* err) { return kvc_prefix_attach(nullptr, 1, &ask.call, &tokens, err); });
  refuse("query",
         [&](kvc_error* err) { return kvc_prefix_attach(get(), 1, nullptr, &tokens, err); });
  refuse("cache",
         [&](kvc_error* err) { return kvc_prefix_insert(nullptr, 1, &ask.call, &tokens, err); });
  refuse("query",
         [&](kvc_error* err) { return kvc_prefix_insert(get(), 1, nullptr, &tokens, err); });
  refuse("cache", [&](kvc_error* err) { return kvc_prefix_pin(nullptr, &ask.call, &tokens, err); });
  refuse("query", [&](kvc_error* err) { return kvc_prefix_pin(get(), nullptr, &tokens, err); });
  refuse("cache",
         [&](kvc_error* err) { return kvc_prefix_unpin(nullptr, &ask.call, &tokens, err); });
  refuse("query", [&](kvc_error* err) { return kvc_prefix_unpin(get(), nullptr, &tokens, err); });
  refuse("cache", [&](kvc_error* err) { return kvc_prefix_evict(nullptr, 1, &tokens, err); });
  refuse("cache", [&](kvc_error* err) { return kvc_prefix_reset(nullptr, err); });
  refuse("cache",
         [&](kvc_error* err) { return kvc_prefix_quota_set(nullptr, nullptr, 0, 1, err); });
  EXPECT_EQ(tokens, -1);
}

TEST_F(Prefix, AttachRefusesIdsAsAddDoes) {
  serve(cache_, 1, prompt_of(9));
  Ask ask(prompt_of(9));
  int64_t tokens = -1;
  const auto attach = [&](kvc_seq seq) {
    return
        [&, seq](kvc_error* err) { return kvc_prefix_attach(get(), seq, &ask.call, &tokens, err); };
  };
  expect_refused(cache_, KVC_E_INVALID_ARGUMENT, {"-1"}, attach(-1));
  expect_refused(cache_, KVC_E_ALREADY_EXISTS, {"1", "exists"}, attach(1));
  ASSERT_EQ(cache_.begin({1}, {1}), KVC_OK);
  expect_refused(cache_, KVC_E_BUSY, {"open"}, attach(2));
  expect_refused(cache_, KVC_E_BUSY, {"open"}, [&](kvc_error* err) {
    return kvc_prefix_insert(get(), 1, &ask.call, &tokens, err);
  });
  expect_refused(cache_, KVC_E_BUSY, {"open"},
                 [&](kvc_error* err) { return kvc_prefix_reset(get(), err); });
  EXPECT_EQ(tokens, -1);
  EXPECT_EQ(matched(cache_, ask), 8) << "asking is allowed";
  cache_.abort();
}

TEST_F(Prefix, InsertRefusesSequencesWhoseTokensAreNotTheirOwn) {
  int64_t tokens = -1;
  const auto refuse = [&](kvc_seq seq, int64_t count, kvc_status status,
                          std::initializer_list<const char*> parts) {
    Ask ask(prompt_of(count));
    expect_refused(cache_, status, parts, [&](kvc_error* err) {
      return kvc_prefix_insert(get(), seq, &ask.call, &tokens, err);
    });
    EXPECT_EQ(tokens, -1);
  };
  add_tokens(cache_, 1, 8);
  refuse(9, 8, KVC_E_NOT_FOUND, {"sequence 9"});
  refuse(1, 9, KVC_E_OUT_OF_RANGE, {"num_tokens", "9", "8"});
  ASSERT_EQ(kvc_seq_shift(get(), 1, 2, 3, -1, nullptr), KVC_OK);
  refuse(1, 7, KVC_E_INVALID_STATE, {"sequence 1", "moved"});
  add_tokens(cache_, 2, 8);
  ASSERT_EQ(kvc_seq_set_window(get(), 2, 6, 1, nullptr), KVC_OK);
  refuse(2, 8, KVC_E_INVALID_STATE, {"sequence 2", "window"});
  add_tokens(cache_, 3, 4);
  ASSERT_EQ(begin_tokens(cache_, {3}, {2}, {}, {-1, 0}), KVC_OK);
  cache_.finish();
  refuse(3, 4, KVC_E_INVALID_STATE, {"sequence 3", "tree"});
  add_tokens(cache_, 4, 8);
  ASSERT_EQ(kvc_prefix_reset(get(), nullptr), KVC_OK);
  refuse(4, 8, KVC_E_INVALID_STATE, {"sequence 4", "reset"});
}

TEST(PrefixRefusals, CachesWithEncoderTokensHaveNoPrefixIndex) {
  Net net({attention_layer(), cross_layer()});
  Cache cache(net.config);
  Ask ask(prompt_of(9));
  int64_t tokens = -1;
  const std::initializer_list<const char*> parts{"CROSS"};
  expect_refused(cache, KVC_E_UNSUPPORTED, parts, [&](kvc_error* err) {
    return kvc_prefix_match(cache.get(), &ask.call, &tokens, err);
  });
  expect_refused(cache, KVC_E_UNSUPPORTED, parts, [&](kvc_error* err) {
    return kvc_prefix_attach(cache.get(), 1, &ask.call, &tokens, err);
  });
  add_tokens(cache, 1, 9);
  expect_refused(cache, KVC_E_UNSUPPORTED, parts, [&](kvc_error* err) {
    return kvc_prefix_insert(cache.get(), 1, &ask.call, &tokens, err);
  });
  EXPECT_EQ(tokens, -1);
}

TEST(PrefixFeatures, AreThere) {
  for (const char* name : {"prefix", "prefix.tail", "prefix.quota"})
    EXPECT_EQ(kvc_has_feature(name), 1) << name;
}

}  // namespace
}  // namespace kvc::test
