// kvcache.h, section "Copies and swap": fences.
#include "src/capi/fence.h"

#include "src/capi/guard.h"

using kvc::fail;
using kvc::guard;
using kvc::require;

kvc_status kvc_fence_query(const kvc_fence* fence, int32_t* out_done, kvc_error* err) noexcept {
  return guard(err, [&] {
    require(fence, "fence");
    require(out_done, "out_done");
    *out_done = fence->completion->is_done() ? 1 : 0;
  });
}

kvc_status kvc_fence_wait(const kvc_fence* fence, int64_t timeout_ns, kvc_error* err) noexcept {
  return guard(err, [&] {
    require(fence, "fence");
    if (!fence->completion->wait(timeout_ns)) {
      fail(KVC_E_TIMEOUT, "the copies before fence are not done after timeout_ns = %lld",
           static_cast<long long>(timeout_ns));
    }
  });
}

kvc_status kvc_fence_wait_on_stream(const kvc_fence* fence, kvc_stream, kvc_error* err) noexcept {
  return guard(err, [&] {
    require(fence, "fence");
    (void)fence->completion->wait(-1);  // the CPU has no streams: what follows is enqueued after this call
  });
}

void kvc_fence_destroy(kvc_fence* fence) noexcept { delete fence; }
