// How often a test of reliability does its worst.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tests/support/environment.h"

namespace kvc::test {

// Per commit, or in a release (`make reliability` sets KVC_RELIABILITY=1). Builds with sanitizers
// take a fraction.
inline int64_t times(int64_t per_commit, int64_t per_release) {
  const bool is_release = environment("KVC_RELIABILITY", 0) != 0;
  const auto count = static_cast<double>(is_release ? per_release : per_commit);
  return std::max<int64_t>(3, static_cast<int64_t>(count * environment("KVC_TEST_SCALE", 1)));
}

}  // namespace kvc::test
