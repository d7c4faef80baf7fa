// kvcache.h, section "Copies and swap": copies by page ids.
#include "src/capi/fence.h"
#include "src/capi/handles.h"

using kvc::guard;
using kvc::require;

kvc_status kvc_pages_swap(kvc_cache* cache, const DLTensor* pairs, kvc_swap_direction direction,
                          kvc_stream stream, kvc_fence** out_fence, kvc_error* err) noexcept {
  return guard(err, [&] {
    require(cache, "cache");
    kvc::FenceOut fence(out_fence, cache->cache.engine());
    const kvc::StreamScope scope(cache->cache.engine(), stream);
    cache->cache.swap_pages(pairs, direction);
    fence.give(cache->cache.engine());
  });
}

kvc_status kvc_pages_copy(kvc_cache* cache, const DLTensor* pairs, kvc_stream stream,
                          kvc_fence** out_fence, kvc_error* err) noexcept {
  return guard(err, [&] {
    require(cache, "cache");
    kvc::FenceOut fence(out_fence, cache->cache.engine());
    const kvc::StreamScope scope(cache->cache.engine(), stream);
    cache->cache.copy_pages(pairs);
    fence.give(cache->cache.engine());
  });
}
