// The recurrence on the device against kernels/reference (double).
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/cuda/launches.h"
#include "kernels/cuda/table.h"
#include "kernels/reference/reference.h"
#include "tests/cuda/linear_support.h"

namespace kvc::cuda {
namespace {

using kernels::DType;
using kernels::LinearParams;
using kernels::LinearSequence;
using testing::DeviceArray;
using testing::finish;
using testing::RecurrentTensor;
using testing::Rng;
using testing::scaled;

// Types of q and k.
enum class Keys { kAny, kBF16, kF16AndBF16 };

struct Shape {
  int32_t k_dim, v_dim, k_heads, group;
  DType state;
  std::vector<int32_t> rows;  // of the sequences
  int32_t decay;              // 0: none, 1: per head, 2: per token, 3: per channel
  bool delta, has_beta, has_skip, in_place, counts_on_device;
  Keys keys = Keys::kAny;
};

// Slots of states, with room between rows and heads; slot i of `in` becomes slot i of `out`.
struct States {
  int64_t row_stride, head_stride, slot_stride;
  std::vector<std::byte> bytes;

  States(Rng& rng, const Shape& shape, int64_t slots) {
    const int64_t element = kernels::dtype_bytes(shape.state);
    const bool is_padded = rng.chance(40);
    row_stride = (shape.v_dim + (is_padded ? rng.upto(5) : 0)) * element;
    head_stride = shape.k_dim * row_stride + (is_padded ? rng.upto(3) * element : 0);
    slot_stride =
        shape.k_heads * shape.group * head_stride + (is_padded ? rng.upto(3) * element : 0);
    bytes.assign(static_cast<size_t>(slots * slot_stride + 16), std::byte{0xff});
  }
};

void check(Rng& rng, const Shape& shape) {
  const int32_t heads = shape.k_heads * shape.group;
  const auto num_sequences = static_cast<int32_t>(shape.rows.size());
  int64_t tokens = rng.upto(2);  // rows in front that belong to nobody
  std::vector<LinearSequence> sequences(shape.rows.size());
  for (size_t s = 0; s < shape.rows.size(); ++s) {
    sequences[s].row_begin = tokens;
    sequences[s].num_rows = shape.rows[s];
    tokens += shape.rows[s] + rng.upto(1);
  }
  const int32_t mix = rng.upto(2);
  const auto key_type = [&](bool is_f16) {
    return shape.keys == Keys::kAny                    ? rng.dtype()
           : shape.keys == Keys::kF16AndBF16 && is_f16 ? DType::kF16
                                                       : DType::kBF16;
  };
  RecurrentTensor q(rng, tokens, shape.k_heads, shape.k_dim, key_type(mix != 0));
  RecurrentTensor k(rng, tokens, shape.k_heads, shape.k_dim, key_type(mix != 1));
  RecurrentTensor v(rng, tokens, heads, shape.v_dim, rng.dtype());
  const DType out_type = rng.dtype();
  RecurrentTensor out(rng, tokens, heads, shape.v_dim, out_type);
  // Keys of about unit length, as models have them: the delta rule does not blow up.
  const double unit = 1 / std::sqrt(static_cast<double>(shape.k_dim));
  q.fill([&] { return rng.normal(); });
  k.fill([&] { return rng.normal() * unit; });
  v.fill([&] { return rng.normal(); });
  for (RecurrentTensor* tensor : {&q, &k, &v, &out}) tensor->send();

  const int64_t decay_head_stride = shape.decay == 3 ? shape.k_dim + rng.upto(3) : 1;
  const int64_t decay_token_stride = shape.decay == 1 ? 0 : heads * decay_head_stride + rng.upto(3);
  std::vector<float> decay(
      static_cast<size_t>((tokens + 1) * heads * decay_head_stride + 4 * tokens));
  for (float& d : decay) {
    d = rng.chance(3) ? -std::numeric_limits<float>::infinity()
                      : -static_cast<float>(std::exp(rng.normal() - 2));
  }
  const int64_t beta_stride = heads + rng.upto(3);
  std::vector<float> beta(static_cast<size_t>((tokens + 1) * beta_stride)),
      skip(static_cast<size_t>(heads));
  for (float& b : beta) b = static_cast<float>(rng.upto(100)) / 100;
  for (float& x : skip) x = static_cast<float>(rng.normal());
  const DeviceArray<float> d_decay(decay), d_beta(beta), d_skip(skip);

  States in(rng, shape, num_sequences);
  for (int64_t slot = 0; slot < num_sequences; ++slot)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t i = 0; i < shape.k_dim; ++i)
        for (int64_t c = 0; c < shape.v_dim; ++c)
          kernels::reference::write_element(
              in.bytes.data() + slot * in.slot_stride + h * in.head_stride + i * in.row_stride,
              shape.state, c, rng.normal());
  std::vector<std::byte> host_out(in.bytes.size(), std::byte{0xff});
  DeviceArray<std::byte> device_in(in.bytes), device_out(in.bytes.size());
  std::vector<LinearSequence> on_device = sequences;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const auto at = static_cast<int64_t>(s) * in.slot_stride;
    const bool is_new = rng.chance(25);
    sequences[s].state_in = is_new ? nullptr : in.bytes.data() + at;
    sequences[s].state_out = host_out.data() + at;
    on_device[s].state_in = is_new ? nullptr : device_in.data() + at;
    on_device[s].state_out = (shape.in_place ? device_in : device_out).data() + at;
  }
  const DeviceArray<LinearSequence> d_sequences(on_device);
  const DeviceArray<int32_t> count(std::vector<int32_t>{num_sequences});

