// The open forward's batch: which sequences grow by how much, which pages and state slots that
// takes, and how to undo it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/pages/allocator.h"
#include "src/pages/state_pool.h"
#include "src/plan/plan.h"
#include "src/sequences/publisher.h"
#include "src/sequences/sequences.h"
#include "src/step/step_delta.h"

namespace kvc {

// What a caller asks for; arrays borrowed.
struct BatchRequest {
  size_t num_seqs;
  const kvc_seq* seqs;
  const int64_t* append_lengths;
  const int32_t* tree_parents = nullptr;   // nullable, see kvc_forward_desc
  const int64_t* cross_lengths = nullptr;  // nullable
  const int32_t* tokens = nullptr;         // nullable
  // Without parents: only asking what an extension would take
  bool may_extend_trees = false;
};

struct BatchEntry {
  Sequence* sequence;
  int64_t old_length;  // committed tokens
  int64_t old_nodes;   // tree nodes of earlier forwards
  int64_t append_length;
  int64_t row_begin;        // first packed row
  int64_t cross_length;     // encoder tokens that this forward writes
  int64_t cross_row_begin;  // first packed encoder row
  bool is_tree;
  StateSlot new_state;        // what the forward writes; kInitialState without STATE layers
  int32_t change_begin = -1;  // of its changes, one per group; -1: it changes no table

  // See Sequence::no_table_change_before.
  bool changes_no_table() const {
    return new_length() <= sequence->no_table_change_before && !is_tree && old_nodes == 0 &&
           cross_length == 0;
  }
  // Tokens in the tables of a group, before and after.
  int64_t old_stored(bool is_cross) const {
    return is_cross ? sequence->cross_length : old_length + old_nodes;
  }
  int64_t new_stored(bool is_cross) const {
    return old_stored(is_cross) + (is_cross ? cross_length : append_length);
  }
  // Committed tokens if all of the chain is kept; what "longer with its new tokens" means for trees
  // too.
  int64_t new_length() const { return old_length + old_nodes + append_length; }
};

// What begin did to one group's table of one entry.
struct TableChange {
  int64_t old_num_pages;
  int64_t new_num_pages;
  // Partial last page that was copied, kNoPage when none; its holder count is kept until the end.
  PageId replaced_page = kNoPage;
  bool copies_last_page = false;
  bool forgets_last_page = false;  // the prefix index must not know it any more
};

// A page whose content has to be copied before the new tokens are written.
struct PageCopy {
  PageId from;
  PageId to;
  int32_t group;
};

// Does the sequence, longer with its new tokens, turn by the long factors of LONGROPE?
bool uses_long_factors(const RopeSpec& rope, const BatchEntry& entry) noexcept;

// Copy on write: a partial last page with several holders is copied by the batch's sequences that
// append to it. When the batch holds every reference, the longest of them keeps the page and writes
// in place: its new slots lie behind every other holder's tokens, so that an abort can give the
// page back to all. A full page that the prefix index knows (the sequence was popped into it) is
// copied as well while pages are free; otherwise the index forgets it.
class Batch {
 public:
  // `has_memory`: see StepDelta.
  explicit Batch(bool has_memory = false) : step_delta_(has_memory) {}

  struct Measure {
    int64_t pages = 0;  // those of the state slots included
    int64_t state_slots = 0;
    bool forgets_indexed = false;  // pages do not suffice to copy what only the prefix index knows
  };
  struct Context {
    const Plan& plan;
    const SequenceTable& sequences;
    const PageAllocator& allocator;
    const StatePool& states;
  };

  // Checks the request and counts what it takes; `entries` and `changes` (see
  // BatchEntry::change_begin) are filled. Throws INVALID_ARGUMENT, NOT_FOUND, OUT_OF_RANGE,
  // INVALID_STATE, UNSUPPORTED, NEVER_FITS. `stamp` != 0 marks the sequences to find duplicates in
  // O(n); 0 leaves them alone (for const callers).
  static Measure measure(const BatchRequest& request, const Context& context, uint64_t stamp,
                         std::vector<BatchEntry>* entries, std::vector<TableChange>* changes);
  // How many pages and state slots are missing for it; 0: none. What can be evicted or reclaimed is
  // not missing.
  struct Missing {
    int64_t pages = 0;
    int64_t state_slots = 0;
    // That automatic checkpoints could give up; looked for only when something would be missing.
    int64_t reclaimable_slots = 0;

