// Forwards with token ids, and queries over them, for tests that look at the prefix index from the
// side.
#pragma once

#include <string>
#include <vector>

#include "tests/capi/swap.h"

namespace kvc::test {

// Ids that differ from family to family in every token.
inline std::vector<int32_t> token_ids(int64_t count, int32_t family) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(family * 100000 + static_cast<int32_t>(i));
  return ids;
}

struct Query {
  explicit Query(std::vector<int32_t> ids, uint64_t flags = KVC_PREFIX_ALL_TOKENS,
                 std::string name = "")
      : tokens(std::move(ids)), salt(std::move(name)) {
    c.struct_size = sizeof c;
    c.flags = flags;
    c.num_tokens = static_cast<int64_t>(tokens.size());
    c.tokens = tokens.data();
    c.salt = salt.empty() ? nullptr : salt.data();
    c.salt_size = salt.size();
  }
  Query(const Query&) = delete;
  Query& operator=(const Query&) = delete;

  std::vector<int32_t> tokens;
  std::string salt;
  kvc_prefix_query c{};
};

// Appends tokens whose contents don't matter; their full blocks are published.
inline void append_ids(Cache& cache, kvc_seq seq, const std::vector<int32_t>& ids) {
  const kvc_status added = kvc_seq_add(cache.get(), seq, nullptr);
  ASSERT_TRUE(added == KVC_OK || added == KVC_E_ALREADY_EXISTS);
  const auto count = static_cast<int64_t>(ids.size());
  kvc_forward_desc desc{};
  desc.struct_size = sizeof desc;
  desc.num_seqs = 1;
  desc.seqs = &seq;
  desc.append_lengths = &count;
  desc.tokens = ids.data();
  kvc_error error{};
  ASSERT_EQ(kvc_forward_begin(cache.get(), &desc, &cache.forward, &error), KVC_OK) << error.message;
  cache.finish();
}

// Tokens that hit; -1 when refused. The sequence is there afterwards.
inline int64_t attach(const Cache& cache, kvc_seq seq, const Query& query) {
  int64_t tokens = -1;
  kvc_error error{};
  EXPECT_EQ(kvc_prefix_attach(cache.get(), seq, &query.c, &tokens, &error), KVC_OK)
      << error.message;
  return tokens;
}

inline int64_t match(const Cache& cache, const Query& query) {
  int64_t tokens = -1;
  kvc_error error{};
  EXPECT_EQ(kvc_prefix_match(cache.get(), &query.c, &tokens, &error), KVC_OK) << error.message;
  return tokens;
}

inline int64_t evict(const Cache& cache, int64_t pages) {
  int64_t freed = -1;
  kvc_error error{};
  EXPECT_EQ(kvc_prefix_evict(cache.get(), pages, &freed, &error), KVC_OK) << error.message;
  return freed;
}

inline void remove_seq(const Cache& cache, kvc_seq seq) {
  EXPECT_EQ(kvc_seq_remove(cache.get(), seq, nullptr), KVC_OK);
}

}  // namespace kvc::test
