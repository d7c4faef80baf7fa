// Random operations against the oracle. Environment: KVC_TEST_SCALE multiplies the operations per seed (sanitizer builds take a fraction),
// KVC_TEST_SEED runs that seed alone, KVC_TEST_OFFSET starts the seeds elsewhere, KVC_TEST_FAILURES ends a test after so many failing seeds.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/model/random_run.h"

namespace kvc::test {
namespace {

double environment(const char* name, double otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtod(text, nullptr);
}

RandomRun::Coverage run_seeds(const char* what, RunKind kind, uint64_t first, uint64_t count,
                              int64_t operations) {
  const auto only = static_cast<int64_t>(environment("KVC_TEST_SEED", -1));
  const auto offset = static_cast<uint64_t>(environment("KVC_TEST_OFFSET", 0));
  const auto per_seed = std::max<int64_t>(
      10, static_cast<int64_t>(static_cast<double>(operations) * environment("KVC_TEST_SCALE", 1)));
  const auto start = std::chrono::steady_clock::now();
  int64_t total = 0;
  RandomRun::Coverage coverage;
  int failures = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const uint64_t drawn = seed + offset;
    if (only >= 0 && static_cast<uint64_t>(only) != drawn) continue;
    RandomRun run(drawn, kind);
    try {
      total += run.run(per_seed);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what() << "\n" << run.describe();
      if (++failures >= environment("KVC_TEST_FAILURES", 5)) return coverage;
    }
    run.add_coverage(&coverage);
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  std::printf("%s: seeds %llu to %llu, %lld operations, %.1f s\n", what,
              static_cast<unsigned long long>(first + offset),
              static_cast<unsigned long long>(first + offset + count - 1), static_cast<long long>(total),
              elapsed.count());
  return coverage;
}

// A run that never met these answers would prove little.
void expect_met(RandomRun::Coverage& coverage, const char* function,
                std::initializer_list<kvc_status> statuses) {
  if (environment("KVC_TEST_SEED", -1) >= 0 || environment("KVC_TEST_SCALE", 1) < 0.5) return;
  for (const kvc_status status : statuses) {
    EXPECT_GT(coverage[function][status], 0) << function << " never answered " << kvc_status_name(status);
  }
}

void print(const RandomRun::Coverage& coverage) {
  if (std::getenv("KVC_TEST_VERBOSE") == nullptr) return;
  for (const auto& [function, answers] : coverage) {
    std::printf("  %-24s", function.c_str());
    for (const auto& [status, count] : answers)
      std::printf(" %s %lld", kvc_status_name(status) + 4, static_cast<long long>(count));
    std::printf("\n");
  }
}

TEST(RandomOperations, BookkeepingAgreesWithThePageModel) {
  RandomRun::Coverage coverage = run_seeds("bookkeeping", RunKind::kBookkeeping, 1000, 160, 6500);
  print(coverage);
  expect_met(coverage, "kvc_forward_begin",
             {KVC_OK, KVC_E_INVALID_ARGUMENT, KVC_E_NOT_FOUND, KVC_E_OUT_OF_RANGE, KVC_E_NO_PAGES,
              KVC_E_NEVER_FITS, KVC_E_BUSY, KVC_E_INVALID_STATE, KVC_E_UNSUPPORTED});
  expect_met(coverage, "kvc_seq_can_append", {KVC_OK, KVC_E_NEVER_FITS, KVC_E_BUSY});
  expect_met(coverage, "kvc_seq_add", {KVC_OK, KVC_E_ALREADY_EXISTS, KVC_E_INVALID_ARGUMENT});
  expect_met(coverage, "kvc_seq_remove", {KVC_OK, KVC_E_NOT_FOUND, KVC_E_BUSY});
  expect_met(
      coverage, "kvc_seq_fork",
      {KVC_OK, KVC_E_NOT_FOUND, KVC_E_ALREADY_EXISTS, KVC_E_OUT_OF_RANGE, KVC_E_BUSY, KVC_E_INVALID_STATE});
  expect_met(coverage, "kvc_seq_pop",
             {KVC_OK, KVC_E_NOT_FOUND, KVC_E_OUT_OF_RANGE, KVC_E_BUSY, KVC_E_INVALID_STATE});
  expect_met(coverage, "kvc_seq_set_window",
             {KVC_OK, KVC_E_NOT_FOUND, KVC_E_BUSY, KVC_E_INVALID_STATE, KVC_E_INVALID_ARGUMENT,
              KVC_E_OUT_OF_RANGE, KVC_E_UNSUPPORTED});
  expect_met(coverage, "kvc_seq_shift",
             {KVC_OK, KVC_E_NOT_FOUND, KVC_E_BUSY, KVC_E_INVALID_STATE, KVC_E_NO_PAGES, KVC_E_OUT_OF_RANGE,
              KVC_E_UNSUPPORTED});
  expect_met(coverage, "kvc_seq_can",
             {KVC_OK, KVC_E_NOT_FOUND, KVC_E_UNSUPPORTED, KVC_E_OUT_OF_RANGE, KVC_E_BUSY});
  expect_met(coverage, "kvc_tree_commit",
             {KVC_OK, KVC_E_NOT_FOUND, KVC_E_INVALID_ARGUMENT, KVC_E_INVALID_STATE, KVC_E_OUT_OF_RANGE});
  expect_met(coverage, "kvc_state_checkpoint", {KVC_OK, KVC_E_NOT_FOUND, KVC_E_BUSY, KVC_E_UNSUPPORTED});
  expect_met(coverage, "kvc_cache_resize", {KVC_OK, KVC_E_OUT_OF_RANGE, KVC_E_BUSY, KVC_E_NEVER_FITS});
  expect_met(coverage, "kvc_cache_clear", {KVC_OK, KVC_E_BUSY});
  expect_met(coverage, "kvc_forward_abort", {KVC_OK, KVC_E_INVALID_STATE});
}

TEST(RandomOperations, TensorsAgreeWithADenseCacheInDouble) {
  RandomRun::Coverage coverage = run_seeds("tensors", RunKind::kData, 2000, 160, 1500);
  print(coverage);
  for (const char* function :
       {"kvc_attn", "kvc_attn_fused_qkv", "kvc_attn_self", "kvc_attn_cached", "kvc_attn_shared_kv",
        "kvc_attn_cross", "kvc_attn_linear", "kvc_kv_append", "kvc_mla_append", "kvc_kv_gather",
        "kvc_state_get", "kvc_state_set", "kvc_state_conv", "kvc_seq_shift", "kvc_tree_commit"}) {
    expect_met(coverage, function, {KVC_OK});
  }
  for (const char* function :
       {"kvc_attn", "kvc_attn_cross", "kvc_attn_linear", "kvc_state_set", "kvc_mla_append"})
    expect_met(coverage, function, {KVC_E_INVALID_STATE});
  expect_met(coverage, "kvc_attn_self", {KVC_E_UNSUPPORTED});
  expect_met(coverage, "kvc_kv_gather", {KVC_E_OUT_OF_RANGE, KVC_E_INVALID_STATE, KVC_E_NOT_FOUND});
  for (const char* function : {"kvc_debug_set_kv", "kvc_debug_set_mla", "kvc_debug_set_layer"})
    expect_met(coverage, function, {KVC_OK, KVC_E_BUSY, KVC_E_OUT_OF_RANGE});
  expect_met(coverage, "kvc_debug_set_kv", {KVC_E_NO_PAGES});
  for (const char* function : {"kvc_debug_get_kv", "kvc_debug_get_mla", "kvc_debug_get_layer"})
    expect_met(coverage, function, {KVC_OK, KVC_E_NOT_FOUND, KVC_E_OUT_OF_RANGE});
  expect_met(coverage, "kvc_debug_set_state", {KVC_OK, KVC_E_NO_PAGES, KVC_E_BUSY});
  expect_met(coverage, "kvc_debug_get_state", {KVC_OK, KVC_E_OUT_OF_RANGE});
  expect_met(coverage, "kvc_cache_resize", {KVC_OK, KVC_E_BUSY, KVC_E_UNSUPPORTED});
}

TEST(RandomOperations, EveryAllocationMayFailOnceAndNothingChanges) {
  RandomRun::Coverage coverage = run_seeds("allocation failures", RunKind::kFailures, 3000, 80, 600);
  print(coverage);
  for (const char* function :
       {"kvc_plan_create", "kvc_cache_create", "kvc_seq_add", "kvc_seq_fork", "kvc_seq_shift",
        "kvc_tree_commit", "kvc_state_checkpoint", "kvc_forward_begin", "kvc_cache_resize", "kvc_attn",
        "kvc_attn_self", "kvc_attn_cross", "kvc_attn_linear", "kvc_state_conv", "kvc_kv_append",
        "kvc_export_page_table", "kvc_debug_set_layer"}) {
    expect_met(coverage, function, {KVC_OK, KVC_E_NO_MEMORY});
  }
}

}  // namespace
}  // namespace kvc::test
