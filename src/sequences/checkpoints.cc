#include "src/sequences/checkpoints.h"

#include <algorithm>

#include "src/base/error.h"

namespace kvc {

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

}  // namespace kvc
