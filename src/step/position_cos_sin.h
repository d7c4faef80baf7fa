// cos and sin by absolute position, for keys that are rotated whenever they are read (ON_READ), and
// the rotation that shifts stored keys.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/params.h"
#include "src/base/executor.h"
#include "src/plan/rope.h"

namespace kvc {

// Grows with the longest sequence that it is used for, see HostCosSin::own_keys, and never
// shrinks: 8 bytes per position and pair. One object per RoPE spec.
class PositionCosSin {
 public:
  // Row p of the result rotates a key at position p < num_positions. `long_variant`: by the long
  // frequencies (LONGROPE). The result is valid until the next call with the same variant and more
  // positions. Throws std::bad_alloc; the table is as before then.
  kernels::Rotation ensure(const RopeSpec& rope, bool long_variant, int64_t num_positions,
                           Executor& executor);
  // Copies the row of a position, [pairs] each; false: it is not there.
  bool copy_row(bool long_variant, int64_t pairs, int64_t position, float* cosines,
                float* sines) const noexcept;
  int64_t bytes(int64_t pairs) const {
    return 2 * pairs * static_cast<int64_t>(sizeof(float)) *
           (tables_[0].capacity + tables_[1].capacity);
  }

 private:
  struct FreeAligned {
    void operator()(float* memory) const noexcept;
  };
  struct Table {
    std::unique_ptr<float[], FreeAligned> memory;  // cos [capacity][pairs], then sin.
    int64_t capacity = 0;
    int64_t num_positions = 0;  // Computed rows.
  };
  static void grow(Table* table, int64_t pairs, int64_t num_positions);

  Table tables_[2];  // [long_variant]
};

// The rotation that shifts keys by `delta` positions, of any sign. Writes cosines and sines
// [rotary_dim/2]; the result borrows them and has one row. Stored keys carry the attention factor
// already, so it is left out.
kernels::Rotation shift_rotation(const RopeSpec& rope, int64_t delta, float* cosines, float* sines);

}  // namespace kvc
