#include "src/sequences/sequences.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "src/base/error.h"
#include "src/base/math.h"
#include "src/base/memory.h"
#include "src/sequences/visibility.h"

namespace kvc {

int64_t TokenHistory::host_bytes() const {
  int64_t bytes = kvc::host_bytes(keys) + kvc::host_bytes(ids);
  if (extra == nullptr) return bytes;
  bytes += static_cast<int64_t>(sizeof *extra) + kvc::host_bytes(*extra);
  const size_t inside = std::string().capacity();  // Short keys lie in the string itself.
  for (const ExtraKey& key : *extra)
    bytes += key.data.capacity() > inside ? static_cast<int64_t>(key.data.capacity()) + 1 : 0;
  return bytes;
}

int64_t Sequence::host_bytes() const {
  int64_t bytes = static_cast<int64_t>(sizeof *this) + kvc::host_bytes(tables) +
                  kvc::host_bytes(segments) + kvc::host_bytes(checkpoints) + tree.host_bytes() +
                  history.host_bytes();
  for (const PageTable& table : tables) bytes += table.pages.host_bytes();
  return bytes;
}

void fail_duplicate(kvc_seq id) {
  fail_with(KVC_E_INVALID_ARGUMENT, id, "sequence %lld appears twice in seqs: ids must be distinct",
            ll(id));
}

void require_distinct(std::vector<kvc_seq> ids) {
  std::sort(ids.begin(), ids.end());
  const auto twice = std::adjacent_find(ids.begin(), ids.end());
  if (twice != ids.end()) fail_duplicate(*twice);
}

void Checkpoints::cut(Sequence& sequence, int64_t position) noexcept {
  if (position == sequence.length) return;
  while (!sequence.checkpoints.empty() && sequence.checkpoints.back().position > position) {
    states_->drop_ref(sequence.checkpoints.back().slot);
    sequence.checkpoints.pop_back();
  }
  const bool kept =
      !sequence.checkpoints.empty() && sequence.checkpoints.back().position == position;
  states_->drop_ref(sequence.state);
  sequence.state = kept ? sequence.checkpoints.back().slot : kInitialState;
  states_->add_ref(sequence.state);
}

void Checkpoints::take(Sequence& sequence) {
  if (!states_->is_used())
    fail_with(KVC_E_UNSUPPORTED, sequence.id,
              "a checkpoint of sequence %lld: no layer is of kind STATE (%d)", ll(sequence.id),
              KVC_LAYER_STATE);
  if (!sequence.checkpoints.empty() && sequence.checkpoints.back().position == sequence.length) {
    sequence.checkpoints.back().is_automatic = false;
    return;
  }
  sequence.checkpoints.push_back({sequence.length, sequence.state, false});
  states_->add_ref(sequence.state);
}

void Checkpoints::release(Sequence& sequence, int64_t position) {
  std::vector<Checkpoint>& kept = sequence.checkpoints;
  int64_t below = -1;
  for (auto one = kept.begin(); one != kept.end() && one->position <= position; ++one) {
    below = one->position;
    if (below != position) continue;
    states_->drop_ref(one->slot);
    kept.erase(one);
    return;
  }
  fail_with(KVC_E_NOT_FOUND, below,
            "pos = %lld: sequence %lld of %lld tokens has no checkpoint there, its %zu begin at "
            "%lld",
            ll(position), ll(sequence.id), ll(sequence.length), kept.size(),
            kept.empty() ? -1 : ll(kept.front().position));
}

int64_t Checkpoints::num_reclaimable() const {
  std::vector<int32_t> automatic(static_cast<size_t>(states_->num_slots()), 0);
  sequences_->for_each([&](const Sequence& sequence) {
    if (sequence.is_swapped) return;
    for (const Checkpoint& checkpoint : sequence.checkpoints) {
      if (checkpoint.is_automatic && checkpoint.slot != kInitialState) ++automatic[checkpoint.slot];
    }
  });
  int64_t count = 0;
  for (size_t slot = 0; slot < automatic.size(); ++slot) {
    count += automatic[slot] != 0 && automatic[slot] == states_->refs(static_cast<StateSlot>(slot))
                 ? 1
                 : 0;
  }
  return count;
}

std::vector<OldState> Checkpoints::reclaimable() const {
  std::vector<OldState> found;
  sequences_->for_each([&](Sequence& sequence) {
    if (sequence.is_swapped) return;
    for (const Checkpoint& checkpoint : sequence.checkpoints) {
      if (checkpoint.is_automatic) found.push_back({&sequence, checkpoint.position});
    }
  });
  std::sort(found.begin(), found.end(), [](const OldState& a, const OldState& b) {
    return a.position != b.position ? a.position < b.position : a.sequence->id < b.sequence->id;
  });
  return found;
}

void Checkpoints::reclaim(int64_t count, const std::vector<OldState>& oldest) noexcept {
  const int64_t wanted = states_->num_used() - count;
  for (const OldState& one : oldest) {
    if (states_->num_used() <= wanted) return;
    std::vector<Checkpoint>& checkpoints = one.sequence->checkpoints;
    const auto at = std::find_if(
        checkpoints.begin(), checkpoints.end(),
        [&](const Checkpoint& checkpoint) { return checkpoint.position == one.position; });
    states_->drop_ref(at->slot);
    checkpoints.erase(at);
  }
}

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
  if (sequence.is_arriving) fail_away(sequence, action);
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
  count_bytes(created);
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
  totals_ += totals_of(adopted);
  return adopted;
}

