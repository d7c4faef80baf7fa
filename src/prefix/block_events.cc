#include "src/prefix/block_events.h"

namespace kvc {
namespace {

using Residence = BlockContents::Residence;

constexpr int32_t kStateGroup = -1;

kvc_tier tier_of(Residence residence) {
  return residence == Residence::kHost ? KVC_TIER_HOST : KVC_TIER_DEVICE;
}

}  // namespace

Event BlockEvents::stored_event(NodeId node, int32_t group, kvc_tier tier) const noexcept {
  const Node& record = tree_->nodes[node];
  return {.type = KVC_EVENT_STORED,
          .tier = tier,
          .from_tier = tier,
          .group = group,
          .key = record.key,
          .parent = tree_->parent_key(record),
          .node = node,
          .node_birth = record.birth};
}

void BlockEvents::record(kvc_event_type type, kvc_tier tier, kvc_tier from, int32_t group,
                         NodeId node) noexcept {
  Event event;
  event.type = type;
  event.tier = tier;
  event.from_tier = from;
  event.group = group;
  if (node != kNoNode) event.key = tree_->nodes[node].key;
  log_.record(event);
}

void BlockEvents::record_change(NodeId node, const BlockGroup& group, Residence before) noexcept {
  const Residence after = contents_->residence(node, group);
  if (after == before) return;
  const auto id = static_cast<int32_t>(&group - tree_->shape.groups.data());
  if (before == Residence::kNowhere) {
    log_.record(stored_event(node, id, tier_of(after)));
  } else if (after == Residence::kNowhere) {
    record(KVC_EVENT_REMOVED, tier_of(before), tier_of(before), id, node);
  } else {
    record(KVC_EVENT_MOVED, tier_of(after), tier_of(before), id, node);
  }
}

void BlockEvents::add_stored_state(NodeId node) noexcept {
  if (is_used()) log_.record(stored_event(node, kStateGroup, KVC_TIER_DEVICE));
}

void BlockEvents::add_removed_state(NodeId node) noexcept {
  if (is_used()) record(KVC_EVENT_REMOVED, KVC_TIER_DEVICE, KVC_TIER_DEVICE, kStateGroup, node);
}

void BlockEvents::add_cleared() noexcept {
  if (is_used()) record(KVC_EVENT_CLEARED, KVC_TIER_DEVICE, KVC_TIER_DEVICE, 0, kNoNode);
}

std::vector<Event> BlockEvents::snapshot() const {
  std::vector<Event> events;
  const std::vector<BlockGroup>& groups = tree_->shape.groups;
  for (int32_t space = 0; space < tree_->spaces.num_made(); ++space) {
    if (!tree_->spaces[space].is_used) continue;
    for (NodeId node = tree_->spaces[space].first_child; node != kNoNode;
         node = tree_->next_in_tree(node)) {
      for (size_t group = 0; group < groups.size(); ++group) {
        const Residence residence = contents_->residence(node, groups[group]);
        if (residence == Residence::kNowhere) continue;
        events.push_back(stored_event(node, static_cast<int32_t>(group), tier_of(residence)));
      }
      if (tree_->nodes[node].state != kInitialState)
        events.push_back(stored_event(node, kStateGroup, KVC_TIER_DEVICE));
    }
  }
  return events;
}

}  // namespace kvc
