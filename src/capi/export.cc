// kvcache.h, section "Zero-copy export".
#include "src/cache/export.h"

#include "src/capi/handles.h"

using kvc::fail_with;
using kvc::guard;
using kvc::require;

namespace {

void require_group(int32_t group) {
  if (group != 0) fail_with(KVC_E_OUT_OF_RANGE, group, "group %d out of range: the cache has 1 group", group);
}

}  // namespace

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
    require_group(group);
    *out = kvc::export_table(kvc::build_table(cache.forward().batch(), cache.spec().page_size, kind));
  });
}

kvc_status kvc_export_seq_pages(const kvc_cache* cache, kvc_seq seq, int32_t group,
                                DLManagedTensorVersioned** out, kvc_error* err) noexcept {
  return guard(err, [&] {
    require(cache, "cache");
    require(out, "out");
    require_group(group);
    const kvc::Sequence& sequence = cache->cache.sequences().get(seq);
    const int64_t num_pages = cache->cache.plan().pages_for_tokens(sequence.length);
    kvc::TableData table;
    table.i32.assign(sequence.pages.begin(), sequence.pages.begin() + num_pages);
    table.shape = {num_pages};
    *out = kvc::export_table(std::move(table));
  });
}