void SequenceTable::remove(kvc_seq id) {
  Sequence& sequence = get_idle(id, "remove");
  PageAllocator& pages = sequence.is_swapped ? *host_allocator_ : *allocator_;
  StatePool& states = sequence.is_swapped ? *host_states_ : *states_;
  totals_ += -totals_of(sequence);
  sequence_bytes_ -= sequence.counted_bytes;
  for (PageTable& table : sequence.tables) TableTrimmer::cut(table, 0, pages);
  states.drop_ref(sequence.state);
  for (const Checkpoint& checkpoint : sequence.checkpoints) states.drop_ref(checkpoint.slot);
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
    const GroupSpec& spec = spec_->groups[group];
    const int64_t tokens = spec.is_cross ? parent.cross_length : spec.tokens_of(length);
    to.pages.assign(from.pages, spec.pages_for(tokens));
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
  const Recount recount(*this, sequence);
  checkpoints_.cut(sequence, length);
  sequence.history.cut(length, prefix_block_);
  sequence.cut_rows(length);
  while (!sequence.segments.empty() && sequence.segments.back().begin >= length)
    sequence.segments.pop_back();
  sequence.length = length;
  reset_diverged_if_empty(sequence);
  trimmer_.truncate(sequence, length);
}

SequenceTotals SequenceTable::totals_of(const Sequence& sequence) const {
  SequenceTotals totals{.length = sequence.length, .tree_nodes = sequence.tree.size()};
  for (size_t group = 0; !sequence.is_swapped && group < sequence.tables.size(); ++group) {
    const GroupSpec& spec = spec_->groups[group];
    totals.unused_slots +=
        sequence.tables[group].pages.size() * spec.page_size - sequence.stored(spec);
  }
  return totals;
}

