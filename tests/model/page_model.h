// What the bookkeeping of a cache must do, written as naively as possible: sequences are vectors of page handles, pages have holder
// counts, nothing is fast. Handles are the model's own; a test maps them to the library's page ids.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "kvcache.h"

namespace kvc::test {

// Statuses a call may answer: none expected means KVC_OK. A request that is wrong in two ways may be refused for either.
struct Expected {
  std::set<kvc_status> errors;
  int64_t missing_pages = 0;  // of NO_PAGES

  bool ok() const { return errors.empty(); }
  void also(bool wrong, kvc_status status) {
    if (wrong) errors.insert(status);
  }
};

struct ModelSequence {
  int64_t length = 0;      // committed
  std::vector<int> pages;  // handles; while in the open forward with its new pages
};

struct ModelLimits {
  int page_size = 16;
  int64_t num_pages = 0;
  int64_t max_seq_len = 0;  // 0: none
  int64_t max_seqs = 0;
  int64_t max_tokens = 0;
};

// One sequence of the open forward.
struct ModelEntry {
  kvc_seq seq = 0;
  int64_t old_length = 0;
  int64_t append = 0;
  int64_t row_begin = 0;
  std::vector<int> old_pages;
  int replaced_page = -1;  // still held until the forward closes, so that an abort can give it back
};

class PageModel {
 public:
  explicit PageModel(const ModelLimits& limits) : limits_(limits) {}

  // Every operation says what the library must answer and, when that is KVC_OK, happens.
  Expected add(kvc_seq seq);
  Expected remove(kvc_seq seq);
  Expected fork(kvc_seq parent, kvc_seq child, int64_t pos);
  Expected pop(kvc_seq seq, int64_t n);
  Expected clear();
  Expected begin(const std::vector<kvc_seq>& seqs, const std::vector<int64_t>& lengths);
  void end();
  void abort();
  // Overwriting committed tokens [begin, begin + n): shared pages become private.
  Expected overwrite(kvc_seq seq, int64_t begin, int64_t n);
  // `highest_used`: the library's largest page id in use (page ids are the library's choice), -1: none.
  Expected resize(int64_t num_pages, int64_t highest_used, bool borrowed);

  // Questions.
  Expected can_append(const std::vector<kvc_seq>& seqs, const std::vector<int64_t>& lengths) const;
  Expected can(kvc_seq seq, int64_t pos, int64_t* nearest) const;
  bool exists(kvc_seq seq) const { return sequences_.count(seq) != 0; }
  bool in_forward(kvc_seq seq) const { return entry_of(seq) != nullptr; }
  const ModelSequence& at(kvc_seq seq) const { return sequences_.at(seq); }
  const std::map<kvc_seq, ModelSequence>& sequences() const { return sequences_; }
  bool is_open() const { return open_; }
  const std::vector<ModelEntry>& entries() const { return entries_; }
  const ModelEntry* entry_of(kvc_seq seq) const;
  int64_t num_rows() const;
  int64_t pages_for(int64_t tokens) const { return (tokens + limits_.page_size - 1) / limits_.page_size; }
  const ModelLimits& limits() const { return limits_; }
  int holders(int page) const;

  int64_t used_pages() const { return static_cast<int64_t>(holders_.size()); }
  int64_t free_pages() const { return limits_.num_pages - used_pages(); }
  int64_t shared_pages() const;
  int64_t total_length() const;
  int64_t longest_possible() const;

  // Copies of pages since creation, and those of the last operation: (from, to) handles.
  const std::vector<std::pair<int, int>>& last_copies() const { return last_copies_; }
  kvc_stats expected_stats() const;

 private:
  Expected check_batch(const std::vector<kvc_seq>& seqs, const std::vector<int64_t>& lengths) const;
  // Entries that copy their partial last page when they append.
  std::set<kvc_seq> copiers(const std::vector<kvc_seq>& seqs) const;
  int take_page();
  void hold(int page) { ++holders_[page]; }
  void drop(int page);
  void touch_peak();

  ModelLimits limits_;
  std::map<kvc_seq, ModelSequence> sequences_;
  std::map<int, int> holders_;  // used pages only
  int next_page_ = 0;
  bool open_ = false;
  std::vector<ModelEntry> entries_;
  std::vector<std::pair<int, int>> last_copies_;
  int64_t peak_ = 0;
  uint64_t forwards_ = 0, aborted_ = 0, tokens_ = 0, copied_ = 0, no_pages_ = 0;
};

}  // namespace kvc::test
