// The ring of events that routers read.
#pragma once

#include <cstdint>

#include "src/base/memory.h"
#include "src/prefix/keys.h"

namespace kvc {

using NodeId = int32_t;  // of a block in the index
constexpr NodeId kNoNode = -1;

struct Event {
  kvc_event_type type = KVC_EVENT_STORED;
  kvc_tier tier = KVC_TIER_DEVICE;
  kvc_tier from_tier = KVC_TIER_DEVICE;
  int32_t group = 0;
  BlockKey key;
  BlockKey parent;
  NodeId node = kNoNode;    // STORED: whose tokens these are
  uint64_t node_birth = 0;  // tells a node from a later one in its place
};

// Fixed size, so that recording never allocates. The oldest are overwritten. External exclusion, as
// the cache's.
class EventLog {
 public:
  // Throws std::bad_alloc. 0: records nothing.
  explicit EventLog(int64_t capacity);

  bool is_used() const { return capacity_ != 0; }
  void record(const Event& event) noexcept;
  // Oldest one that was not polled, and its number; false when there is none.
  bool poll(Event* out, uint64_t* number) noexcept;
  uint64_t num_made() const { return made_; }
  uint64_t num_lost() const { return lost_; }

 private:
  std::byte* slot(uint64_t number) { return ring_.data() + number % capacity_ * sizeof(Event); }

  uint64_t capacity_;
  AlignedBuffer ring_;   // [capacity] of Event; untouched memory costs nothing
  uint64_t made_ = 0;    // number of the newest
  uint64_t polled_ = 0;  // number of the last that was polled or lost
  uint64_t lost_ = 0;
};

}  // namespace kvc