void SequenceTable::clear() noexcept {
  map_.clear();
  slots_.clear();
  free_slots_.clear();
  spare_.reset();
  totals_ = {};
  sequence_bytes_ = 0;
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

void fail_away(const Sequence& sequence, const char* action) {
  if (sequence.is_arriving) {
    fail_with(KVC_E_BUSY, sequence.id,
              "cannot %s sequence %lld: a transfer is bringing it (kvc_transfer_wait)", action,
              ll(sequence.id));
  }
  fail_with(
      KVC_E_INVALID_STATE, sequence.id,
      "cannot %s sequence %lld: it is swapped out (is_swapped = 1), expected on the device (0)",
      action, ll(sequence.id));
}

namespace {

// One layer group of a sequence. Two facts decide about whole ranges of positions: the begin of the
// visible range never falls as the position grows, and the dropped tokens are one range behind the
// sink tokens.
class GroupView {
 public:
  GroupView(const GroupSpec& group, const Sequence& sequence, const PageTable& table)
      : group_(group), sequence_(sequence), table_(table) {}

  bool allows(int64_t position) const {
    const KeyRange keys = keys_of_query(group_, sequence_, position);
    return keeps_sinks(keys, position) && table_.keeps(keys.begin, position) &&
           !is_in_hole(position);
  }
  // The next lower position that may be allowed; none in between is. `position` is not.
  int64_t lower_candidate(int64_t position) const {
    const KeyRange keys = keys_of_query(group_, sequence_, position);
    if (!keeps_sinks(keys, position)) return table_.sink_kept;
    if (table_.keeps(keys.begin, position)) return position - position % group_.page_size;
    // Keys of [keys.begin, position) are missing, for all positions in that range too. The next
    // candidate has no visible key but itself, as at the begin of a chunk, or is a sink token.
    const bool is_alone = keys_of_query(group_, sequence_, keys.begin).begin == keys.begin;
    return std::max(is_alone ? keys.begin : 0, table_.sink_kept);
  }
  // The next higher one; at most `length`, which is allowed.
  int64_t higher_candidate(int64_t position, int64_t length) const {
    const KeyRange keys = keys_of_query(group_, sequence_, position);
    if (!keeps_sinks(keys, position)) return length;
    if (table_.keeps(keys.begin, position))
      return std::min(length, (position / group_.page_size + 1) * group_.page_size);
    const int64_t next = first_visible_from(keys.begin + 1, position, length);
    const bool is_alone = keys_of_query(group_, sequence_, next).begin == next;
    return is_alone ? next : first_visible_from(table_.kept_begin, position, length);
  }

 private:
  bool keeps_sinks(const KeyRange& keys, int64_t position) const {
    return table_.keeps(0, std::min(keys.sink_end, position));
  }
  // The next token would go to a dropped page, so not even a window of 1 can go on there.
  bool is_in_hole(int64_t position) const {
    return position % group_.page_size != 0 && table_.pages[position / group_.page_size] == kNoPage;
  }
  // The first position in (position, length] whose visible range begins at `key` or later, else
  // `length`.
  int64_t first_visible_from(int64_t key, int64_t position, int64_t length) const {
    int64_t below = position, found = length;
    while (found - below > 1) {
      const int64_t middle = below + (found - below) / 2;
      (keys_of_query(group_, sequence_, middle).begin >= key ? found : below) = middle;
    }
    return found;
  }

  const GroupSpec& group_;
  const Sequence& sequence_;
  const PageTable& table_;
};

bool comes_before(const Checkpoint& checkpoint, int64_t position) {
  return checkpoint.position < position;
}

bool has_checkpoint(const Sequence& sequence, int64_t position) {
  const auto found = std::lower_bound(sequence.checkpoints.begin(), sequence.checkpoints.end(),
                                      position, comes_before);
  return found != sequence.checkpoints.end() && found->position == position;
}

}  // namespace

bool ResumePoints::allows(const Sequence& sequence, int64_t position) const {
  if (position == sequence.length) return true;
  for (size_t group = 0; group < sequence.tables.size(); ++group) {
    const GroupSpec& spec = spec_->groups[group];
    if (spec.may_drop() && !GroupView(spec, sequence, sequence.tables[group]).allows(position))
      return false;
  }
  return !has_states_ || position == 0 || has_checkpoint(sequence, position);
}

// Layer groups move the position on until all allow it. Each step passes a whole range that one of
// them forbids: keys that its window hides, or the rest of a dropped page.
int64_t ResumePoints::lower(const Sequence& sequence, int64_t position, int64_t* looks) const {
  for (size_t group = 0, agreed = 0; agreed < sequence.tables.size();
       group = (group + 1) % sequence.tables.size()) {
    const GroupView view(spec_->groups[group], sequence, sequence.tables[group]);
    ++*looks;
    if (position == sequence.length || !spec_->groups[group].may_drop() || view.allows(position)) {
      ++agreed;
    } else {
      position = view.lower_candidate(position);
      agreed = 0;
    }
  }
  return position;
}

int64_t ResumePoints::higher(const Sequence& sequence, int64_t position, int64_t* looks) const {
  for (size_t group = 0, agreed = 0; agreed < sequence.tables.size() && position < sequence.length;
       group = (group + 1) % sequence.tables.size()) {
    const GroupView view(spec_->groups[group], sequence, sequence.tables[group]);
    ++*looks;
    if (!spec_->groups[group].may_drop() || view.allows(position)) {
      ++agreed;
    } else {
      position = view.higher_candidate(position, sequence.length);
      agreed = 0;
    }
  }
  return position;
}

Neighbours ResumePoints::around(const Sequence& sequence, int64_t position, int64_t* looks) const {
  int64_t uncounted = 0;
  if (looks == nullptr) looks = &uncounted;
  if (!has_states_) {
    const int64_t below = lower(sequence, position, looks);
    return {below, below == position ? below : higher(sequence, position, looks)};
  }
  Neighbours found{-1, sequence.length};  // Positions without a checkpoint are not allowed.
  const auto consider = [&](int64_t candidate) {
    const bool helps = candidate <= position ? candidate > found.below : candidate < found.above;
    ++*looks;
    if (!helps && candidate != position) return;
    if (!allows(sequence, candidate)) return;
    if (candidate <= position) found.below = candidate;
    if (candidate >= position) found.above = candidate;
  };
  consider(0);
  for (const Checkpoint& checkpoint : sequence.checkpoints) consider(checkpoint.position);
  if (position == sequence.length) consider(position);
  return found;
}

std::string ResumePoints::reason(const Sequence& sequence, int64_t position) const {
  std::string text;
  for (size_t group = 0; group < sequence.tables.size(); ++group) {
    const GroupSpec& spec = spec_->groups[group];
    if (!spec.may_drop() || GroupView(spec, sequence, sequence.tables[group]).allows(position))
      continue;
    const int64_t own = spec.window != 0 ? spec.window : spec.chunk;
    if (own == 0 || (sequence.window != 0 && sequence.window < own)) {
      append_format(text, "its window of %lld tokens", ll(sequence.window));
    } else {
      append_format(text, "the %s of %lld tokens of layer group %zu",
                    spec.window != 0 ? "window" : "chunk", ll(own), group);
    }
    return text + " has dropped what it needs there";
  }
  return "its state has no checkpoint there";
}

void ResumePoints::check(const Sequence& sequence, int64_t position, const char* argument,
                         int64_t value) const {
  if (allows(sequence, position)) return;
  const Neighbours possible = around(sequence, position);
  fail_with(KVC_E_OUT_OF_RANGE, possible.below,
            "%s = %lld: sequence %lld of %lld tokens cannot go on from position %lld: %s; the "
            "nearest possible are %lld and %lld",
            argument, ll(value), ll(sequence.id), ll(sequence.length), ll(position),
            reason(sequence, position).c_str(), ll(possible.below), ll(possible.above));
}

}  // namespace kvc
