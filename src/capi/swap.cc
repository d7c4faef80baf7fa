// kvcache.h, section "Copies and swap": whole sequences, and copies by page ids.
#include "src/capi/call.h"

using kvc::CacheCall;
using kvc::guard;

kvc_status kvc_swap_out(kvc_cache* cache, size_t n, const kvc_seq* seqs, kvc_stream stream,
                        kvc_fence** out_fence, kvc_error* err) noexcept {
  return guard(err, [&] {
    CacheCall call(cache);
    call.enqueue_on(stream, out_fence);
    call->swaps.out(n, seqs, stream);
    call.finish();
  });
}

kvc_status kvc_swap_in(kvc_cache* cache, size_t n, const kvc_seq* seqs, kvc_stream stream,
                       kvc_fence** out_fence, kvc_error* err) noexcept {
  return guard(err, [&] {
    CacheCall call(cache);
    call.enqueue_on(stream, out_fence);
    call->swaps.in(n, seqs, stream);
    call.finish();
  });
}

kvc_status kvc_pages_swap(kvc_cache* cache, const DLTensor* pairs, kvc_swap_direction direction,
                          kvc_stream stream, kvc_fence** out_fence, kvc_error* err) noexcept {
  return guard(err, [&] {
    CacheCall call(cache);
    call.enqueue_on(stream, out_fence);
    call->swaps.swap_pages(pairs, direction, stream);
    call.finish();
  });
}

kvc_status kvc_pages_copy(kvc_cache* cache, const DLTensor* pairs, kvc_stream stream,
                          kvc_fence** out_fence, kvc_error* err) noexcept {
  return guard(err, [&] {
    CacheCall call(cache);
    call.enqueue_on(stream, out_fence);
    call->swaps.copy_pages(pairs, stream);
    call.finish();
  });
}
