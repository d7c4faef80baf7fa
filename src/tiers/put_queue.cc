#include "src/tiers/put_queue.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "src/base/math.h"
#include "src/base/thread.h"

namespace kvc {
PutQueue::PutQueue(size_t value_bytes, uint64_t bytes, Writer writer)
    : slot_bytes_(static_cast<size_t>(align_up(static_cast<int64_t>(value_bytes), 4096))),
      num_slots_(std::max<size_t>(2, bytes / slot_bytes_)),
      writer_(std::move(writer)),
      owner_(getpid()),
      memory_(static_cast<int64_t>(slot_bytes_ * num_slots_)),
      ring_(num_slots_) {
  memory_.make_usable(0, memory_.bytes());
  thread_ = start_thread("kvc-tier-write", [this] { work(); });
}

bool PutQueue::is_owner() const noexcept { return owner_ == getpid(); }

PutQueue::~PutQueue() {
  if (!is_owner()) {
    thread_.detach();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::byte* PutQueue::take() noexcept {
  if (!is_owner()) return nullptr;
  const std::lock_guard lock(mutex_);
  return end_ - begin_ == num_slots_ ? nullptr : slot(end_ % num_slots_);
}

void PutQueue::push(const TierKey& key, size_t size, bool replaces) noexcept {
  {
    const std::lock_guard lock(mutex_);
    const size_t index = end_ % num_slots_;
    ring_[index] = {key, slot(index), size, replaces, TierResult::kFailed};
    bytes_ += size;
    ++end_;
  }
  changed_.notify_all();
}

bool PutQueue::wait(TierTime deadline) noexcept {
  if (!is_owner()) return true;
  std::unique_lock lock(mutex_);
  const uint64_t last = end_;
  return changed_.wait_until(lock, deadline, [&] { return begin_ >= last; });
}

uint64_t PutQueue::waiting_bytes() const noexcept {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

// Waits while more comes: a tier writes many values at once faster than one by one.
void PutQueue::gather(std::unique_lock<std::mutex>& lock) noexcept {
  constexpr std::chrono::milliseconds kPause{2};
  for (uint64_t seen = 0; seen != end_ && end_ - begin_ < num_slots_ / 2;) {
    seen = end_;
    changed_.wait_for(lock, kPause, [&] { return stops_ || end_ - begin_ >= num_slots_ / 2; });
    if (stops_) return;
  }
}

void PutQueue::work() noexcept {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stops_ || begin_ != end_; });
    if (begin_ == end_) return;
    gather(lock);
    const size_t first = begin_ % num_slots_;
    // At most half: the other half goes on filling.
    const size_t most = std::min(std::max<size_t>(1, num_slots_ / 2), num_slots_ - first);
    const size_t count = std::min(static_cast<size_t>(end_ - begin_), most);
    lock.unlock();
    writer_({ring_.data() + first, count});
    lock.lock();
    for (size_t i = 0; i < count; ++i) bytes_ -= ring_[first + i].size;
    begin_ += count;
    changed_.notify_all();
  }
}

}  // namespace kvc
