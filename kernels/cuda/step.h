// The device's state of a batch, and the upload of a forward. The page tables live on the device,
// and a forward uploads only what changed.
//
// The host writes a step into the next entry of a ring in pinned host memory. One kernel reads it
// (the only copy of the step to the device), updates the tables and derives the arrays that later
// kernels read. The device counts the entries it has read, so the kernel can lie in a captured
// graph and every replay finds its own step. The last CTA tells the host how far the device has
// come.
#pragma once

#include <cstdint>

#include "kernels/params.h"
#include "kernels/step_words.h"
#include "kernels/target.h"

namespace kvc::cuda {

// The words of a step.
using kernels::change_words;
using kernels::ChangeKind;
using kernels::kColumnCross;
using kernels::kColumnLength;
using kernels::kColumnLong;
using kernels::kColumnOffset;
using kernels::kColumnState;
using kernels::kColumnWindow;
using kernels::kStepCopiesShift;
using kernels::kStepEntries;
using kernels::kStepEntryWords;
using kernels::kStepHeaderWords;
using kernels::StepChange;
using kernels::StepColumns;

constexpr int32_t kMaxLayerGroups = 64;  // Max layer groups with page tables on a device.

// All addresses are fixed for the life of a cache. All arrays lie on the device, except for those
// of the last block. [S] means max_sequences, [R] means max_rows.
struct StepState {
  int32_t* counts;  // [8]: sequences, rows, encoder rows, columns, changes, 0, 0, 0.
  int32_t* slot;    // [S]
  int32_t* stored;
  int32_t* append;
  int32_t* length;           // Committed tokens.
  int32_t* row_begin;        // [S + 1]: first packed row.
  int32_t* cross_row_begin;  // [S + 1]
  int32_t* window;
  int32_t* sink;
  int32_t* offset;
  int32_t* cross_stored;
  int32_t* cross_append;
  int32_t* state_in;
  int32_t* state_out;
  int32_t* long_ropes;
  int32_t* tree_at;      // Offset of the sequence's kTree data in `words`. -1: no tree.
  int32_t* tree_nodes;   // Nodes of the tree, old and new.
  int32_t* segments_at;  // Offset of the sequence's kSegments data in `words`. -1: none.
  int32_t* num_segments;
  int32_t* row_sequence;        // [R]: index in the batch.
  int32_t* cross_row_sequence;  // [max_cross_rows]
  // [R]: absolute position of each new token. It is length + offset + the token's index in the
  // chain or its depth in the tree.
  int32_t* positions;
  // [num_groups][slots_stride]: pool slots of the new tokens. For a layer group of cross attention:
  // slots of the encoder tokens.
  int64_t* slots;
  int64_t slots_stride;
  int32_t* words;  // [words_capacity]: the step as uploaded.
  int64_t words_capacity;

  int32_t num_groups;
  struct LayerGroup {
    // Row s of the table holds the page ids of the sequence in slot s. Entries of dropped pages are
    // -1.
    int32_t* table;
    int64_t table_stride;  // Entries.
    int32_t page_size;
    int32_t is_cross;
  } groups[kMaxLayerGroups];

  // The rest is for the step kernel alone.
  const uint32_t* ring;  // Pinned: [kStepEntries][kStepEntryWords].
  uint32_t* next_entry;  // On the device: number of entries read.
  uint32_t* ctas_done;   // On the device: CTAs of this launch that are done. 0 between launches.
  uint32_t* progress;    // Pinned: number of entries that the host may overwrite.
};

// Pages of the pool that a step copies on write, by further CTAs of the step kernel.
struct StepPages {
  const struct PageRegion* layers;  // On the device: the regions of a page, of all layer groups.
  int32_t num_layers;
};
struct PageRegion {
  std::byte* base;
  int64_t page_stride;
  int64_t bytes;
  int32_t group;
  int32_t reserved;
};

// The keys that are visible to new queries, per layer group. The values mirror KeyScope of
// src/exec/sequence_set.h.
enum class KeyScope : int32_t { kAll = 0, kCached = 1, kNew = 2, kCross = 3 };

// The input of the kernel that makes kernels::AttnSequence for the sequences of a batch. Windows
// count tokens as src/sequences/visibility.h says.
struct BatchMetadataParams {
  StepState step;
  KeyScope scope;
  int32_t group;
  int32_t layer_window;     // Window of the layer group. 0: none.
  int32_t layer_chunk;      // 0: none.
  int32_t call_window;      // 0: none.
  int32_t needs_positions;  // ALiBi, or K is rotated on read.
  int32_t rope;             // RoPE of keys that are rotated on read. -1: none.
  // Nullable, on the device: [num_spans][3] sequence, begin, end. The new tokens of a span see each
  // other in both directions.
  const int32_t* spans;
  int32_t num_spans;
  kernels::AttnSequence* sequences;  // [S]
  int32_t* first_rows;               // [S], for scope kNew: the one-page table of each sequence.
  int32_t* key_begins;               // [R]
  int32_t* key_ends;                 // [R], written where there are spans.
  // The masks of all trees: for each sequence append * ceil(nodes / 64) words.
  uint64_t* masks;
  int64_t masks_capacity;
  // With needs_positions: the position of each key, for sequences with segments or trees.
  int32_t* key_positions;
  int64_t key_positions_capacity;
};

// The RoPE table by absolute position. The first kNearPositions rows are one per position. Row
// kNearPositions + i rotates by i * kNearPositions positions, without the magnitude, and a far
// position takes both. So kMaxKeyRows reach every position below 2^31.
constexpr int64_t kNearPositions = 1 << 15;
constexpr int64_t kMaxKeyRows = kNearPositions + (int64_t{1} << 31) / kNearPositions;

// Rows that positions [0, num_positions) need.
KVC_HD int64_t key_rows(int64_t num_positions) {
  return num_positions <= kNearPositions
             ? num_positions
             : kNearPositions + (num_positions - 1) / kNearPositions + 1;
}

// The input of the RoPE table kernel. It writes cos and sin [R][rotary_dim / 2] of packed tokens,
// or the table by absolute position.
struct CosSinParams {
  // Device, [rotary_dim / 2], scaling included. [1]: the long factors, nullable.
  const double* inverse_frequencies[2];
  double magnitude;          // Factor of cos and sin.
  const int32_t* positions;  // Device, [sections][positions_stride]. Null: by absolute position.
  int64_t positions_stride;
  // Nullable, device, [rotary_dim / 2]: the row of `positions` that a pair uses (M-RoPE).
  const int32_t* pair_section;
  const int32_t* row_sequence;  // Used with long_ropes: the sequence of each row. Null: variant 0.
  const int32_t* long_ropes;    // Bit `rope` of each entry is used.
  int32_t rope;
  // > 0: positions are clipped to window - 1 of the row's sequence (sink tokens).
  int32_t position_limit;
  const int32_t* window;  // Per sequence, used with position_limit.
  int64_t num_rows;
  // Nullable: the count lies on the device, and num_rows is its upper bound.
  const int32_t* num_rows_at;
  int32_t num_pairs;  // rotary_dim / 2.
  float* cos;
  float* sin;
};

}  // namespace kvc::cuda
