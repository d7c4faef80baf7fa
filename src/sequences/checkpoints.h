// Checkpoints: recurrent states that sequences keep at positions.
#pragma once

#include <cstdint>
#include <vector>

#include "src/pages/state_pool.h"
#include "src/sequences/sequence_map.h"

namespace kvc {

// An automatic checkpoint of a sequence.
struct OldState {
  Sequence* sequence;
  int64_t position;
};

// Borrows all. Each checkpoint is one reference to its state slot.
class Checkpoints {
 public:
  Checkpoints(const SequenceMap* sequences, StatePool* states)
      : sequences_(sequences), states_(states) {}

  // Keeps the present state of the sequence, which is on the device. A kept one is no longer
  // automatic. Throws UNSUPPORTED without STATE layers, or std::bad_alloc.
  void take(Sequence& sequence);
  // Forgets the states beyond `position`. The one at `position` becomes the present state.
  void cut(Sequence& sequence, int64_t position) noexcept;

  // States that only automatic checkpoints refer to. O(checkpoints). Throws std::bad_alloc.
  int64_t num_reclaimable() const;
  // Automatic checkpoints of all sequences, the oldest positions first. Throws std::bad_alloc.
  std::vector<OldState> reclaimable() const;
  // Gives these up, in order, until so many states have become free or none is left.
  void reclaim(int64_t count, const std::vector<OldState>& oldest) noexcept;

 private:
  const SequenceMap* sequences_;
  StatePool* states_;
};

}  // namespace kvc
