// Where a sequence can go on from: what the next query sees must be there.
#include <algorithm>
#include <cstdlib>

#include "src/base/math.h"
#include "src/sequences/sequences.h"

namespace kvc {
namespace {

// One group of a sequence, asked for positions. Every answer about a whole range of positions
// follows from two facts: the first key that a query sees never falls as its position grows, and
// what was dropped is one range behind the sinks.
class GroupView {
 public:
  GroupView(const GroupSpec& group, const Sequence& sequence, const PageTable& table)
      : group_(group), sequence_(sequence), table_(table) {}

  bool allows(int64_t position) const {
    const KeyRange keys = keys_of_query(group_, sequence_, position);
    return sinks_are_kept(keys, position) && table_.keeps(keys.begin, position) &&
           !is_in_hole(position);
  }
  // The next lower position that may be allowed; none in between is. `position` is not.
  int64_t lower_candidate(int64_t position) const {
    const KeyRange keys = keys_of_query(group_, sequence_, position);
    if (!sinks_are_kept(keys, position)) return table_.sink_kept;
    if (table_.keeps(keys.begin, position)) return position - position % group_.page_size;
    // It misses keys of [keys.begin, position), as do the positions in there: the next one sees
    // nothing but itself, as at the begin of a chunk, or lies among the sinks.
    const bool sees_itself_only = keys_of_query(group_, sequence_, keys.begin).begin == keys.begin;
    return std::max(sees_itself_only ? keys.begin : 0, table_.sink_kept);
  }
  // The next higher one; at most `length`, which is allowed.
  int64_t higher_candidate(int64_t position, int64_t length) const {
    const KeyRange keys = keys_of_query(group_, sequence_, position);
    if (!sinks_are_kept(keys, position)) return length;
    if (table_.keeps(keys.begin, position))
      return std::min(length, (position / group_.page_size + 1) * group_.page_size);
    const int64_t next = first_that_sees_from(keys.begin + 1, position, length);
    const bool sees_itself_only = keys_of_query(group_, sequence_, next).begin == next;
    return sees_itself_only ? next : first_that_sees_from(table_.kept_begin, position, length);
  }

 private:
  bool sinks_are_kept(const KeyRange& keys, int64_t position) const {
    return table_.keeps(0, std::min(keys.sink_end, position));
  }
  // Where the next token goes, tokens were dropped: not even a window of 1 can go on there.
  bool is_in_hole(int64_t position) const {
    return position % group_.page_size != 0 &&
           table_.pages[static_cast<size_t>(position / group_.page_size)] == kNoPage;
  }
  // The first position in (position, length] whose query sees no key before `key`, else `length`.
  int64_t first_that_sees_from(int64_t key, int64_t position, int64_t length) const {
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

}  // namespace

bool SequenceTable::has_checkpoint(const Sequence& sequence, int64_t position) const {
  const auto found = std::lower_bound(sequence.checkpoints.begin(), sequence.checkpoints.end(),
                                      position, comes_before);
  return found != sequence.checkpoints.end() && found->position == position;
}

bool SequenceTable::can_resume(const Sequence& sequence, int64_t position) const {
  if (position == sequence.length) return true;
  for (size_t group = 0; group < sequence.tables.size(); ++group) {
    const GroupSpec& spec = spec_->groups[group];
    if (!spec.is_cross && !GroupView(spec, sequence, sequence.tables[group]).allows(position))
      return false;
  }
  return !states_->is_used() || position == 0 || has_checkpoint(sequence, position);
}

// Groups move the position on until none objects. Each step passes a whole range that one of them
// forbids: what its window hides, or the rest of a dropped page.
int64_t SequenceTable::resumable_below(const Sequence& sequence, int64_t position,
                                       int64_t* looks) const {
  for (size_t group = 0, agreed = 0; agreed < sequence.tables.size();
       group = (group + 1) % sequence.tables.size()) {
    const GroupView view(spec_->groups[group], sequence, sequence.tables[group]);
    ++*looks;
    if (position == sequence.length || spec_->groups[group].is_cross || view.allows(position)) {
      ++agreed;
    } else {
      position = view.lower_candidate(position);
      agreed = 0;
    }
  }
  return position;
}

int64_t SequenceTable::resumable_above(const Sequence& sequence, int64_t position,
                                       int64_t* looks) const {
  for (size_t group = 0, agreed = 0; agreed < sequence.tables.size() && position < sequence.length;
       group = (group + 1) % sequence.tables.size()) {
    const GroupView view(spec_->groups[group], sequence, sequence.tables[group]);
    ++*looks;
    if (spec_->groups[group].is_cross || view.allows(position)) {
      ++agreed;
    } else {
      position = view.higher_candidate(position, sequence.length);
      agreed = 0;
    }
  }
  return position;
}

int64_t SequenceTable::nearest_resumable(const Sequence& sequence, int64_t position,
                                         int64_t* looks) const {
  int64_t uncounted = 0;
  if (looks == nullptr) looks = &uncounted;
  if (!states_->is_used()) {
    const int64_t below = resumable_below(sequence, position, looks);
    const int64_t above = resumable_above(sequence, position, looks);
    return position - below <= above - position ? below : above;
  }
  int64_t nearest = sequence.length;  // only where a state is kept
  const auto consider = [&](int64_t candidate) {
    const int64_t distance = std::abs(candidate - position), best = std::abs(nearest - position);
    ++*looks;
    if ((distance < best || (distance == best && candidate < nearest)) &&
        can_resume(sequence, candidate))
      nearest = candidate;
  };
  consider(0);
  for (const Checkpoint& checkpoint : sequence.checkpoints) consider(checkpoint.position);
  return nearest;
}

}  // namespace kvc
