#include "src/prefix/block_tree.h"

#include <algorithm>

namespace kvc {

void BlockTree::reserve(int64_t num_blocks, int64_t pool_blocks, bool with_tokens) {
  spaces.reserve(num_blocks);
  // The first room is for what the pool holds, so that no later call pauses to move a large index.
  // Untouched memory costs nothing.
  nodes.reserve(
      nodes.capacity() == 0 && num_blocks > 0 ? std::max(num_blocks, pool_blocks) : num_blocks,
      with_tokens);
  keys.reserve(nodes.capacity());
}

NodeId BlockTree::find_deepest(KeyChain& chain) const {
  const int32_t space = spaces.find(chain.query().root);
  NodeId node = kNoNode;
  for (int64_t block = 0; block < chain.num_blocks(); ++block) {
    const BlockKey& key = chain.key(block);
    const NodeId next = find_in(space, key, keys.tag_of(key));
    if (next == kNoNode || nodes[next].parent != node) break;
    node = next;
  }
  return node;
}

NodeId BlockTree::next_in_tree(NodeId node) const noexcept {
  if (nodes[node].first_child != kNoNode) return nodes[node].first_child;
  while (node != kNoNode && nodes[node].next == kNoNode) node = nodes[node].parent;
  return node == kNoNode ? kNoNode : nodes[node].next;
}

const int32_t* BlockTree::tokens(NodeId node, uint64_t birth) const noexcept {
  if (node < 0 || node >= nodes.num_made()) return nullptr;
  const Node& record = nodes[node];
  return record.is_used && record.birth == birth && record.has_tokens ? nodes.tokens(node)
                                                                      : nullptr;
}

NodeId BlockTree::add(const BlockKey& key, NodeId parent, const BlockKey& root,
                      uint64_t stamp) noexcept {
  if (!nodes.has_room()) return kNoNode;
  int32_t space = space_of(parent, root);
  if (space == -1) {
    if (!spaces.has_room()) return kNoNode;
    space = spaces.add(root);
  }
  Namespace& name_space = spaces[space];
  // The heap of a quota has room for the blocks that reserve() was told of, which may be others.
  if (name_space.leaves != nullptr &&
      static_cast<size_t>(name_space.num_nodes) >= name_space.leaves->capacity())
    return kNoNode;
  const NodeId node = nodes.take();
  Node& record = nodes[node];
  record.key = key;
  record.parent = parent;
  record.name_space = space;
  record.depth = parent == kNoNode ? 1 : nodes[parent].depth + 1;
  record.birth = record.stamp = newest_birth = stamp;
  nodes.link(node, children_of(record));
  keys.insert(key, node);
  ++name_space.num_nodes;
  return node;
}

void BlockTree::unlink(NodeId node) noexcept {
  const Node& record = nodes[node];
  keys.erase(record.key, node);
  nodes.unlink(node, children_of(record));
  --spaces[record.name_space].num_nodes;
  if (record.parent == kNoNode) spaces.drop_if_empty(record.name_space);
}

void BlockTree::clear() noexcept {
  for (int32_t id = 0; id < spaces.num_made(); ++id) {
    Namespace& space = spaces[id];
    if (!space.is_used) continue;
    space.first_child = kNoNode;
    space.num_nodes = 0;
    space.used_bytes = 0;
    spaces.drop_if_empty(id);
  }
  nodes.clear();
  keys.clear();
}

}  // namespace kvc
