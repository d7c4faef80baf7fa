// Which keys the rows of one sequence see, over the arrays of a step. The rule of windows is that
// of kernels/visibility.h; src/exec/sequence_set.cc does the same for the host.
#pragma once

#include "kernels/cuda/ptx/ptx.cuh"
#include "kernels/cuda/step.h"
#include "kernels/visibility.h"

namespace kvc::cuda::batch_metadata_kernels {

// The kernel's facts of a sequence, read once.
struct SequenceInfo {
  int32_t stored;  // Tokens before this forward, tree nodes included.
  int32_t append;
  int32_t length;  // Committed tokens.
  int32_t row_begin;
  int32_t window, sink;
  const int32_t* parents;  // Parents of the tree's nodes. Null: no tree.
  const int32_t* depths;
  int32_t num_nodes;
  int32_t first_key;  // Token of key 0.

  KVC_HD bool is_tree() const { return parents != nullptr; }
  KVC_HD int32_t old_nodes() const { return num_nodes - append; }
  // The largest token index of the rows of a chain.
  KVC_HD int32_t last_of_chain() const { return length + append - 1; }
  // The token index from which a row's windows count: its index in a chain, or its depth in a tree.
  KVC_HD int32_t row_index(int32_t row) const {
    return length + (is_tree() ? depths[old_nodes() + row] : row);
  }
};

KVC_DEVICE SequenceInfo read_sequence(const BatchMetadataParams& params, int32_t s) {
  const StepState& step = params.step;
  SequenceInfo q{};
  q.stored = step.stored[s];
  q.append = step.append[s];
  q.length = step.length[s];
  q.row_begin = step.row_begin[s];
  q.window = step.window[s];
  q.sink = step.sink[s];
  const int32_t tree_at = step.tree_at[s];
  if (tree_at >= 0) {
    q.num_nodes = step.tree_nodes[s];
    q.parents = step.words + tree_at;
    q.depths = q.parents + q.num_nodes;
  }
  q.first_key = params.scope == KeyScope::kNew ? q.stored : 0;
  return q;
}

KVC_HD kernels::Windows<int32_t> windows_of(const BatchMetadataParams& params,
                                            const SequenceInfo& q) {
  return {params.layer_window, params.layer_chunk, params.call_window, q.window, q.sink};
}
KVC_HD bool is_windowed(const BatchMetadataParams& params, const SequenceInfo& q) {
  return params.scope != KeyScope::kCross && windows_of(params, q).narrow();
}
KVC_HD kernels::VisibleRange<int32_t> visible_range(const BatchMetadataParams& params,
                                                    const SequenceInfo& q, int32_t index) {
  return kernels::visible_range(windows_of(params, q), index);
}
KVC_HD int32_t key_begin(const SequenceInfo& q, const kernels::VisibleRange<int32_t>& keys) {
  return kernels::key_begin_of_row(keys, q.is_tree(), q.length, q.first_key);
}

// Sets the bits of the nodes on the path of one row that lie in its window. Parents lie before
// their children, so words fill from the last to the first.
KVC_DEVICE void write_mask(const BatchMetadataParams& params, const SequenceInfo& q, int32_t row,
                           int32_t num_words, uint64_t* words) {
  const kernels::VisibleRange<int32_t> keys = visible_range(params, q, q.row_index(row));
  int32_t node = q.old_nodes() + row;
  for (int32_t word = num_words - 1; word >= 0; --word) {
    uint64_t bits = 0;
    while (node >= 64 * word) {
      const int32_t index = q.length + q.depths[node];
      if (keys.contains(index)) bits |= uint64_t{1} << (node - 64 * word);
      node = q.parents[node];
    }
    words[word] = bits;
  }
}

// Absolute position of a key whose index differs from it: a shifted token, or a tree node.
KVC_DEVICE int32_t position_of_key(const StepState& step, const SequenceInfo& q, int32_t s,
                                   int32_t key) {
  if (key >= q.stored) return step.positions[q.row_begin + key - q.stored];
  if (key >= q.length) return q.length + step.offset[s] + q.depths[key - q.length];
  // The search finds the last segment that begins at the key or before.
  const int32_t* segments = step.words + step.segments_at[s];
  int32_t low = 0, high = step.segments_at[s] < 0 ? 0 : step.num_segments[s];
  while (low < high) {
    const int32_t middle = (low + high) / 2;
    if (segments[2 * middle] <= key)
      low = middle + 1;
    else
      high = middle;
  }
  return key + (low == 0 ? 0 : segments[2 * low - 1]);
}

// The entry of AttnSequence::key_ends. The new tokens of a span see each other in both directions;
// spans ascend per sequence.
KVC_DEVICE int32_t key_end(const BatchMetadataParams& params, const SequenceInfo& q, int32_t s,
                           int32_t row) {
  const int32_t first_key = params.scope == KeyScope::kNew ? q.length : 0;
  const int32_t token = q.length + row;
  int32_t end = token + 1;
  for (int32_t i = 0; i < params.num_spans; ++i) {
    const int32_t* span = params.spans + 3 * i;
    if (span[0] != s || token < span[1] || token >= span[2]) continue;
    end = span[2] < q.length + q.append ? span[2] : q.length + q.append;
  }
  return end - first_key;
}

}  // namespace kvc::cuda::batch_metadata_kernels
