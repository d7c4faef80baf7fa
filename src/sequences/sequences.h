// All sequences of a cache and the operations on them that need no batch: add, remove, fork, pop.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "src/pages/allocator.h"
#include "src/sequences/sequence_map.h"

namespace kvc {

// Throws Error (NOT_FOUND, ALREADY_EXISTS, OUT_OF_RANGE, BUSY, INVALID_ARGUMENT) or std::bad_alloc; nothing has changed then.
class SequenceTable {
 public:
  SequenceTable(PageAllocator* allocator, int32_t page_size) : allocator_(allocator), page_size_(page_size) {}
  SequenceTable(const SequenceTable&) = delete;
  SequenceTable& operator=(const SequenceTable&) = delete;

  void add(kvc_seq id);
  void remove(kvc_seq id);
  void fork(kvc_seq parent, kvc_seq child, int64_t position);
  void pop(kvc_seq id, int64_t num_tokens);
  void clear() noexcept;

  Sequence& get(kvc_seq id) const;  // throws NOT_FOUND
  Sequence* find(kvc_seq id) const { return id < 0 ? nullptr : map_.find(id); }
  size_t size() const { return map_.size(); }
  int64_t total_length() const { return total_length_; }
  void add_to_total_length(int64_t tokens) { total_length_ += tokens; }
  std::vector<kvc_seq> sorted_ids() const;

  template <typename Visit>
  void for_each(Visit&& visit) const {
    map_.for_each(visit);
  }

 private:
  Sequence& create(kvc_seq id, int64_t num_pages);
  void check_new_id(kvc_seq id, const char* name) const;
  Sequence& get_idle(kvc_seq id, const char* action) const;
  void release_pages(Sequence& sequence, int64_t keep) noexcept;

  PageAllocator* allocator_;
  int32_t page_size_;
  SequenceMap map_;
  std::vector<std::unique_ptr<Sequence>> slots_;  // null where free
  std::vector<int32_t> free_slots_;  // capacity >= slots_.size(), so that freeing a slot never allocates
  int64_t total_length_ = 0;
};

}  // namespace kvc
