#include "src/forward/rotation_angles.h"

#include <algorithm>
#include <cmath>

#include "src/base/math.h"

namespace kvc {

kernels::Rotation RotationAngles::get(const RopeSpec& rope, const Batch& batch, Executor& executor) {
  const auto pairs = static_cast<int64_t>(rope.inverse_frequencies.size());
  const auto bytes = static_cast<size_t>(batch.num_rows() * pairs) * sizeof(float);
  if (!valid_) {
    cos_.ensure(bytes);
    sin_.ensure(bytes);
    auto* cosines = reinterpret_cast<float*>(cos_.data());
    auto* sines = reinterpret_cast<float*>(sin_.data());
    const auto fill = [&](int64_t row, int64_t position) {
      for (int64_t i = 0; i < pairs; ++i) {
        const double angle = static_cast<double>(position) * rope.inverse_frequencies[static_cast<size_t>(i)];
        cosines[row * pairs + i] = static_cast<float>(std::cos(angle));
        sines[row * pairs + i] = static_cast<float>(std::sin(angle));
      }
    };
    // About 1 us per row: entries of one token each are not worth a task, long ones are cut.
    constexpr int64_t kRowsPerTask = 32;
    for (const BatchEntry& entry : batch.entries()) {
      executor.run(ceil_div(entry.append_length, kRowsPerTask), [&](int64_t task, int32_t) {
        const int64_t end = std::min(entry.append_length, (task + 1) * kRowsPerTask);
        for (int64_t i = task * kRowsPerTask; i < end; ++i) fill(entry.row_begin + i, entry.old_length + i);
      });
    }
    valid_ = true;
  }
  return {.cos = reinterpret_cast<const float*>(cos_.data()),
          .sin = reinterpret_cast<const float*>(sin_.data()),
          .rotary_dim = rope.rotary_dim,
          .interleaved = rope.style == KVC_ROPE_INTERLEAVED ? 1 : 0};
}

}  // namespace kvc
