// Everything a caller can see of a cache's bookkeeping, to prove that a failing call has changed
// nothing.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "kvcache.h"

namespace kvc::test {

struct Snapshot {
  std::vector<kvc_seq> ids;
  std::vector<kvc_seq_info> infos;
  std::vector<std::vector<int32_t>> pages;  // by sequence, then group
  kvc_stats stats{};
  int64_t available_pages = 0, total_length = 0, open_tokens = 0;
  int32_t is_empty = 0;
};

inline Snapshot take_snapshot(const kvc_cache* cache, const kvc_forward* open, size_t num_groups) {
  const auto require = [](kvc_status status) {
    if (status != KVC_OK)
      throw std::runtime_error(std::string("a snapshot met ") + kvc_status_name(status));
  };
  Snapshot snapshot;
  size_t count = 0;
  require(kvc_seq_list(cache, nullptr, &count, nullptr));
  snapshot.ids.resize(count);
  require(kvc_seq_list(cache, snapshot.ids.data(), &count, nullptr));
  for (const kvc_seq seq : snapshot.ids) {
    kvc_seq_info info{};
    info.struct_size = sizeof info;
    require(kvc_seq_info_get(cache, seq, &info, nullptr));
    snapshot.infos.push_back(info);
    for (size_t group = 0; group < num_groups && info.is_swapped == 0; ++group) {
      DLManagedTensorVersioned* pages = nullptr;
      require(kvc_export_seq_pages(cache, seq, static_cast<int32_t>(group), &pages, nullptr));
      const auto* ids = static_cast<const int32_t*>(pages->dl_tensor.data);
      snapshot.pages.emplace_back(ids, ids + pages->dl_tensor.shape[0]);
      pages->deleter(pages);
    }
  }
  snapshot.stats.struct_size = sizeof snapshot.stats;
  require(kvc_cache_stats_get(cache, &snapshot.stats, nullptr));
  snapshot.available_pages = kvc_cache_available_pages(cache);
  snapshot.total_length = kvc_cache_total_length(cache);
  snapshot.open_tokens = kvc_forward_num_tokens(open);
  snapshot.is_empty = kvc_cache_is_empty(cache);
  return snapshot;
}

// Empty when equal, else what differs. Begins answered NO_PAGES are counted by a failing call and
// not compared. Room that it has made stays.
inline std::string difference(const Snapshot& before, const Snapshot& after) {
  if (before.ids != after.ids) return "the list of sequences changed";
  for (size_t i = 0; i < before.infos.size(); ++i) {
    if (std::memcmp(&before.infos[i], &after.infos[i], sizeof(kvc_seq_info)) != 0) {
      return "the info of sequence " + std::to_string(before.ids[i]) + " changed";
    }
  }
  if (before.pages != after.pages) return "the pages of a sequence changed";
  kvc_stats stats = before.stats;
  stats.no_pages = after.stats.no_pages;
  stats.host_bytes = after.stats.host_bytes;
  if (std::memcmp(&stats, &after.stats, sizeof stats) != 0) return "the stats changed";
  if (before.available_pages != after.available_pages ||
      before.total_length != after.total_length || before.is_empty != after.is_empty) {
    return "free pages, total length or emptiness changed";
  }
  if (before.open_tokens != after.open_tokens) return "the open forward changed";
  return "";
}

}  // namespace kvc::test
