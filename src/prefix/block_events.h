// What routers learn of the index: blocks that are stored, moved and removed.
#pragma once

#include <vector>

#include "src/prefix/block_contents.h"
#include "src/prefix/events.h"

namespace kvc {

// An event names one layer group of a block, or its state (group -1). Functions do nothing while
// the log records nothing.
class BlockEvents {
 public:
  // `capacity` of the log; 0: it records nothing. Borrows the rest. Throws std::bad_alloc.
  BlockEvents(const BlockTree* tree, const BlockContents* contents, int64_t capacity)
      : tree_(tree), contents_(contents), log_(capacity) {}

  EventLog& log() noexcept { return log_; }
  const EventLog& log() const noexcept { return log_; }
  bool is_used() const noexcept { return log_.is_used(); }

  // The residence of the group before a change; kNowhere, without a look, when nothing is recorded.
  BlockContents::Residence before(NodeId node, const BlockGroup& group) const noexcept {
    return is_used() ? contents_->residence(node, group) : BlockContents::Residence::kNowhere;
  }
  // Records what has become of the residence `before`.
  void add_change(NodeId node, const BlockGroup& group, BlockContents::Residence before) noexcept {
    if (is_used()) record_change(node, group, before);
  }
  void add_stored_state(NodeId node) noexcept;
  void add_removed_state(NodeId node) noexcept;
  void add_cleared() noexcept;

  // All contents of the index as STORED events, parents first. Throws std::bad_alloc.
  std::vector<Event> snapshot() const;

 private:
  void record_change(NodeId node, const BlockGroup& group,
                     BlockContents::Residence before) noexcept;
  Event stored_event(NodeId node, int32_t group, kvc_tier tier) const noexcept;
  void record(kvc_event_type type, kvc_tier tier, kvc_tier from, int32_t group,
              NodeId node) noexcept;

  const BlockTree* tree_;
  const BlockContents* contents_;
  EventLog log_;
};

}  // namespace kvc
