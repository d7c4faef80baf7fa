// Elements of one type into another, rows gathered and scattered.
#include "kernels/cuda/launches.h"
#include "tests/cuda/rows_support.h"

namespace kvc::cuda::row_test {
namespace {

void convert_at_random(uint64_t seed) {
  Random random(seed);
  const int64_t rows = random.between(1, 20), places = rows + random.between(0, 5);
  const int64_t elements = random.pick<int64_t>({1, 7, 64, 300, 1024, 4096, 5000, 9001});
  const bool mapped = random.chance(0.6), scatter = random.chance(0.4);
  TensorOwner in(random, scatter ? rows : places, 1, elements, random.dtype());
  TensorOwner out(random, scatter ? places : rows, 1, elements, random.dtype());
  TensorOwner fallback(random, 1, 1, elements, in.rows.dtype);
  in.fill(random), fallback.fill(random);
  std::vector<int32_t> map(static_cast<size_t>(places));
  std::iota(map.begin(), map.end(), 0);
  std::shuffle(map.begin(), map.end(), random.engine());
  map.resize(static_cast<size_t>(rows));
  for (int32_t& row : map) row = random.chance(0.2) ? -1 : row;
  const bool has_fallback = random.chance(0.7);
  const int64_t live = random.chance(0.3) ? random.between(0, rows) : rows;
  SCOPED_TRACE("seed " + std::to_string(seed) + ": " + std::to_string(rows) + " rows of " +
               std::to_string(elements) + ", scatter " + std::to_string(scatter) + ", map " +
               std::to_string(mapped));

  const DeviceTensor device_in(in), device_out(out), device_fallback(fallback);
  const DeviceArray<int32_t> device_map(map);
  const DeviceArray<int32_t> count(std::vector<int32_t>{static_cast<int32_t>(live)});
  ConvertParams params{};
  params.in = device_in.rows.base, params.out = device_out.rows.base;
  params.in_stride = in.rows.token_stride, params.out_stride = out.rows.token_stride;
  params.in_type = in.rows.dtype, params.out_type = out.rows.dtype;
  params.rows = mapped ? device_map.data() : nullptr;
  params.fallback = has_fallback ? device_fallback.rows.base : nullptr;
  params.scatter = scatter ? 1 : 0;
  params.num_rows = rows;
  params.num_rows_at = live < rows ? count.data() : nullptr;
  params.num_elements = elements;
  ASSERT_EQ(convert(params, nullptr), cudaSuccess);
  testing::finish();

  TensorOwner expected = clone(out);
  for (int64_t row = 0; row < live; ++row) {
    const int64_t other = mapped ? map[static_cast<size_t>(row)] : row;
    if (scatter && other < 0) continue;
    for (int64_t d = 0; d < elements; ++d) {
      const double value = scatter        ? in.at(row, 0, d)
                           : other >= 0   ? in.at(other, 0, d)
                           : has_fallback ? fallback.at(0, 0, d)
                                          : 0.0;
      kernels::reference::write_element(expected.row(scatter ? other : row, 0), expected.rows.dtype,
                                        d, value);
    }
  }
  const std::vector<std::byte> found = device_out.memory.read();
  ASSERT_TRUE(std::equal(found.begin(), found.end(), expected.memory.data()));
}

TEST(CudaConvert, ElementsAreRoundedOnceAndRowsGoWhereTheMapSays) {
  for (int i = 0; i < scaled_count(60); ++i) {
    convert_at_random(900 + static_cast<uint64_t>(i));
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace kvc::cuda::row_test
