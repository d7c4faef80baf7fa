// Counters of the prefix index for kvc_stats.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "kvcache.h"
#include "src/base/memory.h"

namespace kvc {

// Times are in ticks of a tenth of a microsecond.
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
  int64_t host_bytes() const { return kvc::host_bytes(recent_); }

  uint64_t stored = 0;
  uint64_t duplicates = 0;
  uint64_t evicted = 0;
  uint64_t rejected = 0;
  uint64_t demoted = 0;   // Pages.
  uint64_t promoted = 0;  // Pages.

 private:
  static constexpr size_t kRecent = 1000;
  using Histogram = std::array<uint64_t, 32>;
  struct Lookup {
    uint64_t query_tokens = 0;
    uint64_t hit_tokens = 0;
  };

  // Bucket i counts [2^i, 2^(i+1)) milliseconds. The first one also counts less, the last one more.
  static void count(Histogram* histogram, uint64_t ticks) noexcept;

  uint64_t lookups_ = 0;
  Lookup total_, recent_total_;
  std::vector<Lookup> recent_;  // Lookup i is at i % kRecent.
  Histogram lifetime_{}, idle_{}, reuse_gap_{};
};

}  // namespace kvc
