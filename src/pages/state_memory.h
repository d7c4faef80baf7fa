// The memory of recurrent states: slots of equal size, each with all states of all STATE layers of
// one sequence at one position.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "src/base/memory.h"
#include "src/device/device.h"
#include "src/device/gpu.h"
#include "src/plan/plan.h"

namespace kvc {

using StateSlot = int32_t;
constexpr StateSlot kInitialState = -1;  // The state of an empty sequence, which takes no slot.

class StateMemory {
 public:
  // `device`: where the slots lie; null: on the host. `pinned`: on the host, for a device that
  // copies from and to them. `max_slots` bounds the slots of a device; 0: its memory does. Throws
  // NO_MEMORY, std::bad_alloc.
  StateMemory(std::shared_ptr<const Plan> plan, int64_t max_slots, const Gpu* device, bool pinned);

  // Makes room for records of so many slots. Throws std::bad_alloc.
  void reserve(size_t slots);
  // Gives the slot its memory, after reserve(). Throws NO_MEMORY, std::bad_alloc.
  void make(size_t slot);

  // The memory of one state; null with KVC_STORAGE_NONE. kInitialState may be read only.
  std::byte* state(StateSlot slot, int32_t local_layer, int32_t state) const;
  // All states of a slot; likewise.
  std::byte* slot(StateSlot slot) const;
  // Bytes between slots that follow each other on a device.
  int64_t slot_stride() const;
  // Into this memory or that of another pool of the same plan, on a stream of `device`.
  void copy(StateSlot from, const StateMemory& target, StateSlot to, Device& device,
            CallStream stream) const noexcept;
  // Fills the slot with zeros: at once on the host, in the order of `stream` on a device. The
  // latter throws.
  void clear(StateSlot slot, cuda::Stream stream = nullptr) const;

 private:
  void fill_initial();
  bool is_on_device() const { return device_ != nullptr && !is_pinned_; }

  std::shared_ptr<const Plan> plan_;
  bool has_memory_;
  const Gpu* device_;
  bool is_pinned_;
  AlignedBuffer initial_;
  std::vector<AlignedBuffer> host_;   // [slot]
  std::vector<PinnedMemory> pinned_;  // [slot]
  DeviceReservation on_device_;       // All slots.
  DeviceMemory initial_on_device_;
};

}  // namespace kvc
