// kvcache.h, section "Copies and swap": fences.
#include <algorithm>
#include <chrono>
#include <thread>

#include "src/capi/guard.h"
#include "src/capi/handles.h"

using kvc::fail;
using kvc::guard;
using kvc::require;

namespace {

// Copies take microseconds to milliseconds: the fence is looked at often at first, then rarely.
constexpr std::chrono::microseconds kFirstPause{2}, kLongestPause{200};

bool is_done(const kvc_fence& fence) { return !fence.event || fence.event.is_done(); }

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
  });
}

void kvc_fence_destroy(kvc_fence* fence) noexcept { delete fence; }
