// Tiers of a cache and prompts that go through them: what the tests of tiers share.
#pragma once

#include <string>
#include <vector>

#include "tests/capi/prefix_support.h"
#include "tests/support/folder.h"

namespace kvc::test {

constexpr uint64_t kMebibyte = uint64_t{1} << 20;

// A FILE tier in `folder`, which is borrowed, of 64 MiB.
inline kvc_tier_desc file_tier(const std::string& folder) {
  kvc_tier_desc desc{};
  desc.struct_size = sizeof desc;
  desc.tier = KVC_TIER_FILE;
  desc.address = folder.c_str();
  desc.byte_limit = 64 * kMebibyte;
  desc.queue_bytes = 4 * kMebibyte;
  desc.get_ms = 20000;  // A machine that runs other tests may be slow.
  return desc;
}

inline void attach_tier(const Cache& cache, const kvc_tier_desc& desc) {
  expect_ok([&](kvc_error* err) { return kvc_tier_attach(cache.get(), &desc, err); });
}

inline void flush_tiers(const Cache& cache) {
  expect_ok([&](kvc_error* err) { return kvc_tier_flush(cache.get(), -1, err); });
}

inline kvc_tier_stats tier_stats(const Cache& cache, kvc_tier tier = KVC_TIER_FILE) {
  kvc_tier_stats stats{};
  stats.struct_size = sizeof stats;
  kvc_error error{};
  EXPECT_EQ(kvc_tier_stats_get(cache.get(), tier, &stats, &error), KVC_OK) << error.message;
  return stats;
}

// Publishes a prompt of one forward; its rows are the pattern of `family`.
inline void publish(Cache& cache, kvc_seq seq, int64_t count, int32_t family,
                    const std::string& salt = "") {
  Query query(token_ids(count, family), KVC_PREFIX_ALL_TOKENS, salt);
  query.c.num_tokens = 0;  // Adds the sequence to its namespace.
  ASSERT_EQ(attach(cache, seq, query), 0);
  append_pattern(cache, seq, count, static_cast<uint64_t>(family), 0, token_ids(count, family));
}

// The hit of a prompt: match says it, attach finds it, and the rows are right. The sequence stays.
inline int64_t hit(Cache& cache, kvc_seq seq, int64_t count, int32_t family,
                   const std::string& salt = "") {
  const Query query(token_ids(count, family), KVC_PREFIX_ALL_TOKENS, salt);
  const int64_t said = match(cache, query);
  const int64_t found = attach(cache, seq, query);
  EXPECT_EQ(said, found);
  EXPECT_EQ(length_of(cache, seq), found);
  EXPECT_EQ(pattern_difference(cache, seq, static_cast<uint64_t>(family)), "");
  expect_sound(cache);
  return found;
}

}  // namespace kvc::test
