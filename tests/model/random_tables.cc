// Exports of page tables, and calls that are refused.
#include <algorithm>

#include "tests/model/random_run.h"

namespace kvc::test {
namespace {

long long ll(int64_t value) { return static_cast<long long>(value); }

}  // namespace

std::vector<int64_t> RandomRun::table(kvc_table_kind kind, std::vector<int64_t>* shape) {
  DLManagedTensorVersioned* exported = nullptr;
  expect_ok("kvc_export_page_table",
            [&](kvc_error* err) { return kvc_export_page_table(forward_, 0, kind, &exported, err); });
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
  const int64_t page_size = model_.limits().page_size;
  std::vector<int64_t> shape;
  std::vector<int64_t> indptr{0}, qo_indptr{0}, last_page_len, seq_lens;
  size_t widest = 0;
  for (const ModelEntry& entry : model_.entries()) {
    const ModelSequence& sequence = model_.at(entry.seq);
    const int64_t length = entry.old_length + entry.append;
    indptr.push_back(indptr.back() + static_cast<int64_t>(sequence.pages.size()));
    qo_indptr.push_back(qo_indptr.back() + entry.append);
    last_page_len.push_back(length - (model_.pages_for(length) - 1) * page_size);
    seq_lens.push_back(length);
    widest = std::max(widest, sequence.pages.size());
  }
  if (table(KVC_TABLE_INDPTR, &shape) != indptr) mismatch("INDPTR is wrong");
  if (table(KVC_TABLE_QO_INDPTR, &shape) != qo_indptr) mismatch("QO_INDPTR is wrong");
  if (table(KVC_TABLE_LAST_PAGE_LEN, &shape) != last_page_len) mismatch("LAST_PAGE_LEN is wrong");
  if (table(KVC_TABLE_SEQ_LENS, &shape) != seq_lens) mismatch("SEQ_LENS is wrong");
  if (shape.size() != 1) mismatch("SEQ_LENS has %zu dimensions", shape.size());

  const std::vector<int64_t> indices = table(KVC_TABLE_INDICES, &shape);
  if (static_cast<int64_t>(indices.size()) != indptr.back())
    mismatch("INDICES has %zu entries", indices.size());
  const std::vector<int64_t> block_table = table(KVC_TABLE_BLOCK_TABLE, &shape);
  if (shape !=
      std::vector<int64_t>{static_cast<int64_t>(model_.entries().size()), static_cast<int64_t>(widest)})
    mismatch("BLOCK_TABLE's shape");
  const std::vector<int64_t> slots = table(KVC_TABLE_SLOT_MAPPING, &shape);
  if (static_cast<int64_t>(slots.size()) != model_.num_rows())
    mismatch("SLOT_MAPPING has %zu entries", slots.size());

  // Same sharing as in the model, committed pages as kvc_export_seq_pages says, padding -1, slots that follow from the table.
  compare_tables();
  std::map<int, int64_t> ids;
  for (size_t b = 0; b < model_.entries().size(); ++b) {
    const ModelEntry& entry = model_.entries()[b];
    const ModelSequence& sequence = model_.at(entry.seq);
    const std::vector<int32_t> committed = sequence_pages(entry.seq);
    for (size_t i = 0; i < widest; ++i) {
      const int64_t padded = block_table[b * widest + i];
      if (i >= sequence.pages.size()) {
        if (padded != -1) mismatch("BLOCK_TABLE is padded with %lld", ll(padded));
        continue;
      }
      const int64_t id = indices[static_cast<size_t>(indptr[b]) + i];
      if (padded != id) mismatch("BLOCK_TABLE and INDICES differ");
      if (i < committed.size() && committed[i] != id) mismatch("INDICES and the sequence's pages differ");
      if (!ids.emplace(sequence.pages[i], id).second && ids[sequence.pages[i]] != id)
        mismatch("INDICES shares pages wrongly");
      const auto known = page_names_.find(static_cast<int32_t>(id));
      if (known != page_names_.end() && known->second != sequence.pages[i])
        mismatch("a new page %lld is in use elsewhere", ll(id));
    }
    for (int64_t t = 0; t < entry.append; ++t) {
      const int64_t position = entry.old_length + t;
      const int64_t want =
          indices[static_cast<size_t>(indptr[b] + position / page_size)] * page_size + position % page_size;
      if (slots[static_cast<size_t>(entry.row_begin + t)] != want)
        mismatch("slot of token %lld is wrong", ll(entry.row_begin + t));
    }
  }
}

void RandomRun::op_positions() {
  trace("positions");
  HostTensor positions(Elem::kI32, {model_.num_rows()}, random_placement(random_, Elem::kI32));
  expect_ok("kvc_forward_positions",
            [&](kvc_error* err) { return kvc_forward_positions(forward_, positions.dl(), err); },
            {&positions});
  for (const ModelEntry& entry : model_.entries()) {
    for (int64_t i = 0; i < entry.append; ++i) {
      if (positions.get(entry.row_begin + i) != static_cast<double>(entry.old_length + i))
        mismatch("positions are wrong");
    }
  }
  if (!positions.padding_untouched()) mismatch("kvc_forward_positions wrote padding");
}

// Calls that are wrong in one way: each answers its status and changes nothing.
void RandomRun::op_refused() {
  trace("refused calls");
  kvc_cache* cache = setup_.cache();
  const auto refuse = [&](const char* function, kvc_status status, const Call& fn) {
    Expected expected;
    expected.errors.insert(status);
    agree(function, expected, fn);
  };
  int64_t number = 0;
  kvc_seq_info info{};
  refuse("kvc_seq_info_get", KVC_E_INVALID_ARGUMENT,
         [&](kvc_error* err) { return kvc_seq_info_get(cache, 0, &info, err); });
  refuse("kvc_seq_length", KVC_E_NOT_FOUND,
         [&](kvc_error* err) { return kvc_seq_length(cache, 1000, &number, err); });
  refuse("kvc_seq_length", KVC_E_NOT_FOUND,
         [&](kvc_error* err) { return kvc_seq_length(cache, -1, &number, err); });
  refuse("kvc_seq_length", KVC_E_INVALID_ARGUMENT,
         [&](kvc_error* err) { return kvc_seq_length(cache, 0, nullptr, err); });
  DLManagedTensorVersioned* exported = nullptr;
  refuse("kvc_export_seq_pages", KVC_E_NOT_FOUND,
         [&](kvc_error* err) { return kvc_export_seq_pages(cache, 1000, 0, &exported, err); });
  refuse("kvc_export_seq_pages", KVC_E_OUT_OF_RANGE,
         [&](kvc_error* err) { return kvc_export_seq_pages(cache, 1000, 1, &exported, err); });
  refuse("kvc_export_pool", setup_.has_data() ? KVC_E_OUT_OF_RANGE : KVC_E_UNSUPPORTED,
         [&](kvc_error* err) { return kvc_export_pool(cache, 99, KVC_POOL_K, &exported, err); });
  kvc_forward_desc desc{};
  desc.struct_size = sizeof desc;
  kvc_forward* opened = nullptr;
  refuse("kvc_forward_begin", model_.is_open() ? KVC_E_BUSY : KVC_E_INVALID_ARGUMENT,
         [&](kvc_error* err) { return kvc_forward_begin(cache, &desc, &opened, err); });
  desc.flags = 1;
  refuse("kvc_forward_begin", KVC_E_UNSUPPORTED,
         [&](kvc_error* err) { return kvc_forward_begin(cache, &desc, &opened, err); });
  if (model_.is_open()) {
    HostTensor wrong(Elem::kF32, {1, 1, 1});
    refuse("kvc_attn", KVC_E_INVALID_STATE, [&](kvc_error* err) {
      return kvc_attn(forward_, 99, nullptr, wrong.dl(), nullptr, nullptr, wrong.dl(), nullptr, err);
    });
    refuse("kvc_export_page_table", KVC_E_INVALID_ARGUMENT,
           [&](kvc_error* err) { return kvc_export_page_table(forward_, 0, 77, &exported, err); });
    if (!setup_.has_data()) {
      refuse("kvc_kv_append", KVC_E_UNSUPPORTED, [&](kvc_error* err) {
        return kvc_kv_append(forward_, setup_.global_layer(0), wrong.dl(), wrong.dl(), err);
      });
    }
  }
  if (exported != nullptr || opened != nullptr) mismatch("a refused call wrote its result");
}

void RandomRun::op_hold_export() {
  if (held_export_ != nullptr) {
    trace("release export");
    held_export_->deleter(held_export_);
    held_export_ = nullptr;
    return;
  }
  trace("export pool");
  pool_exported_ = true;
  expect_ok("kvc_export_pool", [&](kvc_error* err) {
    return kvc_export_pool(setup_.cache(), setup_.global_layer(0), KVC_POOL_BYTES, &held_export_, err);
  });
  if (held_export_->dl_tensor.shape[0] != model_.limits().num_pages)
    mismatch("the exported pool has the wrong number of pages");
}

}  // namespace kvc::test
