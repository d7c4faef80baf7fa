// What routers and metrics are told.
#include "src/prefix/index.h"

namespace kvc {

const BlockKey& PrefixIndex::parent_key(const Node& node) const noexcept {
  return node.parent == kNoNode ? spaces_[node.name_space].root : nodes_[node.parent].key;
}

Event PrefixIndex::stored_event(NodeId node, int32_t group, kvc_tier tier) const noexcept {
  const Node& record = nodes_[node];
  return {.type = KVC_EVENT_STORED,
          .tier = tier,
          .from_tier = tier,
          .group = group,
          .key = record.key,
          .parent = parent_key(record),
          .node = node,
          .node_birth = record.birth};
}

void PrefixIndex::announce(kvc_event_type type, kvc_tier tier, kvc_tier from, int32_t group,
                           NodeId node) noexcept {
  if (!events_.is_used()) return;
  if (type == KVC_EVENT_STORED) {
    events_.record(stored_event(node, group, tier));
    return;
  }
  Event event;
  event.type = type;
  event.tier = tier;
  event.from_tier = from;
  event.group = group;
  if (node != kNoNode) event.key = nodes_[node].key;
  events_.record(event);
}

void PrefixIndex::announce_change(NodeId node, const Group& group, Held before) noexcept {
  if (!events_.is_used()) return;
  const Held after = held(node, group);
  if (after == before) return;
  const auto tier_of = [](Held where) {
    return where == Held::kHost ? KVC_TIER_HOST : KVC_TIER_DEVICE;
  };
  const auto id = static_cast<int32_t>(&group - groups_.data());
  if (before == Held::kNowhere) {
    announce(KVC_EVENT_STORED, tier_of(after), tier_of(after), id, node);
  } else if (after == Held::kNowhere) {
    announce(KVC_EVENT_REMOVED, tier_of(before), tier_of(before), id, node);
  } else {
    announce(KVC_EVENT_MOVED, tier_of(after), tier_of(before), id, node);
  }
}

const int32_t* PrefixIndex::tokens(NodeId node, uint64_t birth) const noexcept {
  if (node < 0 || node >= nodes_.num_made()) return nullptr;
  const Node& record = nodes_[node];
  return record.is_used && record.birth == birth && record.has_tokens ? nodes_.tokens(node)
                                                                      : nullptr;
}

std::vector<Event> PrefixIndex::snapshot() const {
  std::vector<Event> events;
  for (int32_t space = 0; space < spaces_.num_made(); ++space) {
    if (!spaces_[space].is_used) continue;
    for (NodeId node = spaces_[space].first_child; node != kNoNode; node = next_in_tree(node)) {
      for (size_t group = 0; group < groups_.size(); ++group) {
        const Held where = held(node, groups_[group]);
        if (where == Held::kNowhere) continue;
        const kvc_tier tier = where == Held::kHost ? KVC_TIER_HOST : KVC_TIER_DEVICE;
        events.push_back(stored_event(node, static_cast<int32_t>(group), tier));
      }
      if (nodes_[node].state != kInitialState)
        events.push_back(stored_event(node, -1, KVC_TIER_DEVICE));
    }
  }
  return events;
}

NodeId PrefixIndex::next_in_tree(NodeId node) const noexcept {
  if (nodes_[node].first_child != kNoNode) return nodes_[node].first_child;
  while (node != kNoNode && nodes_[node].next == kNoNode) node = nodes_[node].parent;
  return node == kNoNode ? kNoNode : nodes_[node].next;
}

void PrefixIndex::add_stats(kvc_stats* stats) const noexcept {
  metrics_.fill(stats);
  stats->prefix_blocks = nodes_.num_used();
  stats->prefix_blocks_host = num_host_nodes_;
  stats->prefix_pinned = num_pinned_;
  stats->events_made = events_.num_made();
  stats->events_lost = events_.num_lost();
}

}  // namespace kvc
