// All sequences of a cache, and the operations that need neither a batch nor tensor memory: add,
// remove, fork, pop.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "src/pages/allocator.h"
#include "src/plan/spec.h"
#include "src/sequences/checkpoints.h"
#include "src/sequences/resumable.h"
#include "src/sequences/sequence_map.h"
#include "src/sequences/table_trimmer.h"

namespace kvc {

// Invariants:
// 1. `map_` finds exactly the sequences of `slots_`; a free slot is in free_slots_.
// 2. Each page of a table and each state of a sequence counts as one reference, on the host while
//    the sequence is swapped out.
// 3. total_length_ is the sum of all lengths.
//
// Throws Error (NOT_FOUND, ALREADY_EXISTS, OUT_OF_RANGE, BUSY, INVALID_STATE, INVALID_ARGUMENT) or
// std::bad_alloc; nothing has changed then.
class SequenceTable {
 public:
  // `prefix_block`: tokens per block of the prefix index. All are borrowed.
  SequenceTable(PageAllocator* allocator, StatePool* states, PageAllocator* host_allocator,
                StatePool* host_states, const Spec& spec, int32_t prefix_block)
      : allocator_(allocator),
        states_(states),
        host_allocator_(host_allocator),
        host_states_(host_states),
        spec_(&spec),
        prefix_block_(prefix_block),
        trimmer_(spec, allocator),
        checkpoints_(&map_, states),
        resume_points_(spec, states->is_used()) {}
  SequenceTable(const SequenceTable&) = delete;
  SequenceTable& operator=(const SequenceTable&) = delete;

  void add(kvc_seq id);
  // A sequence without tables that is in no table of sequences yet. Makes the next `num_adopted`
  // calls of adopt() succeed. Throws std::bad_alloc.
  std::unique_ptr<Sequence> make(kvc_seq id, size_t num_adopted = 1);
  // Adds a complete sequence and counts its references. Call check_new_id() before.
  Sequence& adopt(std::unique_ptr<Sequence> sequence);
  void check_new_id(kvc_seq id, const char* name) const;
  void remove(kvc_seq id);
  void fork(kvc_seq parent, kvc_seq child, int64_t position);
  void pop(kvc_seq id, int64_t num_tokens);
  void clear() noexcept;

  Sequence* find(kvc_seq id) const { return id < 0 ? nullptr : map_.find(id); }
  Sequence& get(kvc_seq id) const {  // Throws NOT_FOUND.
    Sequence* sequence = find(id);
    if (sequence == nullptr) fail_unknown(id);
    return *sequence;
  }
  // A sequence that is not swapped out. Throws NOT_FOUND, INVALID_STATE.
  Sequence& get_on_device(kvc_seq id, const char* action) const;
  // A sequence that is not in the open forward. Throws NOT_FOUND, BUSY.
  Sequence& get_idle(kvc_seq id, const char* action) const;
  // An idle sequence on the device, without an uncommitted tree. Throws NOT_FOUND, BUSY,
  // INVALID_STATE.
  Sequence& get_settled(kvc_seq id, const char* action) const;

  size_t size() const { return map_.size(); }
  template <typename Visit>
  void for_each(Visit&& visit) const {
    map_.for_each(visit);
  }
  int64_t total_length() const { return total_length_; }
  void add_to_total_length(int64_t tokens) { total_length_ += tokens; }

  TableTrimmer& trimmer() { return trimmer_; }
  const TableTrimmer& trimmer() const { return trimmer_; }
  Checkpoints& checkpoints() { return checkpoints_; }
  const Checkpoints& checkpoints() const { return checkpoints_; }
  const ResumePoints& resume_points() const { return resume_points_; }

 private:
  void reserve(size_t count);
  Sequence& create(std::unique_ptr<Sequence> sequence);
  std::unique_ptr<Sequence> fork_of(const Sequence& parent, kvc_seq child_id, int64_t length) const;
  [[noreturn]] void fail_unknown(kvc_seq id) const;

  PageAllocator* allocator_;
  StatePool* states_;
  PageAllocator* host_allocator_;  // Pages of swapped sequences.
  StatePool* host_states_;
  const Spec* spec_;
  int32_t prefix_block_;
  SequenceMap map_;
  TableTrimmer trimmer_;
  Checkpoints checkpoints_;
  ResumePoints resume_points_;
  std::vector<std::unique_ptr<Sequence>> slots_;  // Null where free.
  // Its capacity is at least slots_.size(), so that freeing a slot never allocates.
  std::vector<int32_t> free_slots_;
  std::unique_ptr<Sequence> spare_;  // A removed sequence, whose memory the next one reuses.
  int64_t total_length_ = 0;
};

std::vector<kvc_seq> sorted_ids(const SequenceTable& sequences);
[[noreturn]] void fail_swapped(const Sequence& sequence, const char* action);
// Throws INVALID_STATE. A step asks it of every sequence.
inline void check_on_device(const Sequence& sequence, const char* action) {
  if (sequence.is_swapped) fail_swapped(sequence, action);
}

}  // namespace kvc
