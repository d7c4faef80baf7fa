#include "src/state/pool.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace kvc {

StatePool::StatePool(std::shared_ptr<const Plan> plan, PageAllocator* allocator, int64_t slot_pages,
                     int64_t max_slots)
    : plan_(std::move(plan)),
      allocator_(allocator),
      slot_pages_(slot_pages),
      max_slots_(max_slots),
      is_used_(plan_->spec().has_states()),
      has_memory_(plan_->spec().storage != KVC_STORAGE_NONE && is_used_) {
  if (has_memory_) fill_initial();
}

void StatePool::fill_initial() {
  const Layout& layout = plan_->layout();
  initial_.ensure(static_cast<size_t>(layout.state_slot_bytes));
  std::memset(initial_.data(), 0, static_cast<size_t>(layout.state_slot_bytes));
  for (size_t i = 0; i < layout.layers.size(); ++i) {
    const std::vector<StateSpec>& states = plan_->spec().layers[i].states;
    for (size_t s = 0; s < states.size(); ++s) {
      if (!states[s].init.empty())
        std::memcpy(initial_.data() + layout.layers[i].state_offsets[s], states[s].init.data(),
                    states[s].init.size());
    }
  }
}

int64_t StatePool::missing(int64_t count) const {
  return max_slots_ == 0 ? 0 : std::max<int64_t>(0, num_used_ + count - max_slots_);
}

int64_t StatePool::to_evict(int64_t count) const {
  return max_slots_ == 0 ? 0 : std::max<int64_t>(0, num_used_ + num_evictable_ + count - max_slots_);
}

void StatePool::prepare(int64_t count) {
  const size_t wanted = static_cast<size_t>(num_used_ + num_evictable_ + count);
  if (wanted <= holders_.size()) return;
  if (wanted > holders_.capacity()) {
    // holders_ last: its capacity says that the others have theirs, whatever failed before.
    const size_t capacity = std::max(wanted, holders_.capacity() * 2);
    memory_.reserve(capacity);
    free_.reserve(capacity);
    cached_.reserve(capacity);
    holders_.reserve(capacity);
  }
  while (holders_.size() < wanted) {
    AlignedBuffer buffer;
    if (has_memory_) buffer.ensure(static_cast<size_t>(plan_->layout().state_slot_bytes));
    memory_.push_back(std::move(buffer));
    free_.push_back(static_cast<StateSlot>(holders_.size()));
    cached_.push_back(0);
    holders_.push_back(0);
  }
}

StateSlot StatePool::take() noexcept {
  const StateSlot slot = free_.back();
  free_.pop_back();
  holders_[static_cast<size_t>(slot)] = 1;
  ++num_used_;
  allocator_->withhold(slot_pages_);
  return slot;
}

void StatePool::add_holder(StateSlot slot) noexcept {
  if (slot == kInitialState || ++holders_[static_cast<size_t>(slot)] != 1) return;
  --num_evictable_;  // it was cached
  allocator_->note_evictable(-slot_pages_);
  ++num_used_;
}

void StatePool::release(StateSlot slot) noexcept {
  free_.push_back(slot);
  allocator_->restore(slot_pages_);
}

void StatePool::drop_holder(StateSlot slot) noexcept {
  if (slot == kInitialState || --holders_[static_cast<size_t>(slot)] != 0) return;
  --num_used_;
  if (is_cached(slot)) {
    ++num_evictable_;
    allocator_->note_evictable(slot_pages_);
  } else {
    release(slot);
  }
}

void StatePool::cache(StateSlot slot) noexcept { cached_[static_cast<size_t>(slot)] = 1; }

void StatePool::uncache(StateSlot slot) noexcept {
  cached_[static_cast<size_t>(slot)] = 0;
  if (holders_[static_cast<size_t>(slot)] != 0) return;
  --num_evictable_;
  allocator_->note_evictable(-slot_pages_);
  release(slot);
}

void StatePool::clear() noexcept {
  free_.clear();
  for (size_t slot = 0; slot < holders_.size(); ++slot) {
    holders_[slot] = 0;
    cached_[slot] = 0;
    free_.push_back(static_cast<StateSlot>(slot));
  }
  num_used_ = num_evictable_ = 0;
}

std::byte* StatePool::state(StateSlot slot, int32_t local_layer, int32_t state) const {
  std::byte* base = slot == kInitialState ? initial_.data() : memory_[static_cast<size_t>(slot)].data();
  if (base == nullptr) return nullptr;
  return base +
         plan_->layout().layers[static_cast<size_t>(local_layer)].state_offsets[static_cast<size_t>(state)];
}

void StatePool::copy_layer(StateSlot from, StateSlot to, int32_t local_layer) const noexcept {
  const std::vector<StateSpec>& states = plan_->spec().layers[static_cast<size_t>(local_layer)].states;
  for (size_t s = 0; s < states.size(); ++s) {
    const auto index = static_cast<int32_t>(s);
    std::memcpy(state(to, local_layer, index), state(from, local_layer, index),
                static_cast<size_t>(states[s].bytes()));
  }
}

void StatePool::copy_slot(StateSlot from, StateSlot to) const noexcept {
  if (!has_memory_) return;
  for (size_t i = 0; i < plan_->spec().layers.size(); ++i) copy_layer(from, to, static_cast<int32_t>(i));
}

void StatePool::copy_slot_to(StateSlot from, const StatePool& other, StateSlot to) const noexcept {
  if (!has_memory_) return;
  std::memcpy(other.memory_[static_cast<size_t>(to)].data(), memory_[static_cast<size_t>(from)].data(),
              static_cast<size_t>(plan_->layout().state_slot_bytes));
}

}  // namespace kvc
