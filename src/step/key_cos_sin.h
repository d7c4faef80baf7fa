// cos and sin by key of one sequence, for keys that are rotated on read and lie so far from
// position 0 that a row for every position up to them would be mostly for keys that nobody sees.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/params.h"
#include "src/base/executor.h"
#include "src/base/memory.h"
#include "src/plan/rope.h"
#include "src/step/position_cos_sin.h"

namespace kvc {

// A ring of rows for the keys that are kept now, whatever their positions. One object per sequence
// and RoPE spec.
class KeyCosSin {
 public:
  // Row i of the result rotates key begin + i, which is at positions[i]: [0, num_keys). Rows of
  // keys that are where they were are kept; others are taken from `near`, or computed. The result
  // is valid until the next call. Throws std::bad_alloc; nothing has changed then.
  const kernels::Rotation& ensure(const RopeSpec& rope, bool long_variant, int64_t begin,
                                  const std::vector<int32_t>& positions, const PositionCosSin& near,
                                  Executor& executor);
  int64_t bytes() const { return static_cast<int64_t>(2 * rows_bytes_); }

  uint64_t last_step = 0;  // The forward that used it last.

 private:
  // Every row stands twice, `capacity` apart, so that the kept ones follow each other in memory.
  void resize(int64_t num_keys, int64_t pairs);

  AlignedBuffer cos_, sin_;  // [2 * capacity][pairs]
  size_t rows_bytes_ = 0;
  int64_t capacity_ = 0;
  bool is_long_ = false;
  std::vector<int32_t> positions_;  // [capacity] -1: no row.
  kernels::Rotation rotation_{};
};

}  // namespace kvc
