#include "src/forward/batch.h"

#include <algorithm>

#include "src/base/error.h"

namespace kvc {
namespace {

constexpr size_t kStepHeaderWords = 2;
constexpr size_t kStepWordsPerSequence = 5;

long long ll(int64_t value) { return static_cast<long long>(value); }

void check_request(const BatchRequest& request, const Plan& plan) {
  if (request.num_seqs == 0) fail(KVC_E_INVALID_ARGUMENT, "num_seqs = 0: a batch has at least 1 sequence");
  if (request.seqs == nullptr)
    fail(KVC_E_INVALID_ARGUMENT, "seqs is NULL with num_seqs = %zu", request.num_seqs);
  if (request.append_lengths == nullptr)
    fail(KVC_E_INVALID_ARGUMENT, "append_lengths is NULL with num_seqs = %zu", request.num_seqs);
  const int32_t max_seqs = plan.spec().max_seqs;
  if (max_seqs != 0 && request.num_seqs > static_cast<size_t>(max_seqs)) {
    fail_with(KVC_E_OUT_OF_RANGE, static_cast<int64_t>(request.num_seqs),
              "num_seqs = %zu exceeds config.max_seqs = %d", request.num_seqs, max_seqs);
  }
}

void check_fits(const Sequence& sequence, int64_t append_length, const Plan& plan, int64_t num_pages) {
  const int64_t longest = plan.max_seq_len(num_pages);
  if (append_length > longest - sequence.length) {
    fail_with(KVC_E_NEVER_FITS, sequence.id,
              "sequence %lld with %lld tokens can't take %lld more: the longest possible is %lld",
              ll(sequence.id), ll(sequence.length), ll(append_length), ll(longest));
  }
}

[[noreturn]] void fail_duplicate(kvc_seq id) {
  fail_with(KVC_E_INVALID_ARGUMENT, id, "sequence %lld appears twice in seqs: ids must be distinct", ll(id));
}

void check_distinct(const std::vector<BatchEntry>& entries) {
  std::vector<kvc_seq> ids;
  ids.reserve(entries.size());
  for (const BatchEntry& entry : entries) ids.push_back(entry.sequence->id);
  std::sort(ids.begin(), ids.end());
  const auto twice = std::adjacent_find(ids.begin(), ids.end());
  if (twice != ids.end()) fail_duplicate(*twice);
}

// Decides who copies a shared partial last page; returns the number of copies. See Batch's comment.
int64_t plan_copies(std::vector<BatchEntry>& entries, const PageAllocator& allocator, int32_t page_size) {
  struct Sharer {
    PageId page;
    int64_t length;
    size_t entry;
  };
  std::vector<Sharer> sharers;  // stays empty, and unallocated, in a steady decode
  for (size_t i = 0; i < entries.size(); ++i) {
    const Sequence& sequence = *entries[i].sequence;
    if (sequence.length % page_size == 0) continue;
    const PageId last = sequence.pages.back();
    if (allocator.refs(last) > 1) sharers.push_back({last, sequence.length, i});
  }
  std::sort(sharers.begin(), sharers.end(), [](const Sharer& a, const Sharer& b) {
    if (a.page != b.page) return a.page < b.page;
    return a.length != b.length ? a.length < b.length : a.entry < b.entry;
  });
  int64_t copies = 0;
  for (size_t first = 0; first < sharers.size();) {
    size_t next = first + 1;
    while (next < sharers.size() && sharers[next].page == sharers[first].page) ++next;
    const bool held_outside = allocator.refs(sharers[first].page) > static_cast<int32_t>(next - first);
    const size_t copying = held_outside ? next : next - 1;  // the longest comes last and keeps the page
    for (size_t i = first; i < copying; ++i) entries[sharers[i].entry].copies_last_page = true;
    copies += static_cast<int64_t>(copying - first);
    first = next;
  }
  return copies;
}

}  // namespace

int64_t Batch::measure(const BatchRequest& request, const Plan& plan, const SequenceTable& sequences,
                       const PageAllocator& allocator, uint64_t stamp, std::vector<BatchEntry>* entries) {
  check_request(request, plan);
  entries->clear();
  entries->reserve(
      std::min(request.num_seqs, sequences.size() + 1));  // more can't be distinct: the loop says why
  int64_t rows = 0;
  int64_t pages = 0;
  for (size_t i = 0; i < request.num_seqs; ++i) {
    Sequence& sequence = sequences.get(request.seqs[i]);
    const int64_t append_length = request.append_lengths[i];
    if (append_length < 1) {
      fail_with(KVC_E_INVALID_ARGUMENT, append_length,
                "append_lengths[%zu] = %lld for sequence %lld: at least 1 token", i, ll(append_length),
                ll(sequence.id));
    }
    if (stamp != 0) {
      if (sequence.begin_stamp == stamp) fail_duplicate(sequence.id);
      sequence.begin_stamp = stamp;
    }
    check_fits(sequence, append_length, plan, allocator.num_pages());
    const auto held = static_cast<int64_t>(sequence.pages.size());
    pages += plan.pages_for_tokens(sequence.length + append_length) - held;
    if (entries->size() == sequences.size()) fail_duplicate(sequence.id);
    entries->push_back({.sequence = &sequence,
                        .old_length = sequence.length,
                        .append_length = append_length,
                        .row_begin = rows,
                        .old_num_pages = held,
                        .replaced_page = kNoPage,
                        .copies_last_page = false});
    rows += append_length;
  }
  if (stamp == 0) check_distinct(*entries);
  const int64_t max_rows =
      plan.spec().max_tokens_per_forward != 0 ? plan.spec().max_tokens_per_forward : kMaxSequenceLength;
  if (rows > max_rows) {
    fail_with(KVC_E_OUT_OF_RANGE, rows,
              "append_lengths sum to %lld tokens, more than max_tokens_per_forward = %lld", ll(rows),
              ll(max_rows));
  }
  return pages + plan_copies(*entries, allocator, plan.spec().page_size);
}

void Batch::begin(const BatchRequest& request, const Plan& plan, const SequenceTable& sequences,
                  PageAllocator& allocator) {
  const int64_t needed = measure(request, plan, sequences, allocator, ++stamp_, &entries_);
  if (needed > allocator.num_free()) {
    const int64_t missing = needed - allocator.num_free();
    fail_with(KVC_E_NO_PAGES, missing, "the forward needs %lld pages, %lld are free: %lld missing",
              ll(needed), ll(allocator.num_free()), ll(missing));
  }
  const int32_t page_size = plan.spec().page_size;
  size_t num_copies = 0;
  size_t num_words = kStepHeaderWords + kStepWordsPerSequence * entries_.size();
  for (const BatchEntry& entry : entries_) {
    std::vector<PageId>& pages = entry.sequence->pages;
    const auto size = static_cast<size_t>(plan.pages_for_tokens(entry.new_length()));
    if (size > pages.capacity()) pages.reserve(std::max(size, pages.capacity() * 2));
    num_copies += entry.copies_last_page ? 1 : 0;
    num_words += size - std::min(size, static_cast<size_t>(entry.sequence->synced_pages)) + 1;
  }
  copies_.clear();
  copies_.reserve(num_copies);
  step_words_.clear();
  step_words_.reserve(num_words);

  // Nothing throws from here on.
  num_rows_ = entries_.back().row_begin + entries_.back().append_length;
  step_words_.push_back(static_cast<int32_t>(entries_.size()));
  step_words_.push_back(static_cast<int32_t>(num_rows_));
  for (size_t i = 0; i < entries_.size(); ++i) {
    entries_[i].sequence->batch_index = static_cast<int32_t>(i);
    take_pages(entries_[i], allocator, page_size);
    record_step(entries_[i]);
  }
}

void Batch::take_pages(BatchEntry& entry, PageAllocator& allocator, int32_t page_size) noexcept {
  Sequence& sequence = *entry.sequence;
  std::vector<PageId>& pages = sequence.pages;
  const int64_t total = entry.new_length() / page_size + (entry.new_length() % page_size != 0 ? 1 : 0);
  if (entry.copies_last_page) {
    entry.replaced_page = pages.back();
    const PageId previous = pages.size() > 1 ? pages[pages.size() - 2] : kNoPage;
    pages.back() = allocator.take(previous, total - entry.old_num_pages);
    copies_.push_back({entry.replaced_page, pages.back()});
    sequence.synced_pages = std::min(sequence.synced_pages, entry.old_num_pages - 1);
  }
  for (int64_t i = entry.old_num_pages; i < total; ++i) {
    pages.push_back(allocator.take(pages.empty() ? kNoPage : pages.back(), total - i - 1));
  }
}

void Batch::record_step(BatchEntry& entry) noexcept {
  Sequence& sequence = *entry.sequence;
  const auto total = static_cast<int64_t>(sequence.pages.size());
  step_words_.push_back(sequence.slot);
  step_words_.push_back(static_cast<int32_t>(entry.old_length));
  step_words_.push_back(static_cast<int32_t>(entry.append_length));
  step_words_.push_back(static_cast<int32_t>(sequence.synced_pages));
  step_words_.push_back(static_cast<int32_t>(total - sequence.synced_pages));
  step_words_.insert(step_words_.end(), sequence.pages.begin() + sequence.synced_pages, sequence.pages.end());
  sequence.synced_pages = total;
}

void Batch::commit(SequenceTable& sequences, PageAllocator& allocator) noexcept {
  for (const BatchEntry& entry : entries_) {
    entry.sequence->length = entry.new_length();
    if (entry.replaced_page != kNoPage) allocator.drop_holder(entry.replaced_page);
  }
  sequences.add_to_total_length(num_rows_);
  finish();
}

void Batch::rollback(PageAllocator& allocator) noexcept {
  for (BatchEntry& entry : entries_) {
    Sequence& sequence = *entry.sequence;
    while (static_cast<int64_t>(sequence.pages.size()) > entry.old_num_pages) {
      allocator.drop_holder(sequence.pages.back());
      sequence.pages.pop_back();
    }
    int64_t intact = entry.old_num_pages;
    if (entry.replaced_page != kNoPage) {
      allocator.drop_holder(sequence.pages.back());
      sequence.pages.back() = entry.replaced_page;
      --intact;
    }
    sequence.synced_pages = std::min(sequence.synced_pages, intact);
  }
  finish();
}

void Batch::finish() noexcept {
  for (const BatchEntry& entry : entries_) entry.sequence->batch_index = -1;
  entries_.clear();
  copies_.clear();
  num_rows_ = 0;
}

int64_t Batch::longest() const {
  int64_t longest = 0;
  for (const BatchEntry& entry : entries_) longest = std::max(longest, entry.new_length());
  return longest;
}

}  // namespace kvc
