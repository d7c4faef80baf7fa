// Which keys a query sees: the one place where windows, chunks and sinks are turned into ranges.
#pragma once

#include <algorithm>
#include <cstdint>

#include "src/plan/groups.h"
#include "src/sequences/sequence.h"

namespace kvc {

// What a query sees: keys [0, sink_end) and [begin, its own position].
struct KeyRange {
  int64_t sink_end;
  int64_t begin;
};

// Of a query at token `index` (with windows, index and position are the same). `window` (0: none)
// narrows further.
//   layer window W      keys index-W+1 ..                      chunk C: keys index/C*C ..
//   sequence (W, s)     keys < s, and keys index-(W-s)+1 ..
// Where both apply the sinks don't matter: kvc_seq_set_window refuses layer windows above W-s, so
// whatever a layer's window shows,
// the sequence's shows as well.
inline KeyRange keys_of_query(const GroupSpec& group, const Sequence& sequence, int64_t index,
                              int64_t window = 0) {
  KeyRange keys{0, 0};
  if (group.is_cross) return keys;
  keys.begin = first_visible_key(group, index);
  if (window != 0) keys.begin = std::max(keys.begin, index - window + 1);
  if (sequence.window != 0) {
    if (group.window == 0 && window == 0) keys.sink_end = sequence.sink;
    keys.begin = std::max(keys.begin, index - (sequence.window - sequence.sink) + 1);
  }
  keys.begin = std::max<int64_t>(0, keys.begin);
  return keys;
}

}  // namespace kvc
