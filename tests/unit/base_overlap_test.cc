// Overlap of tensors against the sets of their bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "src/base/overlap.h"
#include "src/base/tensor.h"

namespace kvc {
namespace {

struct Tensor {
  std::vector<int64_t> shape, strides;
  int64_t offset;  // elements
  int64_t rows;

  DLTensor dl() {
    return {.data = reinterpret_cast<void*>(uintptr_t{1} << 32),
            .device = {kDLCPU, 0},
            .ndim = static_cast<int32_t>(shape.size()),
            .dtype = {kDLFloat, 16, 1},
            .shape = shape.data(),
            .strides = strides.data(),
            .byte_offset = static_cast<uint64_t>(offset) * 2};
  }
  std::set<int64_t> elements() const {
    std::set<int64_t> found;
    for (int64_t t = 0; t < std::min(rows, shape[0]); ++t) {
      for (int64_t h = 0; h < shape[1]; ++h) {
        for (int64_t d = 0; d < shape[2]; ++d)
          found.insert(offset + t * strides[0] + h * strides[1] + d * strides[2]);
      }
    }
    return found;
  }
};

TEST(Overlap, IsExactlyThatAByteIsInBoth) {
  std::mt19937 random(7);
  const auto number = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  int together = 0, apart_inside = 0;
  for (int round = 0; round < 20000; ++round) {
    Tensor tensors[2];
    // Every third time both have the same strides, as slices of one buffer do.
    const std::vector<int64_t> common{number(-20, 20), number(-12, 12), 1};
    for (Tensor& tensor : tensors) {
      tensor.shape = {number(0, 5), number(1, 4), number(1, 4)};
      tensor.strides =
          round % 3 == 0 ? common : std::vector<int64_t>{number(-20, 20), number(-12, 12), 1};
      tensor.offset = number(0, 80);
      tensor.rows = number(0, 5);
    }
    DLTensor a = tensors[0].dl(), b = tensors[1].dl();
    const std::set<int64_t> in_a = tensors[0].elements(), in_b = tensors[1].elements();
    const bool expected = std::any_of(in_a.begin(), in_a.end(),
                                      [&](int64_t element) { return in_b.count(element) != 0; });
    const TensorUse left{&a, "a", tensors[0].rows}, right{&b, "b", tensors[1].rows};
    ASSERT_EQ(overlap(left, right), expected) << "round " << round;
    ASSERT_EQ(overlap(right, left), expected) << "round " << round;
    together += expected;
    apart_inside += !expected && !in_a.empty() && !in_b.empty() && *in_a.begin() < *in_b.rbegin() &&
                    *in_b.begin() < *in_a.rbegin();
  }
  EXPECT_GT(together, 2000);
  EXPECT_GT(apart_inside, 500) << "tensors between each other's rows were hardly tried";
}

}  // namespace
}  // namespace kvc
