// kvcache.h, section "Events".
#include <vector>

#include "src/capi/call.h"
#include "src/capi/guard.h"

using kvc::CacheCall;
using kvc::guard;
using kvc::ReadCall;
using kvc::require;

namespace {

// Writes element i of a caller's array with the caller's stride.
void write_element(kvc_event* out, size_t stride, size_t i, const kvc_event& event) {
  auto* element = reinterpret_cast<kvc_event*>(reinterpret_cast<std::byte*>(out) + i * stride);
  element->struct_size = stride;
  kvc::write_struct(element, event);
}

}  // namespace

kvc_status kvc_events_poll(kvc_cache* cache, kvc_event* out, size_t* count,
                           kvc_error* err) noexcept {
  return guard(err, [&] {
    const CacheCall call(cache);
    require(count, "count");
    call->events.require_used();
    kvc::check_output(out, "out");
    const size_t stride = out->struct_size;
    size_t found = 0;
    kvc_event event;
    for (; found < *count && call->events.poll(&event); ++found)
      write_element(out, stride, found, event);
    *count = found;
  });
}

kvc_status kvc_events_snapshot(const kvc_cache* cache, kvc_event* out, size_t* count,
                               uint64_t* out_number, kvc_error* err) noexcept {
  return guard(err, [&] {
    const ReadCall call(cache);
    require(count, "count");
    require(out_number, "out_number");
    if (out != nullptr) kvc::check_output(out, "out");
    const std::vector<kvc::Event> events = call->events.snapshot();
    const size_t capacity = *count;
    *count = events.size();
    if (out != nullptr && capacity < events.size()) {
      kvc::fail_with(KVC_E_BUFFER_TOO_SMALL, static_cast<int64_t>(events.size()),
                     "out holds %zu events, %zu are needed", capacity, events.size());
    }
    *out_number = call->events.num_made();
    const size_t stride = out == nullptr ? 0 : out->struct_size;
    for (size_t i = 0; out != nullptr && i < events.size(); ++i)
      write_element(out, stride, i, call->events.describe(events[i], *out_number));
  });
}
