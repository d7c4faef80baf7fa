#include "src/prefix/eviction_order.h"

#include <algorithm>
#include <chrono>

#include "src/base/memory.h"

namespace kvc {
namespace {

constexpr int64_t kNanosecondsPerTick = 100;

int64_t clock_ticks() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count() / kNanosecondsPerTick;
}

}  // namespace

EvictionOrder::EvictionOrder(BlockTree* tree) : tree_(tree), start_(clock_ticks()) {
  for (int32_t window = 0; window < tree->shape.num_windows; ++window)
    windows_.push_back(std::make_unique<Order>());
}

template <typename Visit>
void EvictionOrder::for_each_order(Visit&& visit) {
  visit(leaves_);
  for (const std::unique_ptr<Order>& windows : windows_) visit(*windows);
  if (tree_->shape.has_states) visit(states_);
  visit(host_blocks_);
}

void EvictionOrder::read_clock() noexcept {
  stamp_ = std::max(stamp_, static_cast<uint64_t>(clock_ticks() - start_));
}

void EvictionOrder::reserve(int64_t num_blocks) {
  const auto nodes = static_cast<size_t>(tree_->nodes.capacity());
  const auto grow = [nodes](std::vector<int32_t>& positions) {
    if (positions.size() < nodes) positions.resize(nodes, -1);
  };
  for_each_order([&](Order& order) {
    if (order.heap.capacity() < nodes) order.heap.reserve(nodes);
    grow(order.positions);
  });
  grow(quota_positions_);
  if (tree_->spaces.num_quotas() == 0) return;
  for (int32_t id = 0; id < tree_->spaces.num_made(); ++id) {
    const Namespace& space = tree_->spaces[id];
    const auto wanted = static_cast<size_t>(space.num_nodes + num_blocks);
    if (space.is_used && space.leaves != nullptr && space.leaves->capacity() < wanted) {
      const int64_t before = space.leaves->host_bytes();
      space.leaves->reserve(2 * wanted);
      quota_heap_bytes_ += space.leaves->host_bytes() - before;
    }
  }
}

void EvictionOrder::count_quota_heaps() noexcept {
  quota_heap_bytes_ = 0;
  for (int32_t id = 0; id < tree_->spaces.num_made(); ++id) {
    const Namespace& space = tree_->spaces[id];
    if (space.leaves == nullptr) continue;
    quota_heap_bytes_ += static_cast<int64_t>(sizeof(EvictionHeap)) + space.leaves->host_bytes();
  }
}

int64_t EvictionOrder::host_bytes() const {
  int64_t bytes = leaves_.host_bytes() + states_.host_bytes() + host_blocks_.host_bytes() +
                  kvc::host_bytes(windows_) + kvc::host_bytes(quota_positions_) + quota_heap_bytes_;
  for (const std::unique_ptr<Order>& order : windows_)
    bytes += static_cast<int64_t>(sizeof(Order)) + order->host_bytes();
  return bytes;
}

void EvictionOrder::settle(NodeId node, bool may_be_leaf) noexcept {
  for (;; may_be_leaf = true) {
    Node& record = tree_->nodes[node];
    const bool is_childless = record.first_child == kNoNode;
    const bool is_leaf = may_be_leaf && record.live_children == 0 &&
                         (record.is_on_device() || (record.num_host == 0 && is_childless));
    EvictionHeap* own = tree_->spaces[record.name_space].leaves.get();
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
    tree_->nodes[record.parent].live_children += is_live ? 1 : -1;
    if (!is_live) hand_up(record);
    node = record.parent;
  }
}

void EvictionOrder::hand_up(const Node& leaving) noexcept {
  Node& parent = tree_->nodes[leaving.parent];
  parent.stamp = std::max(parent.stamp, leaving.stamp);
  raise_priority(leaving.parent, leaving.priority);
}

void EvictionOrder::update_windows(NodeId node, const BlockGroup& group, uint64_t stamp) noexcept {
  for (int32_t i = group.first_page; i < group.end_page(); ++i) {
    if (tree_->nodes.place(node, i).device == kNoPage) continue;
    windows(group).set(node, rank_of(node, stamp));
    return;
  }
  windows(group).erase(node);
}

void EvictionOrder::update_host(NodeId node, uint64_t stamp) noexcept {
  if (tree_->nodes[node].num_host != 0) {
    host_blocks_.heap.set(node, rank_of(node, stamp));
  } else {
    host_blocks_.heap.erase(node);
  }
}

void EvictionOrder::renew_ranks(NodeId node) noexcept {
  const auto renew = [this, node](EvictionHeap& heap) {
    if (heap.contains(node)) heap.set(node, rank_of(node, stamp_of(heap.rank(node))));
  };
  for (const std::unique_ptr<Order>& windows : windows_) renew(windows->heap);
  if (tree_->shape.has_states) renew(states_.heap);
  renew(host_blocks_.heap);
}

bool EvictionOrder::raise_priority(NodeId node, int32_t priority) noexcept {
  if (priority <= tree_->nodes[node].priority) return false;
  tree_->nodes[node].priority = static_cast<uint8_t>(priority);
  renew_ranks(node);
  return true;
}

void EvictionOrder::remove_leaf(NodeId node) noexcept {
  const Node& record = tree_->nodes[node];
  if (record.parent != kNoNode) {
    const Node& parent = tree_->nodes[record.parent];
    const bool uncovers = parent.live_children == (record.is_live ? 1 : 0) &&
                          parent.is_on_device() && leaves_.heap.contains(node) &&
                          !leaves_.heap.contains(record.parent);
    hand_up(record);
    if (uncovers) leaves_.heap.replace(node, record.parent, rank_of(record.parent, parent.stamp));
  }
  leaves_.heap.erase(node);
  EvictionHeap* own = tree_->spaces[record.name_space].leaves.get();
  if (own != nullptr) own->erase(node);
}

void EvictionOrder::unpark(EvictionHeap* heap) noexcept {
  if (heap->num_parked() != 0) heap->sort_parked();
  while (heap->num_parked() != 0) {
    const NodeId node = heap->next_parked();
    const uint64_t stamp = next_stamp();
    const uint64_t rank = rank_of(node, stamp);
    heap->unpark(rank);
    EvictionHeap* own = tree_->spaces[tree_->nodes[node].name_space].leaves.get();
    const bool is_own = heap == own;
    if (!is_own && heap != &leaves_.heap) continue;
    tree_->nodes[node].stamp = stamp;
    if (is_own) {
      leaves_.heap.set(node, rank);
    } else if (own != nullptr) {
      own->set(node, rank);
    }
  }
}

void EvictionOrder::unpark() noexcept {
  unpark(&leaves_.heap);
  for (const std::unique_ptr<Order>& windows : windows_) unpark(&windows->heap);
  unpark(&states_.heap);
}

void EvictionOrder::clear() noexcept {
  for_each_order([](Order& order) { order.heap.clear(); });
  for (int32_t id = 0; id < tree_->spaces.num_made(); ++id) {
    const Namespace& space = tree_->spaces[id];
    if (space.is_used && space.leaves != nullptr) space.leaves->clear();
  }
}

bool EvictionOrder::is_sound() const {
  bool is_sound =
      leaves_.heap.is_sound() && states_.heap.is_sound() && host_blocks_.heap.is_sound();
  for (const std::unique_ptr<Order>& windows : windows_)
    is_sound = is_sound && windows->heap.is_sound();
  return is_sound;
}

}  // namespace kvc
