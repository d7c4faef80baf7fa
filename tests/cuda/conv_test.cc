// The short convolution on the device against kernels/reference (double).
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/cuda/launches.h"
#include "kernels/reference/reference.h"
#include "tests/cuda/linear_support.h"

namespace kvc::cuda {
namespace {

using kernels::ConvParams;
using kernels::ConvSequence;
using kernels::DType;
using testing::DeviceArray;
using testing::finish;
using testing::RecurrentTensor;
using testing::Rng;
using testing::scaled;

void check(Rng& rng, int32_t channels, int32_t width, const std::vector<int32_t>& rows,
           bool in_place) {
  const int64_t kept = width - 1;
  const DType state = rng.dtype(), out_type = rng.dtype();
  int64_t tokens = 0;
  const bool has_gaps = rng.chance(50);
  std::vector<ConvSequence> sequences(rows.size());
  for (size_t s = 0; s < rows.size(); ++s) {
    sequences[s].row_begin = tokens;
    sequences[s].num_rows = rows[s];
    tokens += rows[s] + (has_gaps ? rng.upto(1) : 0);
  }
  RecurrentTensor x(rng, tokens, 1, channels, rng.dtype()), out(rng, tokens, 1, channels, out_type);
  x.fill([&] { return rng.normal(); });
  x.send();
  out.send();
  const int64_t weight_stride = width + rng.upto(2);
  std::vector<float> weight(static_cast<size_t>(channels * weight_stride)),
      bias(static_cast<size_t>(channels));
  for (float& w : weight) w = static_cast<float>(rng.normal());
  for (float& b : bias) b = static_cast<float>(rng.normal());
  const DeviceArray<float> d_weight(weight), d_bias(bias);

  const int64_t slot_bytes = channels * kept * kernels::dtype_bytes(state);
  std::vector<std::byte> in(static_cast<size_t>(slot_bytes) * rows.size());
  for (int64_t i = 0; i < static_cast<int64_t>(in.size()) / kernels::dtype_bytes(state); ++i)
    kernels::reference::write_element(in.data(), state, i, rng.normal());
  std::vector<std::byte> host_out(in.size());
  DeviceArray<std::byte> device_in(in), device_out(in.size());
  std::vector<ConvSequence> on_device = sequences;
  for (size_t s = 0; s < rows.size(); ++s) {
    const auto at = static_cast<int64_t>(s) * slot_bytes;
    const bool is_new = rng.chance(25);
    sequences[s].state_in = is_new ? nullptr : in.data() + at;
    sequences[s].state_out = host_out.data() + at;
    on_device[s].state_in = is_new ? nullptr : device_in.data() + at;
    on_device[s].state_out = (in_place ? device_in : device_out).data() + at;
  }
  const DeviceArray<ConvSequence> d_sequences(on_device);
  const auto n = static_cast<int32_t>(rows.size());
  const DeviceArray<int32_t> count(std::vector<int32_t>{n});
  const bool has_bias = rng.chance(50), counts_on_device = rng.chance(50);

  ConvParams params{};
  params.x = x.host_rows();
  params.out = out.host_rows();
  params.weight = weight.data();
  params.weight_stride = weight_stride;
  params.bias = has_bias ? bias.data() : nullptr;
  params.activation = rng.chance(50) ? kernels::Activation::kSilu : kernels::Activation::kNone;
  params.channels = channels;
  params.width = width;
  params.state_dtype = state;
  params.sequences = sequences.data();
  std::vector<double> scratch(kernels::reference::conv_scratch_bytes(params) / sizeof(double));
  for (int32_t s = 0; s < n; ++s) kernels::reference::conv(params, s, 0, channels, scratch.data());

  ConvParams launched = params;
  launched.x = x.device_rows();
  launched.out = out.device_rows();
  launched.weight = d_weight.data();
  launched.bias = has_bias ? d_bias.data() : nullptr;
  launched.sequences = d_sequences.data();
  ASSERT_EQ(cuda::conv(launched, n + (counts_on_device ? 2 : 0),
                       counts_on_device ? count.data() : nullptr, tokens, nullptr),
            cudaSuccess);
  finish();
  const std::vector<std::byte> outputs = out.from_device();
  for (size_t s = 0; s < rows.size(); ++s) {
    for (int64_t row = 0; row < rows[s]; ++row) {
      for (int64_t c = 0; c < channels; ++c) {
        const int64_t token = sequences[s].row_begin + row;
        const double expected = out.at(out.host(), token, 0, c);
        // `width` + 1 terms of size 1 in float32, then one rounding.
        ASSERT_NEAR(
            out.at(outputs, token, 0, c), expected,
            (width + 1) * 4e-7 * 4 + 2.1 * testing::rounding_of(out_type) * std::fabs(expected))
            << "sequence " << s << " row " << row << " channel " << c;
      }
    }
  }
  // Inputs are moved, not computed with: the same bits.
  EXPECT_EQ((in_place ? device_in : device_out).read(), host_out);
}

TEST(CudaConv, OutputsAndStatesAreThoseOfTheReference) {
  for (int seed = 0; seed < scaled(40); ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Rng rng(seed);
    const int32_t channels[] = {1, 7, 128, 200, 300};
    std::vector<int32_t> rows;
    for (int32_t i = rng.between(1, 4); i > 0; --i)
      rows.push_back(rng.chance(15) ? 0 : rng.chance(40) ? 1 : rng.upto(12));
    if (rng.chance(30)) rows.push_back(rng.between(60, 200));
    check(rng, channels[rng.upto(4)], rng.between(2, 6), rows, rng.chance(50));
    if (HasFatalFailure()) return;
  }
}

TEST(CudaConv, ALongPromptAndADecode) {
  Rng rng(9);
  check(rng, 3, 4, {4500, 2}, true);
}

// Sequences of one row, where a CTA guesses whose rows it has, and others among them, where it
// searches.
TEST(CudaConv, ManySequences) {
  for (int seed = 0; seed < scaled(8); ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Rng rng(seed + 70);
    std::vector<int32_t> rows(static_cast<size_t>(rng.between(130, 300)), 1);
    for (int32_t i = rng.upto(9); i > 0; --i) {
      const bool is_long = seed % 2 == 0 && rng.chance(50);
      rows[static_cast<size_t>(rng.upto(static_cast<int32_t>(rows.size()) - 1))] =
          is_long ? rng.between(62, 300) : 0;
    }
    check(rng, 3, rng.between(2, 5), rows, rng.chance(50));
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace kvc::cuda
