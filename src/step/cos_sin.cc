#include "src/step/cos_sin.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <new>
#include <utility>

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

namespace {

constexpr std::align_val_t kAlignment{64};
// A multiple of 16 rows, so that the sines are aligned too.
constexpr int64_t kLeastCapacity = 256;

}  // namespace

void PositionCosSin::FreeAligned::operator()(float* memory) const noexcept {
  ::operator delete[](memory, kAlignment);
}

void PositionCosSin::grow(Table* table, int64_t pairs, int64_t num_positions) {
  const int64_t capacity =
      std::max({kLeastCapacity, 2 * table->capacity, align_up(num_positions, 16)});
  int64_t table_bytes = 0;
  if (!multiply(capacity, 2 * pairs * static_cast<int64_t>(sizeof(float)), &table_bytes))
    throw std::bad_alloc();
  std::unique_ptr<float[], FreeAligned> memory(
      static_cast<float*>(::operator new[](static_cast<size_t>(table_bytes), kAlignment)));
  if (table->num_positions > 0) {
    const auto known_bytes = static_cast<size_t>(table->num_positions * pairs) * sizeof(float);
    std::memcpy(memory.get(), table->memory.get(), known_bytes);
    std::memcpy(memory.get() + capacity * pairs, table->memory.get() + table->capacity * pairs,
                known_bytes);
  }
  table->memory = std::move(memory);
  table->capacity = capacity;
}

kernels::Rotation PositionCosSin::ensure(const RopeSpec& rope, bool long_variant,
                                         int64_t num_positions, Executor& executor) {
  const int64_t pairs = num_pairs(rope);
  Table& table = tables_[long_variant ? 1 : 0];
  if (num_positions > table.capacity) grow(&table, pairs, num_positions);
  float* cosines = table.memory.get();
  float* sines = cosines + table.capacity * pairs;
  const int64_t first = table.num_positions;
  if (num_positions > first) {
    const double* frequencies = frequencies_of(rope, long_variant);
    fill_rows(num_positions - first, pairs, executor, [&](int64_t begin, int64_t end) {
      for (int64_t position = first + begin; position < first + end; ++position) {
        for (int64_t i = 0; i < pairs; ++i) {
          write_cos_sin(static_cast<double>(position), frequencies[i], rope.magnitude,
                        cosines + position * pairs + i, sines + position * pairs + i);
        }
      }
    });
    table.num_positions = num_positions;
  }
  return rotation_of(rope, cosines, sines);
}

bool PositionCosSin::copy_row(bool long_variant, int64_t pairs, int64_t position, float* cosines,
                              float* sines) const noexcept {
  const Table& table = tables_[long_variant ? 1 : 0];
  if (position >= table.num_positions) return false;
  const float* row = table.memory.get() + position * pairs;
  std::copy_n(row, pairs, cosines);
  std::copy_n(row + table.capacity * pairs, pairs, sines);
  return true;
}

kernels::Rotation shift_rotation(const RopeSpec& rope, int64_t delta, float* cosines,
                                 float* sines) {
  for (int64_t i = 0; i < num_pairs(rope); ++i) {
    write_cos_sin(static_cast<double>(delta), rope.inverse_frequencies[i], 1.0, cosines + i,
                  sines + i);
  }
  return rotation_of(rope, cosines, sines);
}

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
