// Prompts, queries and forwards with token ids: what the tests of the prefix cache share.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "tests/capi/layers.h"

namespace kvc::test {

using Prompt = std::vector<int32_t>;

// `count` tokens that no prompt of another `first` begins with.
inline Prompt prompt_of(int64_t count, int32_t first = 100) {
  Prompt prompt;
  for (int64_t i = 0; i < count; ++i) prompt.push_back(first + static_cast<int32_t>(i) * 7);
  return prompt;
}

inline Prompt joined(Prompt a, const Prompt& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// A query over its own memory; the fields of `call` that are not pointers may be changed.
struct Ask {
  explicit Ask(Prompt prompt, std::string space = {})
      : tokens(std::move(prompt)), salt(std::move(space)) {
    call.struct_size = sizeof call;
    call.num_tokens = static_cast<int64_t>(tokens.size());
    call.tokens = tokens.data();
    call.salt = salt.data();
    call.salt_size = salt.size();
  }
  Ask(const Ask&) = delete;
  Ask& operator=(const Ask&) = delete;

  Ask& all() {
    call.flags |= KVC_PREFIX_ALL_TOKENS;
    return *this;
  }
  Ask& whole() {
    call.flags |= KVC_PREFIX_WHOLE_BLOCKS;
    return *this;
  }
  Ask& priority(int32_t value) {
    call.priority = value;
    return *this;
  }
  Ask& key(kvc_prefix_key_type type, int64_t offset, const char* data) {
    keys.push_back(
        {sizeof(kvc_prefix_key), type, 0, offset, data, std::char_traits<char>::length(data)});
    call.keys = keys.data();
    call.num_keys = keys.size();
    return *this;
  }
  // The leading `count` keys are given with the tokens, or all of them instead of the tokens.
  Ask& hashed(size_t count, int32_t block, bool without_tokens) {
    size_t len = tokens.size() / static_cast<size_t>(block);
    hashes.resize(len * KVC_HASH_BYTES + 1);
    EXPECT_EQ(kvc_prefix_hash(tokens.data(), tokens.size(), block, salt.data(), salt.size(),
                              call.keys, call.num_keys, hashes.data(), &len, nullptr),
              KVC_OK);
    call.hashes = hashes.data();
    call.num_hashes = without_tokens ? len : count;
    if (without_tokens) call.tokens = nullptr;
    return *this;
  }

  Prompt tokens;
  std::string salt;
  std::vector<kvc_prefix_key> keys;
  std::vector<uint8_t> hashes;
  kvc_prefix_query call{};
};

inline int64_t matched(const Cache& cache, const Ask& ask) {
  int64_t tokens = -1;
  kvc_error error{};
  EXPECT_EQ(kvc_prefix_match(cache.get(), &ask.call, &tokens, &error), KVC_OK) << error.message;
  return tokens;
}

// Tokens of a prompt that the index has, in whole blocks.
inline int64_t held(const Cache& cache, const Prompt& prompt, const std::string& salt = {}) {
  Ask ask(prompt, salt);
  return matched(cache, ask.all().whole());
}

inline int64_t attached(Cache& cache, kvc_seq seq, const Ask& ask) {
  int64_t tokens = -1;
  kvc_error error{};
  EXPECT_EQ(kvc_prefix_attach(cache.get(), seq, &ask.call, &tokens, &error), KVC_OK)
      << error.message;
  return tokens;
}

inline int64_t inserted(Cache& cache, kvc_seq seq, const Ask& ask) {
  int64_t tokens = -1;
  kvc_error error{};
  EXPECT_EQ(kvc_prefix_insert(cache.get(), seq, &ask.call, &tokens, &error), KVC_OK)
      << error.message;
  return tokens;
}

inline kvc_status begin_tokens(Cache& cache, const std::vector<kvc_seq>& seqs,
                               const std::vector<int64_t>& lengths, const Prompt& tokens,
                               const std::vector<int32_t>& parents = {}, kvc_error* err = nullptr) {
  kvc_forward_desc desc{};
  desc.struct_size = sizeof desc;
  desc.num_seqs = seqs.size();
  desc.seqs = seqs.data();
  desc.append_lengths = lengths.data();
  desc.tokens = tokens.empty() ? nullptr : tokens.data();
  desc.tree_parents = parents.empty() ? nullptr : parents.data();
  return kvc_forward_begin(cache.get(), &desc, &cache.forward, err);
}

// One forward of one sequence over these tokens, ids given.
inline void grow(Cache& cache, kvc_seq seq, const Prompt& tokens) {
  kvc_error error{};
  ASSERT_EQ(begin_tokens(cache, {seq}, {static_cast<int64_t>(tokens.size())}, tokens, {}, &error),
            KVC_OK)
      << error.message;
  cache.finish();
}

// Attaches a prompt, computes what did not hit, and returns what did.
inline int64_t serve(Cache& cache, kvc_seq seq, const Prompt& prompt, const std::string& salt = {},
                     int32_t priority = 0) {
  Ask ask(prompt, salt);
  const int64_t hit = attached(cache, seq, ask.priority(priority));
  grow(cache, seq, Prompt(prompt.begin() + hit, prompt.end()));
  return hit;
}

inline void drop(Cache& cache, kvc_seq seq) {
  ASSERT_EQ(kvc_seq_remove(cache.get(), seq, nullptr), KVC_OK);
}

// Publishes a prompt and lets go of it: only the index holds it then.
inline void publish(Cache& cache, const Prompt& prompt, const std::string& salt = {},
                    int32_t priority = 0) {
  constexpr kvc_seq kPublisher = 1000000;
  serve(cache, kPublisher, prompt, salt, priority);
  drop(cache, kPublisher);
}

inline void expect_consistent(const Cache& cache) {
  kvc_error error{};
  EXPECT_EQ(kvc_cache_check(cache.get(), &error), KVC_OK) << error.message;
}

// Bookkeeping of one ATTENTION layer that sees all tokens: blocks of 4 tokens, one page each.
class Prefix : public testing::Test {
 protected:
  static constexpr int64_t kPages = 16;
  static constexpr int32_t kBlock = 4;

  Prefix()
      : net_({attention_layer()}, kPages),
        cache_((net_.config.storage = KVC_STORAGE_NONE, net_.config)) {}
  ~Prefix() override { expect_consistent(cache_); }
  kvc_cache* get() const { return cache_.get(); }
  int64_t available_pages() const { return kvc_cache_available_pages(get()); }

  Net net_;
  Cache cache_;
};

}  // namespace kvc::test
