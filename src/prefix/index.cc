#include "src/prefix/index.h"

#include <algorithm>
#include <chrono>
#include <numeric>

namespace kvc {
namespace {

constexpr int64_t kNanosecondsPerTick = 100;

int64_t clock_ticks() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count() / kNanosecondsPerTick;
}

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

int32_t pages_per_block_of(const Spec& spec) {
  int32_t pages = 0;
  for (const GroupSpec& group : spec.groups) {
    if (!group.is_cross) pages += block_tokens_of(spec) / group.page_size;
  }
  return pages;
}

}  // namespace

PrefixIndex::PrefixIndex(const Plan& plan, PageAllocator* allocator, StatePool* states,
                         HostTier* host, int64_t event_capacity)
    : allocator_(allocator),
      states_(states),
      host_(host),
      block_tokens_(block_tokens_of(plan.spec())),
      pages_per_block_(pages_per_block_of(plan.spec())),
      has_states_(plan.spec().has_states()),
      page_bytes_(static_cast<uint64_t>(plan.layout().page_bytes)),
      state_bytes_(static_cast<uint64_t>(plan.layout().state_slot_bytes)),
      specs_(plan.spec().groups),
      nodes_(pages_per_block_, block_tokens_),
      start_(clock_ticks()),
      events_(event_capacity) {
  int32_t first_page = 0;
  for (const GroupSpec& spec : specs_) {
    Group group{&spec, first_page, spec.is_cross ? 0 : block_tokens_ / spec.page_size,
                spec.page_size, -1};
    if (spec.is_windowed() && !spec.is_cross) {
      group.piece = static_cast<int32_t>(pieces_.size());
      pieces_.push_back(std::make_unique<Order>());
    } else {
      full_pages_ += group.num_pages;
    }
    first_page += group.num_pages;
    groups_.push_back(group);
  }
  if (has_states_) pieces_.push_back(std::make_unique<Order>());
}

void PrefixIndex::read_clock() noexcept {
  stamp_ = std::max(stamp_, static_cast<uint64_t>(clock_ticks() - start_));
}

void PrefixIndex::reserve(int64_t num_blocks, bool with_tokens) {
  read_clock();
  if (page_nodes_.size() < static_cast<size_t>(allocator_->num_pages()))
    page_nodes_.resize(static_cast<size_t>(allocator_->num_pages()), kNoNode);
  spaces_.reserve(num_blocks);
  last_reserved_ = num_blocks;
  // At first for what the pool holds, so that moving a large index to a larger place is not a pause
  // later. Untouched memory costs nothing.
  const int64_t in_pool = allocator_->num_pages() / std::max(1, pages_per_block_);
  nodes_.reserve(
      nodes_.capacity() == 0 && num_blocks > 0 ? std::max(num_blocks, in_pool) : num_blocks,
      with_tokens);
  table_.reserve(nodes_.capacity());
  const auto nodes = static_cast<size_t>(nodes_.capacity());
  const auto make_room = [nodes](std::vector<int32_t>* positions, EvictionHeap* heap) {
    if (heap != nullptr && heap->capacity() < nodes) heap->reserve(nodes);
    if (positions->size() < nodes) positions->resize(nodes, -1);
  };
  make_room(&leaves_.positions, &leaves_.heap);
  for (const std::unique_ptr<Order>& piece : pieces_) make_room(&piece->positions, &piece->heap);
  make_room(&host_pages_.positions, &host_pages_.heap);
  make_room(&quota_positions_, nullptr);
  if (spaces_.num_quotas() == 0) return;
  for (int32_t id = 0; id < spaces_.num_made(); ++id) {
    Namespace& space = spaces_[id];
    const auto wanted = static_cast<size_t>(space.num_nodes + num_blocks);
    if (space.is_used && space.leaves != nullptr && space.leaves->capacity() < wanted)
      space.leaves->reserve(2 * wanted);
  }
}

// ------------------------------------------------------------------------------------------- what
// a node holds

PrefixIndex::Held PrefixIndex::held(NodeId node, const Group& group) const noexcept {
  Held held = group.num_pages == 0 ? Held::kNowhere : Held::kDevice;
  for (int32_t i = 0; i < group.num_pages; ++i) {
    const PagePlace place = nodes_.place(node, group.first_page + i);
    if (!place.is_present()) return Held::kNowhere;
    if (place.host != kNoPage) held = Held::kHost;
  }
  return held;
}

