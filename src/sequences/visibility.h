// The visible range of a query of a sequence, in the words of layer groups and sequences.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/visibility.h"
#include "src/plan/groups.h"
#include "src/sequences/sequence.h"

namespace kvc {

using KeyRange = kernels::VisibleRange<int64_t>;

inline kernels::Windows<int64_t> windows_of(const GroupSpec& group, const Sequence& sequence,
                                            int64_t call_window = 0) {
  return {group.window, group.chunk, call_window, sequence.window, sequence.sink};
}

// The visible range of a query at token `index`. `window`: the window of the call; 0: none.
inline KeyRange keys_of_query(const GroupSpec& group, const Sequence& sequence, int64_t index,
                              int64_t window = 0) {
  if (group.is_cross) return {0, 0};
  return kernels::visible_range(windows_of(group, sequence, window), index);
}

// The visible range under the window of the sequence alone.
inline KeyRange keys_of_sequence(const Sequence& sequence, int64_t index) {
  return kernels::visible_range(kernels::Windows<int64_t>{0, 0, 0, sequence.window, sequence.sink},
                                index);
}

// First token that a layer group keeps when its window has to be right for queries from token
// `index` on. That of the sequence keeps the visible range of the next query.
inline int64_t first_kept_key(const GroupSpec& group, const Sequence& sequence, int64_t index) {
  const KeyRange of_sequence = keys_of_sequence(sequence, sequence.length);
  const bool hides = of_sequence.begin > of_sequence.sink_end;
  return std::max(first_visible_key(group, std::max<int64_t>(0, index)),
                  hides ? of_sequence.begin : 0);
}

}  // namespace kvc
