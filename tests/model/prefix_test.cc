// Random operations on caches with a prefix index against a dictionary of whole token histories. Environment as random_ops_test.cc: KVC_TEST_SCALE,
// KVC_TEST_SEED, KVC_TEST_OFFSET, KVC_TEST_FAILURES, KVC_TEST_VERBOSE.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "tests/model/prefix_run.h"

namespace kvc::test {
namespace {

double environment(const char* name, double otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtod(text, nullptr);
}

PrefixRun::Coverage run_seeds(const char* what, PrefixRunKind kind, uint64_t first, uint64_t count,
                              int64_t operations) {
  const auto only = static_cast<int64_t>(environment("KVC_TEST_SEED", -1));
  const auto offset = static_cast<uint64_t>(environment("KVC_TEST_OFFSET", 0));
  const auto per_seed = std::max<int64_t>(
      10, static_cast<int64_t>(static_cast<double>(operations) * environment("KVC_TEST_SCALE", 1)));
  const auto start = std::chrono::steady_clock::now();
  int64_t total = 0;
  uint64_t hits = 0;
  int failures = 0;
  PrefixRun::Coverage coverage;
  for (uint64_t seed = first + offset; seed < first + offset + count; ++seed) {
    if (only >= 0 && static_cast<uint64_t>(only) != seed) continue;
    PrefixRun run(seed, kind);
    try {
      total += run.run(per_seed);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what() << "\n" << run.describe();
      if (++failures >= environment("KVC_TEST_FAILURES", 5)) return coverage;
    }
    run.add_coverage(&coverage);
    hits += run.hit_tokens();
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  std::printf("%s: seeds %llu to %llu, %lld operations, %llu tokens hit, %.1f s\n", what,
              static_cast<unsigned long long>(first + offset),
              static_cast<unsigned long long>(first + offset + count - 1), static_cast<long long>(total),
              static_cast<unsigned long long>(hits), elapsed.count());
  if (std::getenv("KVC_TEST_VERBOSE") != nullptr) {
    for (const auto& [function, answers] : coverage) {
      std::printf("  %-24s", function.c_str());
      for (const auto& [status, number] : answers)
        std::printf(" %s %lld", kvc_status_name(status) + 4, static_cast<long long>(number));
      std::printf("\n");
    }
  }
  // A run in which nothing hits would prove little.
  if (only < 0) {
    EXPECT_GT(hits, static_cast<uint64_t>(total) / 50);
  }
  return coverage;
}

void expect_met(PrefixRun::Coverage& coverage, const char* function,
                std::initializer_list<kvc_status> statuses) {
  if (environment("KVC_TEST_SEED", -1) >= 0 || environment("KVC_TEST_SCALE", 1) < 0.5) return;
  for (const kvc_status status : statuses)
    EXPECT_GT(coverage[function][status], 0) << function << " never answered " << kvc_status_name(status);
}

TEST(RandomPrefixes, NoHitReturnsPagesOfOtherTokens) {
  PrefixRun::Coverage coverage = run_seeds("prefixes", PrefixRunKind::kBookkeeping, 4000, 200, 5200);
  expect_met(coverage, "kvc_prefix_attach",
             {KVC_OK, KVC_E_ALREADY_EXISTS, KVC_E_INVALID_ARGUMENT, KVC_E_BUSY});
  expect_met(coverage, "kvc_prefix_insert",
             {KVC_OK, KVC_E_NOT_FOUND, KVC_E_OUT_OF_RANGE, KVC_E_BUSY, KVC_E_INVALID_STATE});
  expect_met(coverage, "kvc_prefix_match", {KVC_OK, KVC_E_OUT_OF_RANGE});
  expect_met(coverage, "kvc_prefix_pin", {KVC_OK, KVC_E_OUT_OF_RANGE});
  expect_met(coverage, "kvc_prefix_evict", {KVC_OK, KVC_E_OUT_OF_RANGE});
  expect_met(coverage, "kvc_prefix_reset", {KVC_OK, KVC_E_BUSY});
  for (const char* function : {"kvc_prefix_unpin", "kvc_prefix_quota_set", "kvc_tree_commit",
                               "kvc_seq_set_window", "kvc_seq_shift", "kvc_cache_resize", "kvc_swap_in"})
    expect_met(coverage, function, {KVC_OK});
  expect_met(coverage, "kvc_forward_begin", {KVC_OK, KVC_E_NO_PAGES});
}

TEST(RandomPrefixes, HitsHoldTheRowsOfTheirTokens) {
  PrefixRun::Coverage coverage = run_seeds("prefix rows", PrefixRunKind::kData, 5000, 80, 700);
  expect_met(coverage, "kvc_prefix_attach", {KVC_OK});
}

TEST(RandomPrefixes, EveryAllocationMayFailOnceAndNothingChanges) {
  PrefixRun::Coverage coverage =
      run_seeds("prefix allocation failures", PrefixRunKind::kFailures, 6000, 60, 300);
  for (const char* function :
       {"kvc_prefix_attach", "kvc_prefix_insert", "kvc_prefix_match", "kvc_forward_begin", "kvc_seq_fork"})
    expect_met(coverage, function, {KVC_OK, KVC_E_NO_MEMORY});
}

}  // namespace
}  // namespace kvc::test
