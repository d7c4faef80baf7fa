#include "src/prefix/check.h"

#include <algorithm>

#include "src/base/error.h"

namespace kvc {
namespace {

void require(bool holds, NodeId node, const char* what) {
  if (!holds)
    fail_with(KVC_E_CORRUPT, node, "prefix index: block %d: %s", static_cast<int>(node), what);
}

void require_equal(int64_t counted, int64_t kept, const char* what) {
  if (counted == kept) return;
  fail_with(KVC_E_CORRUPT, kept, "prefix index: %lld %s counted, %lld kept", ll(counted), what,
            ll(kept));
}

class Checker {
 public:
  Checker(const BlockTree& tree, const BlockContents& contents, const EvictionOrder& order,
          const PageAllocator& allocator, const StatePool& states)
      : tree_(tree),
        nodes_(tree.nodes),
        contents_(contents),
        order_(order),
        allocator_(allocator),
        states_(states) {}

  void check_node(NodeId node) const;
  void check_counts() const;

 private:
  void check_orders(NodeId node, bool is_leaf) const;

  const BlockTree& tree_;
  const NodePool& nodes_;
  const BlockContents& contents_;
  const EvictionOrder& order_;
  const PageAllocator& allocator_;
  const StatePool& states_;
};

void Checker::check_node(NodeId node) const {
  const Node& record = nodes_[node];
  const NodeId found = tree_.find_in(record.name_space, record.key, tree_.keys.tag_of(record.key));
  require(found == node, node, "is not found by its key");
  require(tree_.spaces[record.name_space].is_used, node, "has no namespace");
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
  for (const BlockGroup& group : tree_.shape.groups) {
    for (int32_t i = group.first_page; i < group.end_page(); ++i) {
      const PagePlace place = nodes_.place(node, i);
      num_device += place.device != kNoPage;
      num_host += place.host != kNoPage;
      if (!group.is_windowed())
        full_device += place.device != kNoPage, full_host += place.host != kNoPage;
      if (place.device == kNoPage) continue;
      const bool is_known = place.device < allocator_.num_pages() &&
                            allocator_.is_indexed(place.device) &&
                            contents_.owner(place.device) == node;
      require(is_known, node, "has a page that is not marked as its own");
    }
  }
  require(num_device == record.num_device && num_host == record.num_host, node,
          "has a wrong number of pages");
  require(full_device == record.full_device && full_host == record.full_host, node,
          "has a wrong number of pages of full attention");
  require(record.state == kInitialState || states_.is_indexed(record.state), node,
          "has a state that is not indexed");
  require(record.is_live == (record.is_on_device() || record.live_children != 0), node,
          "is wrongly marked as live");
  check_orders(node,
               record.live_children == 0 &&
                   (record.is_on_device() || (num_host == 0 && record.first_child == kNoNode)));
}

void Checker::check_orders(NodeId node, bool is_leaf) const {
  const Node& record = nodes_[node];
  const uint64_t rank = order_.rank_of(node, record.stamp);
  const auto agrees = [&](const EvictionHeap& heap, bool is_in) {
    return heap.contains(node) == is_in &&
           (!is_in || heap.rank(node) == order_.rank_of(node, stamp_of(heap.rank(node))));
  };
  require(agrees(order_.leaves(), is_leaf) && (!is_leaf || order_.leaves().rank(node) == rank),
          node, "is ordered wrongly among the leaves");
  const EvictionHeap* own = tree_.spaces[record.name_space].leaves.get();
  require(!order_.is_in_quota_heap(node) || own != nullptr, node, "is in the order of a quota");
  require(own == nullptr || (agrees(*own, is_leaf) && (!is_leaf || own->rank(node) == rank)), node,
          "is ordered wrongly among the leaves of its namespace");
  for (const BlockGroup& group : tree_.shape.groups) {
    if (!group.is_windowed()) continue;
    bool has_page = false;
    for (int32_t i = 0; i < group.num_pages; ++i)
      has_page |= nodes_.place(node, group.first_page + i).device != kNoPage;
    require(agrees(order_.windows(group), has_page), node,
            "is ordered wrongly among the pages of a window");
  }
  if (tree_.shape.has_states)
    require(agrees(order_.states(), record.state != kInitialState), node,
            "is ordered wrongly among the states");
  require(agrees(order_.host_blocks(), record.num_host != 0), node,
          "is ordered wrongly among the blocks on the host");
}

void Checker::check_counts() const {
  int64_t num_nodes = 0, num_indexed = 0, num_host = 0, num_host_nodes = 0, num_pinned = 0,
          num_states = 0;
  std::vector<int64_t> space_nodes(static_cast<size_t>(tree_.spaces.num_made()), 0);
  std::vector<uint64_t> space_bytes(space_nodes.size(), 0);
  for (NodeId node = 0; node < nodes_.num_made(); ++node) {
    const Node& record = nodes_[node];
    if (!record.is_used) continue;
    const auto space = static_cast<size_t>(record.name_space);
    ++num_nodes;
    ++space_nodes[space];
    space_bytes[space] += static_cast<uint64_t>(record.num_device) * tree_.shape.page_bytes +
                          (record.state != kInitialState ? tree_.shape.state_bytes : 0);
    num_indexed += record.num_device;
    num_host += record.num_host;
    num_host_nodes += record.num_host != 0;
    num_pinned += record.pins != 0;
    num_states += record.state != kInitialState;
  }
  require_equal(num_nodes, nodes_.num_used(), "blocks");
  require_equal(num_nodes, tree_.keys.count(), "keys");
  require_equal(num_indexed, allocator_.counts().indexed, "indexed pages");
  require_equal(num_host, contents_.num_host_pages(), "pages on the host");
  require_equal(num_host_nodes, contents_.num_host_nodes(), "blocks on the host");
  require_equal(num_pinned, contents_.num_pinned(), "pinned blocks");
  int64_t num_indexed_states = 0;
  for (StateSlot slot = 0; slot < states_.num_slots(); ++slot)
    num_indexed_states += states_.is_indexed(slot);
  require_equal(num_states, num_indexed_states, "indexed states");
  for (int32_t id = 0; id < tree_.spaces.num_made(); ++id) {
    const Namespace& space = tree_.spaces[id];
    if (!space.is_used) continue;
    require_equal(space_nodes[id], space.num_nodes, "blocks of a namespace");
    require_equal(static_cast<int64_t>(space_bytes[id]), static_cast<int64_t>(space.used_bytes),
                  "bytes of a namespace");
    require(tree_.spaces.find(space.root) == id, space.first_child,
            "its namespace is not found by its root");
    require((space.leaves != nullptr) == (space.max_bytes != 0), space.first_child,
            "its namespace has half a quota");
    require(space.leaves == nullptr || space.leaves->is_sound(), space.first_child,
            "the order of a quota is broken");
  }
  require(order_.is_sound(), kNoNode, "an order of eviction is broken");
}

}  // namespace

void check_index(const BlockTree& tree, const BlockContents& contents, const EvictionOrder& order,
                 const PageAllocator& allocator, const StatePool& states,
                 std::vector<int32_t>* page_refs, std::vector<int32_t>* state_refs) {
  const Checker checker(tree, contents, order, allocator, states);
  for (NodeId node = 0; node < tree.nodes.num_made(); ++node) {
    if (!tree.nodes[node].is_used) continue;
    checker.check_node(node);
    if (tree.nodes[node].pins == 0) continue;
    for (int32_t i = 0; i < tree.shape.pages_per_block; ++i) {
      const PagePlace place = tree.nodes.place(node, i);
      require(place.host == kNoPage, node, "is pinned and on the host");
      if (place.device != kNoPage) ++(*page_refs)[place.device];
    }
    if (tree.nodes[node].state != kInitialState) ++(*state_refs)[tree.nodes[node].state];
  }
  checker.check_counts();
}

}  // namespace kvc
