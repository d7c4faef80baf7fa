#include "src/prefix/block_tree.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "src/base/math.h"

namespace kvc {
namespace {

int32_t block_tokens_of(const Spec& spec) {
  int32_t tokens = 1;
  bool has_pages = false;
  for (const GroupSpec& group : spec.groups) {
    if (group.is_cross) continue;
    tokens = std::lcm(tokens, group.page_size);
    has_pages = true;
  }
  return has_pages ? tokens : spec.base_page_size;
}

}  // namespace

BlockShape::BlockShape(const Plan& plan)
    : specs(plan.spec().groups),
      block_tokens(block_tokens_of(plan.spec())),
      has_states(plan.spec().has_states()),
      page_bytes(static_cast<uint64_t>(plan.layout().page_bytes)),
      state_bytes(static_cast<uint64_t>(plan.layout().state_slot_bytes)) {
  for (const GroupSpec& spec : specs) {
    const bool is_windowed = spec.is_windowed() && !spec.is_cross;
    int32_t num_pages = spec.is_cross ? 0 : block_tokens / spec.page_size;
    int64_t all_pages = BlockGroup::kNoEnd;
    if (spec.has_kept_rows()) {
      all_pages = spec.pages_for(spec.keep_tokens);
      num_pages = static_cast<int32_t>(std::min<int64_t>(num_pages, all_pages));
    }
    groups.push_back({&spec, pages_per_block, num_pages, spec.page_size,
                      is_windowed ? num_windows : -1, all_pages});
    pages_per_block += num_pages;
    if (is_windowed) {
      ++num_windows;
    } else if (!spec.has_kept_rows()) {
      full_pages += num_pages;
    } else {
      const int64_t num_blocks = ceil_div(all_pages, int64_t{num_pages});
      kept_pages.resize(std::max(kept_pages.size(), static_cast<size_t>(num_blocks)), 0);
      for (int64_t block = 0; block < num_blocks; ++block)
        kept_pages[block] += groups.back().pages_of(block);
    }
  }
}

const BlockGroup& BlockShape::group_of_page(int32_t index) const {
  size_t group = 0;
  while (index >= groups[group].end_page()) ++group;
  return groups[group];
}

void NodePool::reserve(int64_t count, bool with_tokens) {
  const size_t wanted = static_cast<size_t>(num_used_ + count);
  if (wanted > capacity_) {
    const size_t capacity = std::max({wanted, capacity_ * 2, size_t{64}});
    nodes_.reserve(capacity);
    places_.reserve(capacity * pages_per_block_);
    capacity_ = capacity;
  }
  if ((!with_tokens && tokens_ == nullptr) || token_capacity_ >= capacity_) return;
  auto tokens = std::make_unique_for_overwrite<int32_t[]>(capacity_ * block_tokens_);
  for (size_t node = 0; node < nodes_.size(); ++node) {
    if (nodes_[node].has_tokens)
      std::memcpy(tokens.get() + node * block_tokens_, tokens_.get() + node * block_tokens_,
                  block_tokens_ * sizeof(int32_t));
  }
  tokens_ = std::move(tokens);
  token_capacity_ = capacity_;
}

void NodePool::set_tokens(NodeId node, const int32_t* tokens) noexcept {
  if (static_cast<size_t>(node) >= token_capacity_) return;
  std::memcpy(tokens_.get() + static_cast<size_t>(node) * block_tokens_, tokens,
              block_tokens_ * sizeof(int32_t));
  nodes_[node].has_tokens = true;
}

NodeId NodePool::take() noexcept {
  NodeId node = unused_;
  if (node != kNoNode) {
    unused_ = nodes_[node].next;
    static constexpr Node kBlank;
    nodes_[node] = kBlank;
  } else {
    node = static_cast<NodeId>(nodes_.size());
    nodes_.emplace_back();
    places_.resize(nodes_.size() * pages_per_block_, -1);
  }
  nodes_[node].is_used = true;
  ++num_used_;
  return node;
}

void NodePool::clear() noexcept {
  nodes_.clear();
  places_.clear();
  unused_ = kNoNode;
  num_used_ = 0;
}

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
