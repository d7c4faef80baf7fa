// The short causal convolution: every instruction set against the reference in double.
#include "kernels_support.h"

namespace kvc::kernels::test {
namespace {

struct ConvShape {
  int64_t channels = 70, width = 4;
  std::vector<int64_t> tokens = {9};
  DType state = DType::kF32;
  Activation activation = Activation::kSilu;
  double spread = 1.0;
};

class ConvProblem {
 public:
  ConvProblem(const ConvShape& shape, uint64_t seed) : shape_(shape), random_(seed) {
    int64_t rows = random_.between(0, 2);
    for (const int64_t count : shape.tokens) {
      begins_.push_back(rows);
      rows += count;
    }
    x = TensorOwner(random_, rows, 1, shape.channels, random_.dtype());
    for (int64_t t = begins_[0]; t < rows; ++t) {
      for (int64_t c = 0; c < shape.channels; ++c)
        reference::write_element(x.row(t, 0), x.rows.dtype, c, shape.spread * random_.normal());
    }
    params.x = x.rows;
    params.channels = static_cast<int32_t>(shape.channels);
    params.width = static_cast<int32_t>(shape.width);
    params.activation = shape.activation;
    params.state_dtype = shape.state;
    params.weight_stride = shape.width + random_.between(0, 2);
    weight.assign(static_cast<size_t>(shape.channels * params.weight_stride), NAN);
    for (int64_t c = 0; c < shape.channels; ++c) {
      for (int64_t j = 0; j < shape.width; ++j)
        weight[static_cast<size_t>(c * params.weight_stride + j)] =
            static_cast<float>(random_.normal());
      bias.push_back(static_cast<float>(random_.normal()));
    }
    params.weight = weight.data();
    if (random_.chance(0.5)) params.bias = bias.data();
    states_in = Poisoned(state_bytes() * static_cast<int64_t>(begins_.size()));
    for (int64_t i = 0;
         i < state_bytes() * static_cast<int64_t>(begins_.size()) / dtype_bytes(shape.state); ++i)
      reference::write_element(states_in.data(), shape.state, i, shape.spread * random_.normal());
  }

  void reset() {
    states_out = Poisoned(states_in.size());
    std::memcpy(states_out.data(), states_in.data(), static_cast<size_t>(states_in.size()));
    Random same(99);
    out = TensorOwner(same, x.tokens, 1, shape_.channels, DType::kF32);
    params.out = out.rows;
    sequences.clear();
    for (size_t i = 0; i < begins_.size(); ++i) {
      std::byte* state = states_out.data() + static_cast<int64_t>(i) * state_bytes();
      sequences.push_back({begins_[i], shape_.tokens[i], state, state});
    }
    params.sequences = sequences.data();
  }

  void run(const KernelTable& table, int64_t channels_per_call = 1 << 20) {
    for (int32_t sequence = 0; sequence < static_cast<int32_t>(sequences.size()); ++sequence) {
      for (int64_t c = 0; c < shape_.channels; c += channels_per_call) {
        Poisoned scratch(static_cast<int64_t>(table.conv_scratch_bytes(params)));
        table.conv(params, sequence, static_cast<int32_t>(c),
                   static_cast<int32_t>(std::min(shape_.channels, c + channels_per_call)),
                   scratch.data());
        EXPECT_TRUE(scratch.guards_intact()) << "the kernel wrote outside its scratch memory";
      }
    }
    EXPECT_TRUE(out.memory.guards_intact() && states_out.guards_intact());
  }

  std::vector<double> outputs() {
    std::vector<double> values;
    for (int64_t t = begins_[0]; t < x.tokens; ++t) {
      for (int64_t c = 0; c < shape_.channels; ++c) values.push_back(out.at(t, 0, c));
    }
    return values;
  }
  std::vector<double> states() {
    std::vector<double> values;
    for (const ConvSequence& sequence : sequences) {
      for (int64_t i = 0; i < shape_.channels * (shape_.width - 1); ++i)
        values.push_back(reference::read_element(sequence.state_out, shape_.state, i));
    }
    return values;
  }
  int64_t state_bytes() const {
    return shape_.channels * (shape_.width - 1) * dtype_bytes(shape_.state);
  }
  int64_t first_row() const { return begins_[0]; }

  ConvParams params{};
  std::vector<ConvSequence> sequences;
  TensorOwner x, out;
  std::vector<float> weight, bias;
  Poisoned states_in, states_out;

