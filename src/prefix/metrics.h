// Counters of the prefix index, as kvc_stats shows them.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "kvcache.h"

namespace kvc {

// Times in ticks of a tenth of a microsecond.
constexpr uint64_t kTicksPerMillisecond = 10000;

class PrefixMetrics {
 public:
  PrefixMetrics() : recent_(kRecent) {}

  void count_lookup(int64_t query_tokens, int64_t hit_tokens) noexcept;
  void count_reuse(uint64_t gap) noexcept { count(&reuse_gap_, gap); }
  void count_evicted(uint64_t lifetime, uint64_t idle) noexcept {
    ++evicted;
    count(&lifetime_, lifetime);
    count(&idle_, idle);
  }
  void fill(kvc_stats* stats) const noexcept;

  uint64_t stored = 0;
  uint64_t duplicates = 0;
  uint64_t evicted = 0;
  uint64_t rejected = 0;
  uint64_t demoted = 0;   // pages
  uint64_t promoted = 0;  // pages

 private:
  static constexpr size_t kRecent = 1000;
  using Histogram = std::array<uint64_t, 32>;
  struct Lookup {
    uint64_t query_tokens = 0;
    uint64_t hit_tokens = 0;
  };

  // Bucket i: [2^i, 2^(i+1)) milliseconds; 0 also less, the last one also more.
  static void count(Histogram* histogram, uint64_t ticks) noexcept;

  uint64_t lookups_ = 0;
  Lookup total_, recent_total_;
  std::vector<Lookup> recent_;  // of lookup i at i % kRecent
  Histogram lifetime_{}, idle_{}, reuse_gap_{};
};

}  // namespace kvc
