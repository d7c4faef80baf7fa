// What the device knows of sequences, and what a forward sends it: the page tables live on the
// device, a forward sends what changed.
//
// The host writes a step into the next entry of a ring in pinned host memory; one kernel reads it
// (the step's one copy to the device), brings the tables up to date and derives what the kernels
// behind it read. The entry to read is counted on the device, so that the kernel can lie in a
// captured graph and every replay finds its own step. The last thread tells the host how far the
// device has come.
#pragma once

#include <cstdint>

#include "kernels/target.h"
#include "kernels/params.h"

namespace kvc::cuda {

// A step, in 32-bit words:
//   header    [kStepHeaderWords]: sequences, rows, StepColumns | number of kCopy changes <<
//             kStepCopiesShift, changes
//   columns   [sequences] each: slot, stored, append; then those that the header names, lowest bit
//             first, in the order below
//   changes   [changes] of StepChange, those of kind kCopy first, one per group at most
//   data      of the changes, one behind the other
// An entry of the ring holds kStepEntryWords. A longer step: header with `changes` = -1, then two
// words: the address (low, high) of a pinned copy of
// the whole step.
constexpr int32_t kStepHeaderWords = 4;
constexpr int32_t kStepEntryWords = 8192;
constexpr int32_t kStepEntries = 32;

enum StepColumns : int32_t {
  kColumnWindow = 1,   // two words: kvc_seq_set_window's window and sink
  kColumnOffset = 2,   // position of the next token minus the tokens before it (kvc_seq_shift)
  kColumnCross = 4,    // two words: encoder tokens stored before, and written by this forward
  kColumnState = 8,    // two words: state slot read (-1: initial) and written
  kColumnLength = 16,  // committed tokens; without it: stored
  kColumnLong = 32,    // bit r: rotation r turns by its long factors
};
constexpr int32_t kStepCopiesShift = 16;  // above the columns
// slot: the sequence's row in the page tables. stored: tokens with K and V before this forward,
// tree nodes included. append: new tokens.

enum class ChangeKind : int32_t {
  kTable = 0,  // page ids of entries [first, first + count) of `sequence`'s table of `group`
  kCopy = 1,   // count pairs (from, to): whole pages of `group`, before anything is written
  // Count nodes of the sequence's token tree, old and new: parents [count], then depths [count]
  kTree = 2,
  // Count pairs (begin, offset): tokens from begin on have position = index + offset
  kSegments = 3,
};
struct StepChange {
  int32_t kind_group;  // kind << 16 | group
  int32_t sequence;    // place in the batch
  int32_t first;
  int32_t count;
};
// Words of data behind a change.
KVC_HD int32_t change_words(const StepChange& change) {
  const bool is_table = static_cast<ChangeKind>(change.kind_group >> 16) == ChangeKind::kTable;
  return is_table ? change.count : 2 * change.count;
}

constexpr int32_t kMaxGroups = 64;  // of page tables on a device

// Fixed addresses for the life of a cache. All arrays lie on the device but for the last block.
// [S]: max_sequences, [R]: max_rows.
struct StepState {
  int32_t* counts;  // [8]: sequences, rows, encoder rows, columns, changes, 0, 0, 0
  int32_t* slot;    // [S]
  int32_t* stored;
  int32_t* append;
  int32_t* length;           // committed tokens
  int32_t* row_begin;        // [S + 1] first packed row
  int32_t* cross_row_begin;  // [S + 1]
  int32_t* window;
  int32_t* sink;
  int32_t* offset;
  int32_t* cross_stored;
  int32_t* cross_append;
  int32_t* state_in;
  int32_t* state_out;
  int32_t* long_ropes;
  int32_t* tree_at;      // word of the sequence's kTree data in `words`, -1: no tree
  int32_t* tree_nodes;   // its nodes, old and new
  int32_t* segments_at;  // word of the sequence's kSegments data in `words`, -1: none
  int32_t* num_segments;
  int32_t* row_sequence;        // [R] place in the batch
  int32_t* cross_row_sequence;  // [max_cross_rows]
  int32_t*
      // [R] absolute position of each new token: length + offset + (index in the chain, or depth in
      // the tree)
      positions;
  // [num_groups][slots_stride]: pool slots of the new tokens; of a CROSS group: of the encoder's
  int64_t* slots;
  int64_t slots_stride;
  int32_t* words;  // the step as it was sent; [words_capacity]
  int64_t words_capacity;

