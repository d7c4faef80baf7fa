// Recurrent states of sequences: kept at positions, forgotten by pops, given up when slots are
// missing.
#include <algorithm>
#include <vector>

#include "src/base/error.h"
#include "src/sequences/sequences.h"

namespace kvc {
// Forgets the states of positions beyond `position`; the one at it becomes the present state.
void SequenceTable::cut_states(Sequence& sequence, int64_t position) noexcept {
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

void SequenceTable::checkpoint(kvc_seq id) {
  Sequence& sequence = get_idle(id, "take a checkpoint of");
  check_on_device(sequence, "take a checkpoint of");
  if (!states_->is_used())
    fail_with(KVC_E_UNSUPPORTED, id,
              "a checkpoint of sequence %lld: no layer is of kind STATE (%d)", ll(id),
              KVC_LAYER_STATE);
  if (!sequence.checkpoints.empty() && sequence.checkpoints.back().position == sequence.length) {
    sequence.checkpoints.back().is_automatic = false;
    return;
  }
  sequence.checkpoints.push_back({sequence.length, sequence.state, false});
  states_->add_ref(sequence.state);
}

int64_t SequenceTable::num_reclaimable_states() const {
  std::vector<int32_t> automatic(static_cast<size_t>(states_->num_slots()), 0);
  map_.for_each([&](const Sequence& sequence) {
    if (sequence.is_swapped) return;
    for (const Checkpoint& checkpoint : sequence.checkpoints) {
      if (checkpoint.is_automatic && checkpoint.slot != kInitialState)
        ++automatic[static_cast<size_t>(checkpoint.slot)];
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

std::vector<SequenceTable::OldState> SequenceTable::reclaimable_states() const {
  std::vector<OldState> found;
  map_.for_each([&](Sequence& sequence) {
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

void SequenceTable::reclaim_states(int64_t count, const std::vector<OldState>& oldest) noexcept {
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

}  // namespace kvc
