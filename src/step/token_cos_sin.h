// cos and sin of every packed token, computed once per forward and RoPE spec, in double, stored as
// float32.
#pragma once

#include <cstdint>

#include "kernels/params.h"
#include "src/base/executor.h"
#include "src/base/memory.h"
#include "src/plan/rope.h"

namespace kvc {

// Positions of the packed tokens; arrays borrowed for the call.
struct TokenPositions {
  const int32_t* positions;        // Row s of [rows][num_rows] is for section s; any value.
  int64_t row_stride = 0;          // Elements between rows; 0: all sections use one row.
  int64_t num_rows = 0;            // Packed tokens.
  const int64_t* added = nullptr;  // Nullable [num_rows]: added to a token's positions.
  // Nullable [num_rows]: tokens that use RopeSpec::long_inverse_frequencies (LONGROPE).
  const uint8_t* uses_long = nullptr;
};

// One object per RoPE spec, and one more when the same tokens are also rotated by other positions.
class TokenCosSin {
 public:
  // Row t of the result rotates packed token t. It is valid until the first call after
  // invalidate(); only that call reads `tokens`. Throws std::bad_alloc; nothing has changed then.
  kernels::Rotation get(const RopeSpec& rope, const TokenPositions& tokens, Executor& executor);
  bool is_valid() const { return valid_; }
  void invalidate() { valid_ = false; }

 private:
  AlignedBuffer cos_;
  AlignedBuffer sin_;
  bool valid_ = false;
};

}  // namespace kvc