  int32_t num_groups;
  struct Group {
    // Page ids of slot s at table + s * table_stride; entries of dropped pages are -1
    int32_t* table;
    int64_t table_stride;  // entries
    int32_t page_tokens;
    int32_t is_cross;
  } groups[kMaxGroups];

  // For the step kernel alone.
  const uint32_t* ring;  // pinned: [kStepEntries][kStepEntryWords]
  uint32_t* next_entry;  // device: entries read so far
  uint32_t* ctas_done;   // device: of this launch, 0 between launches
  uint32_t* progress;    // pinned: entries that the host may write again
};

// Pages of the pool that a step copies on write, done by further CTAs of the step kernel.
struct StepPages {
  const struct StepPageSlot* layers;  // device: parts of a page, of all groups
  int32_t num_layers;
};
struct StepPageSlot {
  std::byte* base;
  int64_t page_stride;
  int64_t bytes;
  int32_t group;
  int32_t reserved;
};

// Which keys the new queries see, per layer group: mirrors KeyScope of src/exec/sequence_set.h.
enum class Scope : int32_t { kAll = 0, kCached = 1, kNew = 2, kCross = 3 };

// Makes kernels::AttnSequence for the sequences of a step. Windows count tokens as
// src/sequences/visibility.h says.
struct ViewParams {
  StepState step;
  Scope scope;
  int32_t group;
  int32_t layer_window;     // of the group; 0: none
  int32_t layer_chunk;      // 0: none
  int32_t call_window;      // 0: none
  int32_t needs_positions;  // ALiBi, or K rotated on read
  int32_t rope;             // of keys rotated on read, -1: none
  const int32_t*
      // Nullable, device: [num_spans][3] sequence, begin, end: new tokens that see each other both
      // ways
      spans;
  int32_t num_spans;
  kernels::AttnSequence* sequences;  // [S]
  int32_t* first_rows;               // [S] scope kNew: the one-page table of each sequence
  int32_t* key_begins;               // [R]
  int32_t* key_ends;                 // [R], written where there are spans
  // Of all trees: sum over sequences of append * ceil(nodes / 64) words
  uint64_t* masks;
  int64_t masks_capacity;
  int32_t* key_positions;  // of sequences with segments or trees, where needs_positions: per key
  int64_t key_positions_capacity;
};

// cos and sin [R][rotary_dim / 2] of packed tokens, or [positions][rotary_dim / 2] of absolute
// positions.
struct AngleParams {
  const double*
      // Device [rotary_dim / 2], scaling included; [1]: the long factors, nullable
      inverse_frequencies[2];
  double magnitude;          // multiplies cos and sin
  const int32_t* positions;  // device [sections][positions_stride]; null: row r has position r
  int64_t positions_stride;
  const int32_t*
      // Device, nullable [rotary_dim / 2]: which row of positions a pair goes by (M-RoPE)
      pair_section;
  const int32_t* row_sequence;  // with long_ropes: which sequence a row belongs to; null: variant 0
  const int32_t* long_ropes;    // bit `rope`
  int32_t rope;
  int32_t position_limit;  // > 0: positions are clipped to window - 1 of the row's sequence (sinks)
  const int32_t* window;   // per sequence, with position_limit
  int64_t num_rows;
  const int32_t* num_rows_at;  // nullable: the count lies on the device and num_rows is the most
  int32_t num_pairs;           // rotary_dim / 2
  float* cos;
  float* sin;
};

}  // namespace kvc::cuda
