// Eviction: which blocks, pages and states leave the index when somebody needs their room.
#pragma once

#include <cstdint>

#include "src/prefix/block_contents.h"
#include "src/prefix/block_events.h"
#include "src/prefix/block_tree.h"
#include "src/prefix/eviction_order.h"
#include "src/prefix/metrics.h"

namespace kvc {

// Invariants:
// 1. Nothing leaves that a lock, a pin or a reference of somebody else keeps.
// 2. Whole nodes leave from the leaves up. Pages of windowed groups and states leave anywhere, one
//    (node, group) at a time, by the time of their own last use. The lowest rank of all goes first.
// 3. evict_for() succeeds while cached pages suffice: when no order yields one, whole subtrees are
//    forgotten whose blocks are referenced elsewhere (see forget_unreachable).
// 4. Pages of one (node, group) move to the host together, or are dropped together.
// 5. A node without pages and states stays only while a child, a lock or a pin needs it.
// 6. What turns out to be in use counts as used then: it is parked, and gets a new rank at the end.
class Eviction {
 public:
  // `host` may be null. All are borrowed.
  Eviction(BlockTree* tree, BlockContents* contents, EvictionOrder* order, BlockEvents* events,
           PrefixMetrics* metrics, PageAllocator* allocator, StatePool* states, HostTier* host)
      : tree_(tree),
        contents_(contents),
        order_(order),
        events_(events),
        metrics_(metrics),
        allocator_(allocator),
        states_(states),
        host_(host) {}

  // Evicts until so many pages are free, or no cached page is left.
  void evict_for(int64_t pages, CallStream stream) noexcept;
  // Evicts until so many states can be taken.
  void evict_states_for(int64_t slots) noexcept;
  // Frees host pages of the index until the tier has so many, or the index has none left.
  void evict_host_for(int64_t pages) noexcept { make_host_room(pages, UINT64_MAX); }
  // Returns how many pages left the device.
  int64_t evict(int64_t pages, CallStream stream) noexcept;
  // Forgets the block of this indexed device page and all that follow: somebody will write into the
  // page, or the pool shrinks. Pages without references become free.
  void forget_page(PageId page) noexcept;

  // Evicts leaves of the namespace until `bytes` more fit its quota. Returns whether they fit.
  bool make_quota_room(int32_t space, uint64_t bytes, CallStream stream) noexcept;
  // Bytes of the namespace that make_quota_room() cannot evict while `locked` and its ancestors are
  // locked. Throws std::bad_alloc.
  uint64_t bytes_in_use(int32_t space, NodeId locked) const;
  // Device pages that could come back from the host for `deepest` and its ancestors while those are
  // locked, after evictions and within the quota. Throws std::bad_alloc.
  int64_t num_fetchable(NodeId deepest) const;
  // Removes a node that has neither contents nor children.
  void remove(NodeId node) noexcept;

 private:
  bool evict_first(CallStream stream) noexcept;
  void evict_node(NodeId node, CallStream stream) noexcept;
  bool evict_windows(NodeId node, const BlockGroup& group, CallStream stream) noexcept;
  bool evict_state(NodeId node) noexcept;
  // The host has room.
  void demote(NodeId node, const BlockGroup& group, CallStream stream) noexcept;
  bool make_host_room(int64_t pages, uint64_t rank) noexcept;
  void drop_host_pages(NodeId node) noexcept;
  void drop_state(NodeId node) noexcept;
  void drop_contents(NodeId node) noexcept;
  void settle_or_prune(NodeId node) noexcept;
  bool is_prunable(const Node& record) const noexcept;
  void prune(NodeId node, bool is_eviction) noexcept;
  void forget(NodeId top) noexcept;
  bool forget_unreachable(PageId* cursor) noexcept;

  BlockTree* tree_;
  BlockContents* contents_;
  EvictionOrder* order_;
  BlockEvents* events_;
  PrefixMetrics* metrics_;
  PageAllocator* allocator_;
  StatePool* states_;
  HostTier* host_;
};

}  // namespace kvc
