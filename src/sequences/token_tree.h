// The uncommitted token tree of a sequence in speculative decoding. Nodes are in the order in which
// their tokens were appended.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace kvc {

// Node n lies behind the committed tokens, at token length + n of the tables. Its position is
// Sequence::next_position() plus its depth.
struct TokenTree {
  std::vector<int32_t> parents;  // -1: a root; else less than the index of the node.
  std::vector<int32_t> depths;   // 0 for roots.
  std::vector<int32_t> ids;      // Token ids, as far as they were given: [size()] or fewer.
  // [size()]; 1: a partial forward left rows of the node unwritten. Empty: all rows are written.
  std::vector<uint8_t> unwritten;

  int64_t size() const { return static_cast<int64_t>(parents.size()); }
  bool empty() const { return parents.empty(); }

  // Call it after reserve().
  void add(int32_t parent) noexcept {
    depths.push_back(parent < 0 ? 0 : depths[parent] + 1);
    parents.push_back(parent);
    if (!unwritten.empty()) unwritten.push_back(0);
  }
  // Marks the nodes from `begin` on as unwritten.
  void mark_unwritten(int64_t begin) noexcept {
    unwritten.resize(parents.size(), 0);
    std::fill(unwritten.begin() + begin, unwritten.end(), uint8_t{1});
  }
  bool is_unwritten(int64_t node) const { return !unwritten.empty() && unwritten[node] != 0; }
  void truncate(int64_t nodes) noexcept {
    parents.resize(nodes);
    depths.resize(nodes);
    if (ids.size() > static_cast<size_t>(nodes)) ids.resize(nodes);
    if (unwritten.size() > static_cast<size_t>(nodes)) unwritten.resize(nodes);
  }
  void reserve(int64_t nodes) {
    parents.reserve(nodes);
    depths.reserve(nodes);
    ids.reserve(nodes);
    unwritten.reserve(nodes);
  }
};

}  // namespace kvc
