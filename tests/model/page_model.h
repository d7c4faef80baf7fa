// What the bookkeeping of a cache must do, written as naively as possible: sequences are maps of
// page handles, one per group of layers, pages have holder counts, nothing is fast. Handles are the
// model's own; a test maps them to the library's page ids.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "kvcache.h"
#include "tests/model/visibility.h"

namespace kvc::test {

// Statuses a call may answer: none expected means KVC_OK. A request that is wrong in two ways may
// be refused for either.
struct Expected {
  std::set<kvc_status> errors;
  std::set<kvc_status> tolerated;  // where the contract leaves the choice to the library
  std::optional<int64_t> detail;   // of the error
  int64_t missing_pages = 0;       // and state slots
  bool takes_spare = false;        // pages that windows keep for pops alone

  bool ok() const { return errors.empty(); }
  void also(bool wrong, kvc_status status) {
    if (wrong) errors.insert(status);
  }
};

// Layers that share a page table.
struct ModelGroup {
  int64_t page_size = 16;
  int64_t window = 0, chunk = 0;
  bool is_cross = false;
  bool has_attention = false;  // layers that kvc_debug_set_kv writes
  bool has_mla = false;        // layers that kvc_debug_set_mla writes
  int64_t keep = 0;            // Of kept rows: its tables end after so many tokens.
};

struct ModelLimits {
  int page_size = 16;
  int64_t num_pages = 0;
  int64_t max_seq_len = 0;  // 0: none
  int64_t max_seqs = 0;
  int64_t max_tokens = 0;
  int64_t max_cross_len = 0;
  std::vector<ModelGroup> groups;
  bool has_states = false;
  int64_t state_stride = 0;     // -1: no automatic checkpoints
  int64_t num_state_slots = 0;  // 0: no limit
  int64_t window_reserve = 0;   // tokens that windows of layers keep for pops
  bool has_attention = false;   // an ATTENTION or MLA layer
  bool has_chunk = false, has_window = false, has_cross = false, has_on_read = false;
};

// Kept pages of one sequence and group, by index: page i holds tokens [i * page_size, (i + 1) *
// page_size).
struct ModelTable {
  std::map<int64_t, int> pages;
  int64_t gone_end =
      // Tokens from the sinks up to here are gone, or count as gone beside sinks on the same page
      0;
};

struct ModelSequence {
  int64_t length = 0;              // committed
  std::vector<int32_t> parents;    // uncommitted tree, those of ended forwards
  std::vector<int64_t> positions;  // of the committed tokens when a shift has left gaps, else empty
  bool is_moved = false;           // by a shift: K may be stored as if rotated for other positions
  int64_t window = 0, sink = 0;
  int64_t cross_length = 0;
  std::vector<ModelTable> tables;  // by group; while in the open forward with its new pages
  // Slot of the recurrent state at `length`; -1: the initial one
  int state = -1;
  std::map<int64_t, int> checkpoints;  // slots by position
  std::set<int64_t> automatic;         // of these, the positions that were kept unasked

  int64_t slots() const { return length + static_cast<int64_t>(parents.size()); }
  bool has_gaps() const { return !positions.empty(); }
  int64_t position_of(int64_t token) const {
    return has_gaps() ? positions[static_cast<size_t>(token)] : token;
  }
  int64_t next_position() const { return has_gaps() ? positions.back() + 1 : length; }
};

// One sequence of the open forward.
struct ModelEntry {
  kvc_seq seq = 0;
  int64_t old_length = 0;  // committed
  int64_t old_slots = 0;   // with the nodes of earlier forwards
  int64_t append = 0;
  int64_t row_begin = 0;
  bool is_tree = false;
  std::vector<int32_t> parents;  // of the whole tree, earlier nodes first
  int64_t cross = 0;             // encoder tokens announced
  std::vector<ModelTable> old_tables;
  // Still held until the forward closes, so that an abort can give them back
  std::vector<int> replaced_pages;
  int new_slot = -1;
};

// What kvc_forward_desc says.
struct ModelBatch {
  std::vector<kvc_seq> seqs;
  std::vector<int64_t> lengths;
  std::vector<int32_t> parents;  // empty: NULL
  std::vector<int64_t> cross;    // empty: NULL
  bool has_positions = false;
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
  Expected set_window(kvc_seq seq, int64_t window, int64_t sink);
  Expected checkpoint(kvc_seq seq);
  Expected begin(const ModelBatch& batch);
  // `states_written`: a state was set in the forward, or may have been.
  void end(bool states_written);
  void abort();
  Expected tree_commit(const std::vector<kvc_seq>& seqs, const std::vector<int32_t>& leaves);
  // Overwriting committed tokens [begin, begin + n) of some groups: shared pages become private.
  Expected overwrite(kvc_seq seq, const std::vector<int>& groups, int64_t begin, int64_t n);
  Expected overwrite_state(kvc_seq seq);
  // `highest_used`: the library's largest page id in use (page ids are the library's choice), -1:
  // none. `longest_pages`: what one sequence of max_seq_len needs.
  Expected resize(int64_t num_pages, int64_t highest_used, bool borrowed, int64_t longest_pages);

  // A shift in two steps, because which pages it copies is the library's choice: the number of
  // pages that have to be there afterwards in every group, then which handles they are (-1: a page
  // that nobody held).
  Expected check_shift(kvc_seq seq, int64_t begin, int64_t end, int64_t delta) const;
  std::vector<size_t> shift(kvc_seq seq, int64_t begin, int64_t end, int64_t delta);
  void adopt_tables(kvc_seq seq, const std::vector<std::vector<int>>& handles,
                    const kvc_stats& stats);

