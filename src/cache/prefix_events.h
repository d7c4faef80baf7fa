// Events of the prefix cache, for routers that follow what it holds.
#pragma once

#include <cstdint>
#include <vector>

#include "kvcache.h"
#include "src/prefix/events.h"

namespace kvc {

struct CacheCore;

class PrefixEvents {
 public:
  explicit PrefixEvents(CacheCore& core) : core_(core) {}

  // Throws UNSUPPORTED for a cache that makes no events.
  void require_used() const;
  // The number of the newest event.
  uint64_t num_made() const;
  // The oldest event that was not polled yet; false when there is none.
  bool poll(kvc_event* out);
  // Everything held as STORED events, parents first. Throws std::bad_alloc.
  std::vector<Event> snapshot() const;
  // The event as callers see it. Its tokens are borrowed from the index.
  kvc_event describe(const Event& event, uint64_t number) const;

 private:
  CacheCore& core_;
};

}  // namespace kvc