  LinearParams params{};
  params.q = q.host_rows(), params.k = k.host_rows(), params.v = v.host_rows(),
  params.out = out.host_rows();
  params.decay = shape.decay == 0 ? nullptr : decay.data();
  params.decay_token_stride = decay_token_stride;
  params.decay_head_stride = decay_head_stride;
  params.decay_per_channel = shape.decay == 3 ? 1 : 0;
  params.delta = shape.delta ? 1 : 0;
  params.beta = shape.has_beta ? beta.data() : nullptr;
  params.beta_token_stride = beta_stride;
  params.skip = shape.has_skip ? skip.data() : nullptr;
  params.scale = static_cast<float>(unit);
  params.num_heads = heads;
  params.num_k_heads = shape.k_heads;
  params.k_dim = shape.k_dim;
  params.v_dim = shape.v_dim;
  params.state_dtype = shape.state;
  params.state_head_stride = in.head_stride;
  params.state_row_stride = in.row_stride;
  params.sequences = sequences.data();
  std::vector<std::byte> scratch(kernels::reference::linear_scratch_bytes(params, 0));
  for (int32_t s = 0; s < num_sequences; ++s)
    kernels::reference::linear(params, s, 0, heads, scratch.data());

  LinearParams launched = params;
  launched.q = q.device_rows(), launched.k = k.device_rows(), launched.v = v.device_rows();
  launched.out = out.device_rows();
  if (params.decay != nullptr) launched.decay = d_decay.data();
  if (params.beta != nullptr) launched.beta = d_beta.data();
  if (params.skip != nullptr) launched.skip = d_skip.data();
  launched.sequences = d_sequences.data();
  const int32_t most = num_sequences + (shape.counts_on_device ? rng.upto(2) : 0);
  const auto num_long = static_cast<int32_t>(std::count_if(
      shape.rows.begin(), shape.rows.end(), [](int32_t rows) { return rows >= kLongSequence; }));
  // What the host says of them is how much is started, never which sequences are computed.
  const int32_t told = rng.chance(50) ? num_long : rng.upto(num_long + 2);
  ASSERT_EQ(
      cuda::linear(launched, most, shape.counts_on_device ? count.data() : nullptr, told, nullptr),
      cudaSuccess);
  finish();

  // Sums of k_dim products in float32, carried through the tokens: some ten roundings of values of
  // the size of the state, which stays near 1 to 10.
  constexpr double kArithmetic = 2e-5;
  const std::vector<std::byte> outputs = out.from_device();
  for (size_t s = 0; s < sequences.size(); ++s) {
    for (int64_t row = 0; row < sequences[s].num_rows; ++row) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t c = 0; c < shape.v_dim; ++c) {
          const int64_t token = sequences[s].row_begin + row;
          const double expected = out.at(out.host(), token, h, c),
                       found = out.at(outputs, token, h, c);
          ASSERT_NEAR(found, expected,
                      kArithmetic * 5 + 2.1 * testing::rounding_of(out_type) * std::fabs(expected))
              << "sequence " << s << " row " << row << " head " << h << " column " << c;
        }
      }
    }
  }
  const std::vector<std::byte> states = (shape.in_place ? device_in : device_out).read();
  for (int64_t slot = 0; slot < num_sequences; ++slot) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < shape.k_dim; ++i) {
        for (int64_t c = 0; c < shape.v_dim; ++c) {
          const int64_t at = slot * in.slot_stride + h * in.head_stride + i * in.row_stride;
          const double expected =
              kernels::reference::read_element(host_out.data() + at, shape.state, c);
          const double found = kernels::reference::read_element(states.data() + at, shape.state, c);
          ASSERT_NEAR(
              found, expected,
              kArithmetic * 5 + 2.1 * testing::rounding_of(shape.state) * std::fabs(expected))
              << "state " << slot << " head " << h << " row " << i << " column " << c;
        }
      }
    }
  }
  // The other direction: what is not part of a state stays.
  if (!shape.in_place) {
    std::vector<uint8_t> is_state(states.size());
    const auto bytes = static_cast<size_t>(shape.v_dim * kernels::dtype_bytes(shape.state));
    for (int64_t slot = 0; slot < num_sequences; ++slot)
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t i = 0; i < shape.k_dim; ++i)
          std::fill_n(
              is_state.begin() + slot * in.slot_stride + h * in.head_stride + i * in.row_stride,
              bytes, 1);
    for (size_t i = 0; i < states.size(); ++i)
      ASSERT_TRUE(is_state[i] != 0 || states[i] == std::byte{0xff});
  }
}

