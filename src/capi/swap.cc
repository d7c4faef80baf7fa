// kvcache.h, section "Copies and swap": whole sequences.
#include "src/capi/fence.h"
#include "src/capi/handles.h"

using kvc::guard;
using kvc::require;

namespace {

template <typename Swap>
kvc_status swap(kvc_cache* cache, kvc_stream stream, kvc_fence** out_fence, kvc_error* err,
                Swap&& run) {
  return guard(err, [&] {
    require(cache, "cache");
    kvc::FenceOut fence(out_fence, cache->cache.engine());
    const kvc::StreamScope scope(cache->cache.engine(), stream);
    run(cache->cache);
    fence.give(cache->cache.engine());
  });
}

}  // namespace

kvc_status kvc_swap_out(kvc_cache* cache, size_t n, const kvc_seq* seqs, kvc_stream stream,
                        kvc_fence** out_fence, kvc_error* err) noexcept {
  return swap(cache, stream, out_fence, err, [&](kvc::Cache& self) { self.swap_out(n, seqs); });
}

kvc_status kvc_swap_in(kvc_cache* cache, size_t n, const kvc_seq* seqs, kvc_stream stream,
                       kvc_fence** out_fence, kvc_error* err) noexcept {
  return swap(cache, stream, out_fence, err, [&](kvc::Cache& self) { self.swap_in(n, seqs); });
}
