// Tables of cos and sin (RoPE): by packed token, by position, and by key of one sequence.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/params.h"
#include "src/base/executor.h"
#include "src/base/math.h"
#include "src/base/memory.h"
#include "src/plan/rope.h"

namespace kvc {

inline int64_t num_pairs(const RopeSpec& rope) { return rope.rotary_dim / 2; }

// Only LONGROPE has long frequencies.
inline const double* frequencies_of(const RopeSpec& rope, bool long_variant) {
  return long_variant && !rope.long_inverse_frequencies.empty()
             ? rope.long_inverse_frequencies.data()
             : rope.inverse_frequencies.data();
}

// Computed in double, because the error of float32 reaches 5e-4 at position 10,000. The same
// position gives the same bits in every table.
inline void write_cos_sin(double position, double frequency, double magnitude, float* cosine,
                          float* sine) {
  const double angle = position * frequency;
  *cosine = static_cast<float>(std::cos(angle) * magnitude);
  *sine = static_cast<float>(std::sin(angle) * magnitude);
}

inline kernels::Rotation rotation_of(const RopeSpec& rope, const float* cosines,
                                     const float* sines) {
  return {.cos = cosines,
          .sin = sines,
          .rotary_dim = rope.rotary_dim,
          .interleaved = rope.style == KVC_ROPE_INTERLEAVED ? 1 : 0,
          .begin = rope.begin};
}

// Calls fill(begin, end), noexcept, over [0, num_rows) in parts of even size. A pair takes about 15
// ns, and waking a thread 4 to 25 us. So a part has at least 15 us of work, and less than two parts
// stay on the caller's thread.
template <typename Fill>
void fill_rows(int64_t num_rows, int64_t pairs, Executor& executor, Fill&& fill) {
  constexpr int64_t kPairsPerTask = 1024;
  // Several parts per worker, so that a late core does not delay the others.
  constexpr int64_t kTasksPerWorker = 4;
  const int64_t worth = num_rows * pairs / kPairsPerTask;
  const int64_t tasks = std::min({worth, num_rows, kTasksPerWorker * executor.concurrency()});
  if (tasks < 2 || executor.concurrency() == 1) {
    fill(int64_t{0}, num_rows);
    return;
  }
  executor.run(tasks, [&](int64_t task, int32_t) {
    fill(num_rows * task / tasks, num_rows * (task + 1) / tasks);
  });
}

// Positions of the packed tokens; arrays borrowed for the call.
struct TokenPositions {
  const int32_t* positions;        // Row s of [rows][num_rows] is for section s; any value.
  int64_t row_stride = 0;          // Elements between rows; 0: all sections use one row.
  int64_t num_rows = 0;            // Packed tokens.
  const int64_t* added = nullptr;  // Nullable [num_rows]: added to a token's positions.
  // Nullable [num_rows]: tokens that use RopeSpec::long_inverse_frequencies (LONGROPE).
  const uint8_t* uses_long = nullptr;
};

// cos and sin of every packed token, computed once per forward in double and stored as float32. One
// object per RoPE spec, and one more when the same tokens are also rotated by other positions.
class TokenCosSin {
 public:
  // Row t of the result rotates packed token t. It is valid until the first call after
  // invalidate(); only that call reads `tokens`. Throws std::bad_alloc; nothing has changed then.
  kernels::Rotation get(const RopeSpec& rope, const TokenPositions& tokens, Executor& executor);
  bool is_valid() const { return valid_; }
  void invalidate() { valid_ = false; }
  int64_t host_bytes() const { return cos_.host_bytes() + sin_.host_bytes(); }

 private:
  AlignedBuffer cos_;
  AlignedBuffer sin_;
  bool valid_ = false;
};

// cos and sin by absolute position, for keys that are rotated whenever they are read (ON_READ).
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

// cos and sin by key, for keys that are rotated on read and lie so far from position 0 that most
// rows of a table by position would be for keys that no query reaches: a ring of rows for the keys
// that are kept now, whatever their positions. One object per sequence
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
  int64_t host_bytes() const {
    return cos_.host_bytes() + sin_.host_bytes() + kvc::host_bytes(positions_);
  }

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
