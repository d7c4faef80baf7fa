// The arrays that the first CTA of the step kernel derives from a step, once its words lie on the
// device.
#pragma once

#include "kernels/cuda/step.h"
#include "kernels/cuda/step/config.h"
#include "kernels/cuda/step/entry.cuh"
#include "kernels/cuda/step/scan.cuh"

namespace kvc::cuda::step_kernels {

// Offset of each column in `words`. -1: the step does not have the column.
struct StepColumnPlaces {
  int32_t window, sink, offset, cross_stored, cross_append, state_in, state_out, length, long_ropes;
};
KVC_HD StepColumnPlaces column_places(const Entry& entry) {
  int32_t next = kStepHeaderWords + 3 * entry.num_sequences;
  const auto take = [&](int32_t column) {
    if ((entry.columns & column) == 0) return -1;
    const int32_t at = next;
    next += entry.num_sequences;
    return at;
  };
  StepColumnPlaces places{};
  places.window = take(kColumnWindow);
  places.sink = take(kColumnWindow);
  places.offset = take(kColumnOffset);
  places.cross_stored = take(kColumnCross);
  places.cross_append = take(kColumnCross);
  places.state_in = take(kColumnState);
  places.state_out = take(kColumnState);
  places.length = take(kColumnLength);
  places.long_ropes = take(kColumnLong);
  return places;
}

// Writes the arrays of the sequences and the begins of their rows. Returns the number of encoder
// rows.
KVC_DEVICE int32_t write_sequences(const StepState& state, const Entry& entry, int32_t* scratch) {
  constexpr auto kThreads = static_cast<int32_t>(step_config::kThreads);
  const StepColumnPlaces at = column_places(entry);
  const int32_t n = entry.num_sequences;
  const int32_t* words = state.words + kStepHeaderWords;
  int32_t rows = 0, cross_rows = 0;
  for (int32_t first = 0; first < n; first += kThreads) {
    const int32_t s = first + static_cast<int32_t>(threadIdx.x);
    const bool is_sequence = s < n;
    const auto column = [&](int32_t place, int32_t otherwise) {
      return place < 0 ? otherwise : state.words[place + s];
    };
    int32_t append = 0, cross_append = 0;
    if (is_sequence) {
      const int32_t stored = words[n + s];
      append = words[2 * n + s];
      cross_append = column(at.cross_append, 0);
      state.slot[s] = words[s];
      state.stored[s] = stored;
      state.append[s] = append;
      state.length[s] = column(at.length, stored);
      state.window[s] = column(at.window, 0);
      state.sink[s] = column(at.sink, 0);
      state.offset[s] = column(at.offset, 0);
      state.cross_stored[s] = column(at.cross_stored, 0);
      state.cross_append[s] = cross_append;
      state.state_in[s] = column(at.state_in, -1);
      state.state_out[s] = column(at.state_out, -1);
      state.long_ropes[s] = column(at.long_ropes, 0);
      state.tree_at[s] = -1;
      state.tree_nodes[s] = 0;
      state.segments_at[s] = -1;
      state.num_segments[s] = 0;
    }
    int32_t chunk_rows = 0, chunk_cross = 0;
    const int32_t before = cta_exclusive_sum(append, step_config::kWarps, scratch, chunk_rows);
    sync_cta();
    const int32_t cross_before =
        cta_exclusive_sum(cross_append, step_config::kWarps, scratch, chunk_cross);
    sync_cta();
    if (is_sequence) {
      state.row_begin[s] = rows + before;
      state.cross_row_begin[s] = cross_rows + cross_before;
    }
    rows += chunk_rows;
    cross_rows += chunk_cross;
  }
  if (threadIdx.x == 0) {
    state.row_begin[n] = rows;
    state.cross_row_begin[n] = cross_rows;
  }
  return cross_rows;
}

// Writes the page ids of a kTable change, which lie at `data`, by `num_lanes` threads.
KVC_DEVICE void write_table(const StepState& state, const StepChange& change, int32_t slot,
                            int32_t data, int32_t lane, int32_t num_lanes) {
  const StepState::LayerGroup& group = state.groups[change.kind_group & 0xffff];
  int32_t* to = group.table + slot * group.table_stride + change.first;
  for (int32_t i = lane; i < change.count; i += num_lanes) to[i] = state.words[data + i];
}

// Applies the changes: page tables, and the offsets of trees and segments. Two changes never name
// the same entry. All threads see all changes on return.
KVC_DEVICE void apply_changes(const StepState& state, const Entry& entry, int32_t* scratch) {
  constexpr auto kThreads = static_cast<int32_t>(step_config::kThreads);
  const int32_t* changes = state.words + entry.changes_at();
  int32_t data = entry.data_at();
  for (int32_t first = 0; first < entry.num_changes; first += kThreads) {
    StepChange change{static_cast<int32_t>(ChangeKind::kCopy) << 16, 0, 0, 0};
    const int32_t index = first + static_cast<int32_t>(threadIdx.x);
    if (index < entry.num_changes) {
      const int32_t* from = changes + kStepChangeWords * index;
      change = {from[0], from[1], from[2], from[3]};
    }
    int32_t all_words = 0;
    const int32_t at =
        data + cta_exclusive_sum(change_words(change), step_config::kWarps, scratch, all_words);
    data += all_words;
    const auto kind = static_cast<ChangeKind>(change.kind_group >> 16);
    int32_t slot = 0;
    if (kind == ChangeKind::kTable) {
      slot = state.words[kStepHeaderWords + change.sequence];
      if (change.count <= step_config::kFewPages) write_table(state, change, slot, at, 0, 1);
    } else if (kind == ChangeKind::kTree) {
      state.tree_at[change.sequence] = at;
      state.tree_nodes[change.sequence] = change.count;
    } else if (kind == ChangeKind::kSegments) {
      state.segments_at[change.sequence] = at;
      state.num_segments[change.sequence] = change.count;
    }
    const uint32_t is_long =
        ballot(kind == ChangeKind::kTable && change.count > step_config::kFewPages);
    for (int lane = 0; lane < 32; ++lane) {
      if ((is_long >> lane & 1u) == 0) continue;
      const StepChange whole{shuffle(change.kind_group, lane), 0, shuffle(change.first, lane),
                             shuffle(change.count, lane)};
      write_table(state, whole, shuffle(slot, lane), shuffle(at, lane), lane_id(), 32);
    }
    sync_cta();
  }
}

// The last i in [low, n) with begin[i] <= row, where begin[low] <= row and begin[n] > row. So
// sequences without rows are skipped.
KVC_DEVICE int32_t sequence_of_row(const int32_t* begin, int32_t low, int32_t n, int32_t row) {
  // In a decode step every sequence has one row.
  if (row < n && begin[row] == row && begin[row + 1] == row + 1) return row;
  int32_t high = n;
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    if (begin[middle] <= row)
      low = middle;
    else
      high = middle;
  }
  return low;
}