Shape random_shape(Rng& rng) {
  const int32_t k_dims[] = {1, 5, 33, 64, 80, 96, 128, 192}, v_dims[] = {1, 7, 32, 64, 70, 80, 128};
  Shape shape{};
  shape.k_dim = k_dims[rng.upto(7)];
  shape.v_dim = v_dims[rng.upto(6)];
  shape.k_heads = rng.between(1, 2);
  shape.group = rng.between(1, 3);
  shape.state = rng.dtype();
  for (int32_t i = rng.between(1, 4); i > 0; --i)
    shape.rows.push_back(rng.chance(15) ? 0 : rng.chance(50) ? 1 : rng.upto(9));
  shape.decay = rng.upto(3);
  shape.delta = rng.chance(60);
  shape.has_beta = rng.chance(60);
  shape.has_skip = rng.chance(40);
  shape.in_place = rng.chance(40);
  shape.counts_on_device = rng.chance(50);
  return shape;
}

TEST(CudaLinear, OutputsAndStatesAreThoseOfTheReference) {
  for (int seed = 0; seed < scaled(40); ++seed) {
    Rng rng(seed);
    const Shape shape = random_shape(rng);
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " k_dim " << shape.k_dim << " v_dim "
                                      << shape.v_dim << " state " << static_cast<int>(shape.state)
                                      << " decay " << shape.decay << " delta " << shape.delta);
    check(rng, shape);
    if (HasFatalFailure()) return;
  }
}

TEST(CudaLinear, TheTallestStatesOfEveryType) {
  for (const DType state : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int32_t k_dim : {256, 300, linear_max_k_dim()}) {
      Rng rng(k_dim);
      SCOPED_TRACE(::testing::Message()
                   << "k_dim " << k_dim << " state " << static_cast<int>(state));
      check(rng, {.k_dim = k_dim,
                  .v_dim = 36,
                  .k_heads = 1,
                  .group = 2,
                  .state = state,
                  .rows = {1, 4, 0},
                  .decay = 3,
                  .delta = true,
                  .has_beta = true,
                  .has_skip = true,
                  .in_place = false,
                  .counts_on_device = true});
      if (HasFatalFailure()) return;
    }
  }
}

TEST(CudaLinear, ATallerStateIsRefused) {
  LinearParams params{};
  params.k_dim = linear_max_k_dim() + 1;
  params.v_dim = params.num_heads = params.num_k_heads = 1;
  EXPECT_EQ(cuda::linear(params, 1, nullptr, 1, nullptr), cudaErrorInvalidValue);
}

// Sequences on both sides of where chunks begin, ends inside of chunks and on their edges.
TEST(CudaLinear, ChunksAgreeWithTheReference) {
  for (int seed = 0; seed < scaled(20); ++seed) {
    Rng rng(seed + 900);
    const int32_t k_dims[] = {5, 16, 33, 64, 100, 128},
                  lengths[] = {1, 23, 24, 63, 64, 65, 128, 150};
    Shape shape = random_shape(rng);
    shape.k_dim = k_dims[rng.upto(5)];
    shape.decay = rng.upto(2);
    shape.keys = seed % 2 == 0 ? Keys::kBF16 : Keys::kF16AndBF16;
    for (int32_t& rows : shape.rows) rows = lengths[rng.upto(7)];
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " k_dim " << shape.k_dim << " v_dim "
                                      << shape.v_dim << " state " << static_cast<int>(shape.state)
                                      << " decay " << shape.decay << " delta " << shape.delta);
    check(rng, shape);
    if (HasFatalFailure()) return;
  }
}

// Long ones among many: more sequences than a CTA looks at together.
TEST(CudaLinear, FewLongSequencesAmongManyShortOnes) {
  for (int seed = 0; seed < scaled(3); ++seed) {
    Rng rng(seed + 1300);
    Shape shape = random_shape(rng);
    shape.k_dim = shape.v_dim = 16;
    shape.k_heads = shape.group = 1;
    shape.decay = 2;
    shape.keys = seed % 2 == 0 ? Keys::kBF16 : Keys::kF16AndBF16;
    shape.rows.assign(static_cast<size_t>(rng.between(140, 300)), 1);
    for (int32_t i = rng.between(1, 5); i > 0; --i)
      shape.rows[static_cast<size_t>(rng.upto(static_cast<int32_t>(shape.rows.size()) - 1))] =
          rng.between(24, 70);
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    check(rng, shape);
    if (HasFatalFailure()) return;
  }
}

TEST(CudaLinear, LongSequences) {
  for (int seed = 0; seed < scaled(3); ++seed) {
    Rng rng(seed + 500);
    Shape shape = random_shape(rng);
    shape.k_dim = 64;
    shape.v_dim = 40;
    shape.group = 1;
    shape.rows = {150, 1, 67};
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " decay " << shape.decay);
    check(rng, shape);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace kvc::cuda
