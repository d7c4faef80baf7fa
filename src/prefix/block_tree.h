// The tree of blocks: which keys are known, which block follows which, in which namespace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "src/base/memory.h"
#include "src/pages/allocator.h"
#include "src/pages/state_pool.h"
#include "src/plan/plan.h"
#include "src/prefix/events.h"
#include "src/prefix/key_table.h"
#include "src/prefix/keys.h"
#include "src/prefix/namespaces.h"

namespace kvc {

// The shape of a block of the prefix index: how many tokens it has, and which pages of each layer
// group and which state belong to it.

// The pages of one layer group in a block.
struct BlockGroup {
  const GroupSpec* spec;
  int32_t first_page;    // Index of its first page among the pages of the block.
  int32_t num_pages;     // 0 for CROSS layers.
  int32_t page_size;     // Tokens per page.
  int32_t window_order;  // Index of its eviction order; -1: full attention, leaves with the node.
  int64_t all_pages;     // Kept rows: pages of all blocks together. Else kNoEnd.

  static constexpr int64_t kNoEnd = INT64_MAX;
  bool is_windowed() const { return window_order >= 0; }
  // Pages of the nth block. Kept rows end inside a block; no later one has any.
  int32_t pages_of(int64_t block) const {
    if (all_pages == kNoEnd) return num_pages;
    return static_cast<int32_t>(std::clamp<int64_t>(all_pages - block * num_pages, 0, num_pages));
  }
  int32_t end_page() const { return first_page + num_pages; }
};

// Pages of a block are numbered by layer group, in the order of groups: block_tokens / page_size
// pages per group, none for CROSS layers.
struct BlockShape {
  explicit BlockShape(const Plan& plan);
  BlockShape(const BlockShape&) = delete;
  BlockShape& operator=(const BlockShape&) = delete;

  // Some layer group has several pages in a block, or one that does not reach its end, so a
  // sequence may leave whole pages in a block that it does not fill.
  bool has_inner_pages() const {
    return pages_per_block > static_cast<int32_t>(groups.size()) || !kept_pages.empty();
  }
  // Pages of groups with full attention in the nth block.
  int32_t full_pages_of(int64_t block) const {
    return full_pages + (block < static_cast<int64_t>(kept_pages.size()) ? kept_pages[block] : 0);
  }
  const BlockGroup& group_of_page(int32_t index) const;

  std::vector<GroupSpec> specs;
  std::vector<BlockGroup> groups;
  int32_t block_tokens = 0;
  int32_t pages_per_block = 0;
  int32_t full_pages = 0;  // Pages per block of groups with full attention, kept rows aside.
  std::vector<int32_t> kept_pages;  // Pages of kept rows in each of the first blocks.
  int32_t num_windows = 0;          // Groups with an eviction order of their own.
  bool has_states = false;
  uint64_t page_bytes = 0;
  uint64_t state_bytes = 0;
};

// The records of the blocks, of fixed size, and their page places and token ids in flat arrays.

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
  int64_t host_bytes() const {
    return kvc::host_bytes(nodes_) + kvc::host_bytes(places_) +
           static_cast<int64_t>(token_capacity_ * block_tokens_ * sizeof(int32_t));
  }
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

// Invariants:
// 1. A used node is in `keys` under its key, and in the child list of its parent or, without a
//    parent, of its namespace.
// 2. A node and its parent belong to one namespace, and depth counts the blocks up to the node.
// 3. Namespace::num_nodes counts the used nodes of the namespace.
// Pages and states of nodes belong to BlockContents, ranks to EvictionOrder.
struct BlockTree {
  explicit BlockTree(const Plan& plan)
      : shape(plan), nodes(shape.pages_per_block, shape.block_tokens) {}

  int64_t host_bytes() const {
    return nodes.host_bytes() + keys.host_bytes() + spaces.host_bytes();
  }
  // Makes room for `num_blocks` more blocks, with token ids when `with_tokens`. `pool_blocks`:
  // blocks that the page pool holds, the least room of an index that holds any. Throws
  // std::bad_alloc.
  void reserve(int64_t num_blocks, int64_t pool_blocks, bool with_tokens);

  // The block of this key in the namespace of `root`; kNoNode: none. A caller may give keys of
  // another namespace, so a key alone names no block: each namespace has blocks of its own.
  NodeId find(const BlockKey& root, const BlockKey& key) const noexcept {
    return find_in(spaces.find(root), key, keys.tag_of(key));
  }
  // The same with the id of the namespace (-1: none) and the tag of the key.
  NodeId find_in(int32_t space, const BlockKey& key, uint32_t tag) const noexcept {
    if (space == -1) return kNoNode;
    return keys.find(tag, [&](int32_t node) {
      return nodes[node].key == key && nodes[node].name_space == space;
    });
  }
  // The deepest block that the consecutive keys of the query lead to.
  NodeId find_deepest(KeyChain& chain) const;
  // Announces a find() or an insertion of the key.
  void prefetch(const BlockKey& key) const noexcept { keys.prefetch(keys.tag_of(key)); }

  // The namespace of a block with this parent, or with this root when there is no parent; -1: none.
  int32_t space_of(NodeId parent, const BlockKey& root) const noexcept {
    return parent == kNoNode ? spaces.find(root) : nodes[parent].name_space;
  }
  const BlockKey& parent_key(const Node& node) const noexcept {
    return node.parent == kNoNode ? spaces[node.name_space].root : nodes[node.parent].key;
  }
  bool has_quota(const Node& node) const noexcept { return spaces[node.name_space].max_bytes != 0; }
  // The next node of the namespace, parents first; kNoNode: the end.
  NodeId next_in_tree(NodeId node) const noexcept;
  // Token ids of the block; null: the block is gone, or its ids are unknown.
  const int32_t* tokens(NodeId node, uint64_t birth) const noexcept;
  // The node is the one that the last insertion made.
  bool is_newest(NodeId node) const noexcept { return nodes[node].birth == newest_birth; }

  // Adds an empty block that was born at `stamp`. Returns kNoNode when reserve() made no room.
  NodeId add(const BlockKey& key, NodeId parent, const BlockKey& root, uint64_t stamp) noexcept;
  // Unlinks a block that has no child. The record stays readable until nodes.release().
  void unlink(NodeId node) noexcept;
  // Removes all blocks, and the namespaces without quota.
  void clear() noexcept;

  const BlockShape shape;
  NodePool nodes;
  KeyTable keys;
  Namespaces spaces;
  uint64_t newest_birth = 0;  // Birth of the node that the last insertion made; 0: it made none.

 private:
  NodeId* children_of(const Node& node) noexcept {
    return node.parent == kNoNode ? &spaces[node.name_space].first_child
                                  : &nodes[node.parent].first_child;
  }
};

}  // namespace kvc
