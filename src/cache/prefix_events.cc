#include "src/cache/prefix_events.h"

#include <cstring>

#include "src/base/error.h"
#include "src/cache/cache_core.h"

namespace kvc {

void PrefixEvents::require_used() const {
  if (!core_.index.events().log().is_used())
    fail(KVC_E_UNSUPPORTED,
         "config.event_capacity = 0: this cache makes no events, expected at least 1");
}

uint64_t PrefixEvents::num_made() const { return core_.index.events().log().num_made(); }

bool PrefixEvents::poll(kvc_event* out) {
  Event event;
  uint64_t number = 0;
  if (!core_.index.events().log().poll(&event, &number)) return false;
  *out = describe(event, number);
  return true;
}

std::vector<Event> PrefixEvents::snapshot() const { return core_.index.events().snapshot(); }

kvc_event PrefixEvents::describe(const Event& event, uint64_t number) const {
  kvc_event out{};
  out.struct_size = sizeof out;
  out.number = number;
  out.type = event.type;
  out.tier = event.tier;
  out.from_tier = event.from_tier;
  out.group = event.group;
  out.num_tokens = event.type == KVC_EVENT_CLEARED ? 0 : core_.index.block_tokens();
  if (event.type == KVC_EVENT_STORED)
    out.tokens = core_.index.blocks().tokens(event.node, event.node_birth);
  std::memcpy(out.hash, event.key.bytes.data(), sizeof out.hash);
  std::memcpy(out.parent, event.parent.bytes.data(), sizeof out.parent);
  return out;
}

}  // namespace kvc
