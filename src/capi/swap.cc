// kvcache.h, section "Copies and swap": whole sequences, copies by page ids, fences.
#include <algorithm>
#include <chrono>
#include <thread>

#include "src/capi/call.h"
#include "src/capi/guard.h"

using kvc::CacheCall;
using kvc::fail;
using kvc::guard;
using kvc::ReadCall;
using kvc::require;

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

namespace {

// Copies take microseconds to milliseconds: the fence is looked at often at first, then rarely.
constexpr std::chrono::microseconds kFirstPause{2}, kLongestPause{200};

bool is_done(const kvc_fence& fence) {
  if (fence.is_open != nullptr) return !fence.is_open();
  return !fence.event || fence.event.is_done();
}

// Returns false when the fence is not done in time. A negative timeout waits for ever.
bool wait(const kvc_fence& fence, int64_t timeout_ns) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  std::chrono::microseconds pause = kFirstPause;
  while (!is_done(fence)) {
    if (timeout_ns >= 0 && Clock::now() - begin >= std::chrono::nanoseconds(timeout_ns))
      return false;
    std::this_thread::sleep_for(pause);
    pause = std::min(kLongestPause, 2 * pause);
  }
  return true;
}

}  // namespace

kvc_status kvc_fence_query(const kvc_fence* fence, int32_t* out_done, kvc_error* err) noexcept {
  return guard(err, [&] {
    require(fence, "fence");
    require(out_done, "out_done");
    *out_done = is_done(*fence) ? 1 : 0;
  });
}

kvc_status kvc_fence_wait(const kvc_fence* fence, int64_t timeout_ns, kvc_error* err) noexcept {
  return guard(err, [&] {
    require(fence, "fence");
    if (!wait(*fence, timeout_ns)) {
      fail(KVC_E_TIMEOUT, "the copies before fence are not done after timeout_ns = %lld",
           static_cast<long long>(timeout_ns));
    }
  });
}

kvc_status kvc_fence_wait_on_stream(const kvc_fence* fence, kvc_stream stream,
                                    kvc_error* err) noexcept {
  return guard(err, [&] {
    require(fence, "fence");
    if (fence->event) fence->event.wait_on(stream);  // On the CPU the copies are done.
    if (fence->is_open != nullptr) (void)wait(*fence, -1);
  });
}

void kvc_fence_destroy(kvc_fence* fence) noexcept { delete fence; }
