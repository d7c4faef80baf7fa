// Random swaps among forwards, forks, windows, pops, prefix hits and failing allocations: what was written is read again wherever it was in
// between, and nothing is left behind. Environment: KVC_TEST_SCALE, KVC_TEST_SEED, KVC_TEST_OFFSET as for the random operations.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/model/swap_run.h"

namespace kvc::test {
namespace {

double environment(const char* name, double otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtod(text, nullptr);
}

TEST(RandomSwaps, PatternsSurviveAnyMixAndNothingLeaks) {
  constexpr uint64_t kFirst = 7000, kCount = 120;
  constexpr double kOperations = 1800;
  const auto only = static_cast<int64_t>(environment("KVC_TEST_SEED", -1));
  const auto offset = static_cast<uint64_t>(environment("KVC_TEST_OFFSET", 0));
  const double scale = environment("KVC_TEST_SCALE", 1);
  const auto start = std::chrono::steady_clock::now();
  SwapRun::Coverage coverage;
  int64_t total = 0;
  int failures = 0;
  for (uint64_t seed = kFirst + offset; seed < kFirst + offset + kCount; ++seed) {
    if (only >= 0 && static_cast<uint64_t>(only) != seed) continue;
    SwapRun run(seed);
    try {
      total += run.run(std::max<int64_t>(20, static_cast<int64_t>(kOperations * scale)));
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what() << "\n" << run.describe();
      if (++failures >= 5) return;
    }
    run.add_coverage(&coverage);
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  std::printf("swaps: seeds %llu to %llu, %lld operations, %.1f s\n",
              static_cast<unsigned long long>(kFirst + offset),
              static_cast<unsigned long long>(kFirst + offset + kCount - 1), static_cast<long long>(total),
              elapsed.count());
  if (std::getenv("KVC_TEST_VERBOSE") != nullptr) {
    for (const auto& [name, answers] : coverage) {
      std::printf("  %-24s", name.c_str());
      for (const auto& [status, count] : answers)
        std::printf(" %s %lld", kvc_status_name(status) + 4, static_cast<long long>(count));
      std::printf("\n");
    }
  }
  if (only >= 0 || scale < 0.5) return;
  const auto met = [&](const char* name, std::initializer_list<kvc_status> statuses) {
    for (const kvc_status status : statuses)
      EXPECT_GT(coverage[name][status], 0) << name << " never answered " << kvc_status_name(status);
  };
  met("kvc_swap_out", {KVC_OK, KVC_E_NO_PAGES, KVC_E_NO_MEMORY, KVC_E_INVALID_STATE, KVC_E_BUSY,
                       KVC_E_NOT_FOUND, KVC_E_INVALID_ARGUMENT});
  met("kvc_swap_in", {KVC_OK, KVC_E_NO_PAGES, KVC_E_NO_MEMORY, KVC_E_INVALID_STATE, KVC_E_NOT_FOUND,
                      KVC_E_INVALID_ARGUMENT});
  met("kvc_forward_begin", {KVC_OK, KVC_E_NO_PAGES, KVC_E_NO_MEMORY, KVC_E_INVALID_STATE});
  met("kvc_seq_fork", {KVC_OK, KVC_E_OUT_OF_RANGE, KVC_E_INVALID_STATE});
  met("kvc_seq_pop", {KVC_OK, KVC_E_OUT_OF_RANGE, KVC_E_INVALID_STATE});
  met("kvc_seq_shift", {KVC_OK, KVC_E_INVALID_STATE});
  met("kvc_seq_set_window", {KVC_OK});
  met("kvc_debug_set_layer", {KVC_OK, KVC_E_NO_PAGES});
  met("kvc_prefix_attach", {KVC_OK, KVC_E_NO_MEMORY});
  met("hit", {KVC_OK});
}

}  // namespace
}  // namespace kvc::test
