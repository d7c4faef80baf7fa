// Questions that any step may ask about the cache, and the snapshot around refused steps.
#include <gtest/gtest.h>

#include <sstream>

#include "tests/conformance/session.h"

namespace kvc::conformance {
namespace {

Json info_json(const kvc_seq_info& info) {
  return {{"length", info.length},
          {"first_position", info.first_position},
          {"last_position", info.last_position},
          {"num_pages", info.num_pages},
          {"num_shared_pages", info.num_shared_pages},
          {"window", info.window},
          {"sink", info.sink},
          {"in_forward", info.in_forward},
          {"num_checkpoints", info.num_checkpoints},
          {"tree_nodes", info.tree_nodes},
          {"cross_length", info.cross_length},
          {"known_tokens", info.known_tokens}};
}

Json stats_json(const kvc_stats& stats) {
  return {{"num_seqs", stats.num_seqs},
          {"total_length", stats.total_length},
          {"pages_total", stats.pages_total},
          {"pages_free", stats.pages_free},
          {"pages_used", stats.pages_used},
          {"pages_shared", stats.pages_shared},
          {"pages_peak", stats.pages_peak},
          {"forwards", stats.forwards},
          {"forwards_aborted", stats.forwards_aborted},
          {"tokens_appended", stats.tokens_appended},
          {"pages_copied", stats.pages_copied},
          {"no_pages", stats.no_pages},
          {"tree_tokens", stats.tree_tokens},
          {"pages_cached", stats.pages_cached},
          {"pages_evictable", stats.pages_evictable},
          {"prefix_blocks", stats.prefix_blocks},
          {"prefix_pinned", stats.prefix_pinned},
          {"prefix_lookups", stats.prefix_lookups},
          {"prefix_query_tokens", stats.prefix_query_tokens},
          {"prefix_hit_tokens", stats.prefix_hit_tokens},
          {"prefix_stored", stats.prefix_stored},
          {"prefix_duplicates", stats.prefix_duplicates},
          {"prefix_evicted", stats.prefix_evicted},
          {"prefix_rejected", stats.prefix_rejected}};
}

Json seq_info(const Session& session, kvc_seq seq) {
  kvc_seq_info info{};
  info.struct_size = sizeof info;
  EXPECT_EQ(kvc_seq_info_get(session.cache, seq, &info, nullptr), KVC_OK) << "sequence " << seq;
  return info_json(info);
}

std::vector<kvc_seq> all_seqs(const Session& session) {
  size_t count = 0;
  EXPECT_EQ(kvc_seq_list(session.cache, nullptr, &count, nullptr), KVC_OK);
  std::vector<kvc_seq> seqs(count + 1);
  count = seqs.size();
  EXPECT_EQ(kvc_seq_list(session.cache, seqs.data(), &count, nullptr), KVC_OK);
  seqs.resize(count);
  return seqs;
}

int32_t num_groups(const Session& session) {
  kvc_plan_info info{};
  info.struct_size = sizeof info;
  EXPECT_EQ(kvc_plan_info_get(session.plan, &info, nullptr), KVC_OK);
  return info.num_groups;
}

void check_fields(const Json& actual, const Json& expected, const std::string& what) {
  for (const auto& [field, wanted] : expected.items()) {
    if (!actual.contains(field)) throw std::runtime_error(what + " has no field '" + field + "'");
    EXPECT_EQ(actual[field], wanted) << field << " of " << what;
  }
}

}  // namespace

std::vector<int64_t> take_integers(DLManagedTensorVersioned* exported) {
  const DLTensor& tensor = exported->dl_tensor;
  int64_t size = 1;
  for (int32_t i = 0; i < tensor.ndim; ++i) size *= tensor.shape[i];
  const char* data = static_cast<const char*>(tensor.data) + tensor.byte_offset;
  std::vector<int64_t> integers;
  for (int64_t i = 0; i < size; ++i)
    integers.push_back(tensor.dtype.bits == 64 ? reinterpret_cast<const int64_t*>(data)[i]
                                               : reinterpret_cast<const int32_t*>(data)[i]);
  if (exported->deleter != nullptr) exported->deleter(exported);
  return integers;
}

std::vector<int64_t> seq_pages(const Session& session, kvc_seq seq, int32_t group) {
  DLManagedTensorVersioned* exported = nullptr;
  kvc_error error{};
  EXPECT_EQ(kvc_export_seq_pages(session.cache, seq, group, &exported, &error), KVC_OK) << error.message;
  return exported == nullptr ? std::vector<int64_t>{} : take_integers(exported);
}

std::string snapshot(const Session& session) {
  std::ostringstream text;
  text << "free " << kvc_cache_free_pages(session.cache) << " total "
       << kvc_cache_total_length(session.cache);
  const int32_t groups = num_groups(session);
  for (const kvc_seq seq : all_seqs(session)) {
    text << "\nsequence " << seq << ' ' << seq_info(session, seq).dump();
    for (int32_t group = 0; group < groups; ++group) {
      text << " pages";
      for (const int64_t page : seq_pages(session, seq, group)) text << ' ' << page;
    }
  }
  return text.str();
}

void check_expectations(const Session& session, const Json& expect) {
  const Json lengths = expect.value("lengths", Json::object());
  for (const auto& [seq, wanted] : lengths.items()) {
    int64_t length = -1;
    EXPECT_EQ(kvc_seq_length(session.cache, std::stoll(seq), &length, nullptr), KVC_OK) << "sequence " << seq;
    EXPECT_EQ(length, wanted.get<int64_t>()) << "length of sequence " << seq;
  }
  if (expect.contains("free_pages")) {
    EXPECT_EQ(kvc_cache_free_pages(session.cache), expect["free_pages"].get<int64_t>()) << "free pages";
  }
  if (expect.contains("empty")) {
    EXPECT_EQ(kvc_cache_is_empty(session.cache), expect["empty"].get<int32_t>());
  }
  if (expect.contains("total_length")) {
    EXPECT_EQ(kvc_cache_total_length(session.cache), expect["total_length"].get<int64_t>()) << "total length";
  }
  if (expect.contains("seqs")) {
    EXPECT_EQ(all_seqs(session), expect["seqs"].get<std::vector<kvc_seq>>());
  }
  const Json infos = expect.value("info", Json::object());
  for (const auto& [seq, fields] : infos.items())
    check_fields(seq_info(session, std::stoll(seq)), fields, "sequence " + seq);
  const Json pages = expect.value("pages", Json::object());
  for (const auto& [seq, layers] : pages.items()) {
    for (const auto& [layer, wanted] : layers.items()) {
      const auto kept = seq_pages(session, std::stoll(seq), session.group_of(std::stoi(layer)));
      EXPECT_EQ(kept.size(), wanted.get<size_t>()) << "pages of sequence " << seq << " for layer " << layer;
    }
  }
  if (expect.contains("stats")) {
    kvc_stats stats{};
    stats.struct_size = sizeof stats;
    EXPECT_EQ(kvc_cache_stats_get(session.cache, &stats, nullptr), KVC_OK);
    check_fields(stats_json(stats), expect["stats"], "the cache's statistics");
  }
}

}  // namespace kvc::conformance
