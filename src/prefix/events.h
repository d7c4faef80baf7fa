// The ring buffer of events that routers read.
#pragma once

#include <cstdint>

#include "src/base/memory.h"
#include "src/prefix/keys.h"

namespace kvc {

using NodeId = int32_t;  // Id of a block in the index.
constexpr NodeId kNoNode = -1;

struct Event {
  kvc_event_type type = KVC_EVENT_STORED;
  kvc_tier tier = KVC_TIER_DEVICE;
  kvc_tier from_tier = KVC_TIER_DEVICE;
  int32_t group = 0;
  BlockKey key;
  BlockKey parent;
  NodeId node = kNoNode;    // STORED: the block, whose token ids can be looked up.
  uint64_t node_birth = 0;  // Distinguishes a node from a later one with the same id.
};

// Its size is fixed, so recording never allocates; the oldest events are overwritten. External
// exclusion, as the cache's.
class EventLog {
 public:
  // Capacity 0 records nothing. Throws std::bad_alloc.
  explicit EventLog(int64_t capacity);

  bool is_used() const { return capacity_ != 0; }
  int64_t host_bytes() const { return ring_.host_bytes(); }
  void record(const Event& event) noexcept;
  // Gives the oldest event that was not polled, and its number. Returns false when there is none.
  bool poll(Event* out, uint64_t* number) noexcept;
  uint64_t num_made() const { return made_; }
  uint64_t num_lost() const { return lost_; }

 private:
  std::byte* slot(uint64_t number) { return ring_.data() + number % capacity_ * sizeof(Event); }

  uint64_t capacity_;
  AlignedBuffer ring_;   // [capacity] of Event. Untouched memory costs nothing.
  uint64_t made_ = 0;    // Number of the newest event.
  uint64_t polled_ = 0;  // Number of the last event that was polled or lost.
  uint64_t lost_ = 0;
};

}  // namespace kvc
