// The visible range of the rows of one sequence: the rules of src/sequences/visibility.h and
// src/exec/sequence_set.cc, applied to the arrays of a step.
#pragma once

#include "kernels/cuda/ptx/ptx.cuh"
#include "kernels/cuda/step.h"

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

// Keys [0, sink_end) and [begin, the row's own position].
struct VisibleRange {
  int32_t sink_end;
  int32_t begin;
};

KVC_HD bool is_windowed(const BatchMetadataParams& params, const SequenceInfo& q) {
  return params.scope != KeyScope::kCross && (params.layer_window != 0 || params.layer_chunk != 0 ||
                                              params.call_window != 0 || q.window != 0);
}

// The device's version of keys_of_query.
KVC_HD VisibleRange visible_range(const BatchMetadataParams& params, const SequenceInfo& q,
                                  int32_t index) {
  VisibleRange keys{0, 0};
  const auto raise_begin = [&](int32_t begin) {
    keys.begin = keys.begin < begin ? begin : keys.begin;
  };
  if (params.layer_chunk != 0)
    raise_begin(index / params.layer_chunk * params.layer_chunk);
  else if (params.layer_window != 0)
    raise_begin(index - params.layer_window + 1);
  if (params.call_window != 0) raise_begin(index - params.call_window + 1);
  if (q.window != 0) {
    if (params.layer_window == 0 && params.call_window == 0) keys.sink_end = q.sink;
    raise_begin(index - (q.window - q.sink) + 1);
  }
  return keys;
}

// The entry of AttnSequence::key_begins. Nodes of a tree are hidden by its mask, since their
// indices do not give their positions.
KVC_HD int32_t key_begin(const SequenceInfo& q, const VisibleRange& keys) {
  const int32_t begin = q.is_tree() && keys.begin > q.length ? q.length : keys.begin;
  return begin > q.first_key ? begin - q.first_key : 0;
}

// Sets the bits of the nodes on the path of one row that lie in its window. Parents lie before
// their children, so words fill from the last to the first.
KVC_DEVICE void write_mask(const BatchMetadataParams& params, const SequenceInfo& q, int32_t row,
                           int32_t num_words, uint64_t* words) {
  const VisibleRange keys = visible_range(params, q, q.row_index(row));
  int32_t node = q.old_nodes() + row;
  for (int32_t word = num_words - 1; word >= 0; --word) {
    uint64_t bits = 0;
    while (node >= 64 * word) {
      const int32_t index = q.length + q.depths[node];
      if (index >= keys.begin || index < keys.sink_end) bits |= uint64_t{1} << (node - 64 * word);
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
