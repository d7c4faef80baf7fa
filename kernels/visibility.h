// Which keys a query may see: the one rule of windows, chunks and sink tokens, for the host and for
// devices. `Int` is int64_t on the host and int32_t on devices.
#pragma once

#include "kernels/target.h"

namespace kvc::kernels {

// What narrows the keys of a query. Of each 0: nothing.
template <typename Int>
struct Windows {
  Int layer_window;  // The layer group's: the last keys, the query's own included.
  Int layer_chunk;   // The layer group's: keys from the last multiple of it on; goes before window.
  Int call_window;   // The call's.
  Int window;        // The sequence's, `sink` included (StreamingLLM, arXiv:2309.17453).
  Int sink;          // The sequence's first keys, which stay visible.

  KVC_HD bool narrow() const {
    return layer_window != 0 || layer_chunk != 0 || call_window != 0 || window != 0;
  }
};

// Keys [0, sink_end) and [begin, the query's own position].
template <typename Int>
struct VisibleRange {
  Int sink_end;
  Int begin;

  KVC_HD bool contains(Int index) const { return index >= begin || index < sink_end; }
};

// Of a query at token `index`; with windows, a token's index is its position.
//   layer window W      keys index-W+1 ..                      chunk C: keys index/C*C ..
//   sequence (W, s)     keys < s, and keys index-(W-s)+1 ..
// Where a layer or the call has a window too, sink tokens do not matter: kvc_seq_set_window refuses
// layer windows above W-s, so whatever those show, the sequence's window shows as well.
template <typename Int>
KVC_HD VisibleRange<Int> visible_range(const Windows<Int>& windows, Int index) {
  VisibleRange<Int> range{0, 0};
  const auto at_least = [&](Int begin) { range.begin = range.begin < begin ? begin : range.begin; };
  if (windows.layer_chunk != 0)
    at_least(index / windows.layer_chunk * windows.layer_chunk);
  else if (windows.layer_window != 0)
    at_least(index - windows.layer_window + 1);
  if (windows.call_window != 0) at_least(index - windows.call_window + 1);
  if (windows.window != 0) {
    if (windows.layer_window == 0 && windows.call_window == 0) range.sink_end = windows.sink;
    at_least(index - (windows.window - windows.sink) + 1);
  }
  return range;
}

// AttnSequence::key_begins of a row: its first visible key, counted from token `first_key`. Nodes
// of a token tree, whose committed tokens are `length`, are masked one by one: their places in the
// window say nothing about their positions.
template <typename Int>
KVC_HD Int key_begin_of_row(const VisibleRange<Int>& range, bool is_tree, Int length,
                            Int first_key) {
  const Int begin = is_tree && range.begin > length ? length : range.begin;
  return begin > first_key ? begin - first_key : 0;
}

// AttnSequence::sink_end of a sequence whose key 0 is token `first_key`.
template <typename Int>
KVC_HD Int sink_end_of_sequence(const VisibleRange<Int>& range, Int first_key) {
  return range.sink_end > first_key ? range.sink_end - first_key : 0;
}

}  // namespace kvc::kernels
