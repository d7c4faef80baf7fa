// cos and sin by absolute position, for keys that are stored unrotated and turned whenever they are
// read (ON_READ), and the turn that moves stored keys by a distance.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/params.h"
#include "src/base/executor.h"
#include "src/plan/rope.h"

namespace kvc {

// Grows with the longest sequence and never shrinks: 8 bytes per position and pair. One object per
// rotation spec.
class PositionCosSin {
 public:
  // Row p of the result turns a key at position p, for p < num_positions; `long_variant`: by the
  // long frequencies (LONGROPE). The result is valid until the next call with the same variant and
  // more positions. Throws std::bad_alloc; the table is as before then.
  kernels::Rotation ensure(const RopeSpec& rope, bool long_variant, int64_t num_positions,
                           Executor& executor);

 private:
  struct FreeAligned {
    void operator()(float* memory) const noexcept;
  };
  struct Table {
    std::unique_ptr<float[], FreeAligned> memory;  // cos [capacity][pairs], then sin
    int64_t capacity = 0;
    int64_t num_positions = 0;  // computed
  };
  static void grow(Table* table, int64_t pairs, int64_t num_positions);

  Table tables_[2];  // [long_variant]
};

// The turn of all keys that move by `delta` positions, of any sign, into cosines and sines
// [rotary_dim/2]; the result borrows them and has one row. Keys that are stored rotated carry the
// attention factor already, so it is left out.
kernels::Rotation shift_rotation(const RopeSpec& rope, bool long_variant, int64_t delta,
                                 float* cosines, float* sines);

}  // namespace kvc
