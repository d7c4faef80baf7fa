// cos and sin of every packed token's rotation, computed once per forward and rotation spec, in
// double, stored as float32.
#pragma once

#include <cstdint>

#include "kernels/params.h"
#include "src/base/executor.h"
#include "src/base/memory.h"
#include "src/plan/rope.h"

namespace kvc {

// Where the packed tokens stand; arrays borrowed for the call.
struct TokenPositions {
  const int32_t* positions;  // row s of [rows][num_rows] for section s; any value, also negative
  int64_t row_stride = 0;    // in elements between rows; 0: all sections turn by one row
  int64_t num_rows = 0;      // packed tokens
  // Nullable [num_rows]: tokens that turn by RopeSpec::long_inverse_frequencies (LONGROPE).
  const uint8_t* uses_long = nullptr;
};

// One object per rotation spec, and one more where the same tokens turn by other positions too.
class TokenCosSin {
 public:
  // Row t of the result turns packed token t; it is valid until the first call after invalidate().
  // Only that call reads `tokens`. Throws std::bad_alloc; nothing has changed then.
  kernels::Rotation get(const RopeSpec& rope, const TokenPositions& tokens, Executor& executor);
  bool is_valid() const { return valid_; }
  void invalidate() { valid_ = false; }

 private:
  AlignedBuffer cos_;
  AlignedBuffer sin_;
  bool valid_ = false;
};

}  // namespace kvc
