#include "src/prefix/metrics.h"

#include <algorithm>
#include <bit>

namespace kvc {

void PrefixMetrics::count(Histogram* histogram, uint64_t ticks) noexcept {
  const uint64_t milliseconds = ticks / kTicksPerMillisecond;
  const int bucket = milliseconds == 0 ? 0 : std::bit_width(milliseconds) - 1;
  ++(*histogram)[std::min(bucket, 31)];
}

void PrefixMetrics::count_lookup(int64_t query_tokens, int64_t hit_tokens) noexcept {
  const Lookup lookup{static_cast<uint64_t>(query_tokens), static_cast<uint64_t>(hit_tokens)};
  Lookup& oldest = recent_[lookups_ % kRecent];
  ++lookups_;
  total_.query_tokens += lookup.query_tokens;
  total_.hit_tokens += lookup.hit_tokens;
  recent_total_.query_tokens += lookup.query_tokens - oldest.query_tokens;
  recent_total_.hit_tokens += lookup.hit_tokens - oldest.hit_tokens;
  oldest = lookup;
}

void PrefixMetrics::fill(kvc_stats* stats) const noexcept {
  stats->prefix_lookups = lookups_;
  stats->prefix_query_tokens = total_.query_tokens;
  stats->prefix_hit_tokens = total_.hit_tokens;
  stats->recent_query_tokens = recent_total_.query_tokens;
  stats->recent_hit_tokens = recent_total_.hit_tokens;
  stats->prefix_stored = stored;
  stats->prefix_duplicates = duplicates;
  stats->prefix_evicted = evicted;
  stats->prefix_rejected = rejected;
  stats->prefix_demoted = demoted;
  stats->prefix_promoted = promoted;
  std::copy(lifetime_.begin(), lifetime_.end(), stats->block_lifetime);
  std::copy(idle_.begin(), idle_.end(), stats->block_idle);
  std::copy(reuse_gap_.begin(), reuse_gap_.end(), stats->block_reuse_gap);
}

}  // namespace kvc
