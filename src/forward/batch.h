// The open forward's batch: which sequences grow by how much, which pages that takes, and how to undo it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/pages/allocator.h"
#include "src/plan/plan.h"
#include "src/sequences/sequences.h"

namespace kvc {

// What a caller asks for; arrays borrowed.
struct BatchRequest {
  size_t num_seqs;
  const kvc_seq* seqs;
  const int64_t* append_lengths;
};

struct BatchEntry {
  Sequence* sequence;
  int64_t old_length;
  int64_t append_length;
  int64_t row_begin;  // first packed row
  int64_t old_num_pages;
  PageId replaced_page;  // partial last page that this entry copied, kNoPage when none; its holder count is kept until the end
  bool copies_last_page;

  int64_t new_length() const { return old_length + append_length; }
};

// A page whose content has to be copied before the new tokens are written.
struct PageCopy {
  PageId from;
  PageId to;
};

// Copy on write: a partial last page with several holders is copied by the batch's sequences that append to it. When the batch holds
// every reference, the longest of them keeps the page and writes in place: its new slots lie behind every other holder's tokens, so
// that an abort can give the page back to all.
class Batch {
 public:
  // Checks the request and counts the pages it takes; `entries` is filled. Throws INVALID_ARGUMENT, NOT_FOUND, OUT_OF_RANGE, NEVER_FITS.
  // `stamp` != 0 marks the sequences to find duplicates in O(n); 0 leaves them alone (for const callers).
  static int64_t measure(const BatchRequest& request, const Plan& plan, const SequenceTable& sequences,
                         const PageAllocator& allocator, uint64_t stamp, std::vector<BatchEntry>* entries);

  // Reserves the pages. Throws NO_PAGES (detail = missing), what measure throws, or std::bad_alloc; nothing has changed then.
  void begin(const BatchRequest& request, const Plan& plan, const SequenceTable& sequences,
             PageAllocator& allocator);
  // New lengths become visible.
  void commit(SequenceTable& sequences, PageAllocator& allocator) noexcept;
  // Tables and holders as before begin.
  void rollback(PageAllocator& allocator) noexcept;

  const std::vector<BatchEntry>& entries() const { return entries_; }
  const std::vector<PageCopy>& copies() const { return copies_; }
  int64_t num_rows() const { return num_rows_; }
  int64_t longest() const;  // longest sequence with its new tokens

  // What a device back end would be sent for this step, in one copy: [num_seqs, num_rows], then per sequence
  // [slot, old length, append length, first new table entry, number of them], then the new entries' page ids.
  const std::vector<int32_t>& step_words() const { return step_words_; }

 private:
  void take_pages(BatchEntry& entry, PageAllocator& allocator, int32_t page_size) noexcept;
  void record_step(BatchEntry& entry) noexcept;
  void finish() noexcept;

  std::vector<BatchEntry> entries_;
  std::vector<PageCopy> copies_;
  std::vector<int32_t> step_words_;
  int64_t num_rows_ = 0;
  uint64_t stamp_ = 0;
};

}  // namespace kvc
