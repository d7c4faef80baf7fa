// What of a match on the host can be brought back, and the deepest block that keys lead to.
#include <algorithm>

#include "src/prefix/index.h"

namespace kvc {

NodeId PrefixIndex::find_deepest(KeyChain& chain) const {
  const int32_t space = spaces_.find(chain.query().root);
  NodeId node = kNoNode;
  for (int64_t block = 0; block < chain.num_blocks(); ++block) {
    const NodeId next = find_in(space, chain.key(block));
    if (next == kNoNode || nodes_[next].parent != node) break;
    node = next;
  }
  return node;
}

// Of the pages and states of a namespace with quota: those that make_quota_room() cannot evict
// while `locked` and those before it are locked. Whole nodes leave, from the leaves up, so what is
// busy keeps all before it.
uint64_t PrefixIndex::bytes_in_use(int32_t name_space, NodeId locked) const {
  std::vector<uint8_t> stays(static_cast<size_t>(nodes_.num_made()), 0);
  uint64_t bytes = 0;
  const auto keep = [&](NodeId node) {
    for (; node != kNoNode && stays[static_cast<size_t>(node)] == 0; node = nodes_[node].parent) {
      const Node& record = nodes_[node];
      stays[static_cast<size_t>(node)] = 1;
      bytes += static_cast<uint64_t>(record.num_device) * page_bytes_;
      if (record.state != kInitialState) bytes += state_bytes_;
    }
  };
  keep(locked);
  for (NodeId node = spaces_[name_space].first_child; node != kNoNode; node = next_in_tree(node)) {
    if (is_busy(node)) keep(node);
  }
  return bytes;
}

int64_t PrefixIndex::num_fetchable(NodeId deepest) const {
  int64_t pages = allocator_->num_available();
  for (NodeId node = deepest; node != kNoNode; node = nodes_[node].parent) {
    for (int32_t i = 0; i < pages_per_block_; ++i) {
      const PageId page = nodes_.place(node, i).device;
      if (page != kNoPage && allocator_->is_unreferenced(page)) --pages;
    }
    const StateSlot state = nodes_[node].state;
    if (state != kInitialState && states_->refs(state) == 0) pages -= states_->slot_pages();
  }
  pages = std::max<int64_t>(0, pages);
  if (deepest == kNoNode || page_bytes_ == 0 || !has_quota(nodes_[deepest])) return pages;
  const int32_t name_space = nodes_[deepest].name_space;
  const uint64_t most = spaces_[name_space].max_bytes, in_use = bytes_in_use(name_space, deepest);
  if (in_use >= most) return 0;
  return std::min(
      pages, static_cast<int64_t>(std::min<uint64_t>((most - in_use) / page_bytes_, INT32_MAX)));
}

}  // namespace kvc
