// Steps that export pools and page tables, and compare the forms of one table with each other.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/conformance/session.h"

namespace kvc::conformance {
namespace {

const std::map<std::string, int32_t> kPoolKinds{
    {"K", KVC_POOL_K}, {"V", KVC_POOL_V}, {"KV", KVC_POOL_KV}, {"BYTES", KVC_POOL_BYTES}};

kvc_status export_pool(Session& session, const Json& step, kvc_error* err) {
  DLManagedTensorVersioned* exported = nullptr;
  const kvc_status status =
      kvc_export_pool(session.cache, step.at("layer").get<int32_t>(),
                      look_up(step.at("kind").get<std::string>(), kPoolKinds), &exported, err);
  if (status != KVC_OK) return status;
  const DLTensor& tensor = exported->dl_tensor;
  if (step.contains("shape")) {
    EXPECT_EQ(std::vector<int64_t>(tensor.shape, tensor.shape + tensor.ndim),
              step["shape"].get<std::vector<int64_t>>());
  }
  exported->deleter(exported);
  return status;
}

kvc_status take_table(const Session& session, int32_t group, kvc_table_kind kind, std::vector<int64_t>& out,
                      kvc_error* err) {
  DLManagedTensorVersioned* exported = nullptr;
  const kvc_status status = kvc_export_page_table(session.fwd, group, kind, &exported, err);
  if (status == KVC_OK) out = take_integers(exported);
  return status;
}

// Every form of the table says the same: INDICES and PAGE_POSITION list what BLOCK_TABLE has, SLOT_MAPPING points into it.
void check_forms(const Session& session, const std::vector<std::vector<int64_t>>& tables, bool is_cross) {
  const std::vector<int64_t>& indptr = tables[KVC_TABLE_INDPTR];
  const std::vector<int64_t>& blocks = tables[KVC_TABLE_BLOCK_TABLE];
  const std::vector<int64_t>& slots = tables[KVC_TABLE_SLOT_MAPPING];
  const int64_t page_size = session.model.config().page_size;
  const size_t entries = session.batch.seqs.size();
  ASSERT_EQ(indptr.size(), entries + 1);
  const size_t width = blocks.size() / entries;
  size_t token = 0;
  for (size_t entry = 0; entry < entries; ++entry) {
    std::vector<int64_t> pages, positions;
    for (size_t column = 0; column < width; ++column) {
      if (blocks[entry * width + column] < 0) continue;
      pages.push_back(blocks[entry * width + column]);
      positions.push_back(static_cast<int64_t>(column) * page_size);
    }
    const auto slice = [&](kvc_table_kind kind) {
      const auto& table = tables[static_cast<size_t>(kind)];
      return std::vector<int64_t>(table.begin() + indptr[entry], table.begin() + indptr[entry + 1]);
    };
    EXPECT_EQ(slice(KVC_TABLE_INDICES), pages) << "INDICES against BLOCK_TABLE, entry " << entry;
    EXPECT_EQ(slice(KVC_TABLE_PAGE_POSITION), positions)
        << "PAGE_POSITION against BLOCK_TABLE, entry " << entry;
    const int64_t length = tables[KVC_TABLE_SEQ_LENS].at(entry);
    for (int64_t i = 0; i < session.batch.lengths[entry] && !is_cross; ++i, ++token) {
      const int64_t index = length - session.batch.lengths[entry] + i;
      const int64_t page = blocks.at(entry * width + static_cast<size_t>(index / page_size));
      EXPECT_EQ(slots.at(token), page * page_size + index % page_size)
          << "SLOT_MAPPING of new token " << token;
    }
  }
}

kvc_status tables(Session& session, const Json& step, kvc_error* err) {
  static const std::map<std::string, int32_t> kStated{{"indptr", KVC_TABLE_INDPTR},
                                                      {"last_page_len", KVC_TABLE_LAST_PAGE_LEN},
                                                      {"seq_lens", KVC_TABLE_SEQ_LENS},
                                                      {"qo_indptr", KVC_TABLE_QO_INDPTR},
                                                      {"page_position", KVC_TABLE_PAGE_POSITION}};
  const auto layer = step.at("layer").get<int32_t>();
  const int32_t group = session.group_of(layer);
  if (step.contains("kind")) {
    std::vector<int64_t> unused;
    return take_table(session, group, step["kind"].get<int32_t>(), unused, err);
  }
  std::vector<std::vector<int64_t>> all(8);
  for (kvc_table_kind kind = 0; kind < 8; ++kind) {
    const kvc_status status = take_table(session, group, kind, all[static_cast<size_t>(kind)], err);
    if (status != KVC_OK) return status;
  }
  for (const auto& [key, kind] : kStated)
    if (step.contains(key)) {
      EXPECT_EQ(all[static_cast<size_t>(kind)], step[key].get<std::vector<int64_t>>()) << key;
    }
  check_forms(session, all, session.model.view(layer).kind == KVC_LAYER_CROSS);
  return KVC_OK;
}

}  // namespace

void add_export_steps(Handlers& handlers) {
  handlers["export_pool"] = export_pool;
  handlers["tables"] = tables;
}

}  // namespace kvc::conformance
