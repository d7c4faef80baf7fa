#include "src/forward/page_tables.h"

#include <algorithm>

#include "src/base/error.h"

namespace kvc {
namespace {

void append_checked(std::vector<int32_t>& values, int64_t value) {
  if (value > INT32_MAX)
    fail_with(KVC_E_OUT_OF_RANGE, value, "table entry %lld does not fit int32", static_cast<long long>(value));
  values.push_back(static_cast<int32_t>(value));
}

}  // namespace

void fill_slots(const Batch& batch, int32_t page_size, std::vector<int64_t>* slots) {
  slots->clear();
  slots->reserve(static_cast<size_t>(batch.num_rows()));
  for (const BatchEntry& entry : batch.entries()) {
    const std::vector<PageId>& pages = entry.sequence->pages;
    int64_t index = entry.old_length / page_size;
    int64_t offset = entry.old_length % page_size;
    for (int64_t i = 0; i < entry.append_length; ++i) {
      slots->push_back(pages[static_cast<size_t>(index)] * static_cast<int64_t>(page_size) + offset);
      if (++offset == page_size) offset = 0, ++index;
    }
  }
}

TableData build_table(const Batch& batch, int32_t page_size, kvc_table_kind kind) {
  TableData table;
  const auto num_seqs = static_cast<int64_t>(batch.entries().size());
  switch (kind) {
    case KVC_TABLE_INDPTR:
    case KVC_TABLE_QO_INDPTR: {
      int64_t sum = 0;
      table.i32.push_back(0);
      for (const BatchEntry& entry : batch.entries()) {
        sum += kind == KVC_TABLE_INDPTR ? static_cast<int64_t>(entry.sequence->pages.size())
                                        : entry.append_length;
        append_checked(table.i32, sum);
      }
      break;
    }
    case KVC_TABLE_INDICES:
      for (const BatchEntry& entry : batch.entries()) {
        table.i32.insert(table.i32.end(), entry.sequence->pages.begin(), entry.sequence->pages.end());
      }
      break;
    case KVC_TABLE_LAST_PAGE_LEN:
      for (const BatchEntry& entry : batch.entries())
        append_checked(table.i32, (entry.new_length() - 1) % page_size + 1);
      break;
    case KVC_TABLE_SEQ_LENS:
      for (const BatchEntry& entry : batch.entries()) append_checked(table.i32, entry.new_length());
      break;
    case KVC_TABLE_BLOCK_TABLE: {
      size_t width = 0;
      for (const BatchEntry& entry : batch.entries()) width = std::max(width, entry.sequence->pages.size());
      table.i32.reserve(width * batch.entries().size());
      for (const BatchEntry& entry : batch.entries()) {
        const std::vector<PageId>& pages = entry.sequence->pages;
        table.i32.insert(table.i32.end(), pages.begin(), pages.end());
        table.i32.insert(table.i32.end(), width - pages.size(), kNoPage);
      }
      table.shape = {num_seqs, static_cast<int64_t>(width)};
      return table;
    }
    case KVC_TABLE_SLOT_MAPPING:
      fill_slots(batch, page_size, &table.i64);
      table.shape = {batch.num_rows()};
      return table;
    default:
      fail_with(KVC_E_INVALID_ARGUMENT, kind, "kind = %d is not a kvc_table_kind (0 to %d)", kind,
                KVC_TABLE_QO_INDPTR);
  }
  table.shape = {static_cast<int64_t>(table.i32.size())};
  return table;
}

}  // namespace kvc
