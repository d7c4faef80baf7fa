// The visible range of a query of a sequence, in the words of layer groups and sequences.
#pragma once

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

}  // namespace kvc
