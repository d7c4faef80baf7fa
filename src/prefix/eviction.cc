#include "src/prefix/eviction.h"

#include <algorithm>
#include <vector>

namespace kvc {

using Residence = BlockContents::Residence;

void Eviction::evict_for(int64_t pages, CallStream stream) noexcept {
  order_->read_clock();
  PageId cursor = 0;
  while (allocator_->num_free() < pages && allocator_->num_cached() > 0) {
    if (!evict_first(stream) && !forget_unreachable(&cursor)) break;
  }
  order_->unpark();
}

int64_t Eviction::evict(int64_t pages, CallStream stream) noexcept {
  order_->read_clock();
  const uint64_t before = contents_->num_left();
  const auto num_evicted = [&] { return static_cast<int64_t>(contents_->num_left() - before); };
  PageId cursor = 0;
  while (num_evicted() < pages && allocator_->num_cached() > 0) {
    if (!evict_first(stream) && !forget_unreachable(&cursor)) break;
  }
  order_->unpark();
  return num_evicted();
}

void Eviction::evict_states_for(int64_t slots) noexcept {
  if (!tree_->shape.has_states) return;
  order_->read_clock();
  EvictionHeap& heap = order_->states();
  while (states_->to_evict(slots) > 0 && !heap.empty()) {
    if (!evict_state(heap.top())) heap.park_top();
  }
  order_->unpark(&heap);
}

// Evicts one leaf, or the pages or state of one node, whichever has the lowest rank. Among equal
// ranks a leaf goes first, then pages of windows. Returns false when the orders are used up.
bool Eviction::evict_first(CallStream stream) noexcept {
  for (;;) {
    EvictionHeap* first = order_->leaves().empty() ? nullptr : &order_->leaves();
    const BlockGroup* group = nullptr;  // Set when `first` holds the pages of a windowed group.
    for (const BlockGroup& candidate : tree_->shape.groups) {
      if (!candidate.is_windowed()) continue;
      EvictionHeap& heap = order_->windows(candidate);
      if (heap.empty() || (first != nullptr && first->top_rank() <= heap.top_rank())) continue;
      first = &heap;
      group = &candidate;
    }
    // Evicting a state frees pages only where states take pages.
    EvictionHeap& states = order_->states();
    const bool is_state = states_->slot_pages() != 0 && !states.empty() &&
                          (first == nullptr || states.top_rank() < first->top_rank());
    if (is_state) first = &states;
    if (first == nullptr) return false;
    const NodeId node = first->top();
    if (is_state) {
      if (evict_state(node)) return true;
    } else if (group != nullptr) {
      if (evict_windows(node, *group, stream)) return true;
    } else if (!contents_->is_busy(node)) {
      evict_node(node, stream);
      return true;
    }
    first->park_top();
  }
}

// Moves all pages of the node to the host where it has room, else drops them.
void Eviction::evict_node(NodeId node, CallStream stream) noexcept {
  const bool moves =
      host_ != nullptr && tree_->nodes[node].num_device != 0 &&
      make_host_room(tree_->nodes[node].num_device, order_->rank_of(node, order_->stamp() + 1));
  for (const BlockGroup& group : tree_->shape.groups) {
    const Residence before = events_->before(node, group);
    if (moves) demote(node, group, stream);
    for (int32_t i = group.first_page; i < group.end_page(); ++i) {
      if (tree_->nodes.place(node, i).device != kNoPage) contents_->drop_page(node, group, i);
    }
    if (group.is_windowed()) order_->windows(group).erase(node);
    events_->add_change(node, group, before);
  }
  drop_state(node);
  // Without the pages of full attention no lookup finds those of the windows.
  if (host_ != nullptr && !moves && tree_->shape.full_pages != 0) drop_host_pages(node);
  if (host_ != nullptr) order_->update_host(node, order_->next_stamp());
  settle_or_prune(node);
}

// Evicts the unreferenced device pages of the group. Returns false when there are none.
bool Eviction::evict_windows(NodeId node, const BlockGroup& group, CallStream stream) noexcept {
  if (tree_->nodes[node].locks != 0) return false;
  int32_t num_idle = 0, num_busy = 0;
  for (int32_t i = group.first_page; i < group.end_page(); ++i) {
    const PageId page = tree_->nodes.place(node, i).device;
    if (page != kNoPage) ++(allocator_->refs(page) == 0 ? num_idle : num_busy);
  }
  if (num_idle == 0) return false;
  // No lookup would find a part of the pages, so all move or none. Room is made first, because that
  // may take host pages of this node.
  const bool moves =
      num_busy == 0 && make_host_room(num_idle, order_->rank_of(node, order_->stamp() + 1));
  const Residence before = contents_->residence(node, group);
  if (moves) demote(node, group, stream);
  for (int32_t i = group.first_page; i < group.end_page(); ++i) {
    const PagePlace place = tree_->nodes.place(node, i);
    if (place.device != kNoPage && allocator_->refs(place.device) == 0)
      contents_->drop_page(node, group, i);
    if (place.host != kNoPage && !moves) contents_->drop_host_page(node, group, i);
  }
  if (num_busy == 0) order_->windows(group).erase(node);
  order_->update_host(node, order_->next_stamp());
  events_->add_change(node, group, before);
  settle_or_prune(node);
  return true;
}

bool Eviction::evict_state(NodeId node) noexcept {
  const Node& record = tree_->nodes[node];
  if (record.locks != 0 || states_->refs(record.state) != 0) return false;
  drop_state(node);
  settle_or_prune(node);
  return true;
}

void Eviction::drop_state(NodeId node) noexcept {
  if (tree_->nodes[node].state == kInitialState) return;
  contents_->drop_state(node);
  order_->states().erase(node);
  events_->add_removed_state(node);
}

// ---- Host -----------------------------------------------------------------------------------

void Eviction::demote(NodeId node, const BlockGroup& group, CallStream stream) noexcept {
  for (int32_t i = group.first_page; i < group.end_page(); ++i) {
    if (tree_->nodes.place(node, i).device == kNoPage) continue;
    contents_->demote(node, group, i, stream);
    ++metrics_->demoted;
  }
}

// Drops host pages of ranks below `rank` until the tier has so many. Returns whether it has them.
bool Eviction::make_host_room(int64_t pages, uint64_t rank) noexcept {
  if (host_ == nullptr) return false;
  EvictionHeap& heap = order_->host_blocks();
  while (host_->num_available() < pages && !heap.empty() && heap.top_rank() < rank) {
    const NodeId node = heap.top();
    if (tree_->nodes[node].locks != 0) {
      heap.park_top();
      continue;
    }
    drop_host_pages(node);
    heap.erase(node);
    settle_or_prune(node);
  }
  order_->unpark(&heap);
  return host_->num_available() >= pages;
}

void Eviction::drop_host_pages(NodeId node) noexcept {
  if (tree_->nodes[node].num_host == 0) return;
  for (const BlockGroup& group : tree_->shape.groups) {
    const Residence before = events_->before(node, group);
    for (int32_t i = group.first_page; i < group.end_page(); ++i) {
      if (tree_->nodes.place(node, i).host != kNoPage) contents_->drop_host_page(node, group, i);
    }
    events_->add_change(node, group, before);
  }
}

// ---- Nodes ----------------------------------------------------------------------------------

bool Eviction::is_prunable(const Node& record) const noexcept {
  return record.is_hollow() && record.first_child == kNoNode && record.locks == 0 &&
         record.pins == 0;
}

void Eviction::settle_or_prune(NodeId node) noexcept {
  if (is_prunable(tree_->nodes[node])) {
    prune(node, true);
  } else {
    order_->settle(node);
  }
}

// Removes the node and its ancestors while they have neither contents nor children.
void Eviction::prune(NodeId node, bool is_eviction) noexcept {
  while (node != kNoNode) {
    const Node& record = tree_->nodes[node];
    if (!is_prunable(record)) return;
    const uint64_t now = order_->stamp();
    if (is_eviction) metrics_->count_evicted(now - record.birth, now - record.stamp);
    const NodeId parent = record.parent;
    remove(node);
    node = parent;
  }
}

// Flattened: the calls of its small parts take a sixth of an eviction.
[[gnu::flatten]] void Eviction::remove(NodeId node) noexcept {
  const Node& record = tree_->nodes[node];
  const NodeId parent = record.parent;
  order_->remove_leaf(node);
  if (record.pins != 0) contents_->count_pinned_removed();
  tree_->unlink(node);
  if (parent != kNoNode) {
    tree_->nodes[parent].live_children -= record.is_live;
    order_->settle(parent);
  }
  tree_->nodes.release(node);
}

void Eviction::drop_contents(NodeId node) noexcept {
  for (const BlockGroup& group : tree_->shape.groups) {
    const Residence before = events_->before(node, group);
    for (int32_t i = group.first_page; i < group.end_page(); ++i) {
      const PagePlace place = tree_->nodes.place(node, i);
      if (place.device != kNoPage) contents_->drop_page(node, group, i);
      if (place.host != kNoPage) contents_->drop_host_page(node, group, i);
    }
    if (group.is_windowed()) order_->windows(group).erase(node);
    events_->add_change(node, group, before);
  }
  if (host_ != nullptr) order_->host_blocks().erase(node);
  drop_state(node);
}

// Removes the node and all that follow it, whatever they hold.
void Eviction::forget(NodeId top) noexcept {
  const NodeId parent = tree_->nodes[top].parent;
  for (NodeId node = top;;) {
    while (tree_->nodes[node].first_child != kNoNode) node = tree_->nodes[node].first_child;
    const NodeId next = tree_->nodes[node].parent;
    drop_contents(node);
    remove(node);
    if (node == top) break;
    node = next;
  }
  prune(parent, false);
}

void Eviction::forget_page(PageId page) noexcept {
  order_->read_clock();
  forget(contents_->owner(page));
}

// Forgets the subtree of a cached page that no order yields: somebody refers to another page of its
// block, or to a block that follows. Returns false when there is no such page.
bool Eviction::forget_unreachable(PageId* cursor) noexcept {
  for (PageId page = allocator_->first_indexed(*cursor); page != kNoPage;
       page = allocator_->first_indexed(page + 1)) {
    *cursor = page;
    const NodeId node = contents_->owner(page);
    if (allocator_->refs(page) != 0 || tree_->nodes[node].locks != 0) continue;
    forget(node);
    return true;
  }
  return false;
}

// ---- Quotas and fetches -----------------------------------------------------------------------

bool Eviction::make_quota_room(int32_t id, uint64_t bytes, CallStream stream) noexcept {
  const Namespace& space = tree_->spaces[id];
  if (bytes > space.max_bytes) return false;
  while (space.used_bytes + bytes > space.max_bytes && !space.leaves->empty()) {
    const NodeId node = space.leaves->top();
    if (contents_->is_busy(node)) {
      space.leaves->park_top();
    } else {
      evict_node(node, stream);
    }
  }
  order_->unpark(space.leaves.get());
  return space.used_bytes + bytes <= space.max_bytes;
}

uint64_t Eviction::bytes_in_use(int32_t space, NodeId locked) const {
  // Whole nodes leave, from the leaves up, so a busy node keeps all its ancestors.
  std::vector<uint8_t> stays(static_cast<size_t>(tree_->nodes.num_made()), 0);
  uint64_t bytes = 0;
  const auto keep = [&](NodeId node) {
    for (; node != kNoNode && stays[node] == 0; node = tree_->nodes[node].parent) {
      const Node& record = tree_->nodes[node];
      stays[node] = 1;
      bytes += static_cast<uint64_t>(record.num_device) * tree_->shape.page_bytes;
      if (record.state != kInitialState) bytes += tree_->shape.state_bytes;
    }
  };
  keep(locked);
  for (NodeId node = tree_->spaces[space].first_child; node != kNoNode;
       node = tree_->next_in_tree(node)) {
    if (contents_->is_busy(node)) keep(node);
  }
  return bytes;
}

int64_t Eviction::num_fetchable(NodeId deepest) const {
  int64_t pages = allocator_->num_available();
  for (NodeId node = deepest; node != kNoNode; node = tree_->nodes[node].parent) {
    for (int32_t i = 0; i < tree_->shape.pages_per_block; ++i) {
      const PageId page = tree_->nodes.place(node, i).device;
      if (page != kNoPage && allocator_->refs(page) == 0) --pages;
    }
    const StateSlot state = tree_->nodes[node].state;
    if (state != kInitialState && states_->refs(state) == 0) pages -= states_->slot_pages();
  }
  pages = std::max<int64_t>(0, pages);
  const uint64_t page_bytes = tree_->shape.page_bytes;
  if (deepest == kNoNode || page_bytes == 0 || !tree_->has_quota(tree_->nodes[deepest]))
    return pages;
  const int32_t space = tree_->nodes[deepest].name_space;
  const uint64_t most = tree_->spaces[space].max_bytes, in_use = bytes_in_use(space, deepest);
  if (in_use >= most) return 0;
  const uint64_t in_quota = std::min<uint64_t>((most - in_use) / page_bytes, INT32_MAX);
  return std::min(pages, static_cast<int64_t>(in_quota));
}

}  // namespace kvc
