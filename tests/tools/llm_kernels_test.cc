// The arithmetic of models, on every level that this machine has, against sums in double.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tools/demo/workload.h"
#include "tools/llm/block_kernels.h"
#include "tools/llm/weights.h"

namespace kvc::demo {
namespace {

constexpr uint64_t kSeed = 20240;

std::vector<float> random_floats(size_t count, uint64_t stream, double scale = 1.0) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>(scale * (2.0 * random_unit(kSeed, stream, i) - 1.0));
  }
  return values;
}

class ToolLlmKernels : public testing::TestWithParam<llm::KernelLevel> {
 protected:
  const llm::BlockKernels& kernels_ = llm::block_kernels(GetParam());
};

INSTANTIATE_TEST_SUITE_P(EveryLevel, ToolLlmKernels,
                         testing::Values(llm::KernelLevel::kBaseline, llm::KernelLevel::kAvx2,
                                         llm::KernelLevel::kAvx512));

TEST_P(ToolLlmKernels, AProductOfAnyNumberOfRowsEqualsTheSumInDouble) {
  const int64_t panel = kernels_.panel, cols = 3 * panel, depth = 77;
  const std::vector<float> b = random_floats(static_cast<size_t>(cols * depth), 1);
  for (int64_t rows = 1; rows <= 30; ++rows) {
    const std::vector<float> a = random_floats(static_cast<size_t>(rows * depth), 2);
    std::vector<float> c(static_cast<size_t>(rows * cols), std::numeric_limits<float>::quiet_NaN());
    llm::Product product{rows,  cols,          depth,    a.data(), depth, b.data(),
                         panel, panel * depth, c.data(), cols,     false};
    kernels_.multiply(product);
    product.accumulate = true;
    kernels_.multiply(product);  // twice the product
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < cols; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < depth; ++k) {
          sum += static_cast<double>(a[static_cast<size_t>(i * depth + k)]) *
                 b[static_cast<size_t>((j / panel * depth + k) * panel + j % panel)];
        }
        ASSERT_NEAR(c[static_cast<size_t>(i * cols + j)], 2 * sum, 2e-5)
            << rows << " rows, " << i << ", " << j;
      }
    }
  }
}

// What is widened is exact, so the bits are those of float32 weights of the same values.
TEST_P(ToolLlmKernels, AProductWithWeightsOfBfloat16IsThatOfTheirValues) {
  const int64_t panel = kernels_.panel, cols = 2 * panel, depth = 51;
  std::vector<float> b = random_floats(static_cast<size_t>(cols * depth), 6);
  std::vector<uint16_t> halves;
  for (float& value : b) {
    halves.push_back(llm::to_bfloat16(value));
    value = llm::from_bfloat16(halves.back());
  }
  for (const int64_t rows : {1, 15, 24, 25, 50}) {
    const std::vector<float> a = random_floats(static_cast<size_t>(rows * depth), 7);
    std::vector<float> expected(static_cast<size_t>(rows * cols)), got(expected.size());
    llm::Product product{rows,  cols,          depth,           a.data(), depth, b.data(),
                         panel, panel * depth, expected.data(), cols,     false};
    kernels_.multiply(product);
    product.b = halves.data();
    product.b_type = llm::WeightType::kBfloat16;
    product.c = got.data();
    kernels_.multiply(product);
    EXPECT_EQ(got, expected) << rows << " rows";
  }
}

TEST_P(ToolLlmKernels, ARowOfAProductHasTheSameBitsWhateverRowsAreBesideIt) {
  const int64_t panel = kernels_.panel, depth = 100, rows = 29;
  const std::vector<float> a = random_floats(static_cast<size_t>(rows * depth), 3);
  const std::vector<float> b = random_floats(static_cast<size_t>(panel * depth), 4);
  std::vector<float> together(static_cast<size_t>(rows * panel)), alone(static_cast<size_t>(panel));
  kernels_.multiply(
      {rows, panel, depth, a.data(), depth, b.data(), panel, 0, together.data(), panel, false});
  for (int64_t i = 0; i < rows; ++i) {
    kernels_.multiply({1, panel, depth, a.data() + i * depth, depth, b.data(), panel, 0,
                       alone.data(), panel, false});
    for (int64_t j = 0; j < panel; ++j) {
      ASSERT_EQ(together[static_cast<size_t>(i * panel + j)], alone[static_cast<size_t>(j)])
          << "row " << i;
    }
  }
}

