// The tree of blocks: which keys are known, which block follows which, in which namespace.
#pragma once

#include <cstdint>

#include "src/prefix/block_shape.h"
#include "src/prefix/key_table.h"
#include "src/prefix/keys.h"
#include "src/prefix/namespaces.h"
#include "src/prefix/node_pool.h"

namespace kvc {

// Invariants:
// 1. A used node is in `keys` under its key, and in the child list of its parent or, without a
//    parent, of its namespace.
// 2. A node and its parent belong to one namespace, and depth counts the blocks up to the node.
// 3. Namespace::num_nodes counts the used nodes of the namespace.
// Pages and states of nodes belong to BlockContents, ranks to EvictionOrder.
struct BlockTree {
  explicit BlockTree(const Plan& plan)
      : shape(plan), nodes(shape.pages_per_block, shape.block_tokens) {}

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
