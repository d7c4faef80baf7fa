// The recurrent states of sequences: which state slots are free, and how many references each one
// has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "src/base/memory.h"
#include "src/device/device.h"
#include "src/device/gpu.h"
#include "src/pages/allocator.h"
#include "src/plan/plan.h"

namespace kvc {

using StateSlot = int32_t;
constexpr StateSlot kInitialState = -1;  // The state of an empty sequence, which takes no slot.

// The memory of recurrent states: slots of equal size, each with all states of all STATE layers of
// one sequence at one position.
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
  // Gives the memory of a slot on the host back to the system: its content is undefined then.
  // Returns how many bytes had some.
  int64_t discard(StateSlot slot) noexcept {
    return host_.empty() ? 0 : host_[static_cast<size_t>(slot)].discard();
  }
  int64_t host_bytes() const {
    return slot_bytes_ + initial_.host_bytes() + kvc::host_bytes(host_) + kvc::host_bytes(pinned_);
  }

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
  int64_t slot_bytes_ = 0;            // All slots in host memory.
  DeviceReservation on_device_;       // All slots.
  DeviceMemory initial_on_device_;
};

// Sequences and checkpoints share state slots. The forward that writes a slot has its only
// reference; afterwards the slot never changes, except a private copy through kvc_debug_set_state.
//
// Invariants, with the words of PageAllocator:
// 1. A slot is in free_ exactly when it has no reference and is not indexed.
// 2. num_used_ counts the slots with references, num_cached_ the indexed ones without.
// 3. Each slot that is not free withholds slot_pages() pages of the allocator. The pages of cached
//    slots count as cached there.
//
// External exclusion, as the cache's.
class StatePool {
 public:
  // `slot_pages`: pages of `allocator` that a slot in use withholds
  // (kvc_plan_info.state_slot_pages); 0: none. `max_slots`: 0: any number. For the rest see
  // StateMemory. Throws NO_MEMORY, std::bad_alloc.
  StatePool(std::shared_ptr<const Plan> plan, PageAllocator* allocator, int64_t slot_pages,
            int64_t max_slots, const Gpu* device = nullptr, bool pinned = false);

  StateMemory& memory() { return memory_; }
  const StateMemory& memory() const { return memory_; }
  bool is_used() const { return is_used_; }  // Some layer is of kind STATE.
  int64_t slot_pages() const { return slot_pages_; }
  int64_t host_bytes() const {
    return memory_.host_bytes() + kvc::host_bytes(refs_) + kvc::host_bytes(free_) +
           kvc::host_bytes(indexed_);
  }
  int64_t num_slots() const { return static_cast<int64_t>(refs_.size()); }
  int64_t num_used() const { return num_used_; }
  int64_t num_cached() const { return num_cached_; }
  int32_t refs(StateSlot slot) const { return refs_[slot]; }
  bool is_indexed(StateSlot slot) const { return indexed_[slot] != 0; }

  // How many of `count` more slots exceed the configured number; 0: they fit, after evictions.
  int64_t missing(int64_t count) const;
  // Slots to evict before `count` can be taken.
  int64_t to_evict(int64_t count) const;
  // Makes the next `count` takes succeed. missing(count) and to_evict(count) must be 0. Throws
  // NO_MEMORY, std::bad_alloc.
  void prepare(int64_t count);
  // Takes a slot with one reference, after prepare() and with slot_pages() free pages. Its content
  // is undefined.
  StateSlot take() noexcept;
  void add_ref(StateSlot slot) noexcept;  // kInitialState has no references.
  void drop_ref(StateSlot slot) noexcept;
  // The prefix index, which owns no reference, knows the slot. The slot has a reference.
  void mark_indexed(StateSlot slot) noexcept;
  void unmark_indexed(StateSlot slot) noexcept;
  void clear() noexcept;  // All slots are free, none withholds pages.
  // Gives the memory of free slots back to the system. Returns how many bytes had some.
  int64_t trim() noexcept;

 private:
  void release(StateSlot slot) noexcept;

  StateMemory memory_;
  PageAllocator* allocator_;
  int64_t slot_pages_;
  int64_t max_slots_;
  bool is_used_;  // Read for every sequence of a batch, so it is not looked up in the layers.
  std::vector<int32_t> refs_;
  std::vector<StateSlot> free_;  // Capacity >= number of slots, so that freeing never allocates.
  std::vector<uint8_t> indexed_;
  int64_t num_used_ = 0;
  int64_t num_cached_ = 0;
};

}  // namespace kvc
