#include "src/sequences/sequences.h"

#include <algorithm>
#include <utility>

#include "src/base/error.h"
#include "src/base/math.h"

namespace kvc {
namespace {

// An empty sequence has no rows that could differ from its tokens, except by a window or by a state
// that was set.
void reset_diverged_if_empty(Sequence& sequence) {
  if (sequence.length == 0 && sequence.window == 0 && sequence.state == kInitialState)
    sequence.history.has_diverged = false;
}

}  // namespace

void SequenceTable::fail_unknown(kvc_seq id) const {
  fail_with(KVC_E_NOT_FOUND, id, "sequence %lld does not exist: the cache has %zu sequences",
            ll(id), size());
}

Sequence& SequenceTable::get_on_device(kvc_seq id, const char* action) const {
  Sequence& sequence = get(id);
  check_on_device(sequence, action);
  return sequence;
}

Sequence& SequenceTable::get_idle(kvc_seq id, const char* action) const {
  Sequence& sequence = get(id);
  if (sequence.in_forward()) {
    fail_with(KVC_E_BUSY, id, "cannot %s sequence %lld: it is entry %d of the open forward", action,
              ll(id), sequence.batch_index);
  }
  return sequence;
}

Sequence& SequenceTable::get_settled(kvc_seq id, const char* action) const {
  Sequence& sequence = get_idle(id, action);
  check_on_device(sequence, action);
  if (!sequence.tree.empty()) {
    fail_with(KVC_E_INVALID_STATE, sequence.tree.size(),
              "cannot %s sequence %lld: it has a token tree of %lld nodes, commit it first", action,
              ll(id), ll(sequence.tree.size()));
  }
  return sequence;
}

void SequenceTable::check_new_id(kvc_seq id, const char* name) const {
  if (id < 0)
    fail_with(KVC_E_INVALID_ARGUMENT, id, "%s = %lld is negative: sequence ids are >= 0", name,
              ll(id));
  if (map_.find(id) != nullptr) {
    fail_with(KVC_E_ALREADY_EXISTS, id, "%s = %lld already exists among the cache's %zu sequences",
              name, ll(id), size());
  }
}

void SequenceTable::reserve(size_t count) {
  map_.reserve(count);
  if (free_slots_.size() >= count) return;
  const size_t size = slots_.size() + count - free_slots_.size();
  if (size > slots_.capacity()) slots_.reserve(std::max({size_t{16}, size, slots_.capacity() * 2}));
  free_slots_.reserve(slots_.capacity());
  while (slots_.size() < size) {
    free_slots_.push_back(static_cast<int32_t>(slots_.size()));
    slots_.emplace_back();
  }
}

Sequence& SequenceTable::create(std::unique_ptr<Sequence> sequence) {
  reserve(1);
  // Nothing throws from here on.
  const int32_t slot = free_slots_.back();
  free_slots_.pop_back();
  sequence->slot = slot;
  Sequence& created = *sequence;
  slots_[slot] = std::move(sequence);
  map_.insert(&created);
  return created;
}

std::unique_ptr<Sequence> SequenceTable::make(kvc_seq id, size_t num_adopted) {
  reserve(num_adopted);
  std::unique_ptr<Sequence> sequence =
      spare_ != nullptr ? std::move(spare_) : std::make_unique<Sequence>();
  sequence->id = id;
  return sequence;
}

void SequenceTable::add(kvc_seq id) {
  check_new_id(id, "seq");
  std::unique_ptr<Sequence> sequence = make(id);
  sequence->tables.resize(spec_->groups.size());
  sequence->history.root = default_root();
  create(std::move(sequence));
}

Sequence& SequenceTable::adopt(std::unique_ptr<Sequence> sequence) {
  Sequence& adopted = create(std::move(sequence));
  for (const PageTable& table : adopted.tables) {
    table.pages.for_each([&](int64_t, PageId page) { allocator_->add_ref(page); });
  }
  states_->add_ref(adopted.state);
  for (const Checkpoint& checkpoint : adopted.checkpoints) states_->add_ref(checkpoint.slot);
  total_length_ += adopted.length;
  return adopted;
}

void SequenceTable::remove(kvc_seq id) {
  Sequence& sequence = get_idle(id, "remove");
  PageAllocator& pages = sequence.is_swapped ? *host_allocator_ : *allocator_;
  StatePool& states = sequence.is_swapped ? *host_states_ : *states_;
  for (PageTable& table : sequence.tables) TableTrimmer::cut(table, 0, pages);
  states.drop_ref(sequence.state);
  for (const Checkpoint& checkpoint : sequence.checkpoints) states.drop_ref(checkpoint.slot);
  total_length_ -= sequence.length;
  map_.erase(id);
  const int32_t slot = sequence.slot;
  spare_ = std::move(slots_[slot]);
  spare_->recycle();
  free_slots_.push_back(slot);
}

// A copy of what the first `length` tokens need. References are not counted yet.
std::unique_ptr<Sequence> SequenceTable::fork_of(const Sequence& parent, kvc_seq child_id,
                                                 int64_t length) const {
  auto child = std::make_unique<Sequence>();
  child->id = child_id;
  child->length = length;
  child->cross_length = parent.cross_length;
  child->window = parent.window;
  child->sink = parent.sink;
  child->tables.resize(parent.tables.size());
  for (size_t group = 0; group < parent.tables.size(); ++group) {
    const PageTable& from = parent.tables[group];
    PageTable& to = child->tables[group];
    const int64_t tokens = spec_->groups[group].is_cross ? parent.cross_length : length;
    to.pages.assign(from.pages, spec_->groups[group].pages_for(tokens));
    to.kept_begin = from.kept_begin;
    to.sink_kept = from.sink_kept;
    to.note_length(tokens);
  }
  for (const PositionSegment& segment : parent.segments) {
    if (segment.begin < length) child->segments.push_back(segment);
  }
  child->history = parent.history;
  child->history.cut(length, prefix_block_);
  child->first_unwritten = parent.first_unwritten;
  child->lead = parent.lead;
  child->cut_rows(length);
  child->state = length == parent.length ? parent.state : kInitialState;
  for (const Checkpoint& checkpoint : parent.checkpoints) {
    if (checkpoint.position <= length) child->checkpoints.push_back(checkpoint);
    if (checkpoint.position == length) child->state = checkpoint.slot;
  }
  reset_diverged_if_empty(*child);
  return child;
}

void SequenceTable::fork(kvc_seq parent_id, kvc_seq child_id, int64_t position) {
  const Sequence& parent = get_settled(parent_id, "fork");
  check_new_id(child_id, "child");
  if (position < -1 || position > parent.length) {
    fail_with(KVC_E_OUT_OF_RANGE, position,
              "pos = %lld out of range: sequence %lld has %lld tokens (-1: its end)", ll(position),
              ll(parent_id), ll(parent.length));
  }
  const int64_t length = position == -1 ? parent.length : position;
  resume_points_.check(parent, length, "pos", position);
  Sequence& child = adopt(fork_of(parent, child_id, length));
  Sequence& shared = get(parent_id);
  shared.invalidate_tables();
  for (PageTable& table : shared.tables) table.owns_last = false;
  trimmer_.drop_hidden(child);
}

void SequenceTable::pop(kvc_seq id, int64_t num_tokens) {
  Sequence& sequence = get_settled(id, "pop");
  if (num_tokens < 0 || num_tokens > sequence.length) {
    fail_with(KVC_E_OUT_OF_RANGE, num_tokens,
              "n = %lld out of range: sequence %lld has %lld tokens", ll(num_tokens), ll(id),
              ll(sequence.length));
  }
  if (num_tokens == 0) return;
  const int64_t length = sequence.length - num_tokens;
  resume_points_.check(sequence, length, "n", num_tokens);
  checkpoints_.cut(sequence, length);
  sequence.history.cut(length, prefix_block_);
  sequence.cut_rows(length);
  while (!sequence.segments.empty() && sequence.segments.back().begin >= length)
    sequence.segments.pop_back();
  sequence.length = length;
  reset_diverged_if_empty(sequence);
  total_length_ -= num_tokens;
  trimmer_.truncate(sequence, length);
}

void SequenceTable::clear() noexcept {
  map_.clear();
  slots_.clear();
  free_slots_.clear();
  spare_.reset();
  total_length_ = 0;
  allocator_->clear();
  states_->clear();
  host_states_->clear();
}

std::vector<kvc_seq> sorted_ids(const SequenceTable& sequences) {
  std::vector<kvc_seq> ids;
  ids.reserve(sequences.size());
  sequences.for_each([&](const Sequence& sequence) { ids.push_back(sequence.id); });
  std::sort(ids.begin(), ids.end());
  return ids;
}

void fail_swapped(const Sequence& sequence, const char* action) {
  fail_with(
      KVC_E_INVALID_STATE, sequence.id,
      "cannot %s sequence %lld: it is swapped out (is_swapped = 1), expected on the device (0)",
      action, ll(sequence.id));
}

}  // namespace kvc
