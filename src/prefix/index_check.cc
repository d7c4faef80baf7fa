// A full recount of what the index believes.
#include <algorithm>

#include "src/base/error.h"
#include "src/prefix/index.h"

namespace kvc {
namespace {

void require(bool holds, NodeId node, const char* what) {
  if (!holds)
    fail_with(KVC_E_CORRUPT, node, "prefix index: block %d: %s", static_cast<int>(node), what);
}

void require_equal(int64_t counted, int64_t kept, const char* what) {
  if (counted == kept) return;
  fail_with(KVC_E_CORRUPT, kept, "prefix index: %lld %s counted, %lld kept",
            static_cast<long long>(counted), what, static_cast<long long>(kept));
}

}  // namespace

void PrefixIndex::check(std::vector<int32_t>* page_refs, std::vector<int32_t>* state_refs) const {
  for (NodeId node = 0; node < nodes_.num_made(); ++node) {
    if (!nodes_[node].is_used) continue;
    check_node(node);
    if (nodes_[node].pins == 0) continue;
    for (int32_t i = 0; i < pages_per_block_; ++i) {
      const PagePlace place = nodes_.place(node, i);
      require(place.host == kNoPage, node, "is pinned and on the host");
      if (place.device != kNoPage) ++(*page_refs)[static_cast<size_t>(place.device)];
    }
    if (nodes_[node].state != kInitialState)
      ++(*state_refs)[static_cast<size_t>(nodes_[node].state)];
  }
  check_counts();
}

void PrefixIndex::check_node(NodeId node) const {
  const Node& record = nodes_[node];
  require(find_in(record.name_space, record.key) == node, node, "is not found by its key");
  require(spaces_[record.name_space].is_used, node, "has no namespace");
  const Node* parent = record.parent == kNoNode ? nullptr : &nodes_[record.parent];
  require(parent == nullptr || (parent->is_used && parent->name_space == record.name_space), node,
          "follows a block that is gone");
  require(record.depth == (parent == nullptr ? 1 : parent->depth + 1), node, "has a wrong depth");
  require(parent == nullptr || (parent->pins >= record.pins && parent->locks >= record.locks), node,
          "is pinned or locked without those before it");
  int32_t num_live = 0;
  for (NodeId child = record.first_child, newer = kNoNode; child != kNoNode;
       child = nodes_[child].next) {
    require(nodes_[child].parent == node && nodes_[child].previous == newer, node,
            "has a broken list of children");
    num_live += nodes_[child].is_live;
    newer = child;
  }
  require(num_live == record.live_children, node, "has a wrong number of children on the device");

  int32_t num_device = 0, num_host = 0, full_device = 0, full_host = 0;
  for (const Group& group : groups_) {
    for (int32_t i = group.first_page; i < group.first_page + group.num_pages; ++i) {
      const PagePlace place = nodes_.place(node, i);
      num_device += place.device != kNoPage;
      num_host += place.host != kNoPage;
      if (group.piece < 0)
        full_device += place.device != kNoPage, full_host += place.host != kNoPage;
      if (place.device == kNoPage) continue;
      const bool is_known = place.device < allocator_->num_pages() &&
                            allocator_->is_indexed(place.device) &&
                            page_nodes_[static_cast<size_t>(place.device)] == node;
      require(is_known, node, "has a page that is not marked as its own");
    }
  }
  require(num_device == record.num_device && num_host == record.num_host, node,
          "has a wrong number of pages");
  require(full_device == record.full_device && full_host == record.full_host, node,
          "has a wrong number of pages that see all tokens");
  require(record.state == kInitialState || states_->is_indexed(record.state), node,
          "has a state that is not cached");
  require(record.is_live == (record.is_on_device() || record.live_children != 0), node,
          "is not where it believes");
  check_orders(node,
               record.live_children == 0 &&
                   (record.is_on_device() || (num_host == 0 && record.first_child == kNoNode)));
}

void PrefixIndex::check_orders(NodeId node, bool is_leaf) const {
  const Node& record = nodes_[node];
  const uint64_t rank = rank_of(node, record.stamp);
  const auto agrees = [&](const EvictionHeap& heap, bool is_in) {
    return heap.contains(node) == is_in &&
           (!is_in || heap.rank(node) == rank_of(node, stamp_of(heap.rank(node))));
  };
  require(agrees(leaves_.heap, is_leaf) && (!is_leaf || leaves_.heap.rank(node) == rank), node,
          "is ordered wrongly among the leaves");
  const EvictionHeap* own = spaces_[record.name_space].leaves.get();
  require(quota_positions_[static_cast<size_t>(node)] < 0 || own != nullptr, node,
          "is in the order of a quota");
  require(own == nullptr || (agrees(*own, is_leaf) && (!is_leaf || own->rank(node) == rank)), node,
          "is ordered wrongly among the leaves of its namespace");
  for (const Group& group : groups_) {
    if (group.piece < 0) continue;
    bool has_page = false;
    for (int32_t i = 0; i < group.num_pages; ++i)
      has_page |= nodes_.place(node, group.first_page + i).device != kNoPage;
    require(agrees(pieces_[static_cast<size_t>(group.piece)]->heap, has_page), node,
            "is ordered wrongly among the pages of a window");
  }
  if (has_states_)
    require(agrees(pieces_.back()->heap, record.state != kInitialState), node,
            "is ordered wrongly among the states");
  require(agrees(host_pages_.heap, record.num_host != 0), node,
          "is ordered wrongly among the blocks on the host");
}

void PrefixIndex::check_counts() const {
  int64_t num_nodes = 0, num_indexed = 0, num_host = 0, num_host_nodes = 0, num_pinned = 0,
          num_states = 0;
  std::vector<int64_t> space_nodes(static_cast<size_t>(spaces_.num_made()), 0);
  std::vector<uint64_t> space_bytes(space_nodes.size(), 0);
  for (NodeId node = 0; node < nodes_.num_made(); ++node) {
    const Node& record = nodes_[node];
    if (!record.is_used) continue;
    const auto space = static_cast<size_t>(record.name_space);
    ++num_nodes;
    ++space_nodes[space];
    space_bytes[space] += static_cast<uint64_t>(record.num_device) * page_bytes_ +
                          (record.state != kInitialState ? state_bytes_ : 0);
    num_indexed += record.num_device;
    num_host += record.num_host;
    num_host_nodes += record.num_host != 0;
    num_pinned += record.pins != 0;
    num_states += record.state != kInitialState;
  }
  require_equal(num_nodes, nodes_.num_used(), "blocks");
  require_equal(num_nodes, table_.count(), "keys");
  require_equal(num_indexed, allocator_->num_indexed(), "indexed pages");
  require_equal(num_host, num_host_pages_, "pages on the host");
  require_equal(num_host_nodes, num_host_nodes_, "blocks on the host");
  require_equal(num_pinned, num_pinned_, "pinned blocks");
  int64_t num_indexed_states = 0;
  for (StateSlot slot = 0; slot < states_->num_slots(); ++slot)
    num_indexed_states += states_->is_indexed(slot);
  require_equal(num_states, num_indexed_states, "indexed states");
  for (int32_t id = 0; id < spaces_.num_made(); ++id) {
    const Namespace& space = spaces_[id];
    if (!space.is_used) continue;
    require_equal(space_nodes[static_cast<size_t>(id)], space.num_nodes, "blocks of a namespace");
    require_equal(static_cast<int64_t>(space_bytes[static_cast<size_t>(id)]),
                  static_cast<int64_t>(space.used_bytes), "bytes of a namespace");
    require(spaces_.find(space.root) == id, space.first_child,
            "its namespace is not found by its root");
    require((space.leaves != nullptr) == (space.max_bytes != 0), space.first_child,
            "its namespace has half a quota");
    require(space.leaves == nullptr || space.leaves->is_sound(), space.first_child,
            "the order of a quota is broken");
  }
  bool is_sound = leaves_.heap.is_sound() && host_pages_.heap.is_sound();
  for (const std::unique_ptr<Order>& piece : pieces_) is_sound = is_sound && piece->heap.is_sound();
  require(is_sound, kNoNode, "an order of eviction is broken");
}

}  // namespace kvc
