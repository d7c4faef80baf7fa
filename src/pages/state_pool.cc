#include "src/pages/state_pool.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "src/base/error.h"
#include "src/base/math.h"

namespace kvc {
namespace {

constexpr int64_t kSlotAlignment = 256;

}  // namespace

StateMemory::StateMemory(std::shared_ptr<const Plan> plan, int64_t max_slots, const Gpu* device,
                         bool pinned)
    : plan_(std::move(plan)),
      has_memory_(plan_->spec().storage != KVC_STORAGE_NONE && plan_->spec().has_states() &&
                  plan_->layout().state_slot_bytes > 0),
      device_(device),
      is_pinned_(pinned) {
  if (!has_memory_) return;
  fill_initial();
  if (!is_on_device()) return;
  const int64_t bytes = plan_->layout().state_slot_bytes;
  initial_on_device_ = DeviceMemory(*device_, bytes);
  const DeviceStream stream(*device_);
  device_->copy(initial_on_device_.data(), initial_.data(), bytes, stream.get());
  stream.synchronize();
  const auto memory_bytes = static_cast<int64_t>(device_info(*device_).memory_bytes);
  const int64_t most = std::max<int64_t>(1, memory_bytes / slot_stride());
  on_device_ = DeviceReservation(
      *device_, (max_slots == 0 ? most : std::min(most, max_slots)) * slot_stride());
}

void StateMemory::reserve(size_t slots) {
  host_.resize(slots);
  pinned_.resize(is_pinned_ ? slots : 0);
}

void StateMemory::make(size_t slot) {
  if (!has_memory_) return;
  const int64_t bytes = plan_->layout().state_slot_bytes;
  if (is_pinned_ && device_ != nullptr) {
    pinned_[slot] = PinnedMemory(*device_, bytes);
    slot_bytes_ += bytes;
  } else if (device_ != nullptr) {
    const auto begin = static_cast<int64_t>(slot) * slot_stride();
    if (begin + slot_stride() > on_device_.bytes()) {
      fail_with(KVC_E_NO_MEMORY, begin + slot_stride(),
                "%zu state slots of %lld bytes exceed the device's memory", slot + 1, ll(bytes));
    }
    on_device_.commit(begin, begin + slot_stride());
  } else {
    slot_bytes_ -= host_[slot].host_bytes();
    host_[slot].ensure(static_cast<size_t>(bytes));
    slot_bytes_ += host_[slot].host_bytes();
  }
}

void StateMemory::fill_initial() {
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

int64_t StateMemory::slot_stride() const {
  return align_up(plan_->layout().state_slot_bytes, kSlotAlignment);
}

std::byte* StateMemory::slot(StateSlot slot) const {
  if (!has_memory_) return nullptr;
  const auto index = static_cast<size_t>(slot);
  if (is_on_device())
    return slot == kInitialState ? initial_on_device_.data()
                                 : on_device_.data() + slot * slot_stride();
  if (slot == kInitialState) return initial_.data();
  return is_pinned_ ? pinned_[index].data() : host_[index].data();
}

std::byte* StateMemory::state(StateSlot slot, int32_t local_layer, int32_t state) const {
  std::byte* base = this->slot(slot);
  if (base == nullptr) return nullptr;
  return base + plan_->layout().layers[local_layer].state_offsets[state];
}

void StateMemory::copy(StateSlot from, const StateMemory& target, StateSlot to, Device& device,
                       CallStream stream) const noexcept {
  if (has_memory_)
    device.copy_bytes(target.slot(to), slot(from), plan_->layout().state_slot_bytes, stream);
}

void StateMemory::clear(StateSlot slot, cuda::Stream stream) const {
  if (!has_memory_) return;
  const int64_t bytes = plan_->layout().state_slot_bytes;
  if (is_on_device()) {
    device_->fill(this->slot(slot), 0, bytes, stream);
  } else {
    std::memset(this->slot(slot), 0, static_cast<size_t>(bytes));
  }
}

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

int64_t StatePool::trim() noexcept {
  int64_t bytes = 0;
  for (const StateSlot slot : free_) bytes += memory_.discard(slot);
  return bytes;
}

}  // namespace kvc
