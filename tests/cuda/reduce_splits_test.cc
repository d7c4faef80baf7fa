// The combine kernel against the same reductions in double.
#include <gtest/gtest.h>

#include "kernels/cuda/launches.h"
#include "tests/cuda/schedule_on_device.h"
#include "tests/cuda/schedule_support.h"

namespace kvc::cuda::test {
namespace {

using kernels::DType;
using testing::DeviceArray;

struct Shape {
  int32_t q_heads, kv_heads, v_dim, tile_rows, num_ctas;
  int32_t most_sources = 5;
  DType dtype = DType::kF32;
  bool sinks = true, lse = true, row_map = true;
  int64_t odd_strides = 0;  // elements that rows are apart beside their length
};

// A list of reductions with their slots, on the host.
struct Problem {
  Shape shape;
  std::vector<int32_t> counts;
  std::vector<ReduceItem> reductions;
  std::vector<ReduceSource> sources;
  std::vector<float> partials;
  std::vector<kernels::AttnSequence> sequences;
  std::vector<std::vector<int32_t>> maps;
  std::vector<float> sinks;
  int64_t tokens = 0;

  int32_t group() const { return shape.q_heads / shape.kv_heads; }

  Problem(Dice& dice, const Shape& given) : shape(given) {
    const auto count = dice.between(1, 4);
    for (int32_t s = 0; s < count; ++s) add_sequence(dice, s);
    for (int32_t h = 0; h < shape.q_heads; ++h)
      sinks.push_back(h % 5 == 4 ? -std::numeric_limits<float>::infinity() : 5 * dice.normal());
    counts = {0, static_cast<int32_t>(reductions.size()), static_cast<int32_t>(sources.size()),
              static_cast<int32_t>(sources.size())};
  }

  void add_sequence(Dice& dice, int32_t s) {
    kernels::AttnSequence sequence{};
    sequence.num_rows = dice.of_any_size(30);
    sequence.row_begin = tokens;
    maps.emplace_back();
    for (int64_t row = 0; row < sequence.num_rows; ++row)
      maps.back().push_back(static_cast<int32_t>(tokens + sequence.num_rows - 1 - row));
    tokens += sequence.num_rows;
    sequences.push_back(sequence);
    const int64_t packed = sequence.num_rows * group();
    for (int32_t head = 0; head < shape.kv_heads; ++head)
      for (int64_t row = 0; row < packed; row += shape.tile_rows)
        if (dice.chance(0.8))
          add_merge(dice, s, head, row, std::min<int64_t>(shape.tile_rows, packed - row));
  }

  // The rows of the merge lie anywhere in its slots, as those of shared prefixes do.
  void add_merge(Dice& dice, int32_t s, int32_t head, int64_t row, int64_t rows) {
    const auto first = static_cast<int32_t>(sources.size());
    const auto count = static_cast<int32_t>(dice.between(1, shape.most_sources));
    for (int32_t i = 0; i < count; ++i) {
      const auto at = static_cast<int32_t>(dice.between(0, shape.tile_rows - rows));
      const size_t begin = partials.size();
      partials.resize(begin + static_cast<size_t>(split_floats(shape.tile_rows, shape.v_dim)),
                      std::numeric_limits<float>::quiet_NaN());
      for (int64_t r = at; r < at + rows; ++r)
        fill(dice, partials.data() + begin + static_cast<size_t>(r * (2 + shape.v_dim)));
      sources.push_back({static_cast<int32_t>(sources.size()), at});
    }
    std::reverse(sources.begin() + first, sources.end());
    reductions.push_back(
        {s, head, static_cast<int32_t>(row), static_cast<int32_t>(rows), first, count});
  }

  void fill(Dice& dice, float* row) const {
    const bool is_empty = dice.chance(0.3);
    row[0] = is_empty ? -std::numeric_limits<float>::infinity() : 8 * dice.normal();
    row[1] = is_empty ? 0.0f : 1.0f + std::fabs(9 * dice.normal());
    // What weighs nothing may hold anything.
    for (int32_t d = 0; d < shape.v_dim; ++d)
      row[2 + d] = is_empty ? std::numeric_limits<float>::quiet_NaN() : row[1] * dice.normal();
  }

