// The pages and states of blocks, and the marks that the page allocator and the state pool keep of
// them.
#pragma once

#include <cstdint>
#include <vector>

#include "src/base/memory.h"
#include "src/pages/allocator.h"
#include "src/pages/state_pool.h"
#include "src/prefix/block_tree.h"
#include "src/prefix/host_tier.h"

namespace kvc {

// Invariants:
// 1. A device page or state belongs to at most one node. It is marked as indexed in the allocator
//    or the state pool exactly while it belongs to one.
// 2. The index refers to a page or state (one reference) exactly while its node is pinned.
// 3. Node::num_device, num_host, full_device, full_host and Namespace::used_bytes agree with the
//    page places and states of the nodes.
class BlockContents {
 public:
  // Where the pages of one layer group of a block are, as events tell it. A group of which any page
  // lies on the host counts as on the host; a group that lacks a page is nowhere.
  enum class Residence { kNowhere, kDevice, kHost };

  // `host` may be null. All are borrowed.
  BlockContents(BlockTree* tree, PageAllocator* allocator, StatePool* states, HostTier* host)
      : tree_(tree), allocator_(allocator), states_(states), host_(host) {}

  // Makes room for all pages of the allocator. Throws std::bad_alloc.
  void reserve();
  int64_t host_bytes() const { return kvc::host_bytes(owners_); }
  // The node that a device page belongs to.
  NodeId owner(PageId page) const noexcept { return owners_[page]; }
  bool is_new_page(PageId page) const noexcept {
    return page != kNoPage && static_cast<size_t>(page) < owners_.size() &&
           !allocator_->is_indexed(page);
  }
  bool is_new_state(StateSlot state) const noexcept {
    return tree_->shape.has_states && state != kInitialState && !states_->is_indexed(state);
  }
  Residence residence(NodeId node, const BlockGroup& group) const noexcept;
  // A lock, a pin or a reference of somebody else keeps the node, or a page or state of it.
  bool is_busy(NodeId node) const noexcept;

  void add_page(NodeId node, const BlockGroup& group, int32_t index, PageId page) noexcept;
  void drop_page(NodeId node, const BlockGroup& group, int32_t index) noexcept;
  // The block has its page `from`, if it is one's, in place `to`. The allocator's marks follow.
  void move_page(PageId from, PageId to) noexcept;
  void drop_host_page(NodeId node, const BlockGroup& group, int32_t index) noexcept;
  // Copies a device page to the host, which has room, and drops it.
  void demote(NodeId node, const BlockGroup& group, int32_t index, CallStream stream) noexcept;
  void add_state(NodeId node, StateSlot slot) noexcept;
  void drop_state(NodeId node) noexcept;  // The node has one.
  // A pin refers to the pages and the state of the node, or a last pin ends.
  void add_refs(NodeId node) noexcept;
  void drop_refs(NodeId node) noexcept;
  // The pinned node is removed, without pages.
  void count_pinned_removed() noexcept { --num_pinned_; }
  // Takes back all marks and references. Nodes keep their places, which are cleared with the tree.
  void clear() noexcept;

  int64_t num_host_pages() const noexcept { return num_host_pages_; }
  int64_t num_host_nodes() const noexcept { return num_host_nodes_; }
  int64_t num_pinned() const noexcept { return num_pinned_; }
  // Pages that have left the device since the index was made.
  uint64_t num_left() const noexcept { return num_left_; }

 private:
  void count_host_page(NodeId node, const BlockGroup& group, int32_t by) noexcept;

  BlockTree* tree_;
  PageAllocator* allocator_;
  StatePool* states_;
  HostTier* host_;
  std::vector<NodeId> owners_;  // [page]
  int64_t num_host_pages_ = 0;
  int64_t num_host_nodes_ = 0;
  int64_t num_pinned_ = 0;
  uint64_t num_left_ = 0;
};

}  // namespace kvc
