// A binary heap of nodes by rank that knows the place of each node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/base/memory.h"
#include "src/prefix/events.h"

namespace kvc {

// The order of eviction as one number: protected by a quota, then priority, then the stamp of the
// last use. The smallest rank goes first.
constexpr int kStampBits = 56;
constexpr uint64_t kStampMask = (uint64_t{1} << kStampBits) - 1;
constexpr uint64_t make_rank(bool is_protected, uint8_t priority, uint64_t stamp) {
  return static_cast<uint64_t>(is_protected) << 63 | static_cast<uint64_t>(priority) << kStampBits |
         stamp;
}
constexpr uint64_t stamp_of(uint64_t rank) { return rank & kStampMask; }

// A node that turns out to be in use is parked until the end of the search: out of the order, but
// in the memory of the heap.
class EvictionHeap {
 public:
  // `positions` [nodes]: place in the heap, or -1. Heaps without a common node may share it.
  // Borrowed.
  explicit EvictionHeap(std::vector<int32_t>* positions) : positions_(positions) {}

  // Makes room for so many entries; the owner of `positions` grows those. Throws std::bad_alloc.
  void reserve(size_t entries) { entries_.reserve(entries); }
  size_t capacity() const { return entries_.capacity(); }
  int64_t host_bytes() const { return kvc::host_bytes(entries_); }

  bool empty() const { return size_ == 0; }  // Parked nodes aside.
  size_t size() const { return entries_.size(); }
  bool contains(NodeId node) const { return position(node) >= 0; }
  NodeId top() const { return entries_[0].node; }
  uint64_t top_rank() const { return entries_[0].rank; }
  uint64_t rank(NodeId node) const { return entries_[position(node)].rank; }

  // Adds the node or moves it.
  void set(NodeId node, uint64_t rank) noexcept;
  // Puts the node, which is not in the heap, in the place of `old_node`, which is in the order.
  // Cheap when their ranks are close, as those of a leaf and its parent.
  void replace(NodeId old_node, NodeId node, uint64_t rank) noexcept;
  // Does nothing when the node is not in the heap.
  void erase(NodeId node) noexcept;
  void clear() noexcept;

  void park_top() noexcept;
  size_t num_parked() const { return entries_.size() - size_; }
  // Call sort_parked() first; then take next_parked() back with unpark() one by one, smallest rank
  // first, each with a new rank.
  void sort_parked() noexcept;
  NodeId next_parked() const { return entries_[size_].node; }
  void unpark(uint64_t rank) noexcept;

  // Order and positions hold, and nothing is parked.
  bool is_sound() const;

 private:
  struct Entry {
    uint64_t rank;
    NodeId node;
  };

  int32_t position(NodeId node) const { return (*positions_)[node]; }
  void place(size_t at, Entry entry) noexcept {
    entries_[at] = entry;
    (*positions_)[entry.node] = static_cast<int32_t>(at);
  }
  void sift_up(size_t at) noexcept;
  void sift_down(size_t at) noexcept;

  std::vector<int32_t>* positions_;
  std::vector<Entry> entries_;  // [0, size_): the heap; [size_, ...): parked.
  size_t size_ = 0;
};

}  // namespace kvc