  kernels::AttnParams params(std::byte* out, float* lse) const {
    kernels::AttnParams params{};
    params.num_q_heads = shape.q_heads;
    params.num_kv_heads = shape.kv_heads;
    params.v_dim = shape.v_dim;
    const int64_t head_stride =
        (shape.v_dim + shape.odd_strides) * kernels::dtype_bytes(shape.dtype);
    params.out = {out, head_stride * shape.q_heads, head_stride, shape.dtype};
    params.lse = shape.lse ? lse : nullptr;
    params.lse_token_stride = shape.q_heads + 3;
    return params;
  }
};

// Weights are good to some 2^-20, sums have few terms. In 16 bits the two may then round apart: one
// unit in the last place.
double tolerance(DType dtype) {
  return 1e-5 + (dtype == DType::kF32 ? 0 : dtype == DType::kF16 ? 1.0 / 1024 : 1.0 / 128);
}

void check(uint64_t seed, const Shape& shape) {
  Dice dice(seed);
  Problem problem(dice, shape);
  SCOPED_TRACE("seed " + std::to_string(seed) + ": heads " + std::to_string(shape.q_heads) + "/" +
               std::to_string(shape.kv_heads) + ", v_dim " + std::to_string(shape.v_dim) +
               ", tile " + std::to_string(shape.tile_rows) + ", dtype " +
               std::to_string(static_cast<int>(shape.dtype)));
  const kernels::AttnParams layout = problem.params(nullptr, nullptr);
  const auto out_bytes = static_cast<size_t>(problem.tokens * layout.out.token_stride);
  const auto lse_floats = static_cast<size_t>(problem.tokens * layout.lse_token_stride);

  std::vector<std::byte> expected(out_bytes, std::byte{0xff});
  std::vector<float> expected_lse(lse_floats, -7.0f);
  kernels::AttnParams params = problem.params(expected.data(), expected_lse.data());
  std::vector<kernels::AttnSequence> sequences = problem.sequences;
  if (shape.row_map)
    for (size_t s = 0; s < sequences.size(); ++s) sequences[s].row_map = problem.maps[s].data();
  params.sequences = sequences.data();
  params.sinks = shape.sinks ? problem.sinks.data() : nullptr;
  WorkSchedule schedule{problem.counts.data(),
                        nullptr,
                        nullptr,
                        problem.reductions.data(),
                        problem.sources.data(),
                        problem.partials.data(),
                        shape.num_ctas,
                        shape.tile_rows};
  for (const ReduceItem& merge : problem.reductions) execute_reduction(params, schedule, merge);

  const DeviceArray<std::byte> out(std::vector<std::byte>(out_bytes, std::byte{0xff}));
  const DeviceArray<float> lse(std::vector<float>(lse_floats, -7.0f)), sinks(problem.sinks),
      partials(problem.partials);
  std::vector<DeviceArray<int32_t>> maps;
  for (size_t s = 0; s < sequences.size(); ++s) {
    maps.emplace_back(problem.maps[s]);
    if (shape.row_map) sequences[s].row_map = maps.back().data();
  }
  const DeviceArray<kernels::AttnSequence> device_sequences(sequences);
  const DeviceArray<int32_t> counts(problem.counts);
  const DeviceArray<ReduceItem> reductions(problem.reductions);
  const DeviceArray<ReduceSource> sources(problem.sources);
  AttnLaunch launch{};
  launch.params = problem.params(out.data(), lse.data());
  launch.params.sequences = device_sequences.data();
  launch.params.sinks = shape.sinks ? sinks.data() : nullptr;
  launch.schedule = {counts.data(),  nullptr,         nullptr,        reductions.data(),
                     sources.data(), partials.data(), shape.num_ctas, shape.tile_rows};
  testing::check(reduce_splits(launch, nullptr), "reduce_splits");
  testing::finish();

  const std::vector<std::byte> actual = out.read();
  const std::vector<float> actual_lse = lse.read();
  for (size_t i = 0; i < lse_floats; ++i) {
    if (expected_lse[i] == actual_lse[i]) continue;
    ASSERT_NEAR(actual_lse[i], expected_lse[i], 1e-5 * std::max(1.0f, std::fabs(expected_lse[i])))
        << i;
  }
  for (int64_t row = 0; row < problem.tokens * shape.q_heads; ++row)
    for (int32_t d = 0; d < shape.v_dim + shape.odd_strides; ++d) {
      const double e = kernels::reference::read_element(
          expected.data() + row * layout.out.head_stride, shape.dtype, d);
      const double a = kernels::reference::read_element(
          actual.data() + row * layout.out.head_stride, shape.dtype, d);
      if (std::isnan(e) && std::isnan(a)) continue;  // neither wrote it
      ASSERT_NEAR(a, e, tolerance(shape.dtype) * std::max(1.0, std::fabs(e)))
          << "row " << row << " element " << d;
    }
}

TEST(CudaCombine, MergesPartsLikeTheReference) {
  for (int64_t seed = 1; seed <= scaled(60); ++seed) {
    Dice dice(static_cast<uint64_t>(seed));
    Shape shape{};
    shape.kv_heads = static_cast<int32_t>(dice.between(1, 4));
    shape.q_heads = shape.kv_heads * static_cast<int32_t>(dice.pick({1, 2, 3, 7, 8}));
    shape.v_dim = static_cast<int32_t>(dice.pick({1, 2, 33, 64, 65, 80, 128, 200}));
    shape.tile_rows = static_cast<int32_t>(dice.pick({1, 5, 16, 64}));
    shape.num_ctas = static_cast<int32_t>(dice.pick({1, 3, 20}));
    shape.dtype = dice.pick({DType::kF32, DType::kF16, DType::kBF16});
    shape.sinks = dice.chance(0.5);
    shape.lse = dice.chance(0.7);
    shape.row_map = dice.chance(0.5);
    shape.odd_strides = dice.pick({0, 0, 1, 2, 5});
    ASSERT_NO_FATAL_FAILURE(check(static_cast<uint64_t>(seed), shape));
  }
}

TEST(CudaCombine, MergesMoreSourcesThanAWarpHasLanes) {
  for (int64_t seed = 1; seed <= scaled(6); ++seed)
    ASSERT_NO_FATAL_FAILURE(check(static_cast<uint64_t>(seed), {.q_heads = 2,
                                                                .kv_heads = 1,
                                                                .v_dim = seed % 2 ? 72 : 33,
                                                                .tile_rows = 4,
                                                                .num_ctas = 2,
                                                                .most_sources = 130}));
}

TEST(CudaCombine, MergesRowsOf512And1024Elements) {
  for (const int32_t v_dim : {512, 1024, 1023})
    ASSERT_NO_FATAL_FAILURE(check(static_cast<uint64_t>(v_dim), {.q_heads = 8,
                                                                 .kv_heads = 1,
                                                                 .v_dim = v_dim,
                                                                 .tile_rows = 16,
                                                                 .num_ctas = 4,
                                                                 .most_sources = 9,
                                                                 .dtype = DType::kBF16}));
}

}  // namespace
}  // namespace kvc::cuda::test