TEST_P(ToolLlmKernels, ASoftmaxInBlocksEqualsTheWholeAndIgnoresWhatIsMasked) {
  const int64_t keys = 2 * kernels_.panel, dim = kernels_.panel, blocks = 3;
  for (int64_t visible = 1; visible <= blocks * keys; ++visible) {
    const std::vector<float> scores = random_floats(static_cast<size_t>(blocks * keys), 5, 12.0);
    float row_max = -std::numeric_limits<float>::infinity(), row_sum = 0;
    // Every weight is added to the accumulated row, which therefore ends as the sum of all.
    std::vector<float> accumulated(static_cast<size_t>(dim), 0.0f);
    for (int64_t block = 0; block < blocks; ++block) {
      std::vector<float> part(scores.begin() + block * keys, scores.begin() + (block + 1) * keys);
      const int64_t seen = visible - block * keys;
      for (int64_t key = std::max<int64_t>(seen, 0); key < keys; ++key) {
        part[static_cast<size_t>(key)] = std::numeric_limits<float>::quiet_NaN();
      }
      kernels_.softmax(
          {1, keys, part.data(), keys, &seen, &row_max, &row_sum, accumulated.data(), dim});
      for (float& sum : accumulated) {
        for (const float weight : part) sum += weight;
      }
    }
    double highest = -1e30, total = 0;
    for (int64_t key = 0; key < visible; ++key) {
      highest = std::max<double>(highest, scores[static_cast<size_t>(key)]);
    }
    for (int64_t key = 0; key < visible; ++key)
      total += std::exp(scores[static_cast<size_t>(key)] - highest);
    ASSERT_EQ(row_max, static_cast<float>(highest));
    ASSERT_NEAR(row_sum / total, 1.0, 2e-6) << visible << " keys";
    for (const float sum : accumulated) ASSERT_NEAR(sum / total, 1.0, 5e-6) << visible << " keys";
  }
}

TEST_P(ToolLlmKernels, SiluIsRightInItsTailsToo) {
  std::vector<float> gate = {-200, -90, -30, -1, -0.0f, 0, 0.5f, 1, 30, 90, 200};
  for (int i = 0; i < 60; ++i) gate.push_back(static_cast<float>(i) * 0.37f - 11.0f);
  const std::vector<float> in = gate;
  const std::vector<float> up(gate.size(), 1.5f);
  kernels_.silu_multiply(gate.data(), up.data(), static_cast<int64_t>(gate.size()));
  for (size_t i = 0; i < in.size(); ++i) {
    const double exact = 1.5 * in[i] / (1.0 + std::exp(-static_cast<double>(in[i])));
    EXPECT_NEAR(gate[i], exact, 1e-6 + 1e-6 * std::fabs(exact)) << in[i];
  }
}

TEST_P(ToolLlmKernels, GeluIsRightInItsTailsToo) {
  std::vector<float> gate = {-200, -30, -8, -1, -0.0f, 0, 0.5f, 1, 8, 200};
  for (int i = 0; i < 61; ++i) gate.push_back(static_cast<float>(i) * 0.11f - 3.0f);
  const std::vector<float> in = gate;
  const std::vector<float> up(gate.size(), 1.5f);
  kernels_.gelu_multiply(gate.data(), up.data(), static_cast<int64_t>(gate.size()));
  for (size_t i = 0; i < in.size(); ++i) {
    const double x = in[i], inner = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
    const double exact = 1.5 * 0.5 * x * (1 + std::tanh(inner));
    EXPECT_NEAR(gate[i], exact, 1e-6 + 2e-6 * std::fabs(exact)) << in[i];
  }
}

}  // namespace
}  // namespace kvc::demo
