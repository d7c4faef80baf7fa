// kvcache.h, section "Debug".
#include "src/capi/handles.h"

using kvc::guard;
using kvc::require;

kvc_status kvc_debug_get_kv(const kvc_cache* cache, kvc_seq seq, int64_t begin, int64_t end, DLTensor* k,
                            DLTensor* v, kvc_stream, kvc_error* err) noexcept {
  return guard(err, [&] {
    require(cache, "cache");
    cache->cache.debug_get(seq, begin, end, k, v);
  });
}

kvc_status kvc_debug_set_kv(kvc_cache* cache, kvc_seq seq, int64_t begin, const DLTensor* k,
                            const DLTensor* v, kvc_stream, kvc_error* err) noexcept {
  return guard(err, [&] {
    require(cache, "cache");
    cache->cache.debug_set(seq, begin, k, v);
  });
}
