// Runs of random operations over a range of seeds. Environment: KVC_TEST_SCALE multiplies the
// operations per seed (sanitizer builds take a fraction), KVC_TEST_SEED runs that seed alone,
// KVC_TEST_OFFSET starts the seeds elsewhere, KVC_TEST_SEEDS ends a test after so many,
// KVC_TEST_FAILURES ends it after so many failing seeds, KVC_TEST_VERBOSE prints which function
// answered what.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "tests/model/coverage.h"
#include "tests/model/found_seeds.h"
#include "tests/support/environment.h"

namespace kvc::test {

// What all seeds together did.
struct SeedResult {
  Coverage coverage;
  int64_t operations = 0;
  bool is_whole = false;  // neither one seed alone nor ended by failures

  // A run that never met these answers would prove little.
  void expect_met(const char* function, std::initializer_list<kvc_status> statuses) {
    if (!is_whole || environment("KVC_TEST_SCALE", 1) < 1) return;
    for (const kvc_status status : statuses)
      EXPECT_GT(coverage[function][status], 0)
          << function << " never answered " << kvc_status_name(status);
  }
};

inline void print(const Coverage& coverage) {
  for (const auto& [function, answers] : coverage) {
    std::printf("  %-24s", function.c_str());
    for (const auto& [status, count] : answers)
      std::printf(" %s %lld", kvc_status_name(status) + 4, static_cast<long long>(count));
    std::printf("\n");
  }
}

// A Run(seed, options...) for every seed. Its run(operations) returns how many it did and throws
// std::exception on a mismatch; describe() says where it stands, coverage() what it has met.
template <typename Run, typename... Options>
SeedResult run_seeds(const char* what, uint64_t first, uint64_t count, int64_t operations,
                     Options... options) {
  const auto only = static_cast<int64_t>(environment("KVC_TEST_SEED", -1));
  first += static_cast<uint64_t>(environment("KVC_TEST_OFFSET", 0));
  const bool is_cut = std::getenv("KVC_TEST_SEEDS") != nullptr;
  if (is_cut) count = std::min(count, static_cast<uint64_t>(environment("KVC_TEST_SEEDS", 1)));
  const auto per_seed = std::max<int64_t>(
      10, static_cast<int64_t>(static_cast<double>(operations) * environment("KVC_TEST_SCALE", 1)));
  const auto start = std::chrono::steady_clock::now();
  SeedResult result{.coverage = {}, .is_whole = only < 0 && !is_cut};
  int failures = 0;
  std::vector<FoundSeed> runs;
  for (const FoundSeed& found : kFoundSeeds)
    if (std::string_view(found.what) == what) runs.push_back(found);
  for (uint64_t seed = first; seed < first + count; ++seed) runs.push_back({what, seed, per_seed});
  for (const auto& [name, seed, its_operations] : runs) {
    if (only >= 0 && static_cast<uint64_t>(only) != seed) continue;
    Run run(seed, options...);
    try {
      result.operations += run.run(its_operations);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what() << "\n"
                    << run.describe() << "\nto keep it, add to tests/model/found_seeds.h: {\""
                    << name << "\", " << seed << ", " << its_operations << "},";
      result.is_whole = result.is_whole && ++failures < environment("KVC_TEST_FAILURES", 5);
      if (!result.is_whole) break;
    }
    for (const auto& [function, answers] : run.coverage()) {
      for (const auto& [status, number] : answers) result.coverage[function][status] += number;
    }
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  std::printf("%s: seeds %llu to %llu, %lld operations, %.1f s\n", what,
              static_cast<unsigned long long>(first),
              static_cast<unsigned long long>(first + count - 1),
              static_cast<long long>(result.operations), elapsed.count());
  if (std::getenv("KVC_TEST_VERBOSE") != nullptr) print(result.coverage);
  return result;
}

}  // namespace kvc::test
