// Tables of angles against the C library's sin and cos.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "kernels/cuda/launches.h"
#include "kernels/cuda/rope/key_rows.h"
#include "kernels/cuda/rope/sine_cosine.h"
#include "tests/cuda/device_memory.h"
#include "tests/cuda/random_numbers.h"

namespace kvc::cuda {
namespace {

using testing::DeviceArray;
using testing::finish;
using testing::Rng;
using testing::scaled;

// Units in the last place between two results.
double units_apart(double a, double b) {
  const double larger = std::max(std::fabs(a), std::fabs(b));
  return larger == 0 ? 0 : std::fabs(a - b) / std::ldexp(1.0, std::ilogb(larger) - 52);
}

TEST(CudaAngles, SineAndCosineAreRightToAUnitOrTwoInTheLastPlaceOfADouble) {
  std::mt19937_64 engine(3);
  std::uniform_real_distribution<double> exponent(-30, 31);
  double worst = 0;
  const auto check = [&](double angle) {
    double sine, cosine;
    sine_cosine(angle, sine, cosine);
    // glibc's are off by less than a unit themselves.
    worst =
        std::max({worst, units_apart(sine, std::sin(angle)), units_apart(cosine, std::cos(angle))});
  };
  for (int i = 0; i < scaled(200000); ++i)
    check((i % 2 == 0 ? 1 : -1) * std::exp2(exponent(engine)));
  // Close to where sine or cosine is zero, whole positions, and nothing at all.
  for (int i = 0; i < 100000; ++i) check(i * 1.57079632679489661923);
  for (int i = 0; i < 100000; ++i) check(static_cast<double>(i) * 21474.0 + 1);
  check(0);
  check(2147483647.0);
  EXPECT_LE(worst, 2.0);
}

// The double is right to two units of 2^-53; rounding to float differs from the C library's only
// where both lie beside a tie, by one unit of a float.
void expect_close(float found, double expected) {
  const auto rounded = static_cast<float>(expected);
  ASSERT_TRUE(found == rounded ||
              std::fabs(found - expected) <= std::fabs(expected) * 0x1.00001p-24)
      << found << " and " << expected;
}

TEST(CudaAngles, RowsTurnByTheirPositionsSectionsAndVariants) {
  for (int seed = 0; seed < scaled(25); ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Rng rng(seed);
    const auto pairs = static_cast<size_t>(1 + rng.upto(70));
    const auto most_rows = static_cast<size_t>(1 + rng.upto(300));
    const auto rows =
        static_cast<size_t>(rng.chance(50) ? static_cast<int32_t>(most_rows)
                                           : rng.upto(static_cast<int32_t>(most_rows)));
    const size_t sections = rng.chance(40) ? 3 : 1;
    const size_t num_sequences = 5;
    std::vector<double> frequencies(pairs), long_frequencies(pairs);
    for (size_t i = 0; i < pairs; ++i) {
      frequencies[i] = std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(pairs));
      long_frequencies[i] = frequencies[i] / (1 + rng.upto(8));
    }
    std::vector<int32_t> positions(sections * most_rows), pair_section(pairs),
        row_sequence(most_rows), long_ropes(num_sequences), window(num_sequences);
    for (int32_t& p : positions) p = rng.chance(50) ? rng.upto(4000) : rng.upto(INT32_MAX - 1);
    for (int32_t& section : pair_section) section = rng.upto(static_cast<int32_t>(sections) - 1);
    for (int32_t& s : row_sequence) s = rng.upto(num_sequences - 1);
    for (int32_t& ropes : long_ropes) ropes = rng.upto(7);
    for (int32_t& w : window) w = rng.chance(50) ? 0 : 1 + rng.upto(3000);
    const bool has_positions = rng.chance(80), has_sections = sections > 1,
               has_variants = rng.chance(50), has_limit = rng.chance(40),
               has_count = rng.chance(50);
    const double magnitude = rng.chance(50) ? 1.0 : 1.19;
    const int32_t rope = rng.upto(2);

    DeviceArray<double> on_device[2] = {DeviceArray<double>(frequencies),
                                        DeviceArray<double>(long_frequencies)};
    DeviceArray<int32_t> d_positions(positions), d_section(pair_section), d_sequence(row_sequence),
        d_long(long_ropes), d_window(window),
        d_rows(std::vector<int32_t>{static_cast<int32_t>(rows)});
    DeviceArray<float> cosines(most_rows * pairs), sines(most_rows * pairs);
    const CosSinParams params{
        .inverse_frequencies = {on_device[0].data(), has_variants ? on_device[1].data() : nullptr},
        .magnitude = magnitude,
        .positions = has_positions ? d_positions.data() : nullptr,
        .positions_stride = static_cast<int64_t>(most_rows),
        .pair_section = has_sections ? d_section.data() : nullptr,
        .row_sequence = has_variants || has_limit ? d_sequence.data() : nullptr,
        .long_ropes = d_long.data(),
        .rope = rope,
        .position_limit = has_limit ? 1 : 0,
        .window = d_window.data(),
        .num_rows = static_cast<int64_t>(has_count ? most_rows : rows),
        .num_rows_at = has_count ? d_rows.data() : nullptr,
        .num_pairs = static_cast<int32_t>(pairs),
        .cos = cosines.data(),
        .sin = sines.data()};
    ASSERT_EQ(cuda::cos_sin(params, nullptr), cudaSuccess);
    finish();
    const std::vector<float> c = cosines.read(), s = sines.read();
    for (size_t row = 0; row < rows; ++row) {
      const auto sequence = static_cast<size_t>(row_sequence[row]);
      for (size_t pair = 0; pair < pairs; ++pair) {
        const size_t section = has_sections ? static_cast<size_t>(pair_section[pair]) : 0;
        int64_t position =
            has_positions ? positions[section * most_rows + row] : static_cast<int64_t>(row);
        if (has_limit && window[sequence] != 0)
          position = std::min<int64_t>(position, window[sequence] - 1);
        const bool is_long = has_variants && (long_ropes[sequence] >> rope & 1) != 0;
        const double angle =
            static_cast<double>(position) * (is_long ? long_frequencies : frequencies)[pair];
        ASSERT_NO_FATAL_FAILURE(expect_close(c[row * pairs + pair], std::cos(angle) * magnitude));
        ASSERT_NO_FATAL_FAILURE(expect_close(s[row * pairs + pair], std::sin(angle) * magnitude));
      }
    }
    for (size_t i = rows * pairs; i < c.size(); ++i)
      ASSERT_TRUE(std::isnan(c[i]) && std::isnan(s[i]));
  }
}

// Errors of the tables and of the product: less than 4e-7 of the magnitude.
TEST(CudaAngles, OfAbsolutePositionsComeFromANearAndAFarRow) {
  const std::vector<double> frequencies{1.0, 0.31, 0.001};
  const auto pairs = static_cast<int32_t>(frequencies.size());
  const double magnitude = 1.19;
  const int64_t rows = kMaxKeyRows;
  ASSERT_EQ(key_rows(int64_t{INT32_MAX} + 1), rows);
  ASSERT_EQ(key_rows(kNearPositions), kNearPositions);
  ASSERT_EQ(key_rows(kNearPositions + 1), kNearPositions + 2);
  DeviceArray<double> on_device(frequencies);
  DeviceArray<float> cosines(static_cast<size_t>(rows * pairs)),
      sines(static_cast<size_t>(rows * pairs));
  CosSinParams params{};
  params.inverse_frequencies[0] = on_device.data();
  params.magnitude = magnitude;
  params.num_rows = rows;
  params.num_pairs = pairs;
  params.cos = cosines.data();
  params.sin = sines.data();
  ASSERT_EQ(cuda::cos_sin(params, nullptr), cudaSuccess);
  finish();
  const std::vector<float> c = cosines.read(), s = sines.read();
  const kernels::Rotation rotation{c.data(), s.data(), 2 * pairs, 0, 0};
  std::vector<int64_t> positions{0, 1, INT32_MAX};
  for (const int64_t far : {int64_t{1}, int64_t{2}, int64_t{400}, int64_t{65535}})
    for (int64_t beside = -2; beside < 3; ++beside)
      positions.push_back(far * kNearPositions + beside);
  Rng rng(11);
  for (int i = 0; i < 10000; ++i) positions.push_back(rng.upto(INT32_MAX - 1));
  for (const int64_t position : positions) {
    for (int32_t pair = 0; pair < pairs; ++pair) {
      float cos, sin;
      key_cos_sin(rotation, position, pair, cos, sin);
      const double angle = static_cast<double>(position) * frequencies[static_cast<size_t>(pair)];
      ASSERT_NEAR(cos, std::cos(angle) * magnitude, 4e-7 * magnitude) << position;
      ASSERT_NEAR(sin, std::sin(angle) * magnitude, 4e-7 * magnitude) << position;
      if (position >= kNearPositions) continue;
      ASSERT_NO_FATAL_FAILURE(expect_close(cos, std::cos(angle) * magnitude));
      ASSERT_NO_FATAL_FAILURE(expect_close(sin, std::sin(angle) * magnitude));
    }
  }
}

}  // namespace
}  // namespace kvc::cuda
