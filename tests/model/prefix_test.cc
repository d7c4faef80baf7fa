// Random operations on caches with a prefix index against a dictionary of whole token histories.
#include "tests/model/prefix_run.h"
#include "tests/model/seeds.h"

namespace kvc::test {
namespace {

SeedResult run_prefix_seeds(const char* what, PrefixRunKind kind, uint64_t first, uint64_t count,
                            int64_t operations) {
  SeedResult result = run_seeds<PrefixRun>(what, first, count, operations, kind);
  // A run in which nothing hits would prove little.
  if (result.is_whole) {
    EXPECT_GT(result.coverage["tokens hit"][KVC_OK], result.operations / 50);
  }
  return result;
}

TEST(RandomPrefixes, NoHitReturnsPagesOfOtherTokens) {
  SeedResult result = run_prefix_seeds("prefixes", PrefixRunKind::kBookkeeping, 4000, 200, 5200);
  result.expect_met("kvc_prefix_attach",
                    {KVC_OK, KVC_E_ALREADY_EXISTS, KVC_E_INVALID_ARGUMENT, KVC_E_BUSY});
  result.expect_met("kvc_prefix_insert",
                    {KVC_OK, KVC_E_NOT_FOUND, KVC_E_OUT_OF_RANGE, KVC_E_BUSY, KVC_E_INVALID_STATE});
  result.expect_met("kvc_prefix_match", {KVC_OK, KVC_E_OUT_OF_RANGE});
  result.expect_met("kvc_prefix_pin", {KVC_OK, KVC_E_OUT_OF_RANGE});
  result.expect_met("kvc_prefix_evict", {KVC_OK, KVC_E_OUT_OF_RANGE});
  result.expect_met("kvc_prefix_reset", {KVC_OK, KVC_E_BUSY});
  for (const char* function :
       {"kvc_prefix_unpin", "kvc_prefix_quota_set", "kvc_tree_commit", "kvc_seq_set_window",
        "kvc_seq_shift", "kvc_cache_resize", "kvc_swap_in"})
    result.expect_met(function, {KVC_OK});
  result.expect_met("kvc_forward_begin", {KVC_OK, KVC_E_NO_PAGES});
}

TEST(RandomPrefixes, HitsHoldTheRowsOfTheirTokens) {
  SeedResult result = run_prefix_seeds("prefix rows", PrefixRunKind::kData, 5000, 80, 700);
  result.expect_met("kvc_prefix_attach", {KVC_OK});
}

TEST(RandomPrefixes, EveryAllocationMayFailOnceAndNothingChanges) {
  SeedResult result =
      run_prefix_seeds("prefix allocation failures", PrefixRunKind::kFailures, 6000, 60, 300);
  for (const char* function : {"kvc_prefix_attach", "kvc_prefix_insert", "kvc_prefix_match",
                               "kvc_forward_begin", "kvc_seq_fork"})
    result.expect_met(function, {KVC_OK, KVC_E_NO_MEMORY});
}

}  // namespace
}  // namespace kvc::test
