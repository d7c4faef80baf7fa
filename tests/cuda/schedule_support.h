// Random batches for the tests of the scheduler, and what is visible in them, asked key by key.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "tests/cuda/schedule_executor.h"

namespace kvc::cuda::test {

class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  int64_t between(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  bool chance(double p) { return std::bernoulli_distribution(p)(engine_); }
  float normal() { return std::normal_distribution<float>()(engine_); }
  template <typename T>
  T pick(std::initializer_list<T> choices) {
    return choices.begin()[between(0, static_cast<int64_t>(choices.size()) - 1)];
  }
  // Small numbers as often as large ones.
  int64_t of_any_size(int64_t most) {
    int64_t limit = 1;
    while (limit < most && chance(0.8)) limit *= 2;
    return between(0, std::min(limit, most));
  }

 private:
  std::mt19937_64 engine_;
};

inline int64_t scaled(int64_t runs) {
  const char* scale = std::getenv("KVC_TEST_SCALE");
  return std::max<int64_t>(
      3, static_cast<int64_t>(static_cast<double>(runs) * (scale ? std::atof(scale) : 1)));
}

// Sequences and what they point to. Stays where it is: copies would point to the original's memory.
struct PlannerBatch {
  std::vector<kernels::AttnSequence> sequences;
  std::deque<std::vector<int32_t>> numbers;
  std::deque<std::vector<uint64_t>> masks;

  PlannerBatch() = default;
  PlannerBatch(PlannerBatch&&) = default;

  int32_t* keep(std::vector<int32_t> values) {
    numbers.push_back(std::move(values));
    return numbers.back().data();
  }
};

struct PlannerBatchShape {
  int64_t max_sequences = 12;
  int64_t max_rows = 150;
  int64_t max_keys = 3000;
  bool causal = true;
  double decode = 0.5;  // chance of a sequence with one row
  bool masks = true;    // windows, sinks, spans, trees
};

// A sequence of `rows` new tokens behind `stored` ones, as the view kernel would describe it.
inline void add_sequence(PlannerBatch* batch, Dice& dice, const PlannerBatchShape& shape,
                         int64_t stored, int64_t rows) {
  kernels::AttnSequence sequence{};
  sequence.row_begin = batch->sequences.empty()
                           ? 0
                           : batch->sequences.back().row_begin + batch->sequences.back().num_rows;
  sequence.num_rows = rows;
  sequence.first_key_end = shape.causal ? stored + 1 : stored;
  sequence.position = stored;
  const auto end_of = [&](int64_t row) {
    return sequence.first_key_end + (shape.causal ? row : 0);
  };
  const bool masked = shape.masks && dice.chance(0.6);
  if (masked && dice.chance(0.6)) {  // a window, and perhaps sinks in front of it
    const int64_t window = dice.of_any_size(shape.max_keys);
    std::vector<int32_t> begins;
    for (int64_t row = 0; row < rows; ++row)
      begins.push_back(static_cast<int32_t>(std::max<int64_t>(0, end_of(row) - window)));
    sequence.key_begins = batch->keep(std::move(begins));
    if (dice.chance(0.6))
      sequence.sink_end = dice.of_any_size(dice.chance(0.3) ? shape.max_keys : 80);
  }
  // Some of the new tokens see each other both ways
  if (masked && shape.causal && dice.chance(0.3)) {
    std::vector<int32_t> ends;
    for (int64_t row = 0; row < rows; ++row) ends.push_back(static_cast<int32_t>(end_of(row)));
    const int64_t from = dice.between(0, rows), to = dice.between(from, rows);
    for (int64_t row = from; row < to; ++row)
      ends[static_cast<size_t>(row)] = static_cast<int32_t>(end_of(to - 1));
    sequence.key_ends = batch->keep(std::move(ends));
    // A tree
  } else if (masked && shape.causal && rows <= 200 && stored < 100000 && dice.chance(0.4)) {
    sequence.tree_begin = dice.between(std::max<int64_t>(0, stored - 70), stored);
    sequence.tree_words = (stored + rows - sequence.tree_begin + 63) / 64;
    std::vector<uint64_t> mask(static_cast<size_t>(rows * sequence.tree_words));
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t node = 0; node <= stored + row - sequence.tree_begin; ++node)
        if (dice.chance(0.5))
          mask[static_cast<size_t>(row * sequence.tree_words + node / 64)] |= 1ull << (node % 64);
    batch->masks.push_back(std::move(mask));
    sequence.tree_mask = batch->masks.back().data();
  }
  batch->sequences.push_back(sequence);
}

inline PlannerBatch random_batch(Dice& dice, const PlannerBatchShape& shape) {
  PlannerBatch batch;
  const int64_t count = dice.between(0, shape.max_sequences);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t rows = dice.chance(shape.decode) ? 1 : dice.of_any_size(shape.max_rows);
    add_sequence(&batch, dice, shape, dice.of_any_size(shape.max_keys), rows);
  }
  return batch;
}

inline ScheduleShape random_shape(Dice& dice, const PlannerBatchShape& batch) {
  ScheduleShape shape{};
  shape.num_kv_heads = static_cast<int32_t>(dice.between(1, 5));
  shape.group_size = static_cast<int32_t>(dice.pick({1, 2, 3, 4, 7, 8, 16}));
  shape.causal = batch.causal ? 1 : 0;
  shape.split_sinks = dice.chance(0.3) ? 1 : 0;
  shape.min_rows = dice.chance(0.3) ? static_cast<int32_t>(dice.between(0, 40)) : 0;
  shape.max_rows =
      dice.chance(0.3) ? static_cast<int32_t>(shape.min_rows + dice.between(0, 100)) : 1 << 30;
  shape.geometry.tile_rows = static_cast<int32_t>(dice.pick({1, 5, 16, 64, 128}));
  shape.geometry.key_block = static_cast<int32_t>(dice.pick({1, 16, 48, 64, 128}));
  shape.geometry.num_ctas = static_cast<int32_t>(dice.pick({1, 2, 7, 33, 132, 264}));
  shape.geometry.item_cost = static_cast<int32_t>(dice.pick({0, 1, 2, 5}));
  if (dice.chance(0.3))
    shape.fixed_keys = shape.geometry.key_block * static_cast<int32_t>(dice.pick({1, 2, 8, 50}));
  return shape;
}

inline std::string describe(const ScheduleShape& shape) {
  const AttnGeometry& g = shape.geometry;
  return "kv heads " + std::to_string(shape.num_kv_heads) + ", group " +
         std::to_string(shape.group_size) + (shape.causal ? ", causal" : "") +
         (shape.split_sinks ? ", split sinks" : "") + ", fixed " +
         std::to_string(shape.fixed_keys) + ", rows " + std::to_string(shape.min_rows) + " to " +
         std::to_string(shape.max_rows) + ", tile " + std::to_string(g.tile_rows) + ", block " +
         std::to_string(g.key_block) + ", ctas " + std::to_string(g.num_ctas) + ", item cost " +
         std::to_string(g.item_cost);
}

inline bool is_planned(const ScheduleShape& shape, const kernels::AttnSequence& sequence) {
  const int64_t rows = sequence.num_rows * shape.group_size;
  return rows > shape.min_rows && rows <= shape.max_rows;
}

}  // namespace kvc::cuda::test
