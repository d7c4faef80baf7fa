#include "src/cache/page_bytes.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <vector>

#include "src/base/error.h"
#include "src/base/tensor.h"
#include "src/cache/cache_core.h"
#include "src/cache/key_leads.h"
#include "src/cache/staging.h"
#include "src/plan/names.h"

namespace kvc {

// Where the bytes of each page lie, on both sides.
struct PageBytes::Rows {
  const int64_t* ids;
  int64_t id_stride;
  int64_t count;
  std::byte* host;
  int64_t host_stride;
  LayerPages pages;
  int64_t bytes;

  int64_t id(int64_t row) const { return ids[row * id_stride]; }
  std::byte* host_at(int64_t row) const { return host + row * host_stride; }
  std::byte* page_at(int64_t row) const { return pages.base + id(row) * pages.page_stride; }
};

PageBytes::Rows PageBytes::check(const char* function, int32_t layer, const DLTensor* ids,
                                 const DLTensor* bytes, const char* name) const {
  core_.require_storage(function);
  const int32_t source = core_.require_paged_layer(layer);
  const int64_t page_bytes = core_.plan->layout().layers[source].page_bytes;
  check_integers(ids, "ids", 64, {-1});
  const int64_t count = ids->shape[0];
  const ByteRows rows = view_byte_rows(bytes, name, count, page_bytes);
  Rows found{reinterpret_cast<const int64_t*>(data_of(*ids)),
             stride_of(*ids, 0),
             count,
             rows.base,
             rows.row_stride,
             core_.pool.layer(source),
             page_bytes};
  for (int64_t row = 0; row < count; ++row) {
    if (found.id(row) < 0 || found.id(row) >= core_.allocator.num_pages()) {
      fail_with(KVC_E_OUT_OF_RANGE, row, "ids[%lld] = %lld out of range: the pool has %lld pages",
                ll(row), ll(found.id(row)), ll(core_.allocator.num_pages()));
    }
  }
  return found;
}

void PageBytes::read(int32_t layer, const DLTensor* ids, const DLTensor* out,
                     CallStream stream) const {
  const Rows rows = check("kvc_pages_export", layer, ids, out, "out");
  if (core_.found_gpu.table == nullptr) {
    for (int64_t row = 0; row < rows.count; ++row)
      core_.device->read_bytes(rows.host_at(row), rows.page_at(row), rows.bytes, stream);
    rotate_copies(layer, rows);
    return;
  }
  // The caller's memory need not be pinned.
  const Staging staging(core_.found_gpu, rows.bytes);
  for (int64_t row = 0; row < rows.count; ++row) {
    core_.device->read_bytes(staging.data(), rows.page_at(row), rows.bytes, stream);
    std::memcpy(rows.host_at(row), staging.data(), static_cast<size_t>(rows.bytes));
  }
}

// Where kvc_seq_shift has left rows as they were.
void PageBytes::rotate_copies(int32_t layer, const Rows& rows) const {
  const int32_t source = core_.require_paged_layer(layer);
  const int32_t group = core_.layer(source).group;
  const GroupSpec& spec = core_.group(static_cast<size_t>(group));
  if (spec.is_cross) return;
  struct Page {
    KeyLead lead;
    int64_t first;  // Its first token.
  };
  std::unordered_map<PageId, Page> pages;  // Sequences that share a page agree about its rows.
  core_.sequences.for_each([&](const Sequence& sequence) {
    if (sequence.lead.ahead == 0 || sequence.is_swapped) return;
    const PageTable& table = sequence.tables[static_cast<size_t>(group)];
    table.pages.for_each([&](int64_t place, PageId page) {
      if (place >= sequence.lead.begin / spec.page_size)
        pages[page] = {sequence.lead, place * spec.page_size};
    });
  });
  for (int64_t row = 0; row < rows.count && !pages.empty(); ++row) {
    const auto found = pages.find(static_cast<PageId>(rows.id(row)));
    if (found == pages.end()) continue;
    rotate_copied_page(core_, source, found->second.lead, found->second.first, rows.host_at(row));
  }
}

void PageBytes::write(int32_t layer, const DLTensor* ids, const DLTensor* in, CallStream stream) {
  const Rows rows = check("kvc_pages_import", layer, ids, in, "in");
  std::vector<int64_t> order(static_cast<size_t>(rows.count));
  for (int64_t row = 0; row < rows.count; ++row) order[row] = row;
  settle_key_leads(core_);
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return rows.id(a) != rows.id(b) ? rows.id(a) < rows.id(b) : a < b;
  });
  for (int64_t i = 1; i < rows.count; ++i) {
    if (rows.id(order[i]) != rows.id(order[i - 1])) continue;
    fail_with(KVC_E_INVALID_ARGUMENT, order[i],
              "ids[%lld] = %lld is ids[%lld] too: one destination", ll(order[i]),
              ll(rows.id(order[i])), ll(order[i - 1]));
  }
  if (core_.found_gpu.table == nullptr) {
    for (int64_t row = 0; row < rows.count; ++row)
      core_.device->write_bytes(rows.page_at(row), rows.host_at(row), rows.bytes, stream);
  } else {
    const Staging staging(core_.found_gpu, rows.bytes);
    for (int64_t row = 0; row < rows.count; ++row) {
      std::memcpy(staging.data(), rows.host_at(row), static_cast<size_t>(rows.bytes));
      core_.device->write_bytes(rows.page_at(row), staging.data(), rows.bytes, stream);
    }
  }
  core_.is_pool_exported = true;
}

}  // namespace kvc
