// All sequences of a cache and the operations on them that need no batch and touch no tensor memory: add, remove, fork, pop, windows.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "src/pages/allocator.h"
#include "src/plan/spec.h"
#include "src/sequences/sequence_map.h"
#include "src/sequences/visibility.h"

namespace kvc {

// Throws Error (NOT_FOUND, ALREADY_EXISTS, OUT_OF_RANGE, BUSY, INVALID_STATE, INVALID_ARGUMENT) or std::bad_alloc; nothing has changed then.
class SequenceTable {
 public:
  SequenceTable(PageAllocator* allocator, StatePool* states, const Spec& spec)
      : allocator_(allocator),
        states_(states),
        spec_(&spec),
        page_size_(spec.page_size),
        has_windows_(spec.has_windows()) {}
  SequenceTable(const SequenceTable&) = delete;
  SequenceTable& operator=(const SequenceTable&) = delete;

  void add(kvc_seq id);
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
  // Not in the open forward: throws BUSY.
  Sequence& get_idle(kvc_seq id, const char* action) const;
  // And without an uncommitted tree: throws INVALID_STATE.
  Sequence& get_settled(kvc_seq id, const char* action) const;

  size_t size() const { return map_.size(); }
  int64_t total_length() const { return total_length_; }
  void add_to_total_length(int64_t tokens) { total_length_ += tokens; }
  std::vector<kvc_seq> sorted_ids() const;

  // Could the sequence go on from its first `position` tokens? All that the next query sees must be there.
  bool can_resume(const Sequence& sequence, int64_t position) const;
  // The nearest position to `position` (at most the length) for which can_resume holds; its own end always does.
  int64_t nearest_resumable(const Sequence& sequence, int64_t position) const;

  // Frees the pages that no later query sees. After every change of the committed length or of the windows.
  void drop_unseen(Sequence& sequence) noexcept {
    if (has_windows_ || sequence.window != 0) drop_behind_windows(sequence);
  }
  // Cuts the table of every group that counts tokens to `tokens`.
  void truncate(Sequence& sequence, int64_t tokens) noexcept;

  template <typename Visit>
  void for_each(Visit&& visit) const {
    map_.for_each(visit);
  }

 private:
  Sequence& create(std::unique_ptr<Sequence> sequence);
  std::unique_ptr<Sequence> fork_of(const Sequence& parent, kvc_seq child_id, int64_t length) const;
  void check_new_id(kvc_seq id, const char* name) const;
  void check_resumable(const Sequence& sequence, int64_t position, const char* argument, int64_t value) const;
  void cut_table(PageTable& table, int64_t keep) noexcept;
  void cut_states(Sequence& sequence, int64_t position) noexcept;
  void drop_pages(PageTable& table, int64_t begin, int64_t end) noexcept;
  void drop_table(Sequence& sequence, size_t group) noexcept;
  void drop_behind_windows(Sequence& sequence) noexcept;
  [[noreturn]] void fail_unknown(kvc_seq id) const;

  PageAllocator* allocator_;
  StatePool* states_;
  const Spec* spec_;
  int32_t page_size_;
  bool has_windows_;
  SequenceMap map_;
  std::vector<std::unique_ptr<Sequence>> slots_;  // null where free
  std::vector<int32_t> free_slots_;  // capacity >= slots_.size(), so that freeing a slot never allocates
  int64_t total_length_ = 0;
};

}  // namespace kvc