    int64_t total() const { return pages + state_slots; }
  };
  static Missing missing(const Measure& needed, const Context& context);

  // Counts what the request takes and makes room for it: all that can fail. Throws NO_PAGES (detail
  // = missing), what measure throws, or std::bad_alloc. Nothing changes; entries, their changes,
  // rows and words can be asked for already.
  void prepare(const BatchRequest& request, const Plan& plan, SequenceTable& sequences,
               PageAllocator& allocator, StatePool& states, PrefixIndex& index);
  // It is not begun after all.
  void discard() noexcept;
  // Takes what was prepared.
  void begin(const BatchRequest& request, const Plan& plan, SequenceTable& sequences,
             PageAllocator& allocator, StatePool& states, PrefixIndex& index) noexcept;
  // What a step has written when it ends.
  struct Written {
    bool states;     // The new state slots hold the states now.
    bool rows;       // Of every layer; else the new tokens count as unwritten.
    bool publishes;  // Full blocks go to the prefix index.
  };
  // New lengths become visible, new full blocks are published.
  void commit(SequenceTable& sequences, PageAllocator& allocator, StatePool& states,
              const Spec& spec, Publisher& publisher, const Written& written) noexcept;
  // Tables and holders as before begin.
  void rollback(PageAllocator& allocator, StatePool& states) noexcept;

  const std::vector<BatchEntry>& entries() const { return entries_; }
  // Of an entry that changes tables.
  const TableChange& change(const BatchEntry& entry, size_t group) const {
    return changes_[static_cast<size_t>(entry.change_begin) + group];
  }
  const std::vector<PageCopy>& copies() const { return copies_; }
  // Pages that begin took and nothing was copied to, ascending; only where the configuration clears
  // pages.
  const std::vector<PageId>& taken_pages() const { return taken_pages_; }
  int64_t num_rows() const { return num_rows_; }
  int64_t num_cross_rows() const { return num_cross_rows_; }
  int64_t num_new_blocks() const {
    return num_new_blocks_;
  }  // that it will publish, for which the index has room
  bool has_trees() const { return has_trees_; }
  bool has_tokens() const { return !tokens_.empty(); }
  int64_t longest(bool is_cross) const;  // longest sequence with its new tokens

  // What a device is sent for this step, in one copy; on the CPU it only says how much that would
  // be.
  const std::vector<int32_t>& step_delta() const { return step_delta_.words(); }
  // How many these are, from prepare() on.
  int64_t num_delta_words() const { return num_delta_words_; }
  // It was not sent after all: the tables of all entries have to be sent again as a whole.
  void forget_sent() noexcept;

 private:
  void make_room(const BatchRequest& request, const Plan& plan, SequenceTable& sequences,
                 PageAllocator& allocator, StatePool& states, PrefixIndex& index);
  void reserve_tables(const StatePool& states, const Spec& spec);
  void reserve_tokens(const BatchRequest& request, PrefixIndex& index);
  void take_pages(const BatchEntry& entry, PageAllocator& allocator) noexcept;
  void learn_tokens(const BatchEntry& entry) noexcept;
  void finish() noexcept;
  void note_next_table_change(const BatchEntry& entry, const Spec& spec) noexcept;

  std::vector<BatchEntry> entries_;
  std::vector<TableChange> changes_;
  Measure needed_;
  int64_t num_reclaimed_states_ = 0;        // that automatic checkpoints give up
  std::vector<OldState> reclaimed_states_;  // these, in order
  size_t num_groups_ = 0;
  std::vector<PageCopy> copies_;
  bool notes_taken_ = false;  // the configuration clears pages
  std::vector<PageId> taken_pages_;
  StepDelta step_delta_;
  int64_t num_delta_words_ = 0;
  std::vector<int32_t> tokens_;  // ids of the new tokens, empty: not given
  int32_t prefix_block_ = 1;
  int64_t num_new_blocks_ = 0;
  int64_t num_rows_ = 0;
  int64_t num_cross_rows_ = 0;
  bool has_trees_ = false;
  uint64_t stamp_ = 0;
};

}  // namespace kvc
