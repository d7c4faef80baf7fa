// Rows of cos and sin, shared by all cos_sin tables: how a row is computed, how rows are spread
// over threads, and the form that kernels read.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/params.h"
#include "src/base/executor.h"
#include "src/base/math.h"
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
  constexpr int64_t kPairsPerPiece = 1024;
  // Several parts per worker, so that a late core does not delay the others.
  constexpr int64_t kPiecesPerWorker = 4;
  const int64_t worth = num_rows * pairs / kPairsPerPiece;
  const int64_t pieces = std::min({worth, num_rows, kPiecesPerWorker * executor.concurrency()});
  if (pieces < 2 || executor.concurrency() == 1) {
    fill(int64_t{0}, num_rows);
    return;
  }
  executor.run(pieces, [&](int64_t piece, int32_t) {
    fill(num_rows * piece / pieces, num_rows * (piece + 1) / pieces);
  });
}

}  // namespace kvc
