#include "src/step/token_cos_sin.h"

#include "src/step/cos_sin_rows.h"

namespace kvc {
namespace {

void fill(const RopeSpec& rope, const TokenPositions& tokens, float* cosines, float* sines,
          Executor& executor) {
  const int64_t pairs = num_pairs(rope);
  const int32_t* sections = rope.section_of_pair.empty() || tokens.row_stride == 0
                                ? nullptr
                                : rope.section_of_pair.data();
  fill_rows(tokens.num_rows, pairs, executor, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const bool uses_long = tokens.uses_long != nullptr && tokens.uses_long[token] != 0;
      const double* frequencies = frequencies_of(rope, uses_long);
      const int32_t* positions = tokens.positions + token;
      const int64_t added = tokens.added == nullptr ? 0 : tokens.added[token];
      for (int64_t i = 0; i < pairs; ++i) {
        const int64_t row = sections == nullptr ? 0 : sections[i];
        write_cos_sin(static_cast<double>(positions[row * tokens.row_stride] + added),
                      frequencies[i], rope.magnitude, cosines + token * pairs + i,
                      sines + token * pairs + i);
      }
    }
  });
}

}  // namespace

kernels::Rotation TokenCosSin::get(const RopeSpec& rope, const TokenPositions& tokens,
                                   Executor& executor) {
  if (!valid_) {
    const auto bytes = static_cast<size_t>(tokens.num_rows * num_pairs(rope)) * sizeof(float);
    cos_.ensure(bytes);
    sin_.ensure(bytes);
    fill(rope, tokens, reinterpret_cast<float*>(cos_.data()), reinterpret_cast<float*>(sin_.data()),
         executor);
    valid_ = true;
  }
  return rotation_of(rope, reinterpret_cast<const float*>(cos_.data()),
                     reinterpret_cast<const float*>(sin_.data()));
}

}  // namespace kvc
