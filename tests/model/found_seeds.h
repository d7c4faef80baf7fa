// Seeds that failed where the fixed ranges did not reach: they always run.
#pragma once

#include <cstdint>
#include <vector>

namespace kvc::test {

struct FoundSeed {
  const char* what;  // The first argument of run_seeds.
  uint64_t seed;
  int64_t operations;
};

inline const std::vector<FoundSeed> kFoundSeeds = {
    {"swaps", 7002, 18000},   {"tensors", 2089, 1500},   {"tensors", 2104, 4500},
    {"tensors", 52029, 1500}, {"prefixes", 34113, 5200}, {"prefixes", 44017, 5200},
    {"tensors", 82037, 1500}};

}  // namespace kvc::test
