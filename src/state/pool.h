// The recurrent states of sequences: slots of equal size, each all states of all STATE layers at one position, shared by holders.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "src/base/memory.h"
#include "src/plan/plan.h"

namespace kvc {

using StateSlot = int32_t;
constexpr StateSlot kInitialState = -1;  // the state of an empty sequence: no slot is spent on it

// A slot that a forward writes has one holder; afterwards it never changes (but by kvc_debug_set_state on a private copy), so sequences
// and checkpoints share it. External exclusion, as the cache's.
class StatePool {
 public:
  // Throws NO_MEMORY or std::bad_alloc.
  explicit StatePool(std::shared_ptr<const Plan> plan);

  bool is_used() const { return is_used_; }
  int64_t num_used() const { return num_used_; }
  int64_t num_slots() const { return static_cast<int64_t>(holders_.size()); }
  int32_t holders(StateSlot slot) const { return holders_[static_cast<size_t>(slot)]; }
  // Slots that `count` more would exceed the configured number by; 0: they fit.
  int64_t missing(int64_t count) const;

  // Makes the next `count` takes succeed. Throws std::bad_alloc. `missing(count)` must be 0.
  void prepare(int64_t count);
  // One holder; after prepare(). Content undefined.
  StateSlot take() noexcept;
  void add_holder(StateSlot slot) noexcept;  // kInitialState: nothing to count
  void drop_holder(StateSlot slot) noexcept;
  void clear() noexcept;

  // Memory of one state; null with KVC_STORAGE_NONE. kInitialState may be read only.
  std::byte* state(StateSlot slot, int32_t local_layer, int32_t state) const;
  void copy_layer(StateSlot from, StateSlot to, int32_t local_layer) const noexcept;
  void copy_slot(StateSlot from, StateSlot to) const noexcept;

 private:
  void fill_initial();

  std::shared_ptr<const Plan> plan_;
  bool is_used_;  // asked for every sequence of a batch: not looked up in the layers each time
  bool has_memory_;
  AlignedBuffer initial_;
  std::vector<AlignedBuffer> memory_;  // per slot
  std::vector<int32_t> holders_;       // 0: free
  std::vector<StateSlot> free_;        // capacity >= number of slots, so that freeing never allocates
  int64_t num_used_ = 0;
};

}  // namespace kvc
