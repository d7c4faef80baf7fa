#include "src/prefix/block_contents.h"

#include <algorithm>

namespace kvc {

void BlockContents::reserve() {
  const auto pages = static_cast<size_t>(allocator_->num_pages());
  if (owners_.size() < pages) owners_.resize(pages, kNoNode);
}

BlockContents::Residence BlockContents::residence(NodeId node,
                                                  const BlockGroup& group) const noexcept {
  const int32_t num_pages = group.pages_of(tree_->nodes[node].depth - 1);
  Residence residence = num_pages == 0 ? Residence::kNowhere : Residence::kDevice;
  for (int32_t i = group.first_page; i < group.first_page + num_pages; ++i) {
    const PagePlace place = tree_->nodes.place(node, i);
    if (!place.is_present()) return Residence::kNowhere;
    if (place.host != kNoPage) residence = Residence::kHost;
  }
  return residence;
}

bool BlockContents::is_busy(NodeId node) const noexcept {
  const Node& record = tree_->nodes[node];
  if (record.locks != 0 || record.pins != 0) return true;
  if (record.state != kInitialState && states_->refs(record.state) != 0) return true;
  for (int32_t i = 0; i < tree_->shape.pages_per_block; ++i) {
    const PageId page = tree_->nodes.place(node, i).device;
    if (page != kNoPage && allocator_->refs(page) != 0) return true;
  }
  return false;
}

void BlockContents::add_page(NodeId node, const BlockGroup& group, int32_t index,
                             PageId page) noexcept {
  Node& record = tree_->nodes[node];
  allocator_->mark_indexed(page);
  owners_[page] = node;
  tree_->nodes.set_place(node, index, {page, kNoPage});
  ++record.num_device;
  record.full_device += !group.is_windowed();
  tree_->spaces[record.name_space].used_bytes += tree_->shape.page_bytes;
  if (record.pins != 0) allocator_->add_ref(page);
}

void BlockContents::move_page(PageId from, PageId to) noexcept {
  if (!allocator_->is_indexed(from)) return;
  const NodeId node = owners_[from];
  owners_[to] = node;
  for (int32_t i = 0; i < tree_->shape.pages_per_block; ++i) {
    if (tree_->nodes.place(node, i).device == from) tree_->nodes.set_place(node, i, {to, kNoPage});
  }
}

void BlockContents::drop_page(NodeId node, const BlockGroup& group, int32_t index) noexcept {
  Node& record = tree_->nodes[node];
  const PageId page = tree_->nodes.place(node, index).device;
  tree_->nodes.set_place(node, index, {});
  owners_[page] = kNoNode;
  if (record.pins != 0) allocator_->drop_ref(page);
  allocator_->unmark_indexed(page);
  --record.num_device;
  record.full_device -= !group.is_windowed();
  tree_->spaces[record.name_space].used_bytes -= tree_->shape.page_bytes;
  ++num_left_;
}

void BlockContents::drop_host_page(NodeId node, const BlockGroup& group, int32_t index) noexcept {
  host_->release(tree_->nodes.place(node, index).host);
  tree_->nodes.set_place(node, index, {});
  count_host_page(node, group, -1);
}

void BlockContents::demote(NodeId node, const BlockGroup& group, int32_t index,
                           CallStream stream) noexcept {
  const PageId host_page = host_->demote(tree_->nodes.place(node, index).device, stream);
  drop_page(node, group, index);
  tree_->nodes.set_place(node, index, {kNoPage, host_page});
  count_host_page(node, group, 1);
}

void BlockContents::count_host_page(NodeId node, const BlockGroup& group, int32_t by) noexcept {
  Node& record = tree_->nodes[node];
  const bool before = record.num_host != 0;
  record.num_host += by;
  if (!group.is_windowed()) record.full_host += by;
  num_host_pages_ += by;
  num_host_nodes_ += (record.num_host != 0) - before;
}

void BlockContents::add_state(NodeId node, StateSlot slot) noexcept {
  Node& record = tree_->nodes[node];
  record.state = slot;
  states_->mark_indexed(slot);
  tree_->spaces[record.name_space].used_bytes += tree_->shape.state_bytes;
  if (record.pins != 0) states_->add_ref(slot);
}

void BlockContents::drop_state(NodeId node) noexcept {
  Node& record = tree_->nodes[node];
  if (record.pins != 0) states_->drop_ref(record.state);
  states_->unmark_indexed(record.state);
  record.state = kInitialState;
  tree_->spaces[record.name_space].used_bytes -= tree_->shape.state_bytes;
}

void BlockContents::add_refs(NodeId node) noexcept {
  for (int32_t i = 0; i < tree_->shape.pages_per_block; ++i) {
    const PageId page = tree_->nodes.place(node, i).device;
    if (page != kNoPage) allocator_->add_ref(page);
  }
  states_->add_ref(tree_->nodes[node].state);
  ++num_pinned_;
}

void BlockContents::drop_refs(NodeId node) noexcept {
  for (int32_t i = 0; i < tree_->shape.pages_per_block; ++i) {
    const PageId page = tree_->nodes.place(node, i).device;
    if (page != kNoPage) allocator_->drop_ref(page);
  }
  states_->drop_ref(tree_->nodes[node].state);
  --num_pinned_;
}

void BlockContents::clear() noexcept {
  for (NodeId node = 0; node < tree_->nodes.num_made(); ++node) {
    Node& record = tree_->nodes[node];
    if (!record.is_used) continue;
    if (record.pins != 0) drop_refs(node);
    record.pins = 0;
    for (int32_t i = 0; i < tree_->shape.pages_per_block; ++i) {
      const PagePlace place = tree_->nodes.place(node, i);
      if (place.device != kNoPage) allocator_->unmark_indexed(place.device);
      if (place.host != kNoPage) host_->release(place.host);
    }
    if (record.state != kInitialState) states_->unmark_indexed(record.state);
  }
  std::fill(owners_.begin(), owners_.end(), kNoNode);
  num_host_pages_ = num_host_nodes_ = num_pinned_ = 0;
}

}  // namespace kvc
