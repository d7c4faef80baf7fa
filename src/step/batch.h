// The batch of the open forward: which sequences grow by how much, which pages and state slots that
// takes, and how to undo it.
//
//              prepare()             begin()             commit()
//     idle ---------------> prepared ---------> begun ---------------> idle
//       ^                      |                  |
//       |      discard()       |     rollback()   |
//       +----------------------+------------------+
//
// Invariants:
// 1. prepare() does everything that can fail. begin(), commit() and rollback() cannot.
// 2. From begin() to the end, tables hold the pages of the new tokens, while lengths are the old
//    ones. commit() sets the lengths.
// 3. A page that begin() replaced by a copy keeps its reference until the end, so rollback() finds
//    it unchanged. Each table, slot and reference is then as before begin(), two kinds of pages
//    aside: those that windows kept for pops alone and that begin() took (Measure::spare_pages),
//    and those of encoder tokens that others were to replace.
// 4. No committed row is overwritten: writes in place go behind the tokens of every other table
//    that refers to the page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/base/memory.h"
#include "src/pages/allocator.h"
#include "src/pages/state_pool.h"
#include "src/plan/plan.h"
#include "src/plan/spec.h"
#include "src/sequences/publisher.h"
#include "src/sequences/sequences.h"

namespace kvc {

struct PageCopy;
struct BatchEntry;

// The step delta: what a forward sends to a device, in the form of kernels/step_words.h.
class StepDelta {
 public:
  // `has_memory`: a device computes with the tokens, so it needs windows, positions, trees and
  // states. Otherwise only page tables are sent.
  explicit StepDelta(bool has_memory) : has_memory_(has_memory) {}

  // How much of the page tables will be sent.
  struct TableWork {
    int64_t num_entries = 0;  // Table entries.
    int64_t num_copies = 0;   // Page copies.
    int64_t num_changes = 0;  // Tables with new entries, and layer groups with copies.
  };
  // Makes room and returns how many words build() will make. The tables grow in between. Throws
  // std::bad_alloc.
  int64_t reserve(const std::vector<BatchEntry>& entries, const TableWork& work, const Spec& spec);
  // Builds the words of a batch that has its pages. Afterwards the tables count as sent.
  void build(const std::vector<BatchEntry>& entries, int64_t num_rows,
             const std::vector<PageCopy>& copies, const Spec& spec) noexcept;

  const std::vector<int32_t>& words() const { return words_; }
  int64_t host_bytes() const { return kvc::host_bytes(words_); }

 private:
  int32_t columns_of(const std::vector<BatchEntry>& entries, const Spec& spec) const noexcept;
  void add_columns(const std::vector<BatchEntry>& entries, int32_t columns,
                   const Spec& spec) noexcept;
  void add_changes(const std::vector<BatchEntry>& entries, const std::vector<PageCopy>& copies,
                   size_t num_groups) noexcept;

  bool has_memory_;
  std::vector<int32_t> words_;
};

// A caller's request; arrays borrowed.
struct BatchRequest {
  size_t num_seqs;
  const kvc_seq* seqs;
  const int64_t* append_lengths;
  const int32_t* tree_parents = nullptr;   // nullable, see kvc_forward_desc
  const int64_t* cross_lengths = nullptr;  // nullable
  const int32_t* tokens = nullptr;         // nullable
  // The request only asks what an extension would take, and gives no parents.
  bool may_extend_trees = false;
};

struct BatchEntry {
  Sequence* sequence;
  int64_t old_length;  // Committed tokens.
  int64_t old_nodes;   // Tree nodes of earlier forwards.
  int64_t append_length;
  int64_t row_begin;        // First packed row.
  int64_t cross_length;     // Encoder tokens that this forward writes.
  int64_t cross_row_begin;  // First packed encoder row.
  bool is_tree;
  // The sequence is empty and has encoder tokens, which begin() gives up for those of this forward.
  bool replaces_cross = false;
  StateSlot new_state;  // Slot that the forward writes; kInitialState without STATE layers.
  // Index of its first change, one per layer group; -1: it changes no table.
  int32_t change_begin = -1;