  // Questions.
  Expected can_append(const std::vector<kvc_seq>& seqs, const std::vector<int64_t>& lengths) const;
  Expected can(kvc_seq seq, kvc_seq_op op, int64_t pos, int64_t* below, int64_t* above) const;
  bool exists(kvc_seq seq) const { return sequences_.count(seq) != 0; }
  bool in_forward(kvc_seq seq) const { return entry_of(seq) != nullptr; }
  const ModelSequence& at(kvc_seq seq) const { return sequences_.at(seq); }
  const std::map<kvc_seq, ModelSequence>& sequences() const { return sequences_; }
  bool is_open() const { return open_; }
  const std::vector<ModelEntry>& entries() const { return entries_; }
  const ModelEntry* entry_of(kvc_seq seq) const;
  int64_t num_rows() const;
  int64_t num_cross_rows() const;
  int64_t page_size(size_t group) const { return limits_.groups[group].page_size; }
  // Of so many tokens, those in the tables of a group.
  int64_t tokens_of(size_t group, int64_t tokens) const {
    const int64_t keep = limits_.groups[group].keep;
    return keep == 0 ? tokens : std::min(tokens, keep);
  }
  // A tree whose first node lies at `begin` has nodes among the kept tokens and others behind them.
  bool straddles_kept(int64_t begin, int64_t end) const {
    return std::any_of(limits_.groups.begin(), limits_.groups.end(), [&](const ModelGroup& group) {
      return begin < group.keep && end > group.keep;
    });
  }
  // Without tokens [begin, end), one that is not kept would be.
  bool fills_kept(const ModelSequence& sequence, int64_t begin, int64_t end) const {
    for (const ModelGroup& group : limits_.groups) {
      for (int64_t token = std::max(end, group.keep); token < sequence.length; ++token)
        if (group.keep > 0 && token - (end - begin) < group.keep && begin < end) return true;
    }
    return false;
  }
  int64_t pages_for(size_t group, int64_t tokens) const {
    return (tokens + page_size(group) - 1) / page_size(group);
  }
  const ModelLimits& limits() const { return limits_; }
  int holders(int page) const;
  KeyRule rule(const ModelSequence& sequence, const ModelGroup& group) const;
  // Whether all tokens of a range are kept.
  bool keeps(const ModelSequence& sequence, size_t group, const KeyRange& range) const;
  // Whether the next token could come at `pos`: all it sees is kept, the page that it falls into
  // too, and the state is there.
  bool possible(const ModelSequence& sequence, int64_t pos) const;
  int64_t possible_below(const ModelSequence& sequence, int64_t pos) const;
  // Handles of the pages with committed tokens and nodes of ended forwards, ascending.
  std::vector<int> committed_pages(kvc_seq seq, size_t group) const;

  int64_t used_pages() const { return static_cast<int64_t>(holders_.size()); }
  int64_t available_pages() const { return limits_.num_pages - used_pages(); }
  int64_t used_states() const { return static_cast<int64_t>(state_holders_.size()); }
  int64_t shared_pages() const;
  int64_t total_length() const;
  kvc_stats expected_stats() const;
  kvc_seq_info expected_info(kvc_seq seq) const;

 private:
  // `any_kind`: a question about lengths, which may mean nodes of a tree.
  Expected check_batch(const ModelBatch& batch, bool any_kind) const;
  Expected check_changeable(kvc_seq seq) const;  // exists, not in the forward, no tree
  bool has_dropped(const ModelSequence& sequence) const;
  bool can_shift(const ModelSequence& sequence, int64_t begin, int64_t end) const;
  // Entries that copy the partial last page of a group when they append.
  std::set<kvc_seq> copiers(const std::vector<kvc_seq>& seqs, size_t group) const;
  int64_t new_pages(size_t group, const ModelTable& table, int64_t slots, int64_t append) const;
  // What no later query sees, popped ones within the reserve included
  void release(ModelSequence* sequence);
  // Pages that the group's window keeps once a forward has brought the sequence to `slots`: all
  // before the first of the pair are not
  int64_t first_kept(const ModelSequence& sequence, size_t group, int64_t index) const;
  std::vector<int64_t> spare(const ModelSequence& sequence, size_t group, int64_t slots) const;
  void release_spare(ModelSequence* sequence, int64_t slots);
  void truncate(ModelSequence* sequence, int64_t slots);  // pages behind the last slot
  void hold_state(int slot);
  void drop_state(int slot);
  int take_state();
  int64_t missing_states(int64_t count) const;
  // States that only automatic checkpoints hold, and giving those up, the earliest positions first,
  // until `count` are free.
  int64_t reclaimable_states() const;
  void reclaim_states(int64_t count);
  int take_page();
  void hold(int page) { ++holders_[page]; }
  void drop(int page);
  void touch_peak();

  ModelLimits limits_;
  std::map<kvc_seq, ModelSequence> sequences_;
  std::map<int, int> holders_;  // used pages only
  std::map<int, int> state_holders_;
  int next_page_ = 0, next_state_ = 0;
  bool open_ = false;
  std::vector<ModelEntry> entries_;
  int64_t peak_ = 0;
  uint64_t forwards_ = 0, aborted_ = 0, tokens_ = 0, copied_ = 0, no_pages_ = 0;
};

}  // namespace kvc::test
