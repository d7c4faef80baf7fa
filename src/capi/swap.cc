// kvcache.h, section "Copies and swap": whole sequences, and copies by page ids.
#include "src/capi/call.h"

using kvc::CacheCall;
using kvc::guard;
using kvc::ReadCall;

namespace {

// A call whose copies are enqueued on `stream`, with a fence behind them if one is wanted.
template <typename Copies>
kvc_status enqueue(kvc_cache* cache, kvc_stream stream, kvc_fence** out_fence, kvc_error* err,
                   const Copies& copies) noexcept {
  return kvc::guard(err, [&] {
    kvc::CacheCall call(cache);
    call.enqueue_on(stream, out_fence);
    copies(call->swaps);
    call.finish();
  });
}

}  // namespace

kvc_status kvc_swap_out(kvc_cache* cache, size_t n, const kvc_seq* seqs, kvc_stream stream,
                        kvc_fence** out_fence, kvc_error* err) noexcept {
  return enqueue(cache, stream, out_fence, err,
                 [&](kvc::SwapStore& swaps) { swaps.out(n, seqs, stream); });
}

kvc_status kvc_swap_in(kvc_cache* cache, size_t n, const kvc_seq* seqs, kvc_stream stream,
                       kvc_fence** out_fence, kvc_error* err) noexcept {
  return enqueue(cache, stream, out_fence, err,
                 [&](kvc::SwapStore& swaps) { swaps.in(n, seqs, stream); });
}

kvc_status kvc_pages_swap(kvc_cache* cache, const DLTensor* pairs, kvc_swap_direction direction,
                          kvc_stream stream, kvc_fence** out_fence, kvc_error* err) noexcept {
  return enqueue(cache, stream, out_fence, err,
                 [&](kvc::SwapStore& swaps) { swaps.swap_pages(pairs, direction, stream); });
}

kvc_status kvc_pages_copy(kvc_cache* cache, const DLTensor* pairs, kvc_stream stream,
                          kvc_fence** out_fence, kvc_error* err) noexcept {
  return enqueue(cache, stream, out_fence, err,
                 [&](kvc::SwapStore& swaps) { swaps.copy_pages(pairs, stream); });
}

kvc_status kvc_pages_export(const kvc_cache* cache, int32_t layer, const DLTensor* ids,
                            DLTensor* out, kvc_stream stream, kvc_error* err) noexcept {
  return guard(err, [&] {
    const ReadCall call(cache);
    call->pages.read(layer, ids, out, stream);
  });
}

kvc_status kvc_pages_import(kvc_cache* cache, int32_t layer, const DLTensor* ids,
                            const DLTensor* in, kvc_stream stream, kvc_error* err) noexcept {
  return guard(err, [&] {
    CacheCall call(cache);
    call.enqueue_on(stream);
    call->pages.write(layer, ids, in, stream);
    call.finish();
  });
}