  // See Sequence::no_table_change_before.
  bool changes_no_table() const {
    return new_length() <= sequence->no_table_change_before && !is_tree && old_nodes == 0 &&
           cross_length == 0;
  }
  // Tokens in the tables of a layer group, before and after.
  int64_t old_stored(bool is_cross) const {
    if (is_cross) return replaces_cross ? 0 : sequence->cross_length;
    return old_length + old_nodes;
  }
  int64_t new_stored(bool is_cross) const {
    return old_stored(is_cross) + (is_cross ? cross_length : append_length);
  }
  int64_t old_stored(const GroupSpec& group) const {
    return group.tokens_of(old_stored(group.is_cross));
  }
  int64_t new_stored(const GroupSpec& group) const {
    return group.tokens_of(new_stored(group.is_cross));
  }
  // Places of a layer group's table, before and after.
  int64_t old_size(const PageTable& table, const GroupSpec& group) const {
    return group.is_cross && replaces_cross ? 0 : table.pages.size();
  }
  int64_t new_size(const PageTable& table, const GroupSpec& group) const {
    return group.is_cross && replaces_cross ? group.pages_for(cross_length)
                                            : table.grown_size(new_stored(group), group.page_size);
  }
  // Committed tokens when the whole chain is kept. Trees count as chains here.
  int64_t new_length() const { return old_length + old_nodes + append_length; }
};

// What begin() did to the table of one layer group of an entry.
struct TableChange {
  int64_t old_num_pages;
  int64_t new_num_pages;
  // Partial last page that was copied, kNoPage when none. Its reference is kept until the end.
  PageId replaced_page = kNoPage;
  bool copies_last_page = false;
  bool forgets_last_page = false;  // The prefix index has to forget it.
};

// With its new tokens, the sequence uses the long factors of LONGROPE.
bool uses_long_factors(const RopeSpec& rope, const BatchEntry& entry) noexcept;

// Copy on write: sequences of the batch that append to a shared partial page copy it. When the
// batch has every reference, the longest of them keeps the page and writes in place, behind the
// tokens of all others. An indexed page that a pop left partial is copied while pages suffice;
// otherwise the index forgets it.
class Batch {
 public:
  // For `has_memory` see StepDelta.
  explicit Batch(bool has_memory = false) : step_delta_(has_memory) {}

  struct Measure {
    int64_t pages = 0;  // Pages of the state slots included.
    int64_t state_slots = 0;
    bool forgets_indexed = false;  // pages do not suffice to copy what only the prefix index knows
    // Pages that windows keep for pops and that the forward takes because pages are missing.
    int64_t spare_pages = 0;
    int64_t replaced_pages = 0;  // Pages of encoder tokens that begin() frees.
  };
  struct Context {
    const Plan& plan;
    const SequenceTable& sequences;
    const PageAllocator& allocator;
    const StatePool& states;
  };

  // Checks the request, counts what it takes, and fills `entries` and `changes` (see
  // BatchEntry::change_begin). `stamp` != 0 marks the sequences to find duplicates in O(n); 0
  // leaves them alone, for const callers. Throws INVALID_ARGUMENT, NOT_FOUND, OUT_OF_RANGE,
  // INVALID_STATE, UNSUPPORTED, NEVER_FITS.
  static Measure measure(const BatchRequest& request, const Context& context, uint64_t stamp,
                         std::vector<BatchEntry>* entries, std::vector<TableChange>* changes);
  // Pages and state slots that are missing after all evictions and reclaims; 0: none.
  struct Missing {
    int64_t pages = 0;
    int64_t state_slots = 0;
    // State slots that automatic checkpoints could give up. Counted only when some are missing.
    int64_t reclaimable_slots = 0;

    int64_t total() const { return pages + state_slots; }
  };
  static Missing missing(const Measure& needed, const Context& context);

