// Codecs of small floats and integers: every code, every tie, the ends.
#include "kernels/cuda/ptx/elements.h"

#include "tests/cuda/rows_support.h"

namespace kvc::cuda::row_test {
namespace {

constexpr Stored kTypes[] = {Stored::kE4M3, Stored::kE5M2, Stored::kInt8, Stored::kInt4,
                             Stored::kE2M1};

Element element_of_type(Stored type) { return static_cast<Element>(3 + static_cast<int>(type)); }

TEST(CudaElements, EveryCodeHasTheValueOfItsFormat) {
  for (const Stored type : kTypes) {
    const std::vector<double> values = code_values(type);
    for (size_t code = 0; code < values.size(); ++code) {
      const double found = decode(element_of_type(type), static_cast<uint32_t>(code));
      if (std::isnan(values[code])) {
        EXPECT_TRUE(std::isnan(found));
      } else {
        EXPECT_EQ(found, values[code]) << "type " << static_cast<int>(type) << " code " << code;
      }
    }
  }
}

TEST(CudaElements, ValuesAreRoundedToTheNearestCodeAndTiesToTheEvenOne) {
  for (const Stored type : kTypes) {
    const std::vector<double> values = code_values(type);
    std::vector<double> sorted;
    for (const double value : values) {
      if (std::isfinite(value)) sorted.push_back(value);
    }
    std::sort(sorted.begin(), sorted.end());
    for (size_t i = 1; i < sorted.size(); ++i) {
      const auto middle = static_cast<float>((sorted[i - 1] + sorted[i]) / 2);
      for (const float value : {static_cast<float>(sorted[i]), middle,
                                std::nextafter(middle, -1e9f), std::nextafter(middle, 1e9f)}) {
        const uint32_t code = encode(element_of_type(type), value);
        const int nearest = nearest_code(values, value);
        EXPECT_EQ(values[code], values[static_cast<size_t>(nearest)])
            << "type " << static_cast<int>(type) << " value " << value;
      }
    }
  }
}

TEST(CudaElements, WhatIsTooLargeBecomesTheLargest) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const Stored type : kTypes) {
    const std::vector<double> values = code_values(type);
    for (const float value : {1e6f, 1e38f, infinity}) {
      EXPECT_EQ(values[encode(element_of_type(type), value)], largest_value(type));
      EXPECT_LE(values[encode(element_of_type(type), -value)], -largest_value(type));
    }
  }
}

TEST(CudaElements, NotANumberStaysOneWhereThereIsOne) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Stored type : kTypes) {
    const double value = code_values(type)[encode(element_of_type(type), nan)];
    if (type == Stored::kE4M3 || type == Stored::kE5M2) {
      EXPECT_TRUE(std::isnan(value));
    } else {
      EXPECT_EQ(value, 0);
    }
  }
}

TEST(CudaElements, ScalesOfNothingDivideNothing) {
  EXPECT_GT(row_scale(Element::kE4M3, 0.0f), 0.0f);
  EXPECT_EQ(encode(Element::kE4M3, 0.0f / row_scale(Element::kE4M3, 0.0f)), 0u);
  EXPECT_EQ(encode_in_block(1e-9f, decode_e4m3(block_scale_code(1e-9f))), 0u);
}

TEST(CudaElements, SlotsFindTheirPagesAlsoBeyondThirtyTwoBits) {
  for (const int64_t slot : {int64_t{0}, int64_t{47}, int64_t{48}, int64_t{INT32_MAX},
                             int64_t{1} << 31, (int64_t{5} << 32) + 77}) {
    for (const int32_t page_size : {1, 3, 16, 48}) {
      const PageOffset place = page_offset(slot, page_size);
      EXPECT_EQ(place.page, slot / page_size);
      EXPECT_EQ(place.offset, slot % page_size);
    }
  }
}

}  // namespace
}  // namespace kvc::cuda::row_test
