// kvcache.h, section "Zero-copy export".
#include "src/capi/call.h"

using kvc::CacheCall;
using kvc::guard;
using kvc::ReadCall;
using kvc::require;

kvc_status kvc_export_pool(kvc_cache* cache, int32_t layer, kvc_pool_kind kind,
                           DLManagedTensorVersioned** out, kvc_error* err) noexcept {
  return guard(err, [&] {
    const CacheCall call(cache);
    require(out, "out");
    *out = call->exports.pool(layer, kind);
  });
}

kvc_status kvc_export_page_table(kvc_forward* fwd, int32_t group, kvc_table_kind kind,
                                 DLManagedTensorVersioned** out, kvc_error* err) noexcept {
  return guard(err, [&] {
    const ReadCall call(fwd);
    require(out, "out");
    *out = call->exports.page_table(group, kind);
  });
}

kvc_status kvc_export_seq_pages(const kvc_cache* cache, kvc_seq seq, int32_t group,
                                DLManagedTensorVersioned** out, kvc_error* err) noexcept {
  return guard(err, [&] {
    const ReadCall call(cache);
    require(out, "out");
    *out = call->exports.sequence_pages(seq, group);
  });
}
