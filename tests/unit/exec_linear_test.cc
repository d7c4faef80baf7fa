// The host side of the short convolution: what it accepts, and that threads change nothing.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "src/base/error.h"
#include "src/exec/linear.h"

namespace kvc {
namespace {

// float32, compact.
struct Floats {
  explicit Floats(std::vector<int64_t> shape_in, uint64_t seed = 1) : shape(std::move(shape_in)) {
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    std::mt19937_64 engine(seed);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < count; ++i) values.push_back(normal(engine));
    tensor.data = values.data();
    tensor.device = {kDLCPU, 0};
    tensor.ndim = static_cast<int32_t>(shape.size());
    tensor.dtype = {kDLFloat, 32, 1};
    tensor.shape = shape.data();
  }
  std::byte* bytes() { return reinterpret_cast<std::byte*>(values.data()); }
  std::vector<int64_t> shape;
  std::vector<float> values;
  DLTensor tensor{};
};

constexpr int64_t kChannels = 1000, kWidth = 4, kRows = 600;

struct ConvCall {
  Floats x{{kRows, kChannels}, 1}, weight{{kChannels, kWidth}, 2}, bias{{kChannels}, 3},
      out{{kRows, kChannels}, 4};
  Floats states{{2, kChannels, kWidth - 1}, 5};
  ConvShape shape{kChannels, kWidth, kernels::DType::kF32};
  kvc_activation activation = KVC_ACTIVATION_SILU;

  kernels::ConvParams read() {
    return read_conv({&x.tensor, &weight.tensor, &bias.tensor, &out.tensor}, activation, shape,
                     kRows);
  }
  void run(Executor& executor) {
    kernels::ConvParams params = read();
    std::byte* second = states.bytes() + kChannels * (kWidth - 1) * 4;
    const kernels::ConvSequence sequences[2] = {{0, 599, states.bytes(), states.bytes()},
                                                {599, 1, second, second}};
    params.sequences = sequences;
    LinearWorkspace workspace;
    run_conv(*kernels::cpu::kernel_table(kernels::cpu::Isa::kAuto), executor, workspace, params, 2);
  }
  kvc_status refusal() {
    try {
      read();
    } catch (const Error& error) {
      return error.status();
    }
    return KVC_OK;
  }
};

TEST(AttentionLinear, TheConvolutionFollowsItsFormula) {
  ConvCall call;
  const std::vector<float> before = call.states.values;
  Executor alone(1);
  call.run(alone);
  const auto input = [&](int64_t t, int64_t c) -> double {
    return t < 0 ? before[static_cast<size_t>(c * (kWidth - 1) + kWidth - 1 + t)]
                 : call.x.values[static_cast<size_t>(t * kChannels + c)];
  };
  for (const int64_t t : {0, 1, 2, 3, 598}) {
    for (int64_t c = 0; c < kChannels; ++c) {
      double sum = call.bias.values[static_cast<size_t>(c)];
      for (int64_t j = 0; j < kWidth; ++j)
        sum +=
            call.weight.values[static_cast<size_t>(c * kWidth + j)] * input(t - kWidth + 1 + j, c);
      sum /= 1 + std::exp(-sum);
      ASSERT_NEAR(call.out.values[static_cast<size_t>(t * kChannels + c)], sum, 1e-5)
          << "row " << t << " channel " << c;
    }
  }
  for (int64_t c = 0; c < kChannels; ++c)
    ASSERT_EQ(call.states.values[static_cast<size_t>(c * (kWidth - 1) + 2)],
              static_cast<float>(input(598, c)));
}

TEST(AttentionLinear, ThreadsDoNotChangeTheConvolution) {
  ConvCall one, many;
  Executor alone(1), threads(4);
  one.run(alone);
  many.run(threads);
  EXPECT_EQ(one.out.values, many.out.values);
  EXPECT_EQ(one.states.values, many.states.values);
}

TEST(AttentionLinear, ConvolutionsThatDoNotFitTheStateAreRefused) {
  ConvCall activation;
  activation.activation = 5;
  EXPECT_EQ(activation.refusal(), KVC_E_UNSUPPORTED);
  ConvCall narrow;
  narrow.shape.width = 5;
  EXPECT_EQ(narrow.refusal(), KVC_E_SHAPE);
  ConvCall channels;
  channels.shape.channels = kChannels - 1;
  EXPECT_EQ(channels.refusal(), KVC_E_SHAPE);
  ConvCall weight;
  weight.weight.shape[0] = kChannels - 1;
  EXPECT_EQ(weight.refusal(), KVC_E_SHAPE);
  ConvCall rows;
  rows.out.shape[0] = kRows - 1;
  EXPECT_EQ(rows.refusal(), KVC_E_SHAPE);
  ConvCall type;
  type.bias.tensor.dtype = {kDLFloat, 16, 1};
  EXPECT_EQ(type.refusal(), KVC_E_DTYPE);
  ConvCall good;
  EXPECT_EQ(good.refusal(), KVC_OK);
}

}  // namespace
}  // namespace kvc