void PrefixIndex::add_page(NodeId node, int32_t index, bool sees_all, PageId page) noexcept {
  Node& record = nodes_[node];
  allocator_->mark_indexed(page);
  page_nodes_[static_cast<size_t>(page)] = node;
  nodes_.set_place(node, index, {page, kNoPage});
  ++record.num_device;
  record.full_device += sees_all;
  spaces_[record.name_space].used_bytes += page_bytes_;
  if (record.pins != 0) allocator_->add_ref(page);
}

void PrefixIndex::drop_page(NodeId node, int32_t index, bool sees_all) noexcept {
  Node& record = nodes_[node];
  const PageId page = nodes_.place(node, index).device;
  nodes_.set_place(node, index, {});
  page_nodes_[static_cast<size_t>(page)] = kNoNode;
  if (record.pins != 0) allocator_->drop_ref(page);
  allocator_->unmark_indexed(page);
  --record.num_device;
  record.full_device -= sees_all;
  spaces_[record.name_space].used_bytes -= page_bytes_;
  ++pages_left_;
}

void PrefixIndex::drop_host_page(NodeId node, int32_t index, bool sees_all) noexcept {
  host_->release(nodes_.place(node, index).host);
  nodes_.set_place(node, index, {});
  count_host_page(node, sees_all, -1);
}

void PrefixIndex::count_host_page(NodeId node, bool sees_all, int32_t by) noexcept {
  Node& record = nodes_[node];
  const bool before = record.num_host != 0;
  record.num_host += by;
  if (sees_all) record.full_host += by;
  num_host_pages_ += by;
  num_host_nodes_ += (record.num_host != 0) - before;
}

void PrefixIndex::add_state(NodeId node, StateSlot slot) noexcept {
  Node& record = nodes_[node];
  record.state = slot;
  states_->mark_indexed(slot);
  spaces_[record.name_space].used_bytes += state_bytes_;
  if (record.pins != 0) states_->add_ref(slot);
}

void PrefixIndex::drop_state(NodeId node) noexcept {
  Node& record = nodes_[node];
  if (record.state == kInitialState) return;
  if (record.pins != 0) states_->drop_ref(record.state);
  states_->unmark_indexed(record.state);
  record.state = kInitialState;
  spaces_[record.name_space].used_bytes -= state_bytes_;
  state_order()->erase(node);
  announce(KVC_EVENT_REMOVED, KVC_TIER_DEVICE, KVC_TIER_DEVICE, -1, node);
}

// ------------------------------------------------------------------------------------------- the
// order of eviction

void PrefixIndex::order_piece(NodeId node, const Group& group, uint64_t stamp) noexcept {
  EvictionHeap& heap = pieces_[static_cast<size_t>(group.piece)]->heap;
  for (int32_t i = 0; i < group.num_pages; ++i) {
    if (nodes_.place(node, group.first_page + i).device == kNoPage) continue;
    heap.set(node, rank_of(node, stamp));
    return;
  }
  heap.erase(node);
}

void PrefixIndex::order_host(NodeId node, uint64_t stamp) noexcept {
  if (nodes_[node].num_host != 0) {
    host_pages_.heap.set(node, rank_of(node, stamp));
  } else if (host_ != nullptr) {
    host_pages_.heap.erase(node);
  }
}

void PrefixIndex::renew_ranks(NodeId node) noexcept {
  const auto renew = [this, node](EvictionHeap* heap) {
    if (heap->contains(node)) heap->set(node, rank_of(node, stamp_of(heap->rank(node))));
  };
  for (const std::unique_ptr<Order>& piece : pieces_) renew(&piece->heap);
  renew(&host_pages_.heap);
}

bool PrefixIndex::raise_priority(NodeId node, int32_t priority) noexcept {
  if (priority <= nodes_[node].priority) return false;
  nodes_[node].priority = static_cast<uint8_t>(priority);
  renew_ranks(node);
  return true;
}

