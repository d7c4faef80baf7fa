// What a forward sends to a device, in words of 32 bits: the form that the host writes and kernels
// read.
#pragma once

#include <cstdint>

#include "kernels/target.h"

namespace kvc::kernels {

// The words (32 bits) of a step:
//   header    [kStepHeaderWords]: sequences, rows, StepColumns | number of kCopy changes <<
//             kStepCopiesShift, changes
//   columns   [sequences] each: slot, stored, append; then those that the header names, lowest bit
//             first, in the order below
//   changes   [changes] of StepChange, those of kind kCopy first, at most one per layer group
//   data      of the changes, one after the other
// An entry of the ring holds kStepEntryWords. A longer step has a header with `changes` = -1, then
// two words: the address (low, high) of a pinned copy of the whole step.
constexpr int32_t kStepHeaderWords = 4;
constexpr int32_t kStepEntryWords = 8192;
constexpr int32_t kStepEntries = 32;

enum StepColumns : int32_t {
  kColumnWindow = 1,  // Two words: window and sink of kvc_seq_set_window.
  // Position of the next token minus the number of tokens before it (kvc_seq_shift).
  kColumnOffset = 2,
  kColumnCross = 4,    // Two words: encoder tokens stored before, and written by this forward.
  kColumnState = 8,    // Two words: the state slot read (-1: initial state) and written.
  kColumnLength = 16,  // Committed tokens. Without this column: stored.
  kColumnLong = 32,    // Bit r: rotation r uses its long factors.
};
constexpr int32_t kStepCopiesShift = 16;  // The shift is above the column bits.
// Slot: the sequence's row in the page tables. stored: tokens with K and V before this forward,
// tree nodes included. append: new tokens.

enum class ChangeKind : int32_t {
  kTable = 0,  // Page ids of entries [first, first + count) of the sequence's table of `group`.
  kCopy = 1,   // Count pairs (from, to): whole pages of `group`, copied before anything is written.
  // Count nodes of the sequence's token tree, old and new: parents [count], then depths [count].
  kTree = 2,
  // Count pairs (begin, offset): tokens from begin on have position = index + offset.
  kSegments = 3,
};
struct StepChange {
  int32_t kind_group;  // Kind << 16 | layer group.
  int32_t sequence;    // Index in the batch.
  int32_t first;
  int32_t count;
};
// Number of data words of a change.
KVC_HD int32_t change_words(const StepChange& change) {
  const bool is_table = static_cast<ChangeKind>(change.kind_group >> 16) == ChangeKind::kTable;
  return is_table ? change.count : 2 * change.count;
}

}  // namespace kvc::kernels
