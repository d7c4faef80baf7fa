// The recurrent states of sequences: slots of equal size, each all states of all STATE layers at
// one position, shared by holders.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "src/base/memory.h"
#include "src/device/device.h"
#include "src/pages/allocator.h"
#include "src/plan/plan.h"

namespace kvc {

using StateSlot = int32_t;
constexpr StateSlot kInitialState = -1;  // the state of an empty sequence: no slot is spent on it

// A slot that a forward writes has one holder; afterwards it never changes (but by
// kvc_debug_set_state on a private copy), so sequences and checkpoints share it. External
// exclusion, as the cache's.
class StatePool {
 public:
  // Each slot in use takes `slot_pages` pages of `allocator` out of use
  // (kvc_plan_info.state_slot_pages); 0: none. At most `max_slots`, 0: any number. Throws NO_MEMORY
  // or std::bad_alloc. `device`: where the states lie, null: on the host. `pinned`: on the host,
  // for a device that copies from and to it.
  StatePool(std::shared_ptr<const Plan> plan, PageAllocator* allocator, int64_t slot_pages,
            int64_t max_slots, const Device* device = nullptr, bool pinned = false);
  // Of a device: before the first copy; borrowed.
  void set_copier(ByteCopier* copier) { copier_ = copier; }

  bool is_used() const { return is_used_; }
  int64_t num_used() const { return num_used_; }
  int64_t slot_pages() const { return slot_pages_; }
  int64_t num_slots() const { return static_cast<int64_t>(refs_.size()); }
  int32_t refs(StateSlot slot) const { return refs_[static_cast<size_t>(slot)]; }
  bool is_indexed(StateSlot slot) const { return indexed_[static_cast<size_t>(slot)] != 0; }
  // Cached, without holders: these are not used
  int64_t num_cached() const { return num_cached_; }
  // Slots that `count` more would exceed the configured number by; 0: they fit, after evictions.
  int64_t missing(int64_t count) const;

  // Slots to evict before `count` can be taken.
  int64_t to_evict(int64_t count) const;

  // Makes the next `count` takes succeed, once to_evict(count) is 0. Throws std::bad_alloc.
  // `missing(count)` must be 0.
  void prepare(int64_t count);
  // One holder; after prepare(), and with slot_pages() vacant pages. Content undefined.
  StateSlot take() noexcept;
  void add_ref(StateSlot slot) noexcept;  // kInitialState: nothing to count
  void drop_ref(StateSlot slot) noexcept;
  // Known to the prefix index, which is no holder, as pages (PageAllocator). The slot has a holder
  // and is not cached.
  void mark_indexed(StateSlot slot) noexcept;
  void unmark_indexed(StateSlot slot) noexcept;
  void clear() noexcept;

  // Memory of one state; null with KVC_STORAGE_NONE. kInitialState may be read only.
  std::byte* state(StateSlot slot, int32_t local_layer, int32_t state) const;
  // On a device slots lie one behind the other, this far apart.
  int64_t slot_stride() const;
  void copy_slot(StateSlot from, StateSlot to) const noexcept;
  // Zeros. On the host, or in the order of `stream` of a device, which throws.
  void clear_slot(StateSlot slot, cuda::Stream stream = nullptr) const;
  // Into another pool of the same plan.
  void copy_slot_to(StateSlot from, const StatePool& other, StateSlot to) const noexcept;

 private:
  void fill_initial();
  std::byte* slot_data(StateSlot slot) const;
  void make_memory(size_t slot);
  void copy(std::byte* to, const std::byte* from) const noexcept;
  void release(StateSlot slot) noexcept;

  std::shared_ptr<const Plan> plan_;
  PageAllocator* allocator_;
  int64_t slot_pages_;
  int64_t max_slots_;
  bool is_used_;  // asked for every sequence of a batch: not looked up in the layers each time
  bool has_memory_;
  const Device* device_;
  bool is_pinned_;
  ByteCopier* copier_ = nullptr;
  AlignedBuffer initial_;
  std::vector<AlignedBuffer> memory_;  // per slot
  std::vector<PinnedMemory> pinned_;   // per slot
  DeviceReservation on_device_;        // of all slots
  DeviceMemory initial_on_device_;
  std::vector<int32_t> refs_;    // 0: free
  std::vector<StateSlot> free_;  // capacity >= number of slots, so that freeing never allocates
  std::vector<uint8_t> indexed_;
  int64_t num_used_ = 0;  // with holders
  int64_t num_cached_ = 0;
};

}  // namespace kvc
