#include "src/sequences/resumable.h"

#include <algorithm>
#include <cstdlib>

#include "src/base/error.h"
#include "src/sequences/visibility.h"

namespace kvc {
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
    // candidate sees only itself, as at the begin of a chunk, or lies among the sink tokens.
    const bool sees_itself_only = keys_of_query(group_, sequence_, keys.begin).begin == keys.begin;
    return std::max(sees_itself_only ? keys.begin : 0, table_.sink_kept);
  }
  // The next higher one; at most `length`, which is allowed.
  int64_t higher_candidate(int64_t position, int64_t length) const {
    const KeyRange keys = keys_of_query(group_, sequence_, position);
    if (!keeps_sinks(keys, position)) return length;
    if (table_.keeps(keys.begin, position))
      return std::min(length, (position / group_.page_size + 1) * group_.page_size);
    const int64_t next = first_visible_from(keys.begin + 1, position, length);
    const bool sees_itself_only = keys_of_query(group_, sequence_, next).begin == next;
    return sees_itself_only ? next : first_visible_from(table_.kept_begin, position, length);
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
    if (!spec.is_cross && !GroupView(spec, sequence, sequence.tables[group]).allows(position))
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
    if (position == sequence.length || spec_->groups[group].is_cross || view.allows(position)) {
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
    if (spec_->groups[group].is_cross || view.allows(position)) {
      ++agreed;
    } else {
      position = view.higher_candidate(position, sequence.length);
      agreed = 0;
    }
  }
  return position;
}

int64_t ResumePoints::nearest(const Sequence& sequence, int64_t position, int64_t* looks) const {
  int64_t uncounted = 0;
  if (looks == nullptr) looks = &uncounted;
  if (!has_states_) {
    const int64_t below = lower(sequence, position, looks);
    const int64_t above = higher(sequence, position, looks);
    return position - below <= above - position ? below : above;
  }
  int64_t nearest = sequence.length;  // Positions without a checkpoint are not allowed.
  const auto consider = [&](int64_t candidate) {
    const int64_t distance = std::abs(candidate - position), best = std::abs(nearest - position);
    ++*looks;
    if ((distance < best || (distance == best && candidate < nearest)) &&
        allows(sequence, candidate))
      nearest = candidate;
  };
  consider(0);
  for (const Checkpoint& checkpoint : sequence.checkpoints) consider(checkpoint.position);
  return nearest;
}

void ResumePoints::check(const Sequence& sequence, int64_t position, const char* argument,
                         int64_t value) const {
  if (allows(sequence, position)) return;
  const int64_t nearest_position = nearest(sequence, position);
  fail_with(KVC_E_OUT_OF_RANGE, nearest_position,
            "%s = %lld: sequence %lld of %lld tokens cannot go on from position %lld: a window has "
            "dropped tokens that it needs, or there is no checkpoint of its state; the nearest "
            "possible is %lld",
            argument, ll(value), ll(sequence.id), ll(sequence.length), ll(position),
            ll(nearest_position));
}

}  // namespace kvc