 private:
  ConvShape shape_;
  Random random_;
  std::vector<int64_t> begins_;
};

class Conv : public testing::TestWithParam<const KernelTable*> {};

INSTANTIATE_TEST_SUITE_P(Isa, Conv, testing::ValuesIn(available_tables()),
                         [](const auto& info) { return std::string(info.param->name); });

void expect_near(const std::vector<double>& actual, const std::vector<double>& expected,
                 double limit) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i)
    ASSERT_NEAR(actual[i], expected[i], limit * std::max(1.0, std::fabs(expected[i])))
        << "element " << i;
}

TEST_P(Conv, MatchesTheReferenceForAnyShape) {
  for (uint64_t seed = 1; seed < 1 + rounds(60); ++seed) {
    Random random(seed);
    ConvShape shape;
    shape.channels = random.pick<int64_t>({1, 5, 16, 63, 64, 100, 129});
    shape.width = random.pick<int64_t>({2, 3, 4, 4, 7});
    shape.tokens = {random.pick<int64_t>({1, 2, 3, 4, 8, 40}), random.pick<int64_t>({0, 1, 2})};
    shape.state = random.dtype();
    shape.activation = random.chance(0.5) ? Activation::kSilu : Activation::kNone;
    SCOPED_TRACE("seed " + std::to_string(seed));
    ConvProblem problem(shape, seed);
    problem.reset();
    problem.run(reference_table());
    const std::vector<double> outputs = problem.outputs(), states = problem.states();
    problem.reset();
    problem.run(*GetParam());
    expect_near(problem.outputs(), outputs, 3e-6);
    EXPECT_EQ(problem.states(), states) << "inputs are kept as they are";
  }
}

TEST_P(Conv, SiluOfFarValuesIsFinite) {
  ConvShape shape;
  shape.spread = 1e4;
  ConvProblem problem(shape, 3);
  problem.reset();
  problem.run(reference_table());
  const std::vector<double> outputs = problem.outputs();
  problem.reset();
  problem.run(*GetParam());
  expect_near(problem.outputs(), outputs, 3e-2);  // sums of large products that cancel
}

TEST_P(Conv, APromptInSeveralForwardsGivesTheSameBits) {
  ConvShape shape;
  shape.tokens = {30};
  ConvProblem problem(shape, 4);
  problem.reset();
  problem.run(*GetParam());
  const std::vector<double> outputs = problem.outputs(), states = problem.states();
  problem.reset();
  int64_t done = 0;
  for (const int64_t part : {1, 1, 2, 0, 16, 3, 7}) {
    problem.sequences[0].row_begin = problem.first_row() + done,
    problem.sequences[0].num_rows = part;
    problem.run(*GetParam());
    done += part;
  }
  ASSERT_EQ(done, 30);
  EXPECT_EQ(problem.outputs(), outputs);
  EXPECT_EQ(problem.states(), states);
}

TEST_P(Conv, ChannelsComeOutTheSameHoweverTheyAreCut) {
  ConvShape shape;
  shape.channels = 150, shape.tokens = {6, 1};
  ConvProblem problem(shape, 5);
  problem.reset();
  problem.run(*GetParam());
  const std::vector<double> outputs = problem.outputs(), states = problem.states();
  problem.reset();
  problem.run(*GetParam(), 37);
  EXPECT_EQ(problem.outputs(), outputs);
  EXPECT_EQ(problem.states(), states);
}

TEST_P(Conv, AnEmptySequenceBeginsWithZeros) {
  ConvShape shape;
  ConvProblem problem(shape, 6);
  problem.reset();
  std::memset(problem.states_out.data(), 0, static_cast<size_t>(problem.states_out.size()));
  problem.run(*GetParam());
  const std::vector<double> outputs = problem.outputs();
  problem.reset();
  problem.sequences[0].state_in = nullptr;
  problem.run(*GetParam());
  EXPECT_EQ(problem.outputs(), outputs);
}

TEST_P(Conv, TheOldStateStaysWhenTheNewOneGoesElsewhere) {
  ConvShape shape;
  shape.tokens = {2};
  ConvProblem problem(shape, 7);
  problem.reset();
  problem.run(*GetParam());
  const std::vector<double> in_place = problem.states();
  problem.reset();
  const std::vector<double> before = problem.states();
  Poisoned elsewhere(problem.states_out.size());
  problem.sequences[0].state_out = elsewhere.data();
  problem.run(*GetParam());
  EXPECT_EQ(problem.states(), in_place);
  problem.sequences[0].state_out = problem.states_out.data();
  EXPECT_EQ(problem.states(), before);
  EXPECT_TRUE(elsewhere.guards_intact());
}

}  // namespace
}  // namespace kvc::kernels::test
