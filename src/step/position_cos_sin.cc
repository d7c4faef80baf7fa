#include "src/step/position_cos_sin.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <new>
#include <utility>

#include "src/step/cos_sin_rows.h"

namespace kvc {
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

}  // namespace kvc
