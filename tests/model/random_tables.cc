// Exports of page tables in random runs.
#include <algorithm>

#include "tests/model/random_run.h"

namespace kvc::test {

std::vector<int64_t> RandomRun::table(size_t group, kvc_table_kind kind,
                                      std::vector<int64_t>* shape) {
  DLManagedTensorVersioned* exported = nullptr;
  expect_ok("kvc_export_page_table", [&](kvc_error* err) {
    return kvc_export_page_table(forward_, static_cast<int32_t>(group), kind, &exported, err);
  });
  const DLTensor& tensor = exported->dl_tensor;
  shape->assign(tensor.shape, tensor.shape + tensor.ndim);
  int64_t elements = 1;
  for (const int64_t extent : *shape) elements *= extent;
  std::vector<int64_t> values;
  for (int64_t i = 0; i < elements; ++i) {
    values.push_back(tensor.dtype.bits == 64 ? static_cast<const int64_t*>(tensor.data)[i]
                                             : static_cast<const int32_t*>(tensor.data)[i]);
  }
  const bool wide = kind == KVC_TABLE_SLOT_MAPPING;
  if (tensor.dtype.code != kDLInt || tensor.dtype.bits != (wide ? 64 : 32) ||
      (exported->flags & DLPACK_FLAG_BITMASK_READ_ONLY) == 0) {
    mismatch("table %d has the wrong type or can be written", kind);
  }
  exported->deleter(exported);
  return values;
}

void RandomRun::op_tables() {
  trace("tables");
  compare_tables();
  for (size_t group = 0; group < num_groups(); ++group) compare_group_tables(group);
}

void RandomRun::compare_group_tables(size_t group) {
  const int64_t page_size = model_.page_size(group);
  const bool is_cross = model_.limits().groups[group].is_cross;
  std::vector<int64_t> shape;
  std::vector<int64_t> indptr{0}, qo_indptr{0}, last_page_len, seq_lens, page_position;
  int64_t widest = 0;
  for (const ModelEntry& entry : model_.entries()) {
    const ModelSequence& sequence = model_.at(entry.seq);
    const std::map<int64_t, int>& pages = sequence.tables[group].pages;
    const int64_t cross = entry.cross > 0 ? entry.cross : sequence.cross_length;
    const int64_t length =
        is_cross ? cross : model_.tokens_of(group, entry.old_slots + entry.append);
    indptr.push_back(indptr.back() + static_cast<int64_t>(pages.size()));
    qo_indptr.push_back(qo_indptr.back() + entry.append);
    last_page_len.push_back(
        length == 0 ? 0 : length - (model_.pages_for(group, length) - 1) * page_size);
    seq_lens.push_back(length);
    for (const auto& [index, page] : pages) page_position.push_back(index * page_size);
    widest = std::max(widest, model_.pages_for(group, length));
  }
  const auto equal = [&](const char* what, kvc_table_kind kind, const std::vector<int64_t>& want) {
    if (table(group, kind, &shape) != want) mismatch("%s of group %zu is wrong", what, group);
    if (shape.size() != 1) mismatch("%s has %zu dimensions", what, shape.size());
  };
  equal("INDPTR", KVC_TABLE_INDPTR, indptr);
  if (!is_cross) equal("QO_INDPTR", KVC_TABLE_QO_INDPTR, qo_indptr);
  equal("LAST_PAGE_LEN", KVC_TABLE_LAST_PAGE_LEN, last_page_len);
  equal("SEQ_LENS", KVC_TABLE_SEQ_LENS, seq_lens);
  equal("PAGE_POSITION", KVC_TABLE_PAGE_POSITION, page_position);

  const std::vector<int64_t> indices = table(group, KVC_TABLE_INDICES, &shape);
  if (static_cast<int64_t>(indices.size()) != indptr.back())
    mismatch("INDICES has %zu entries", indices.size());
  const std::vector<int64_t> block_table = table(group, KVC_TABLE_BLOCK_TABLE, &shape);
  if (shape != std::vector<int64_t>{static_cast<int64_t>(model_.entries().size()), widest})
    mismatch("BLOCK_TABLE of group %zu has the wrong shape", group);

  // Same sharing as in the model, -1 where nothing is, committed pages as kvc_export_seq_pages
  // says.
  std::map<int, int64_t> ids;
  std::vector<std::map<int64_t, int64_t>> id_of(model_.entries().size());
  for (size_t b = 0; b < model_.entries().size(); ++b) {
    const ModelEntry& entry = model_.entries()[b];
    const std::map<int64_t, int>& pages = model_.at(entry.seq).tables[group].pages;
    const std::vector<int32_t> committed = sequence_pages(entry.seq, group);
    size_t next = 0;
    for (int64_t i = 0; i < widest; ++i) {
      const int64_t padded = block_table[b * static_cast<size_t>(widest) + static_cast<size_t>(i)];
      const auto page = pages.find(i);
      if (page == pages.end()) {
        if (padded != -1)
          mismatch("BLOCK_TABLE of group %zu is padded with %lld", group, ll(padded));
        continue;
      }
      const int64_t id = indices[static_cast<size_t>(indptr[b]) + next];
      if (padded != id) mismatch("BLOCK_TABLE and INDICES differ");
      if (next < committed.size() && committed[next] != id)
        mismatch("INDICES and the sequence's pages differ");
      ++next;
      id_of[b][i] = id;
      if (!ids.emplace(page->second, id).second && ids[page->second] != id)
        mismatch("INDICES shares pages wrongly");
      const auto known = page_names_.find(static_cast<int32_t>(id));
      if (known != page_names_.end() && known->second != page->second)
        mismatch("a new page %lld is in use elsewhere", ll(id));
    }
  }
  const std::vector<int64_t> slots = table(group, KVC_TABLE_SLOT_MAPPING, &shape);
  const int64_t new_rows = is_cross ? model_.num_cross_rows() : model_.num_rows();
  if (static_cast<int64_t>(slots.size()) != new_rows)
    mismatch("SLOT_MAPPING has %zu entries", slots.size());
  size_t row = 0;
  for (size_t b = 0; b < model_.entries().size(); ++b) {
    const ModelEntry& entry = model_.entries()[b];
    for (int64_t t = 0; t < (is_cross ? entry.cross : entry.append); ++t) {
      const int64_t token = is_cross ? t : entry.old_slots + t;
      const bool is_stored = is_cross || token < model_.tokens_of(group, token + 1);
      const int64_t want =
          is_stored ? id_of[b].at(token / page_size) * page_size + token % page_size : -1;
      if (slots[row++] != want)
        mismatch("slot of new token %lld, group %zu, is wrong", ll(t), group);
    }
  }
}

}  // namespace kvc::test
