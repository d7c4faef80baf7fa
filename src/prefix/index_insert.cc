// Publishing blocks, copies that come back from the host, quotas.
#include <algorithm>
#include <cstring>

#include "src/base/error.h"
#include "src/prefix/index.h"

namespace kvc {

bool PrefixIndex::is_new_page(PageId page) const noexcept {
  return page != kNoPage && static_cast<size_t>(page) < page_nodes_.size() &&
         !allocator_->is_indexed(page);
}

bool PrefixIndex::is_new_state(StateSlot state) const noexcept {
  return has_states_ && state != kInitialState && !states_->is_indexed(state);
}

// What fill() will add. `node` may be kNoNode: a new one.
uint64_t PrefixIndex::missing_bytes(NodeId node, const NewBlock& block) const noexcept {
  uint64_t bytes = 0;
  for (int32_t i = 0; i < pages_per_block_; ++i) {
    const bool has_it = node != kNoNode && nodes_.place(node, i).device != kNoPage;
    if (!has_it && is_new_page(block.pages[i])) bytes += page_bytes_;
  }
  const bool has_state = node != kNoNode && nodes_[node].state != kInitialState;
  if (!has_state && is_new_state(block.state)) bytes += state_bytes_;
  return bytes;
}

// Hollow, linked and found, in no order yet.
NodeId PrefixIndex::add_node(const NewBlock& block) noexcept {
  for (const Group& group : groups_) {
    if (group.piece >= 0) continue;
    for (int32_t i = 0; i < group.num_pages; ++i) {
      const PageId page = block.pages[group.first_page + i];
      if (page != kNoPage && !is_new_page(page)) return kNoNode;
    }
  }
  if (!nodes_.has_room()) return kNoNode;
  int32_t space =
      block.parent == kNoNode ? spaces_.find(*block.root) : nodes_[block.parent].name_space;
  if (space == -1) {
    if (!spaces_.has_room()) return kNoNode;
    space = spaces_.add(*block.root);
  }
  Namespace& name_space = spaces_[space];
  // Room that reserve() made, or not for this one.
  if (name_space.leaves != nullptr &&
      static_cast<size_t>(name_space.num_nodes) >= name_space.leaves->capacity())
    return kNoNode;
  const NodeId node = nodes_.take();
  Node& record = nodes_[node];
  record.key = *block.key;
  record.parent = block.parent;
  record.name_space = space;
  record.depth = block.parent == kNoNode ? 1 : nodes_[block.parent].depth + 1;
  record.birth = record.stamp = newest_birth_ = next_stamp();
  nodes_.link(node, children_of(record));
  table_.insert(record.key, node);
  ++name_space.num_nodes;
  return node;
}

bool PrefixIndex::fill(NodeId node, const NewBlock& block) noexcept {
  Node& record = nodes_[node];
  if (block.tokens != nullptr && !record.has_tokens) nodes_.set_tokens(node, block.tokens);
  bool is_filled = false;
  const bool announces = events_.is_used();
  for (const Group& group : groups_) {
    const bool sees_all = group.piece < 0;
    const Held before = announces ? held(node, group) : Held::kNowhere;
    bool has_more = false;
    for (int32_t i = group.first_page; i < group.first_page + group.num_pages; ++i) {
      const PagePlace place = nodes_.place(node, i);
      if (place.device != kNoPage || !is_new_page(block.pages[i])) continue;
      if (place.host != kNoPage) drop_host_page(node, i, sees_all);
      add_page(node, i, sees_all, block.pages[i]);
      has_more = true;
    }
    if (!has_more) continue;
    is_filled = true;
    if (!sees_all) order_piece(node, group, record.stamp);
    if (announces) announce_change(node, group, before);
  }
  if (record.state == kInitialState && is_new_state(block.state)) {
    add_state(node, block.state);
    state_order()->set(node, rank_of(node, record.stamp));
    announce(KVC_EVENT_STORED, KVC_TIER_DEVICE, KVC_TIER_DEVICE, -1, node);
    is_filled = true;
  }
  if (is_filled && host_ != nullptr && record.num_host == 0) host_pages_.heap.erase(node);
  return is_filled;
}

NodeId PrefixIndex::insert(const NewBlock& block) noexcept {
  newest_birth_ = 0;
  const int32_t space =
      block.parent == kNoNode ? spaces_.find(*block.root) : nodes_[block.parent].name_space;
  NodeId node = find_in(space, *block.key);
  const bool is_new = node == kNoNode;
  if (is_new) {
    node = add_node(block);
    if (node == kNoNode) return kNoNode;
  } else if (nodes_[node].parent != block.parent) {
    return kNoNode;  // the caller's keys are not those of one chain
  }
  Node& record = nodes_[node];
  bool fits = true;
  if (has_quota(record)) {
    const uint64_t bytes = missing_bytes(node, block);
    // Neither the block nor the one before it makes room for it.
    ++record.locks;
    if (block.parent != kNoNode) ++nodes_[block.parent].locks;
    fits = bytes == 0 || make_quota_room(record.name_space, bytes);
    --record.locks;
    if (block.parent != kNoNode) --nodes_[block.parent].locks;
  }
  record.stamp = next_stamp();  // kept out or not, those before it are in use
  if (!fits && is_new) {
    ++metrics_.rejected;
    remove(node);
    return kNoNode;
  }
  const auto priority = static_cast<uint8_t>(std::clamp(block.priority, 0, kMaxPriority));
  raise_priority(node, priority);
  const bool is_filled = fits && fill(node, block);
  // A new block that another follows is no leaf for long; where what follows lies on no device it
  // is one after all.
  settle(node, !block.is_followed || !is_new);
  if (!nodes_[node].is_live && block.parent != kNoNode) settle(block.parent);
  // It has a child now
  if (is_new && !record.is_live && record.parent != kNoNode) settle(record.parent);
  metrics_.stored += is_new;
  if (!is_new && !is_filled) {
    bool takes_over = block.state != kInitialState && record.state != block.state;
    for (int32_t i = 0; i < pages_per_block_; ++i)
      takes_over |= block.pages[i] != kNoPage && nodes_.place(node, i).device != block.pages[i];
    metrics_.duplicates += takes_over;
  }
  return node;
}

void PrefixIndex::promoted(NodeId node, int32_t index, PageId device_page) noexcept {
  Node& record = nodes_[node];
  if (!is_new_page(device_page)) return;
  if (has_quota(record)) {
    ++record.locks;
    const bool fits = make_quota_room(record.name_space, page_bytes_);
    --record.locks;
    if (!fits) return;
  }
  for (const Group& group : groups_) {
    if (index < group.first_page || index >= group.first_page + group.num_pages) continue;
    const bool sees_all = group.piece < 0;
    const Held before = held(node, group);
    drop_host_page(node, index, sees_all);
    add_page(node, index, sees_all, device_page);
    if (!sees_all) order_piece(node, group, record.stamp);
    announce_change(node, group, before);
  }
  ++metrics_.promoted;
  if (record.num_host == 0) host_pages_.heap.erase(node);
  settle(node);
}

// ----------------------------------------------------------------------------------------------
// quotas

bool PrefixIndex::make_quota_room(int32_t name_space, uint64_t bytes) noexcept {
  const Namespace& space = spaces_[name_space];
  if (bytes > space.max_bytes) return false;
  while (space.used_bytes + bytes > space.max_bytes && !space.leaves->empty()) {
    const NodeId node = space.leaves->top();
    if (is_busy(node)) {
      space.leaves->park_top();
    } else {
      evict_node(node);
    }
  }
  unpark(space.leaves.get());
  return space.used_bytes + bytes <= space.max_bytes;
}

void PrefixIndex::set_quota(const BlockKey& root, uint64_t max_bytes) {
  int32_t id = spaces_.find(root);
  if (id == -1 && max_bytes == 0) return;
  const bool is_first = id == -1 || spaces_[id].max_bytes == 0;
  if (max_bytes != 0 && is_first && spaces_.num_quotas() >= kMaxQuotas) {
    fail_with(KVC_E_OUT_OF_RANGE, spaces_.num_quotas(),
              "salt: there are quotas of %lld namespaces, at most %lld",
              static_cast<long long>(spaces_.num_quotas()), static_cast<long long>(kMaxQuotas));
  }
  std::unique_ptr<EvictionHeap> leaves;
  if (max_bytes != 0 && is_first) {
    leaves = std::make_unique<EvictionHeap>(&quota_positions_);
    if (id != -1) leaves->reserve(static_cast<size_t>(spaces_[id].num_nodes));
    if (id == -1) {
      spaces_.reserve(last_reserved_ + 1);  // beside what an open forward counts on
      id = spaces_.add(root);
    }
  } else if (max_bytes == 0) {
    if (spaces_[id].leaves != nullptr) spaces_[id].leaves->clear();
  } else {
    leaves = std::move(spaces_[id].leaves);
  }
  // Nothing throws from here on.
  spaces_.set_quota(id, max_bytes, std::move(leaves));
  for (NodeId node = spaces_[id].first_child; is_first != (max_bytes == 0) && node != kNoNode;
       node = next_in_tree(node)) {
    renew_ranks(node);
    settle(node);
  }
  if (max_bytes == 0) {
    spaces_.drop_if_empty(id);
    return;
  }
  read_clock();
  make_quota_room(id, 0);
}

}  // namespace kvc
