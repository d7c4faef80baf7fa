// What a caller can see of a cache: to show that a refused call changed nothing.
#pragma once

#include <cstring>
#include <vector>

#include "kvcache.h"
#include "tests/fuzz/sized_struct.h"

namespace kvc::fuzz {

inline std::vector<kvc_seq> sequences_of(const kvc_cache* cache) {
  size_t count = 0;
  KVC_FUZZ_CHECK(kvc_seq_list(cache, nullptr, &count, nullptr) == KVC_OK);
  std::vector<kvc_seq> seqs(count);
  if (count != 0)
    KVC_FUZZ_CHECK(kvc_seq_list(cache, seqs.data(), &count, nullptr) == KVC_OK &&
                   count == seqs.size());
  return seqs;
}

struct CacheState {
  kvc_stats stats{};
  std::vector<kvc_seq> seqs;
  std::vector<kvc_seq_info> infos;
  int64_t available_pages = 0, total_length = 0;
  int32_t is_empty = 0;

  bool operator==(const CacheState& other) const {
    return std::memcmp(&stats, &other.stats, sizeof stats) == 0 && seqs == other.seqs &&
           (infos.empty() ||
            std::memcmp(infos.data(), other.infos.data(), infos.size() * sizeof infos[0]) == 0) &&
           available_pages == other.available_pages && total_length == other.total_length &&
           is_empty == other.is_empty;
  }
};

// Counters of calls that were answered "not now" or looked something up are left out: they count
// refusals. So is host memory: room that was made stays.
inline CacheState state_of(const kvc_cache* cache) {
  CacheState state;
  state.stats.struct_size = sizeof state.stats;
  KVC_FUZZ_CHECK(kvc_cache_stats_get(cache, &state.stats, nullptr) == KVC_OK);
  state.stats.no_pages = state.stats.host_bytes = 0;
  state.stats.step_bytes = state.stats.step_copies = 0;
  state.seqs = sequences_of(cache);
  state.infos.resize(state.seqs.size());
  for (size_t i = 0; i < state.seqs.size(); ++i) {
    state.infos[i].struct_size = sizeof state.infos[i];
    KVC_FUZZ_CHECK(kvc_seq_info_get(cache, state.seqs[i], &state.infos[i], nullptr) == KVC_OK);
  }
  state.available_pages = kvc_cache_available_pages(cache);
  state.total_length = kvc_cache_total_length(cache);
  state.is_empty = kvc_cache_is_empty(cache);
  KVC_FUZZ_CHECK(state.stats.pages_available == state.available_pages &&
                 state.stats.total_length == state.total_length);
  KVC_FUZZ_CHECK(state.stats.pages_used + state.stats.pages_available == state.stats.pages_total);
  KVC_FUZZ_CHECK(static_cast<size_t>(state.stats.num_seqs) == state.seqs.size());
  return state;
}

}  // namespace kvc::fuzz
