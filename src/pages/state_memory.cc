#include "src/pages/state_memory.h"

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
  } else if (device_ != nullptr) {
    const auto begin = static_cast<int64_t>(slot) * slot_stride();
    if (begin + slot_stride() > on_device_.bytes()) {
      fail_with(KVC_E_NO_MEMORY, begin + slot_stride(),
                "%zu state slots of %lld bytes exceed the device's memory", slot + 1, ll(bytes));
    }
    on_device_.commit(begin, begin + slot_stride());
  } else {
    host_[slot].ensure(static_cast<size_t>(bytes));
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

}  // namespace kvc
