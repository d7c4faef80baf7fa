#include "src/step/key_cos_sin.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "src/step/cos_sin_rows.h"

namespace kvc {

void KeyCosSin::resize(int64_t num_keys, int64_t pairs) {
  // Room for pages to be dropped late, and forwards of other lengths.
  const int64_t capacity = align_up(num_keys + num_keys / 4 + 64, 16);
  const auto bytes = static_cast<size_t>(2 * capacity * pairs) * sizeof(float);
  std::vector<int32_t> positions(static_cast<size_t>(capacity), -1);
  cos_.ensure(bytes);
  sin_.ensure(bytes);
  rows_bytes_ = bytes;
  capacity_ = capacity;
  positions_ = std::move(positions);
}

const kernels::Rotation& KeyCosSin::ensure(const RopeSpec& rope, bool long_variant, int64_t begin,
                                           const std::vector<int32_t>& positions,
                                           const PositionCosSin& near, Executor& executor) {
  const int64_t pairs = num_pairs(rope), num_keys = static_cast<int64_t>(positions.size());
  if (num_keys > capacity_) {
    positions_.clear();  // A buffer that has grown holds nothing.
    capacity_ = 0;
    resize(num_keys, pairs);
  }
  if (is_long_ != long_variant) std::fill(positions_.begin(), positions_.end(), -1);
  is_long_ = long_variant;
  auto* cosines = reinterpret_cast<float*>(cos_.data());
  auto* sines = reinterpret_cast<float*>(sin_.data());
  const double* frequencies = frequencies_of(rope, long_variant);
  const int64_t start = begin % capacity_;
  const auto slot_of = [&](int64_t key) {
    return start + key < capacity_ ? start + key : start + key - capacity_;
  };
  const auto is_missing = [&](int64_t key) { return positions_[slot_of(key)] != positions[key]; };
  // Mostly the last key alone is missing.
  int64_t first = 0;
  while (first < num_keys && !is_missing(first)) ++first;
  fill_rows(num_keys - first, pairs, executor, [&](int64_t from, int64_t to) {
    for (int64_t key = first + from; key < first + to; ++key) {
      if (!is_missing(key)) continue;
      const int64_t slot = slot_of(key);
      float* cosine = cosines + slot * pairs;
      float* sine = sines + slot * pairs;
      if (!near.copy_row(long_variant, pairs, positions[key], cosine, sine)) {
        for (int64_t i = 0; i < pairs; ++i) {
          write_cos_sin(static_cast<double>(positions[key]), frequencies[i], rope.magnitude,
                        cosine + i, sine + i);
        }
      }
      const auto bytes = static_cast<size_t>(pairs) * sizeof(float);
      std::memcpy(cosine + capacity_ * pairs, cosine, bytes);
      std::memcpy(sine + capacity_ * pairs, sine, bytes);
      positions_[slot] = positions[key];
    }
  });
  rotation_ = rotation_of(rope, cosines + start * pairs, sines + start * pairs);
  return rotation_;
}

}  // namespace kvc
