#include "src/prefix/events.h"

namespace kvc {

void EventLog::record(const Event& event) noexcept {
  if (ring_.empty()) return;
  ring_[static_cast<size_t>(made_ % ring_.size())] = event;
  ++made_;
  if (made_ - polled_ > ring_.size()) {
    ++polled_;
    ++lost_;
  }
}

bool EventLog::poll(Event* out, uint64_t* number) noexcept {
  if (polled_ == made_) return false;
  *out = ring_[static_cast<size_t>(polled_ % ring_.size())];
  *number = ++polled_;
  return true;
}

}  // namespace kvc
