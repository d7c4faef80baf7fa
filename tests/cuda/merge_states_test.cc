// Two attention results into one, in place.
#include "kernels/cuda/launches.h"
#include "kernels/reference/reference.h"
#include "tests/cuda/rows_support.h"

namespace kvc::cuda::row_test {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

void merge_at_random(uint64_t seed) {
  Random random(seed);
  const int64_t rows = random.between(1, 12), heads = random.pick<int64_t>({1, 3, 8});
  const int64_t dim = random.pick<int64_t>({1, 33, 64, 80, 128, 512});
  TensorOwner out(random, rows, heads, dim, random.dtype()),
      other(random, rows, heads, dim, random.dtype());
  SCOPED_TRACE("seed " + std::to_string(seed) + ": dim " + std::to_string(dim) + ", types " +
               std::to_string(static_cast<int>(out.rows.dtype)) + " " +
               std::to_string(static_cast<int>(other.rows.dtype)));
  out.fill(random), other.fill(random);
  const int64_t lse_stride = heads + random.between(0, 2),
                other_stride = heads + random.between(0, 2);
  std::vector<float> lse(static_cast<size_t>(rows * lse_stride), NAN),
      other_lse(static_cast<size_t>(rows * other_stride), NAN);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t head = 0; head < heads; ++head) {
      const bool empty = random.chance(0.2), other_empty = random.chance(0.2);
      lse[static_cast<size_t>(row * lse_stride + head)] =
          empty ? kMinusInfinity : static_cast<float>(5 * random.normal());
      other_lse[static_cast<size_t>(row * other_stride + head)] =
          other_empty ? kMinusInfinity : static_cast<float>(5 * random.normal());
      // What an empty part holds is of no matter.
      for (int64_t d = 0; d < dim; ++d) {
        if (empty) kernels::reference::write_element(out.row(row, head), out.rows.dtype, d, NAN);
        if (other_empty)
          kernels::reference::write_element(other.row(row, head), other.rows.dtype, d, NAN);
      }
    }
  }
  const int64_t live = random.chance(0.3) ? random.between(0, rows) : rows;
  const DeviceTensor device_out(out), device_other(other);
  const DeviceArray<float> device_lse(lse), device_other_lse(other_lse);
  const DeviceArray<int32_t> count(std::vector<int32_t>{static_cast<int32_t>(live)});
  kernels::MergeParams params{
      device_out.rows, device_other.rows, device_lse.data(),           device_other_lse.data(),
      lse_stride,      other_stride,      static_cast<int32_t>(heads), static_cast<int32_t>(dim)};
  ASSERT_EQ(merge_states(params, rows, live < rows ? count.data() : nullptr, nullptr), cudaSuccess);
  testing::finish();

  params.out = out.rows, params.other_out = other.rows;
  params.lse = lse.data(), params.other_lse = other_lse.data();
  kernels::reference::merge(params, 0, live);
  TensorOwner found = clone(out);
  device_out.read_back(found);
  const std::vector<float> found_lse = device_lse.read();
  // float32: two products and a sum of rounded weights; 16 bits: half a unit in the last place, and
  // the next one at a tie.
  const double limit = out.rows.dtype == DType::kF32   ? 1e-6
                       : out.rows.dtype == DType::kF16 ? 1e-3
                                                       : 8e-3;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t head = 0; head < heads; ++head) {
      const auto at = static_cast<size_t>(row * lse_stride + head);
      if (std::isinf(lse[at])) {
        ASSERT_EQ(found_lse[at], lse[at]);
      } else {
        ASSERT_NEAR(found_lse[at], lse[at], 2e-6 * std::max(1.0f, std::fabs(lse[at])));
      }
      for (int64_t d = 0; d < dim; ++d) {
        const double wanted = out.at(row, head, d), is = found.at(row, head, d);
        if (row >= live && std::isnan(wanted)) continue;
        ASSERT_NEAR(is, wanted, limit * std::max(0.1, std::fabs(wanted)))
            << "row " << row << " element " << d;
      }
    }
  }
}

TEST(CudaMerge, PartsAreWeightedByTheirSums) {
  for (int i = 0; i < scaled_count(60); ++i) {
    merge_at_random(700 + static_cast<uint64_t>(i));
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace kvc::cuda::row_test
