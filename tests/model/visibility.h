// Which keys a query sees, straight from the definitions in kvcache.h, for the oracle of values
// (one pair at a time) and for the page model (as ranges).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace kvc::test {

// Windows of a layer, of a sequence and of one call; zeros: off.
struct KeyRule {
  int64_t window = 0;
  int64_t chunk = 0;
  int64_t seq_window = 0, seq_sink = 0;
  int64_t call_window = 0;
};

// Whether the windows let a query at position p see the key at position j. What comes before what
// is another matter.
inline bool windows_show(const KeyRule& rule, int64_t p, int64_t j) {
  if (rule.window != 0 && j < p - rule.window + 1) return false;
  if (rule.chunk != 0 && j < p / rule.chunk * rule.chunk) return false;
  if (rule.call_window != 0 && j < p - rule.call_window + 1) return false;
  if (rule.seq_window == 0 || j < rule.seq_sink) return true;
  return j > p - (rule.seq_window - rule.seq_sink);
}

struct KeyRange {
  int64_t begin = 0, end = 0;
  bool empty() const { return begin >= end; }
};

// Keys below p that a query at p sees: sinks and the newest, disjoint.
struct SeenKeys {
  KeyRange sinks, recent;
};

inline SeenKeys seen_before(const KeyRule& rule, int64_t p) {
  int64_t first = 0;
  if (rule.window != 0) first = std::max(first, p - rule.window + 1);
  if (rule.chunk != 0) first = std::max(first, p / rule.chunk * rule.chunk);
  if (rule.seq_window == 0) return {{}, {first, p}};
  const int64_t newest = std::max(rule.seq_sink, p - (rule.seq_window - rule.seq_sink) + 1);
  return {{first, std::min(rule.seq_sink, p)}, {std::min(p, std::max(first, newest)), p}};
}

// Whether node `other` of a token tree is node `node` or one of its ancestors.
inline bool is_on_path(const std::vector<int32_t>& parents, int64_t node, int64_t other) {
  while (node > other) node = parents[static_cast<size_t>(node)];
  return node == other;
}

inline int64_t depth_of(const std::vector<int32_t>& parents, int64_t node) {
  int64_t depth = -1;
  for (; node >= 0; node = parents[static_cast<size_t>(node)]) ++depth;
  return depth;
}

}  // namespace kvc::test
