// kvcache.h, section "Zero-copy export".
#include "src/cache/export.h"

#include "src/capi/handles.h"

using kvc::guard;
using kvc::require;

kvc_status kvc_export_pool(kvc_cache* cache, int32_t layer, kvc_pool_kind kind,
                           DLManagedTensorVersioned** out, kvc_error* err) noexcept {
  return guard(err, [&] {
    require(cache, "cache");
    require(out, "out");
    *out = kvc::export_pool(cache->cache, layer, kind);
  });
}

kvc_status kvc_export_page_table(kvc_forward* fwd, int32_t group, kvc_table_kind kind,
                                 DLManagedTensorVersioned** out, kvc_error* err) noexcept {
  return guard(err, [&] {
    const kvc::Cache& cache = kvc::open_cache(fwd);
    require(out, "out");
    cache.require_group(group);
    *out = kvc::export_table(kvc::build_table(cache.forward().batch(), cache.spec(), group, kind));
  });
}

kvc_status kvc_export_seq_pages(const kvc_cache* cache, kvc_seq seq, int32_t group,
                                DLManagedTensorVersioned** out, kvc_error* err) noexcept {
  return guard(err, [&] {
    require(cache, "cache");
    require(out, "out");
    cache->cache.require_group(group);
    const kvc::Sequence& sequence = cache->cache.sequences().get_on_device(seq, "export");
    const kvc::GroupSpec& group_spec = cache->cache.spec().groups[static_cast<size_t>(group)];
    const bool is_cross = group_spec.is_cross;
    // Inside a forward the table already holds the new tokens' pages; the answer is about what was
    // there before.
    int64_t stored = sequence.stored(is_cross);
    if (sequence.in_forward()) {
      const auto entry = static_cast<size_t>(sequence.batch_index);
      stored = cache->cache.forward().batch().entries()[entry].old_stored(is_cross);
    }
    const std::vector<kvc::PageId>& pages = sequence.tables[static_cast<size_t>(group)].pages;
    kvc::TableData table;
    for (int64_t i = 0; i < group_spec.pages_for(stored); ++i) {
      if (pages[static_cast<size_t>(i)] != kvc::kNoPage)
        table.i32.push_back(pages[static_cast<size_t>(i)]);
    }
    table.shape = {static_cast<int64_t>(table.i32.size())};
    *out = kvc::export_table(std::move(table));
  });
}
