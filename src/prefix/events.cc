#include "src/prefix/events.h"

#include <cstring>
#include <type_traits>

namespace kvc {

static_assert(std::is_trivially_copyable_v<Event>);

EventLog::EventLog(int64_t capacity) : capacity_(static_cast<uint64_t>(capacity)) {
  if (is_used()) ring_.ensure(static_cast<size_t>(capacity) * sizeof(Event));
}

void EventLog::record(const Event& event) noexcept {
  if (!is_used()) return;
  std::memcpy(slot(made_), &event, sizeof event);
  ++made_;
  if (made_ - polled_ > capacity_) {
    ++polled_;
    ++lost_;
  }
}

bool EventLog::poll(Event* out, uint64_t* number) noexcept {
  if (polled_ == made_) return false;
  std::memcpy(out, slot(polled_), sizeof *out);
  *number = ++polled_;
  return true;
}

}  // namespace kvc
