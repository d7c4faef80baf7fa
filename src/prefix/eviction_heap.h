// Who goes first: a binary heap over nodes that knows where each one lies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/prefix/events.h"

namespace kvc {

// Order of eviction as one number: protected by a quota, then priority, then the stamp of the last
// use. Smaller goes first.
constexpr int kStampBits = 56;
constexpr uint64_t kStampMask = (uint64_t{1} << kStampBits) - 1;
constexpr uint64_t make_rank(bool is_protected, uint8_t priority, uint64_t stamp) {
  return static_cast<uint64_t>(is_protected) << 63 | static_cast<uint64_t>(priority) << kStampBits |
         stamp;
}
constexpr uint64_t stamp_of(uint64_t rank) { return rank & kStampMask; }

// What turns out to be in use is parked until the end of the search: out of the order, still in the
// heap's memory.
class EvictionHeap {
 public:
  // `positions` [nodes]: -1 or the place in the heap; several heaps that share no node may share
  // it. Borrowed.
  explicit EvictionHeap(std::vector<int32_t>* positions) : positions_(positions) {}

  // Room for so many entries. Throws std::bad_alloc. `positions` is the owner's to grow.
  void reserve(size_t entries) { entries_.reserve(entries); }
  size_t capacity() const { return entries_.capacity(); }

  bool empty() const { return size_ == 0; }  // but for parked ones
  size_t size() const { return entries_.size(); }
  bool contains(NodeId node) const { return position(node) >= 0; }
  NodeId top() const { return entries_[0].node; }
  uint64_t top_rank() const { return entries_[0].rank; }
  uint64_t rank(NodeId node) const { return entries_[static_cast<size_t>(position(node))].rank; }

  // Adds the node or moves it.
  void set(NodeId node, uint64_t rank) noexcept;
  // The node, which is not there, in the place of one that is in the order: the block before a leaf
  // that goes is about as old as it.
  void replace(NodeId old_node, NodeId node, uint64_t rank) noexcept;
  // Nothing when it is not there.
  void erase(NodeId node) noexcept;
  void clear() noexcept;

  void park_top() noexcept;
  size_t num_parked() const { return entries_.size() - size_; }
  // From here until all are back in the order: they go back one by one, those of smaller ranks
  // first, with a new rank each.
  void sort_parked() noexcept;
  NodeId next_parked() const { return entries_[size_].node; }
  void unpark(uint64_t rank) noexcept;

  // Order and positions hold; nothing is parked.
  bool is_sound() const;

 private:
  struct Entry {
    uint64_t rank;
    NodeId node;
  };

  int32_t position(NodeId node) const { return (*positions_)[static_cast<size_t>(node)]; }
  void place(size_t at, Entry entry) noexcept {
    entries_[at] = entry;
    (*positions_)[static_cast<size_t>(entry.node)] = static_cast<int32_t>(at);
  }
  void sift_up(size_t at) noexcept;
  void sift_down(size_t at) noexcept;

  std::vector<int32_t>* positions_;
  std::vector<Entry> entries_;  // [0, size_) the heap, [size_, ...) parked
  size_t size_ = 0;
};

}  // namespace kvc
