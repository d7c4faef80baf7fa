// The records of the blocks, of fixed size, and their page places and token ids in flat arrays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "src/base/memory.h"
#include "src/pages/allocator.h"
#include "src/pages/state_pool.h"
#include "src/prefix/events.h"
#include "src/prefix/keys.h"

namespace kvc {

// The place of one page of a block: on the device, on the host, or nowhere.
struct PagePlace {
  PageId device = kNoPage;
  PageId host = kNoPage;

  bool is_present() const { return device != kNoPage || host != kNoPage; }
};

// A lookup without windows reads only the first cache line.
struct alignas(64) Node {
  BlockKey key;
  NodeId parent = kNoNode;       // kNoNode: a first block of its namespace.
  NodeId first_child = kNoNode;  // The newest child.
  NodeId next = kNoNode;         // Older sibling; for an unused node, the next unused one.
  NodeId previous = kNoNode;     // Newer sibling.
  int32_t name_space = -1;
  int32_t depth = 0;        // Blocks from the first to this one.
  int32_t full_device = 0;  // Device pages of layer groups with full attention.
  int32_t full_host = 0;    // Host pages of layer groups with full attention.

  uint64_t stamp = 0;      // Last use of the node, or of a child that stopped being live.
  uint64_t birth = 0;      // Stamp of its insertion; unique.
  int32_t num_device = 0;  // Device pages.
  int32_t num_host = 0;    // Host pages.
  StateSlot state = kInitialState;
  int32_t live_children = 0;
  int32_t pins = 0;
  int32_t locks = 0;
  int32_t num_plain = kUnknownPlain;  // See NewBlock.
  uint8_t priority = 0;
  bool has_tokens = false;
  bool is_live = false;  // The node or a descendant is on the device.
  bool is_used = false;

  bool is_on_device() const { return num_device != 0 || state != kInitialState; }
  // Without contents, it only links its descendants.
  bool is_hollow() const { return !is_on_device() && num_host == 0; }
};

class NodePool {
 public:
  NodePool(int32_t pages_per_block, int32_t block_tokens)
      : pages_per_block_(static_cast<size_t>(pages_per_block)),
        block_tokens_(static_cast<size_t>(block_tokens)) {}

  // Makes the next `count` calls of take() succeed, and set_tokens() on their nodes when
  // `with_tokens`. Throws std::bad_alloc.
  void reserve(int64_t count, bool with_tokens);
  int64_t capacity() const { return static_cast<int64_t>(capacity_); }
  int64_t num_used() const { return num_used_; }
  bool has_room() const { return unused_ != kNoNode || nodes_.size() < capacity_; }
  int64_t num_made() const { return static_cast<int64_t>(nodes_.size()); }  // Bound of all ids.

  Node& operator[](NodeId node) { return nodes_[node]; }
  const Node& operator[](NodeId node) const { return nodes_[node]; }
  void prefetch(NodeId node) const { __builtin_prefetch(nodes_.data() + node); }

  // Takes a blank node; has_room() is true.
  NodeId take() noexcept;
  // The node has no contents.
  void release(NodeId node) noexcept {
    Node& record = (*this)[node];
    record.is_used = false;
    record.next = unused_;
    unused_ = node;
    --num_used_;
  }
  // Links the node as the newest of the children that `first` begins.
  void link(NodeId node, NodeId* first) noexcept {
    Node& record = (*this)[node];
    record.previous = kNoNode;
    record.next = *first;
    if (*first != kNoNode) (*this)[*first].previous = node;
    *first = node;
  }
  void unlink(NodeId node, NodeId* first) noexcept {
    const Node& record = (*this)[node];
    (record.previous == kNoNode ? *first : (*this)[record.previous].next) = record.next;
    if (record.next != kNoNode) (*this)[record.next].previous = record.previous;
  }
  void clear() noexcept;

  PagePlace place(NodeId node, int32_t index) const {
    const int32_t code =
        places_[static_cast<size_t>(node) * pages_per_block_ + static_cast<size_t>(index)];
    return code >= -1 ? PagePlace{code, kNoPage} : PagePlace{kNoPage, -2 - code};
  }
  void set_place(NodeId node, int32_t index, PagePlace place) {
    places_[static_cast<size_t>(node) * pages_per_block_ + static_cast<size_t>(index)] =
        place.host != kNoPage ? -2 - place.host : place.device;
  }
  // The node has token ids.
  const int32_t* tokens(NodeId node) const {
    return tokens_.get() + static_cast<size_t>(node) * block_tokens_;
  }
  // Without room for ids the block stays known by its key alone.
  void set_tokens(NodeId node, const int32_t* tokens) noexcept;

 private:
  size_t pages_per_block_, block_tokens_;
  size_t capacity_ = 0;  // Nodes that every array has room for.
  std::vector<Node, LargeAllocator<Node>> nodes_;
  // [node][page]: a device page, -1: none, -2 - page: on the host.
  std::vector<int32_t, LargeAllocator<int32_t>> places_;
  // Nodes that tokens_ has room for; none while callers give only keys.
  size_t token_capacity_ = 0;
  std::unique_ptr<int32_t[]> tokens_;  // [node][token], not initialised.
  NodeId unused_ = kNoNode;
  int64_t num_used_ = 0;
};

}  // namespace kvc
