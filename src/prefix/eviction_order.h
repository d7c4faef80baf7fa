// The orders in which blocks, pages of windows, states and host pages are evicted.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "src/base/memory.h"
#include "src/prefix/block_tree.h"
#include "src/prefix/eviction_heap.h"

namespace kvc {

// A rank orders first by quota (nodes without a quota go first), then by priority (the lowest goes
// first), then by last use (the oldest goes first).
//
// Invariants:
// 1. Node::is_live: the node is on the device, or a child is live. live_children counts them.
// 2. `leaves` holds the nodes without live children that are on the device, or that have neither
//    children nor host pages. Of a namespace with a quota, Namespace::leaves holds the same nodes.
// 3. `windows` of a layer group holds the nodes with a device page of the group, `states` the nodes
//    with a state, `host_blocks` the nodes with host pages.
// 4. Using a node uses its ancestors too, yet only the node is stamped: a node that stops being
//    live hands its stamp and its priority to its parent, so a leaf has the last use of its path.
// 5. Outside an eviction no entry of any heap is parked.
class EvictionOrder {
 public:
  // Borrows `tree`.
  explicit EvictionOrder(BlockTree* tree);
  EvictionOrder(const EvictionOrder&) = delete;
  EvictionOrder& operator=(const EvictionOrder&) = delete;

  // Uses and ages go by the time of the last call.
  void read_clock() noexcept;
  uint64_t stamp() const noexcept { return stamp_; }
  uint64_t next_stamp() noexcept { return ++stamp_; }
  uint64_t rank_of(NodeId node, uint64_t stamp) const noexcept {
    const Node& record = tree_->nodes[node];
    return make_rank(tree_->has_quota(record), record.priority, stamp);
  }
  // Makes room for all nodes of the tree, and for `num_blocks` more in each namespace with a quota.
  // Throws std::bad_alloc.
  void reserve(int64_t num_blocks);
  std::unique_ptr<EvictionHeap> make_quota_heap() {
    return std::make_unique<EvictionHeap>(&quota_positions_);
  }
  // Quotas have come, gone or got room. O(namespaces).
  void count_quota_heaps() noexcept;
  int64_t host_bytes() const;
  bool is_in_quota_heap(NodeId node) const noexcept { return quota_positions_[node] >= 0; }

  EvictionHeap& leaves() noexcept { return leaves_.heap; }
  const EvictionHeap& leaves() const noexcept { return leaves_.heap; }
  EvictionHeap& windows(const BlockGroup& group) noexcept {
    return windows_[group.window_order]->heap;
  }
  const EvictionHeap& windows(const BlockGroup& group) const noexcept {
    return windows_[group.window_order]->heap;
  }
  EvictionHeap& states() noexcept { return states_.heap; }
  const EvictionHeap& states() const noexcept { return states_.heap; }
  EvictionHeap& host_blocks() noexcept { return host_blocks_.heap; }
  const EvictionHeap& host_blocks() const noexcept { return host_blocks_.heap; }

  // Restores invariants 1, 2 and 4 for the node and its ancestors. `may_be_leaf` false: the caller
  // knows that a child follows.
  void settle(NodeId node, bool may_be_leaf = true) noexcept;
  // Restores invariant 3 after the device pages of the group, or the host pages, have changed.
  void update_windows(NodeId node, const BlockGroup& group, uint64_t stamp) noexcept;
  void update_host(NodeId node, uint64_t stamp) noexcept;
  // Renews the ranks in all heaps but those of leaves, after the priority or quota has changed.
  void renew_ranks(NodeId node) noexcept;
  // Returns true when the priority rose; the caller settles the node then.
  bool raise_priority(NodeId node, int32_t priority) noexcept;
  // Takes a node without children out of all heaps of leaves and hands up its last use. The parent
  // takes its place when it becomes a leaf: the two are about equally old.
  void remove_leaf(NodeId node) noexcept;

  // What was parked because it is in use counts as used now; the order among those stays.
  void unpark(EvictionHeap* heap) noexcept;
  void unpark() noexcept;  // All heaps but host_blocks.
  void clear() noexcept;
  // Every heap is sound, and nothing is parked.
  bool is_sound() const;

 private:
  // A heap and the places of nodes in it.
  struct Order {
    std::vector<int32_t> positions;
    EvictionHeap heap{&positions};

    int64_t host_bytes() const { return kvc::host_bytes(positions) + heap.host_bytes(); }
  };

  void hand_up(const Node& leaving) noexcept;
  template <typename Visit>
  void for_each_order(Visit&& visit);

  BlockTree* tree_;
  Order leaves_;
  std::vector<std::unique_ptr<Order>> windows_;  // [BlockGroup::window_order]
  Order states_;                                 // Without memory when no layer has states.
  Order host_blocks_;
  std::vector<int32_t> quota_positions_;  // Places of nodes in Namespace::leaves.
  int64_t quota_heap_bytes_ = 0;          // Sum over all Namespace::leaves.
  uint64_t stamp_ = 0;                    // The newest stamp: ticks since `start_`, made unique.
  int64_t start_;
};

}  // namespace kvc
