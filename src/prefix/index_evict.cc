// What leaves the index, in which order.
#include <algorithm>

#include "src/prefix/index.h"

namespace kvc {

bool PrefixIndex::is_busy(NodeId node) const noexcept {
  const Node& record = nodes_[node];
  if (record.locks != 0 || record.pins != 0) return true;
  if (record.state != kInitialState && states_->refs(record.state) != 0) return true;
  for (int32_t i = 0; i < pages_per_block_; ++i) {
    const PageId page = nodes_.place(node, i).device;
    if (page != kNoPage && !allocator_->is_unreferenced(page)) return true;
  }
  return false;
}

void PrefixIndex::evict_for(int64_t pages) noexcept {
  read_clock();
  PageId cursor = 0;
  while (allocator_->num_free() < pages && allocator_->num_cached() > 0) {
    if (!evict_one() && !forget_unreachable(&cursor)) break;
  }
  unpark_all();
}

int64_t PrefixIndex::evict(int64_t pages) noexcept {
  read_clock();
  const uint64_t before = pages_left_;
  PageId cursor = 0;
  while (static_cast<int64_t>(pages_left_ - before) < pages && allocator_->num_cached() > 0) {
    if (!evict_one() && !forget_unreachable(&cursor)) break;
  }
  unpark_all();
  return static_cast<int64_t>(pages_left_ - before);
}

void PrefixIndex::evict_states_for(int64_t slots) noexcept {
  if (!has_states_) return;
  read_clock();
  EvictionHeap* heap = state_order();
  while (states_->to_evict(slots) > 0 && !heap->empty()) {
    if (!evict_state(heap->top())) heap->park_top();
  }
  unpark(heap);
}

// The first of all orders that pages leave by: one leaf, or one (node, group).
bool PrefixIndex::evict_one() noexcept {
  for (;;) {
    EvictionHeap* first = leaves_.heap.empty() ? nullptr : &leaves_.heap;
    const Group* group = nullptr;  // null: a leaf, which goes first among equals
    for (const Group& candidate : groups_) {
      if (candidate.piece < 0) continue;
      EvictionHeap* heap = &pieces_[static_cast<size_t>(candidate.piece)]->heap;
      if (heap->empty() || (first != nullptr && first->top_rank() <= heap->top_rank())) continue;
      first = heap;
      group = &candidate;
    }
    // States count only where pages are withheld for them.
    EvictionHeap* states = has_states_ && states_->slot_pages() != 0 ? state_order() : nullptr;
    const bool is_state = states != nullptr && !states->empty() &&
                          (first == nullptr || states->top_rank() < first->top_rank());
    if (is_state) first = states;
    if (first == nullptr) return false;
    const NodeId node = first->top();
    if (is_state) {
      if (evict_state(node)) return true;
    } else if (group != nullptr) {
      if (evict_piece(node, *group)) return true;
    } else if (!is_busy(node)) {
      evict_node(node);
      return true;
    }
    first->park_top();
  }
}

void PrefixIndex::evict_node(NodeId node) noexcept {
  bool moves = host_ != nullptr && nodes_[node].num_device != 0 &&
               make_host_room(nodes_[node].num_device, rank_of(node, stamp_ + 1));
  const bool announces = events_.is_used();
  for (const Group& group : groups_) {
    const Held before = announces ? held(node, group) : Held::kNowhere;
    if (moves) moves = demote(node, group);
    for (int32_t i = group.first_page; i < group.first_page + group.num_pages; ++i) {
      if (nodes_.place(node, i).device != kNoPage) drop_page(node, i, group.piece < 0);
    }
    if (group.piece >= 0) pieces_[static_cast<size_t>(group.piece)]->heap.erase(node);
    if (announces) announce_change(node, group, before);
  }
  if (has_states_) drop_state(node);
  // Without the pages that see all tokens those of the windows are found by nobody.
  if (host_ != nullptr && !moves && full_pages_ != 0) drop_host_pages(node);
  if (host_ != nullptr) order_host(node, next_stamp());
  settle_or_prune(node);
}

// Those of its pages that nobody holds. False: all are held.
bool PrefixIndex::evict_piece(NodeId node, const Group& group) noexcept {
  if (nodes_[node].locks != 0) return false;
  int32_t num_idle = 0, num_busy = 0;
  for (int32_t i = group.first_page; i < group.first_page + group.num_pages; ++i) {
    const PageId page = nodes_.place(node, i).device;
    if (page != kNoPage) ++(allocator_->is_unreferenced(page) ? num_idle : num_busy);
  }
  if (num_idle == 0) return false;
  // A part of them would be found by nobody. Room first: that may take the node's own pages on the
  // host.
  bool moves = num_busy == 0 && make_host_room(num_idle, rank_of(node, stamp_ + 1));
  const Held before = held(node, group);
  moves = moves && demote(node, group);
  for (int32_t i = group.first_page; i < group.first_page + group.num_pages; ++i) {
    const PagePlace place = nodes_.place(node, i);
    if (place.device != kNoPage && allocator_->is_unreferenced(place.device))
      drop_page(node, i, false);
    if (place.host != kNoPage && !moves) drop_host_page(node, i, false);
  }
  if (num_busy == 0) pieces_[static_cast<size_t>(group.piece)]->heap.erase(node);
  order_host(node, next_stamp());
  announce_change(node, group, before);
  settle_or_prune(node);
  return true;
}

bool PrefixIndex::evict_state(NodeId node) noexcept {
  const Node& record = nodes_[node];
  if (record.locks != 0 || states_->refs(record.state) != 0) return false;
  drop_state(node);
  settle_or_prune(node);
  return true;
}

// ------------------------------------------------------------------------------------------- the
// host

// False when the host had no room in the end; some pages may have moved then.
bool PrefixIndex::demote(NodeId node, const Group& group) noexcept {
  const bool sees_all = group.piece < 0;
  for (int32_t i = group.first_page; i < group.first_page + group.num_pages; ++i) {
    const PageId page = nodes_.place(node, i).device;
    if (page == kNoPage) continue;
    const PageId host_page = host_->demote(page);
    if (host_page == kNoPage) return false;
    drop_page(node, i, sees_all);
    nodes_.set_place(node, i, {kNoPage, host_page});
    count_host_page(node, sees_all, 1);
    ++metrics_.demoted;
  }
  return true;
}

// Frees what goes before `rank`. True when the tier has so many free pages.
bool PrefixIndex::make_host_room(int64_t pages, uint64_t rank) noexcept {
  if (host_ == nullptr) return false;
  EvictionHeap& heap = host_pages_.heap;
  while (host_->num_available() < pages && !heap.empty() && heap.top_rank() < rank) {
    const NodeId node = heap.top();
    if (nodes_[node].locks != 0) {
      heap.park_top();
      continue;
    }
    drop_host_pages(node);
    heap.erase(node);
    settle_or_prune(node);
  }
  unpark(&heap);
  return host_->num_available() >= pages;
}

void PrefixIndex::drop_host_pages(NodeId node) noexcept {
  if (nodes_[node].num_host == 0) return;
  for (const Group& group : groups_) {
    const Held before = held(node, group);
    for (int32_t i = group.first_page; i < group.first_page + group.num_pages; ++i) {
      if (nodes_.place(node, i).host != kNoPage) drop_host_page(node, i, group.piece < 0);
    }
    announce_change(node, group, before);
  }
}

// ----------------------------------------------------------------------------------------------
// leaving the tree

void PrefixIndex::settle_or_prune(NodeId node) noexcept {
  const Node& record = nodes_[node];
  if (record.is_hollow() && record.first_child == kNoNode && record.locks == 0 &&
      record.pins == 0) {
    prune(node, true);
  } else {
    settle(node);
  }
}

// Removes nodes that hold nothing and that nothing follows, from `node` up.
void PrefixIndex::prune(NodeId node, bool is_eviction) noexcept {
  while (node != kNoNode) {
    const Node& record = nodes_[node];
    if (!record.is_hollow() || record.first_child != kNoNode || record.locks != 0 ||
        record.pins != 0)
      return;
    if (is_eviction) metrics_.count_evicted(stamp_ - record.birth, stamp_ - record.stamp);
    const NodeId before = record.parent;
    remove(node);
    node = before;
  }
}

// It holds nothing, and nothing follows.
void PrefixIndex::remove(NodeId node) noexcept {
  const Node& record = nodes_[node];
  const NodeId before = record.parent;
  const int32_t space = record.name_space;
  const bool uncovers = before != kNoNode &&
                        nodes_[before].live_children == (record.is_live ? 1 : 0) &&
                        nodes_[before].is_on_device() && leaves_.heap.contains(node) &&
                        !leaves_.heap.contains(before);
  if (uncovers) {
    hand_up(record);
    leaves_.heap.replace(node, before, rank_of(before, nodes_[before].stamp));
  }
  leaves_.heap.erase(node);
  if (spaces_[space].leaves != nullptr) spaces_[space].leaves->erase(node);
  if (record.pins != 0) --num_pinned_;
  table_.erase(record.key, node);
  nodes_.unlink(node, children_of(record));
  --spaces_[space].num_nodes;
  if (before == kNoNode) {
    spaces_.drop_if_empty(space);
  } else {
    nodes_[before].live_children -= record.is_live;
    if (!uncovers) hand_up(record);
    settle(before);
  }
  nodes_.release(node);
}

void PrefixIndex::drop_content(NodeId node) noexcept {
  for (const Group& group : groups_) {
    const Held before = held(node, group);
    for (int32_t i = group.first_page; i < group.first_page + group.num_pages; ++i) {
      const PagePlace place = nodes_.place(node, i);
      if (place.device != kNoPage) drop_page(node, i, group.piece < 0);
      if (place.host != kNoPage) drop_host_page(node, i, group.piece < 0);
    }
    if (group.piece >= 0) pieces_[static_cast<size_t>(group.piece)]->heap.erase(node);
    announce_change(node, group, before);
  }
  if (host_ != nullptr) host_pages_.heap.erase(node);
  drop_state(node);
}

// With all that follows.
void PrefixIndex::forget(NodeId top) noexcept {
  const NodeId before = nodes_[top].parent;
  for (NodeId node = top;;) {
    while (nodes_[node].first_child != kNoNode) node = nodes_[node].first_child;
    const NodeId next = nodes_[node].parent;
    drop_content(node);
    remove(node);
    if (node == top) break;
    node = next;
  }
  prune(before, false);
}

void PrefixIndex::forget_page(PageId page) noexcept {
  read_clock();
  forget(page_nodes_[static_cast<size_t>(page)]);
}

// Evictable pages that no order reaches: others hold a part of their block, or what follows it.
bool PrefixIndex::forget_unreachable(PageId* cursor) noexcept {
  for (PageId page = allocator_->first_indexed(*cursor); page != kNoPage;
       page = allocator_->first_indexed(page + 1)) {
    *cursor = page;
    const NodeId node = page_nodes_[static_cast<size_t>(page)];
    if (!allocator_->is_unreferenced(page) || nodes_[node].locks != 0) continue;
    forget(node);
    return true;
  }
  return false;
}

void PrefixIndex::unpark_all() noexcept {
  unpark(&leaves_.heap);
  for (const std::unique_ptr<Order>& piece : pieces_) unpark(&piece->heap);
}

// What was found to be in use counts as used now; the order among those stays.
void PrefixIndex::unpark(EvictionHeap* heap) noexcept {
  if (heap->num_parked() != 0) heap->sort_parked();
  while (heap->num_parked() != 0) {
    const NodeId node = heap->next_parked();
    const uint64_t stamp = next_stamp();
    const uint64_t rank = rank_of(node, stamp);
    heap->unpark(rank);
    EvictionHeap* own = spaces_[nodes_[node].name_space].leaves.get();
    const bool is_own = heap == own;
    if (!is_own && heap != &leaves_.heap) continue;
    nodes_[node].stamp = stamp;
    if (is_own) {
      leaves_.heap.set(node, rank);
    } else if (own != nullptr) {
      own->set(node, rank);
    }
  }
}

void PrefixIndex::reset() noexcept {
  for (NodeId node = 0; node < nodes_.num_made(); ++node) {
    if (!nodes_[node].is_used) continue;
    if (nodes_[node].pins != 0) hold(node, false);
    nodes_[node].pins = 0;
    for (int32_t i = 0; i < pages_per_block_; ++i) {
      const PagePlace place = nodes_.place(node, i);
      if (place.device != kNoPage) allocator_->unmark_indexed(place.device);
      if (place.host != kNoPage) host_->release(place.host);
    }
    if (nodes_[node].state != kInitialState) states_->unmark_indexed(nodes_[node].state);
  }
  leaves_.heap.clear();
  for (const std::unique_ptr<Order>& piece : pieces_) piece->heap.clear();
  host_pages_.heap.clear();
  for (int32_t id = 0; id < spaces_.num_made(); ++id) {
    Namespace& space = spaces_[id];
    if (!space.is_used) continue;
    if (space.leaves != nullptr) space.leaves->clear();
    space.first_child = kNoNode;
    space.num_nodes = 0;
    space.used_bytes = 0;
    spaces_.drop_if_empty(id);
  }
  nodes_.clear();
  table_.clear();
  std::fill(page_nodes_.begin(), page_nodes_.end(), kNoNode);
  num_host_pages_ = num_host_nodes_ = num_pinned_ = 0;
  read_clock();
  announce(KVC_EVENT_CLEARED, KVC_TIER_DEVICE, KVC_TIER_DEVICE, 0, kNoNode);
}

}  // namespace kvc