  // Counts what the request takes and makes room for it. Afterwards entries, changes, rows and
  // words can be read. Throws NO_PAGES (detail: missing pages), the errors of measure(),
  // std::bad_alloc; nothing has changed then.
  void prepare(const BatchRequest& request, const Plan& plan, SequenceTable& sequences,
               PageAllocator& allocator, StatePool& states, PrefixIndex& index);
  // Gives up a prepared batch.
  void discard() noexcept;
  // Takes what was prepared.
  void begin(const BatchRequest& request, const Plan& plan, SequenceTable& sequences,
             PageAllocator& allocator, StatePool& states, PrefixIndex& index,
             CallStream stream) noexcept;
  // What a forward has written when it ends.
  struct Written {
    bool states;     // The new state slots hold the states now.
    bool rows;       // Every layer's; else the new tokens count as unwritten.
    bool publishes;  // Full blocks go to the prefix index.
  };
  // New lengths become visible, new full blocks are published.
  void commit(SequenceTable& sequences, PageAllocator& allocator, StatePool& states,
              const Spec& spec, Publisher& publisher, const Written& written,
              CallStream stream) noexcept;
  // Makes tables and references as they were before begin().
  void rollback(SequenceTable& sequences, PageAllocator& allocator, StatePool& states) noexcept;

  const std::vector<BatchEntry>& entries() const { return entries_; }
  // The entry changes tables.
  const TableChange& change(const BatchEntry& entry, size_t group) const {
    return changes_[static_cast<size_t>(entry.change_begin) + group];
  }
  // Pages whose contents have to be copied before the new tokens are written.
  const std::vector<PageCopy>& copies() const { return copies_; }
  // Pages that begin() took and copied nothing to, ascending. Empty unless the configuration clears
  // pages.
  const std::vector<PageId>& taken_pages() const { return taken_pages_; }
  int64_t num_rows() const { return num_rows_; }
  int64_t num_cross_rows() const { return num_cross_rows_; }
  // Blocks that commit() may publish. The index has room for them.
  int64_t num_new_blocks() const { return num_new_blocks_; }
  int64_t host_bytes() const {
    return kvc::host_bytes(entries_) + kvc::host_bytes(changes_) +
           kvc::host_bytes(reclaimed_states_) + kvc::host_bytes(copies_) +
           kvc::host_bytes(taken_pages_) + step_delta_.host_bytes() + kvc::host_bytes(tokens_);
  }
  bool has_trees() const { return has_trees_; }
  bool has_tokens() const { return !tokens_.empty(); }
  int64_t longest(bool is_cross) const;  // Tokens of the longest sequence, new ones included.

  // The words that a device is sent for this step, in one copy. On the CPU they only tell the size.
  const std::vector<int32_t>& step_delta() const { return step_delta_.words(); }
  // Number of these words, known from prepare() on.
  int64_t num_delta_words() const { return num_delta_words_; }
  // The words did not reach the device. The next ones carry the whole tables of all entries.
  void forget_sent() noexcept;

 private:
  void make_room(const BatchRequest& request, const Plan& plan, SequenceTable& sequences,
                 PageAllocator& allocator, StatePool& states, PrefixIndex& index);
  void reserve_tables(const StatePool& states, const Spec& spec, SequenceTable& sequences);
  void reserve_tokens(const BatchRequest& request, PrefixIndex& index, SequenceTable& sequences);
  int64_t count_unused_slots(const Spec& spec) const;
  void drop_cross(BatchEntry& entry, const Spec& spec, SequenceTable& sequences,
                  PageAllocator& allocator) noexcept;
  void take_pages(const BatchEntry& entry, PageAllocator& allocator) noexcept;
  void learn_tokens(const BatchEntry& entry) noexcept;
  void finish() noexcept;
  void note_next_table_change(const BatchEntry& entry, const Spec& spec) noexcept;

  std::vector<BatchEntry> entries_;
  std::vector<TableChange> changes_;
  Measure needed_;
  int64_t more_unused_slots_ = 0;           // Added to the totals of the sequences by begin().
  int64_t num_reclaimed_states_ = 0;        // State slots that automatic checkpoints give up.
  std::vector<OldState> reclaimed_states_;  // Candidates, in order.
  size_t num_groups_ = 0;
  std::vector<PageCopy> copies_;
  bool notes_taken_ = false;  // The configuration clears pages.
  std::vector<PageId> taken_pages_;
  StepDelta step_delta_;
  int64_t num_delta_words_ = 0;
  std::vector<int32_t> tokens_;  // Ids of the new tokens; empty: not given.
  int32_t prefix_block_ = 1;
  int64_t num_new_blocks_ = 0;
  int64_t num_rows_ = 0;
  int64_t num_cross_rows_ = 0;
  bool has_trees_ = false;
  uint64_t stamp_ = 0;
};

}  // namespace kvc
