#include "src/pages/state_pool.h"

#include <algorithm>

namespace kvc {

StatePool::StatePool(std::shared_ptr<const Plan> plan, PageAllocator* allocator, int64_t slot_pages,
                     int64_t max_slots, const Gpu* device, bool pinned)
    : memory_(plan, max_slots, device, pinned),
      allocator_(allocator),
      slot_pages_(slot_pages),
      max_slots_(max_slots),
      is_used_(plan->spec().has_states()) {}

int64_t StatePool::missing(int64_t count) const {
  return max_slots_ == 0 ? 0 : std::max<int64_t>(0, num_used_ + count - max_slots_);
}

int64_t StatePool::to_evict(int64_t count) const {
  return max_slots_ == 0 ? 0 : std::max<int64_t>(0, num_used_ + num_cached_ + count - max_slots_);
}

void StatePool::prepare(int64_t count) {
  const size_t wanted = static_cast<size_t>(num_used_ + num_cached_ + count);
  if (wanted <= refs_.size()) return;
  if (wanted > refs_.capacity()) {
    // refs_ grows last: its capacity proves that the others have grown, whatever failed before.
    const size_t capacity = std::max(wanted, refs_.capacity() * 2);
    memory_.reserve(capacity);
    free_.reserve(capacity);
    indexed_.reserve(capacity);
    refs_.reserve(capacity);
  }
  while (refs_.size() < wanted) {
    memory_.make(refs_.size());
    free_.push_back(static_cast<StateSlot>(refs_.size()));
    indexed_.push_back(0);
    refs_.push_back(0);
  }
}

StateSlot StatePool::take() noexcept {
  const StateSlot slot = free_.back();
  free_.pop_back();
  refs_[slot] = 1;
  ++num_used_;
  allocator_->withhold(slot_pages_, 0);
  return slot;
}

void StatePool::add_ref(StateSlot slot) noexcept {
  if (slot == kInitialState || ++refs_[slot] != 1) return;
  --num_cached_;
  allocator_->withhold(0, -slot_pages_);
  ++num_used_;
}

void StatePool::release(StateSlot slot) noexcept {
  free_.push_back(slot);
  allocator_->withhold(-slot_pages_, 0);
}

void StatePool::drop_ref(StateSlot slot) noexcept {
  if (slot == kInitialState || --refs_[slot] != 0) return;
  --num_used_;
  if (is_indexed(slot)) {
    ++num_cached_;
    allocator_->withhold(0, slot_pages_);
  } else {
    release(slot);
  }
}

void StatePool::mark_indexed(StateSlot slot) noexcept { indexed_[slot] = 1; }

void StatePool::unmark_indexed(StateSlot slot) noexcept {
  indexed_[slot] = 0;
  if (refs_[slot] != 0) return;
  --num_cached_;
  allocator_->withhold(0, -slot_pages_);
  release(slot);
}

void StatePool::clear() noexcept {
  free_.clear();
  for (size_t slot = 0; slot < refs_.size(); ++slot) {
    refs_[slot] = 0;
    indexed_[slot] = 0;
    free_.push_back(static_cast<StateSlot>(slot));
  }
  num_used_ = num_cached_ = 0;
}

}  // namespace kvc
