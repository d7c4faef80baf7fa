// All sequences of a cache and the operations on them that need no batch and touch no tensor
// memory: add, remove, fork, pop, windows.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "src/pages/allocator.h"
#include "src/plan/spec.h"
#include "src/sequences/sequence_map.h"
#include "src/sequences/visibility.h"

namespace kvc {

// Throws Error (NOT_FOUND, ALREADY_EXISTS, OUT_OF_RANGE, BUSY, INVALID_STATE, INVALID_ARGUMENT) or
// std::bad_alloc; nothing has changed then.
class SequenceTable {
 public:
  // `prefix_block`: tokens of a block of the prefix index.
  SequenceTable(PageAllocator* allocator, StatePool* states, PageAllocator* host_allocator,
                StatePool* host_states, const Spec& spec, int32_t prefix_block)
      : allocator_(allocator),
        states_(states),
        host_allocator_(host_allocator),
        host_states_(host_states),
        spec_(&spec),
        prefix_block_(prefix_block),
        default_root_(namespace_root(nullptr, 0)),
        has_windows_(spec.has_windows()) {}
  SequenceTable(const SequenceTable&) = delete;
  SequenceTable& operator=(const SequenceTable&) = delete;

  void add(kvc_seq id);
  // A new one without tables, in no table of sequences yet. Throws std::bad_alloc.
  std::unique_ptr<Sequence> make(kvc_seq id);
  // A sequence that is filled in but for its holders, which are counted here. check_new_id before.
  Sequence& adopt(std::unique_ptr<Sequence> sequence);
  void check_new_id(kvc_seq id, const char* name) const;
  // Makes the next adopt() succeed. Throws std::bad_alloc.
  void reserve_one();
  void remove(kvc_seq id);
  void fork(kvc_seq parent, kvc_seq child, int64_t position);
  void pop(kvc_seq id, int64_t num_tokens);
  void set_window(kvc_seq id, int64_t window, int64_t sink);
  void checkpoint(kvc_seq id);
  void clear() noexcept;

  Sequence& get(kvc_seq id) const {  // throws NOT_FOUND
    Sequence* sequence = find(id);
    if (sequence == nullptr) fail_unknown(id);
    return *sequence;
  }
  Sequence* find(kvc_seq id) const { return id < 0 ? nullptr : map_.find(id); }
  // Throws NOT_FOUND, INVALID_STATE
  Sequence& get_on_device(kvc_seq id, const char* action) const {
    Sequence& sequence = get(id);
    check_on_device(sequence, action);
    return sequence;
  }
  // Not in the open forward: throws BUSY.
  Sequence& get_idle(kvc_seq id, const char* action) const;
  void check_on_device(const Sequence& sequence, const char* action) const;  // throws INVALID_STATE
  // And on the device, without an uncommitted tree: throws INVALID_STATE.
  Sequence& get_settled(kvc_seq id, const char* action) const;

  const BlockKey& default_root() const { return default_root_; }  // of the namespace without salt
  size_t size() const { return map_.size(); }
  int64_t total_length() const { return total_length_; }
  void add_to_total_length(int64_t tokens) { total_length_ += tokens; }
  std::vector<kvc_seq> sorted_ids() const;

  // Could the sequence go on from its first `position` tokens? All that the next query sees must be
  // there.
  bool can_resume(const Sequence& sequence, int64_t position) const;
  // The nearest position to `position` (at most the length) for which can_resume holds, of two the
  // lower one; its own end always does. `looks`, for tests: gets the number of positions and
  // checkpoints that were looked at.
  int64_t nearest_resumable(const Sequence& sequence, int64_t position,
                            int64_t* looks = nullptr) const;

  // Frees the pages that no later query sees. After every change of the committed length or of the
  // windows.
  void drop_unseen(Sequence& sequence) noexcept {
    if ((has_windows_ && sequence.length >= sequence.next_drop) || sequence.window != 0)
      drop_behind_windows(sequence);
  }
  // States that only automatic checkpoints hold. O(checkpoints).
  int64_t num_reclaimable_states() const;
  // Automatic checkpoints of all sequences, the oldest positions first. Throws std::bad_alloc.
  struct OldState {
    Sequence* sequence;
    int64_t position;
  };
  std::vector<OldState> reclaimable_states() const;
  // Gives these up, in order, until so many states have become free or none is left.
  void reclaim_states(int64_t count, const std::vector<OldState>& oldest) noexcept;
  // Cuts the table of every group that counts tokens to `tokens`.
  void truncate(Sequence& sequence, int64_t tokens) noexcept;

  template <typename Visit>
  void for_each(Visit&& visit) const {
    map_.for_each(visit);
  }

 private:
  Sequence& create(std::unique_ptr<Sequence> sequence);
  std::unique_ptr<Sequence> fork_of(const Sequence& parent, kvc_seq child_id, int64_t length) const;
  bool has_checkpoint(const Sequence& sequence, int64_t position) const;
  int64_t resumable_below(const Sequence& sequence, int64_t position, int64_t* looks) const;
  int64_t resumable_above(const Sequence& sequence, int64_t position, int64_t* looks) const;
  void check_resumable(const Sequence& sequence, int64_t position, const char* argument,
                       int64_t value) const;
  static void cut_table(PageTable& table, int64_t keep, PageAllocator& allocator) noexcept;
  void cut_states(Sequence& sequence, int64_t position) noexcept;
  void drop_pages(PageTable& table, int64_t begin, int64_t end) noexcept;
  void drop_table(Sequence& sequence, size_t group) noexcept;
  void drop_behind_windows(Sequence& sequence) noexcept;
  void note_next_drop(Sequence& sequence) noexcept;
  [[noreturn]] void fail_unknown(kvc_seq id) const;

  PageAllocator* allocator_;
  StatePool* states_;
  PageAllocator* host_allocator_;  // of swapped sequences
  StatePool* host_states_;
  const Spec* spec_;
  int32_t prefix_block_;
  BlockKey default_root_;
  bool has_windows_;
  SequenceMap map_;
  std::vector<std::unique_ptr<Sequence>> slots_;  // null where free
  // Capacity >= slots_.size(), so that freeing a slot never allocates
  std::vector<int32_t> free_slots_;
  std::unique_ptr<Sequence> spare_;  // removed: its memory serves the next one
  int64_t total_length_ = 0;
};

}  // namespace kvc