KVC_DEVICE int64_t slot_of_token(const StepState::LayerGroup& group, const int32_t* table,
                                 int32_t token) {
  const int32_t page = table[token / group.page_size];
  return page < 0 ? -1 : static_cast<int64_t>(page) * group.page_size + token % group.page_size;
}

// The facts of a sequence that a thread keeps while its rows lie in it: the next row of a prompt is
// about 1,024 further.
struct SequenceOfRows {
  int32_t index;          // Index in the batch.
  int32_t begin, end;     // Rows of the sequence.
  int32_t first_token;    // Token of the first row.
  int32_t table_row;      // Row in the tables of all layer groups.
  int32_t position;       // Position of the first row of a chain.
  const int32_t* depths;  // Depths of the rows of a tree, else null.
};
KVC_DEVICE SequenceOfRows sequence_of_rows(const StepState& state, int32_t s, bool is_cross) {
  const int32_t* begins = is_cross ? state.cross_row_begin : state.row_begin;
  SequenceOfRows rows{s,
                      begins[s],
                      begins[s + 1],
                      is_cross ? state.cross_stored[s] : state.stored[s],
                      state.slot[s],
                      0,
                      nullptr};
  if (is_cross) return rows;
  rows.position = state.length[s] + state.offset[s];
  const int32_t tree_at = state.tree_at[s], nodes = state.tree_nodes[s];
  if (tree_at >= 0) rows.depths = state.words + tree_at + nodes + nodes - state.append[s];
  return rows;
}

// Writes the rows of the new tokens, or those of the encoder tokens.
KVC_DEVICE void write_rows(const StepState& state, int32_t num_sequences, int32_t num_rows,
                           bool is_cross) {
  const int32_t* begins = is_cross ? state.cross_row_begin : state.row_begin;
  SequenceOfRows of{};  // Holds no row yet.
  for (auto row = static_cast<int32_t>(threadIdx.x); row < num_rows;
       row += static_cast<int32_t>(step_config::kThreads)) {
    if (row >= of.end)
      of = sequence_of_rows(state, sequence_of_row(begins, of.index, num_sequences, row), is_cross);
    const int32_t index = row - of.begin;
    if (is_cross) {
      state.cross_row_sequence[row] = of.index;
    } else {
      state.row_sequence[row] = of.index;
      state.positions[row] = of.position + (of.depths != nullptr ? of.depths[index] : index);
    }
// There are few layer groups, and no registers left to unroll: at 64 per thread nvcc 13.0 would
// spill.
#pragma unroll 1
    for (int32_t g = 0; g < state.num_groups; ++g) {
      const StepState::LayerGroup& group = state.groups[g];
      if ((group.is_cross != 0) == is_cross)
        state.slots[g * state.slots_stride + row] = slot_of_token(
            group, group.table + of.table_row * group.table_stride, of.first_token + index);
    }
  }
}

}  // namespace kvc::cuda::step_kernels
