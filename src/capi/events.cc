// kvcache.h, section "Events".
#include <cstring>
#include <vector>

#include "src/capi/handles.h"
#include "src/capi/sized_struct.h"

using kvc::fail;
using kvc::guard;
using kvc::require;

namespace {

kvc_event to_c(const kvc::PrefixIndex& index, const kvc::Event& event, uint64_t number) {
  kvc_event out{};
  out.struct_size = sizeof out;
  out.number = number;
  out.type = event.type;
  out.tier = event.tier;
  out.from_tier = event.from_tier;
  out.group = event.group;
  out.num_tokens = event.type == KVC_EVENT_CLEARED ? 0 : index.block_tokens();
  if (event.type == KVC_EVENT_STORED)
    out.tokens = index.blocks().tokens(event.node, event.node_birth);
  std::memcpy(out.hash, event.key.bytes.data(), sizeof out.hash);
  std::memcpy(out.parent, event.parent.bytes.data(), sizeof out.parent);
  return out;
}

// Element i of a caller's array with the caller's stride.
void write_element(kvc_event* out, size_t stride, size_t i, const kvc_event& event) {
  auto* element = reinterpret_cast<kvc_event*>(reinterpret_cast<std::byte*>(out) + i * stride);
  element->struct_size = stride;
  kvc::write_struct(element, event);
}

void require_events(const kvc::Cache& cache) {
  if (!cache.index().events().log().is_used())
    fail(KVC_E_UNSUPPORTED,
         "config.event_capacity = 0: this cache makes no events, expected at least 1");
}

}  // namespace

kvc_status kvc_events_poll(kvc_cache* cache, kvc_event* out, size_t* count,
                           kvc_error* err) noexcept {
  return guard(err, [&] {
    require(cache, "cache");
    require(count, "count");
    require_events(cache->cache);
    kvc::check_output(out, "out");
    kvc::PrefixIndex& index = cache->cache.index();
    const size_t stride = out->struct_size;
    size_t found = 0;
    kvc::Event event;
    uint64_t number = 0;
    while (found < *count && index.events().log().poll(&event, &number)) {
      write_element(out, stride, found, to_c(index, event, number));
      ++found;
    }
    *count = found;
  });
}

kvc_status kvc_events_snapshot(const kvc_cache* cache, kvc_event* out, size_t* count,
                               uint64_t* out_number, kvc_error* err) noexcept {
  return guard(err, [&] {
    require(cache, "cache");
    require(count, "count");
    require(out_number, "out_number");
    if (out != nullptr) kvc::check_output(out, "out");
    const kvc::PrefixIndex& index = cache->cache.index();
    const std::vector<kvc::Event> events = index.events().snapshot();
    const size_t capacity = *count;
    *count = events.size();
    if (out != nullptr && capacity < events.size()) {
      kvc::fail_with(KVC_E_BUFFER_TOO_SMALL, static_cast<int64_t>(events.size()),
                     "out holds %zu events, %zu are needed", capacity, events.size());
    }
    *out_number = index.events().log().num_made();
    const size_t stride = out == nullptr ? 0 : out->struct_size;
    for (size_t i = 0; out != nullptr && i < events.size(); ++i)
      write_element(out, stride, i, to_c(index, events[i], *out_number));
  });
}