void PrefixIndex::settle(NodeId node, bool may_be_leaf) noexcept {
  for (;; may_be_leaf = true) {
    Node& record = nodes_[node];
    const bool is_childless = record.first_child == kNoNode;
    const bool is_leaf = may_be_leaf && record.live_children == 0 &&
                         (record.is_on_device() || (record.num_host == 0 && is_childless));
    EvictionHeap* own = spaces_[record.name_space].leaves.get();
    if (is_leaf) {
      leaves_.heap.set(node, rank_of(node, record.stamp));
      if (own != nullptr) own->set(node, rank_of(node, record.stamp));
    } else {
      leaves_.heap.erase(node);
      if (own != nullptr) own->erase(node);
    }
    const bool is_live = record.is_on_device() || record.live_children != 0;
    if (is_live == record.is_live) return;
    record.is_live = is_live;
    if (record.parent == kNoNode) return;
    nodes_[record.parent].live_children += is_live ? 1 : -1;
    if (!is_live) hand_up(record);
    node = record.parent;
  }
}

// Its last use was one of its parent.
void PrefixIndex::hand_up(const Node& leaving) noexcept {
  Node& parent = nodes_[leaving.parent];
  parent.stamp = std::max(parent.stamp, leaving.stamp);
  raise_priority(leaving.parent, leaving.priority);
}

// ------------------------------------------------------------------------------------------- use

void PrefixIndex::touch(NodeId node, bool hit, int32_t priority) noexcept {
  const uint64_t stamp = next_stamp();
  Node& record = nodes_[node];
  if (hit) metrics_.count_reuse(stamp - record.stamp);
  record.stamp = stamp;
  raise_priority(node, priority);
  settle(node);
  if (record.state != kInitialState) state_order()->set(node, rank_of(node, stamp));
  const int64_t end = int64_t{record.depth} * block_tokens_;
  for (const Group& group : groups_) {
    if (group.piece < 0) continue;
    EvictionHeap& heap = pieces_[static_cast<size_t>(group.piece)]->heap;
    const int64_t first_block = first_visible_key(*group.spec, end) / block_tokens_;
    for (NodeId seen = node; seen != kNoNode && nodes_[seen].depth > first_block;
         seen = nodes_[seen].parent) {
      if (raise_priority(seen, priority)) settle(seen);
      if (heap.contains(seen)) heap.set(seen, rank_of(seen, stamp));
    }
  }
  // Those before it later: they are no use without it, but it is none without them.
  for (NodeId seen = node; seen != kNoNode && nodes_[seen].num_host != 0;
       seen = nodes_[seen].parent)
    order_host(seen, next_stamp());
}

void PrefixIndex::add_locks(NodeId node, int32_t count) noexcept {
  for (NodeId seen = node; seen != kNoNode; seen = nodes_[seen].parent) nodes_[seen].locks += count;
}

void PrefixIndex::hold(NodeId node, bool add) noexcept {
  for (int32_t i = 0; i < pages_per_block_; ++i) {
    const PageId page = nodes_.place(node, i).device;
    if (page == kNoPage) continue;
    if (add) {
      allocator_->add_ref(page);
    } else {
      allocator_->drop_ref(page);
    }
  }
  if (add) {
    states_->add_ref(nodes_[node].state);
  } else {
    states_->drop_ref(nodes_[node].state);
  }
  num_pinned_ += add ? 1 : -1;
}

int64_t PrefixIndex::pin(NodeId node) noexcept {
  NodeId last = node;
  for (NodeId seen = node; seen != kNoNode; seen = nodes_[seen].parent) {
    const Node& record = nodes_[seen];
    if (record.num_host != 0 || record.full_device != full_pages_) last = record.parent;
  }
  for (NodeId seen = last; seen != kNoNode; seen = nodes_[seen].parent) {
    if (nodes_[seen].pins++ == 0) hold(seen, true);
  }
  return last == kNoNode ? 0 : nodes_[last].depth;
}

int64_t PrefixIndex::unpin(NodeId node) noexcept {
  // Every pin of a block that follows is a pin of this one too. The path is unpinned from the last
  // block that has one more.
  const auto is_needed = [this](NodeId seen) {
    int64_t of_children = 0;
    for (NodeId child = nodes_[seen].first_child; child != kNoNode; child = nodes_[child].next)
      of_children += nodes_[child].pins;
    return nodes_[seen].pins <= of_children;
  };
  NodeId last = node;
  while (last != kNoNode && is_needed(last)) last = nodes_[last].parent;
  const int64_t blocks = last == kNoNode ? 0 : nodes_[last].depth;
  for (NodeId seen = last; seen != kNoNode; seen = nodes_[seen].parent) {
    if (--nodes_[seen].pins == 0) hold(seen, false);
  }
  return blocks;
}

}  // namespace kvc
