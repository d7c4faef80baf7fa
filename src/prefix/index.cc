#include "src/prefix/index.h"

#include <algorithm>
#include <utility>

#include "src/base/error.h"

namespace kvc {

using Residence = BlockContents::Residence;

PrefixIndex::PrefixIndex(const Plan& plan, PageAllocator* allocator, StatePool* states,
                         HostTier* host, int64_t event_capacity)
    : allocator_(allocator),
      states_(states),
      host_(host),
      tree_(plan),
      contents_(&tree_, allocator, states, host),
      order_(&tree_),
      events_(&tree_, &contents_, event_capacity),
      eviction_(&tree_, &contents_, &order_, &events_, &metrics_, allocator, states, host) {}

void PrefixIndex::reserve(int64_t num_blocks, bool with_tokens) {
  read_clock();
  contents_.reserve();
  last_reserved_ = num_blocks;
  tree_.reserve(num_blocks, allocator_->num_pages() / std::max(1, tree_.shape.pages_per_block),
                with_tokens);
  order_.reserve(num_blocks);
}

// ---- Publishing -------------------------------------------------------------------------------

// Bytes of what fill() will add. `node` may be kNoNode: a new one.
uint64_t PrefixIndex::missing_bytes(NodeId node, const NewBlock& block) const noexcept {
  uint64_t bytes = 0;
  for (int32_t i = 0; i < tree_.shape.pages_per_block; ++i) {
    const bool has_page = node != kNoNode && tree_.nodes.place(node, i).device != kNoPage;
    if (!has_page && contents_.is_new_page(block.pages[i])) bytes += tree_.shape.page_bytes;
  }
  const bool has_state = node != kNoNode && tree_.nodes[node].state != kInitialState;
  if (!has_state && contents_.is_new_state(block.state)) bytes += tree_.shape.state_bytes;
  return bytes;
}

// A page of full attention belongs to another block.
bool PrefixIndex::has_foreign_pages(const NewBlock& block) const noexcept {
  for (const BlockGroup& group : tree_.shape.groups) {
    if (group.is_windowed()) continue;
    for (int32_t i = group.first_page; i < group.end_page(); ++i) {
      if (block.pages[i] != kNoPage && !contents_.is_new_page(block.pages[i])) return true;
    }
  }
  return false;
}

// Returns false when the node has everything that the block gives.
bool PrefixIndex::fill(NodeId node, const NewBlock& block) noexcept {
  Node& record = tree_.nodes[node];
  if (block.tokens != nullptr && !record.has_tokens) tree_.nodes.set_tokens(node, block.tokens);
  if (record.num_plain == kUnknownPlain) record.num_plain = block.num_plain;
  bool is_filled = false;
  for (const BlockGroup& group : tree_.shape.groups) {
    const Residence before = events_.before(node, group);
    bool has_more = false;
    for (int32_t i = group.first_page; i < group.end_page(); ++i) {
      const PagePlace place = tree_.nodes.place(node, i);
      if (place.device != kNoPage || !contents_.is_new_page(block.pages[i])) continue;
      if (place.host != kNoPage) contents_.drop_host_page(node, group, i);
      contents_.add_page(node, group, i, block.pages[i]);
      has_more = true;
    }
    if (!has_more) continue;
    is_filled = true;
    if (group.is_windowed()) order_.update_windows(node, group, record.stamp);
    events_.add_change(node, group, before);
  }
  if (record.state == kInitialState && contents_.is_new_state(block.state)) {
    contents_.add_state(node, block.state);
    order_.states().set(node, order_.rank_of(node, record.stamp));
    events_.add_stored_state(node);
    is_filled = true;
  }
  if (is_filled && host_ != nullptr && record.num_host == 0) order_.host_blocks().erase(node);
  return is_filled;
}

NodeId PrefixIndex::insert(const NewBlock& block, CallStream stream) noexcept {
  tree_.newest_birth = 0;
  NodeId node = tree_.find_in(tree_.space_of(block.parent, *block.root), *block.key,
                              tree_.keys.tag_of(*block.key));
  const bool is_new = node == kNoNode;
  if (is_new) {
    if (has_foreign_pages(block)) return kNoNode;
    node = tree_.add(*block.key, block.parent, *block.root, order_.next_stamp());
    if (node == kNoNode) return kNoNode;
  } else if (tree_.nodes[node].parent != block.parent) {
    return kNoNode;  // The keys of the caller belong to two chains.
  }
  Node& record = tree_.nodes[node];
  bool fits = true;
  if (tree_.has_quota(record)) {
    const uint64_t bytes = missing_bytes(node, block);
    // Neither the block nor its parent makes room for the block.
    ++record.locks;
    if (block.parent != kNoNode) ++tree_.nodes[block.parent].locks;
    fits = bytes == 0 || eviction_.make_quota_room(record.name_space, bytes, stream);
    --record.locks;
    if (block.parent != kNoNode) --tree_.nodes[block.parent].locks;
  }
  record.stamp = order_.next_stamp();  // Kept out or not, its ancestors are in use.
  if (!fits && is_new) {
    ++metrics_.rejected;
    eviction_.remove(node);
    return kNoNode;
  }
  order_.raise_priority(node, std::clamp(block.priority, 0, kMaxPriority));
  const bool is_filled = fits && fill(node, block);
  // A new block that another follows stops being a leaf soon. When nothing of what follows is on
  // the device, it is a leaf after all.
  order_.settle(node, !block.is_followed || !is_new);
  if (!record.is_live && block.parent != kNoNode) order_.settle(block.parent);
  metrics_.stored += is_new;
  if (!is_new && !is_filled) {
    bool takes_over = block.state != kInitialState && record.state != block.state;
    for (int32_t i = 0; i < tree_.shape.pages_per_block; ++i)
      takes_over |=
          block.pages[i] != kNoPage && tree_.nodes.place(node, i).device != block.pages[i];
    metrics_.duplicates += takes_over;
  }
  return node;
}

void PrefixIndex::promoted(NodeId node, int32_t index, PageId device_page,
                           CallStream stream) noexcept {
  Node& record = tree_.nodes[node];
  if (!contents_.is_new_page(device_page)) return;
  if (tree_.has_quota(record)) {
    ++record.locks;
    const bool fits = eviction_.make_quota_room(record.name_space, tree_.shape.page_bytes, stream);
    --record.locks;
    if (!fits) return;
  }
  const BlockGroup& group = tree_.shape.group_of_page(index);
  const Residence before = events_.before(node, group);
  contents_.drop_host_page(node, group, index);
  contents_.add_page(node, group, index, device_page);
  if (group.is_windowed()) order_.update_windows(node, group, record.stamp);
  events_.add_change(node, group, before);
  ++metrics_.promoted;
  if (record.num_host == 0) order_.host_blocks().erase(node);
  order_.settle(node);
}

void PrefixIndex::set_quota(const BlockKey& root, uint64_t max_bytes, CallStream stream) {
  Namespaces& spaces = tree_.spaces;
  int32_t id = spaces.find(root);
  if (id == -1 && max_bytes == 0) return;
  const bool is_first = id == -1 || spaces[id].max_bytes == 0;
  if (max_bytes != 0 && is_first && spaces.num_quotas() >= kMaxQuotas) {
    fail_with(KVC_E_OUT_OF_RANGE, spaces.num_quotas(),
              "salt: there are quotas of %lld namespaces, at most %lld", ll(spaces.num_quotas()),
              ll(kMaxQuotas));
  }
  std::unique_ptr<EvictionHeap> leaves;
  if (max_bytes != 0 && is_first) {
    leaves = order_.make_quota_heap();
    if (id != -1) leaves->reserve(spaces[id].num_nodes);
    if (id == -1) {
      spaces.reserve(last_reserved_ + 1);  // Beside the room that an open forward counts on.
      id = spaces.add(root);
    }
  } else if (max_bytes == 0) {
    if (spaces[id].leaves != nullptr) spaces[id].leaves->clear();
  } else {
    leaves = std::move(spaces[id].leaves);
  }
  // Nothing throws from here on.
  spaces.set_quota(id, max_bytes, std::move(leaves));
  for (NodeId node = spaces[id].first_child; is_first != (max_bytes == 0) && node != kNoNode;
       node = tree_.next_in_tree(node)) {
    order_.renew_ranks(node);
    order_.settle(node);
  }
  order_.count_quota_heaps();
  if (max_bytes == 0) {
    spaces.drop_if_empty(id);
    return;
  }
  read_clock();
  eviction_.make_quota_room(id, 0, stream);
}

// ---- Use --------------------------------------------------------------------------------------

void PrefixIndex::touch(NodeId node, bool hit, int32_t priority) noexcept {
  const uint64_t stamp = order_.next_stamp();
  Node& record = tree_.nodes[node];
  if (hit) metrics_.count_reuse(stamp - record.stamp);
  record.stamp = stamp;
  order_.raise_priority(node, priority);
  order_.settle(node);
  if (record.state != kInitialState) order_.states().set(node, order_.rank_of(node, stamp));
  const int64_t end = int64_t{record.depth} * tree_.shape.block_tokens;
  for (const BlockGroup& group : tree_.shape.groups) {
    if (!group.is_windowed()) continue;
    EvictionHeap& heap = order_.windows(group);
    const int64_t first_block = first_visible_key(*group.spec, end) / tree_.shape.block_tokens;
    for (NodeId visible = node; visible != kNoNode && tree_.nodes[visible].depth > first_block;
         visible = tree_.nodes[visible].parent) {
      if (order_.raise_priority(visible, priority)) order_.settle(visible);
      if (heap.contains(visible)) heap.set(visible, order_.rank_of(visible, stamp));
    }
  }
  // Ancestors get later stamps: a block is of no use without them, yet they are without it.
  for (NodeId before = node; before != kNoNode && tree_.nodes[before].num_host != 0;
       before = tree_.nodes[before].parent)
    order_.update_host(before, order_.next_stamp());
}

void PrefixIndex::add_locks(NodeId node, int32_t count) noexcept {
  for (; node != kNoNode; node = tree_.nodes[node].parent) tree_.nodes[node].locks += count;
}

int64_t PrefixIndex::pin(NodeId node) noexcept {
  NodeId last = node;
  for (; node != kNoNode; node = tree_.nodes[node].parent) {
    const Node& record = tree_.nodes[node];
    if (record.num_host != 0 || record.full_device != tree_.shape.full_pages_of(record.depth - 1))
      last = record.parent;
  }
  for (NodeId pinned = last; pinned != kNoNode; pinned = tree_.nodes[pinned].parent) {
    if (tree_.nodes[pinned].pins++ == 0) contents_.add_refs(pinned);
  }
  return last == kNoNode ? 0 : tree_.nodes[last].depth;
}

int64_t PrefixIndex::unpin(NodeId node) noexcept {
  // A pin of a block is a pin of all its ancestors. The path is unpinned from the last block that
  // has more pins than its children.
  const auto is_needed = [this](NodeId pinned) {
    int64_t of_children = 0;
    for (NodeId child = tree_.nodes[pinned].first_child; child != kNoNode;
         child = tree_.nodes[child].next)
      of_children += tree_.nodes[child].pins;
    return tree_.nodes[pinned].pins <= of_children;
  };
  while (node != kNoNode && is_needed(node)) node = tree_.nodes[node].parent;
  const int64_t blocks = node == kNoNode ? 0 : tree_.nodes[node].depth;
  for (; node != kNoNode; node = tree_.nodes[node].parent) {
    if (--tree_.nodes[node].pins == 0) contents_.drop_refs(node);
  }
  return blocks;
}

void PrefixIndex::reset() noexcept {
  contents_.clear();
  order_.clear();
  tree_.clear();
  read_clock();
  events_.add_cleared();
}

void PrefixIndex::add_stats(kvc_stats* stats) const noexcept {
  metrics_.fill(stats);
  stats->prefix_blocks = tree_.nodes.num_used();
  stats->prefix_blocks_host = contents_.num_host_nodes();
  stats->prefix_pinned = contents_.num_pinned();
  stats->events_made = events_.log().num_made();
  stats->events_lost = events_.log().num_lost();
}

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
