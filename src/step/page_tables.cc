#include "src/step/page_tables.h"

#include <algorithm>

#include "src/base/error.h"

namespace kvc {
namespace {

void append_checked(std::vector<int32_t>& values, int64_t value) {
  if (value > INT32_MAX)
    fail_with(KVC_E_OUT_OF_RANGE, value, "table entry %lld does not fit int32", ll(value));
  values.push_back(static_cast<int32_t>(value));
}

const PageTable& table_of(const BatchEntry& entry, int32_t group) {
  return entry.sequence->tables[group];
}

}  // namespace

void fill_slots(const Batch& batch, const Spec& spec, int32_t group, std::vector<int64_t>* slots) {
  const bool is_cross = spec.groups[group].is_cross;
  const int32_t page_size = spec.groups[group].page_size;
  slots->clear();
  slots->reserve(is_cross ? batch.num_cross_rows() : batch.num_rows());
  for (const BatchEntry& entry : batch.entries()) {
    const PageList& pages = table_of(entry, group).pages;
    const int64_t begin = entry.old_stored(spec.groups[group]);
    const int64_t end = entry.new_stored(spec.groups[group]);
    int64_t index = begin / page_size;
    int64_t offset = begin % page_size;
    for (int64_t i = begin; i < end; ++i) {
      slots->push_back(pages[index] * static_cast<int64_t>(page_size) + offset);
      if (++offset == page_size) offset = 0, ++index;
    }
    // Rows behind the kept ones have no slot.
    const int64_t rows = entry.new_stored(is_cross) - entry.old_stored(is_cross);
    slots->insert(slots->end(), static_cast<size_t>(rows - (end - begin)), -1);
  }
}

TableData build_table(const Batch& batch, const Spec& spec, int32_t group, kvc_table_kind kind) {
  TableData table;
  const int64_t page_size = spec.groups[group].page_size;
  const auto num_seqs = static_cast<int64_t>(batch.entries().size());
  switch (kind) {
    case KVC_TABLE_INDPTR:
    case KVC_TABLE_QO_INDPTR: {
      int64_t sum = 0;
      table.i32.push_back(0);
      for (const BatchEntry& entry : batch.entries()) {
        sum += kind == KVC_TABLE_INDPTR ? table_of(entry, group).pages.num_held()
                                        : entry.append_length;
        append_checked(table.i32, sum);
      }
      break;
    }
    case KVC_TABLE_INDICES:
    case KVC_TABLE_PAGE_POSITION:
      for (const BatchEntry& entry : batch.entries()) {
        table_of(entry, group).pages.for_each([&](int64_t place, PageId page) {
          append_checked(table.i32, kind == KVC_TABLE_INDICES ? page : place * page_size);
        });
      }
      break;
    case KVC_TABLE_LAST_PAGE_LEN:
      for (const BatchEntry& entry : batch.entries()) {
        const int64_t stored = entry.new_stored(spec.groups[group]);
        append_checked(table.i32, stored == 0 ? 0 : (stored - 1) % page_size + 1);
      }
      break;
    case KVC_TABLE_SEQ_LENS:
      for (const BatchEntry& entry : batch.entries())
        append_checked(table.i32, entry.new_stored(spec.groups[group]));
      break;
    case KVC_TABLE_BLOCK_TABLE: {
      int64_t width = 0;
      for (const BatchEntry& entry : batch.entries())
        width = std::max(width, table_of(entry, group).pages.size());
      table.i32.reserve(static_cast<size_t>(width * num_seqs));
      for (const BatchEntry& entry : batch.entries()) {
        const PageList& pages = table_of(entry, group).pages;
        pages.append_to(0, pages.size(), &table.i32);
        table.i32.insert(table.i32.end(), static_cast<size_t>(width - pages.size()), kNoPage);
      }
      table.shape = {num_seqs, width};
      return table;
    }
    case KVC_TABLE_SLOT_MAPPING:
      fill_slots(batch, spec, group, &table.i64);
      table.is_wide = true;
      table.shape = {static_cast<int64_t>(table.i64.size())};
      return table;
    default:
      fail_with(KVC_E_INVALID_ARGUMENT, kind, "kind = %d is not a kvc_table_kind (0 to %d)", kind,
                KVC_TABLE_PAGE_POSITION);
  }
  table.shape = {static_cast<int64_t>(table.i32.size())};
  return table;
}

}  // namespace kvc
