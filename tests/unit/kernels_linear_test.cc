// Linear attention: every instruction set against the token-by-token recurrence in double.
#include "kernels_support.h"

namespace kvc::kernels::test {
namespace {

enum class Decay { kNone, kHead, kToken, kChannel };

struct LinearShape {
  int64_t heads = 2, k_heads = 1, k_dim = 16, v_dim = 16;
  std::vector<int64_t> tokens = {1};
  Decay decay = Decay::kToken;
  bool delta = true;
  DType state = DType::kF32;
  double forgets = 0.1;  // size of -ln(decay)
  bool any_types = true;
};

// Sequences of random tokens and states, with free strides and NaN between everything that is to be
// read.
class LinearProblem {
 public:
  LinearProblem(const LinearShape& shape, uint64_t seed) : shape_(shape), random_(seed) {
    int64_t rows = random_.between(0, 2);  // rows of nobody in front
    for (const int64_t count : shape.tokens) {
      begins_.push_back(rows);
      rows += count;
    }
    rows_ = rows;
    const auto dtype = [&] { return shape.any_types ? random_.dtype() : DType::kF32; };
    q = TensorOwner(random_, rows, shape.k_heads, shape.k_dim, dtype());
    k = TensorOwner(random_, rows, shape.k_heads, shape.k_dim, dtype());
    v = TensorOwner(random_, rows, shape.heads, shape.v_dim, dtype());
    const int64_t first = begins_.empty() ? 0 : begins_[0];
    fill(q, first, 1.0);
    // As models normalise it: |k| about 1
    fill(k, first, 1.0 / std::sqrt(static_cast<double>(shape.k_dim)));
    fill(v, first, 1.0);
    params.q = q.rows, params.k = k.rows, params.v = v.rows;
    params.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(shape.k_dim)));
    params.num_heads = static_cast<int32_t>(shape.heads);
    params.num_k_heads = static_cast<int32_t>(shape.k_heads);
    params.k_dim = static_cast<int32_t>(shape.k_dim);
    params.v_dim = static_cast<int32_t>(shape.v_dim);
    params.delta = shape.delta ? 1 : 0;
    make_gates(first);
    make_states();
  }

  // The states as they were; fresh outputs.
  void reset() {
    states_out = Poisoned(state_bytes());
    std::memcpy(states_out.data(), states_in.data(), static_cast<size_t>(state_bytes()));
    Random same(99);
    out = TensorOwner(same, rows_, shape_.heads, shape_.v_dim, DType::kF32);
    params.out = out.rows;
    sequences.clear();
    for (size_t i = 0; i < begins_.size(); ++i) {
      std::byte* state = states_out.data() + static_cast<int64_t>(i) * sequence_stride_;
      sequences.push_back({begins_[i], shape_.tokens[i], state, state});
    }
    params.sequences = sequences.data();
  }

  void run(const KernelTable& table, int64_t heads_per_call = 1 << 20) {
    const int64_t longest = *std::max_element(shape_.tokens.begin(), shape_.tokens.end());
    for (int32_t sequence = 0; sequence < static_cast<int32_t>(sequences.size()); ++sequence) {
      for (int64_t head = 0; head < shape_.heads; head += heads_per_call) {
        Poisoned scratch(static_cast<int64_t>(table.linear_scratch_bytes(params, longest)));
        table.linear(params, sequence, static_cast<int32_t>(head),
                     static_cast<int32_t>(std::min(shape_.heads, head + heads_per_call)),
                     scratch.data());
        EXPECT_TRUE(scratch.guards_intact()) << "the kernel wrote outside its scratch memory";
      }
    }
    EXPECT_TRUE(out.memory.guards_intact() && states_out.guards_intact());
  }

  std::vector<double> outputs() {
    std::vector<double> values;
    for (int64_t t = begins_[0]; t < rows_; ++t) {
      for (int64_t h = 0; h < shape_.heads; ++h) {
        for (int64_t d = 0; d < shape_.v_dim; ++d) values.push_back(out.at(t, h, d));
      }
    }
    return values;
  }
  std::vector<double> states() {
    std::vector<double> values;
    for (const LinearSequence& sequence : sequences) {
      for (int64_t h = 0; h < shape_.heads; ++h) {
        for (int64_t i = 0; i < shape_.k_dim; ++i) {
          const std::byte* row =
              sequence.state_out + h * params.state_head_stride + i * params.state_row_stride;
          for (int64_t d = 0; d < shape_.v_dim; ++d)
            values.push_back(reference::read_element(row, shape_.state, d));
        }
      }
    }
    return values;
  }

  int64_t first_row() const { return begins_[0]; }
  float& decay_at(int64_t t, int64_t h) {
    return decay[static_cast<size_t>(t * params.decay_token_stride + h * params.decay_head_stride)];
  }

  LinearParams params{};
  std::vector<LinearSequence> sequences;
  TensorOwner q, k, v, out;
  std::vector<float> decay, beta, skip;
  Poisoned states_in, states_out;

 private:
  int64_t state_bytes() const {
    return sequence_stride_ * static_cast<int64_t>(shape_.tokens.size());
  }

  void fill(TensorOwner& tensor, int64_t first, double spread) {
    for (int64_t t = first; t < rows_; ++t) {
      for (int64_t h = 0; h < tensor.heads; ++h) {
        for (int64_t d = 0; d < tensor.dim; ++d)
          reference::write_element(tensor.row(t, h), tensor.rows.dtype, d,
                                   spread * random_.normal());
      }
    }
  }

  void make_gates(int64_t first) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const int64_t channels = shape_.decay == Decay::kChannel ? shape_.k_dim : 1;
    params.decay_per_channel = shape_.decay == Decay::kChannel ? 1 : 0;
    params.decay_head_stride = channels == 1 ? 1 : channels + 3;
    params.decay_token_stride =
        shape_.decay == Decay::kHead ? 0 : shape_.heads * params.decay_head_stride + 2;
    decay.assign(static_cast<size_t>((rows_ + 1) * (shape_.heads + 2) * (channels + 5)), nan);
    for (int64_t t = shape_.decay == Decay::kHead ? 0 : first; t < rows_; ++t) {
      for (int64_t h = 0; h < shape_.heads; ++h) {
        for (int64_t c = 0; c < channels; ++c)
          (&decay_at(t, h))[c] = -static_cast<float>(shape_.forgets * std::fabs(random_.normal()));
      }
    }
    if (shape_.decay != Decay::kNone) params.decay = decay.data();
    params.beta_token_stride = shape_.heads + random_.between(0, 1);
    beta.assign(static_cast<size_t>((rows_ + 1) * (shape_.heads + 1)), nan);
    for (int64_t t = first; t < rows_; ++t) {
      for (int64_t h = 0; h < shape_.heads; ++h) {
        beta[static_cast<size_t>(t * params.beta_token_stride + h)] =
            static_cast<float>(1 / (1 + std::exp(-random_.normal())));
      }
    }
    if (random_.chance(0.8)) params.beta = beta.data();
    for (int64_t h = 0; h < shape_.heads; ++h) skip.push_back(static_cast<float>(random_.normal()));
    if (random_.chance(0.5)) params.skip = skip.data();
  }

  void make_states() {
    const int64_t element = dtype_bytes(shape_.state);
    params.state_dtype = shape_.state;
    params.state_row_stride = (shape_.v_dim + random_.pick<int64_t>({0, 0, 3})) * element;
    params.state_head_stride =
        params.state_row_stride * shape_.k_dim + random_.pick<int64_t>({0, 7}) * element;
    sequence_stride_ = params.state_head_stride * shape_.heads;
    states_in = Poisoned(state_bytes());
    for (int64_t s = 0; s < static_cast<int64_t>(shape_.tokens.size()); ++s) {
      for (int64_t h = 0; h < shape_.heads; ++h) {
        for (int64_t i = 0; i < shape_.k_dim; ++i) {
          std::byte* row = states_in.data() + s * sequence_stride_ + h * params.state_head_stride +
                           i * params.state_row_stride;
          for (int64_t d = 0; d < shape_.v_dim; ++d)
            reference::write_element(row, shape_.state, d, random_.normal());
        }
      }
    }
  }

  LinearShape shape_;
  Random random_;
  int64_t rows_ = 0, sequence_stride_ = 0;
  std::vector<int64_t> begins_;
};

// Relative to the size of what is expected; infinite when one side only is NaN or anything is
// infinite.
double distance(const std::vector<double>& actual, const std::vector<double>& expected) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (!std::isfinite(actual[i]) || !std::isfinite(expected[i]))
      return std::numeric_limits<double>::infinity();
    difference += (actual[i] - expected[i]) * (actual[i] - expected[i]),
        size += expected[i] * expected[i];
  }
  return difference == 0 ? 0 : std::sqrt(difference / size);
}

constexpr double kOutputLimit = 1e-5;
// A value on the edge between two 16-bit numbers may go either way.
double state_limit(DType dtype) { return dtype == DType::kF32 ? 1e-5 : 5e-4; }

class Linear : public testing::TestWithParam<const KernelTable*> {
 protected:
  void expect_reference(const LinearShape& shape, uint64_t seed) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", decay " +
                 std::to_string(static_cast<int>(shape.decay)) + ", delta " +
                 std::to_string(shape.delta) + ", heads " + std::to_string(shape.heads) + "/" +
                 std::to_string(shape.k_heads) + ", dims " + std::to_string(shape.k_dim) + "/" +
                 std::to_string(shape.v_dim) + ", tokens " + std::to_string(shape.tokens[0]) +
                 ", state type " + std::to_string(static_cast<int>(shape.state)));
    LinearProblem problem(shape, seed);
    problem.reset();
    problem.run(reference_table());
    const std::vector<double> outputs = problem.outputs(), states = problem.states();
    problem.reset();
    problem.run(*GetParam());
    EXPECT_LT(distance(problem.outputs(), outputs), kOutputLimit);
    EXPECT_LT(distance(problem.states(), states), state_limit(shape.state));
  }
};

INSTANTIATE_TEST_SUITE_P(Isa, Linear, testing::ValuesIn(available_tables()),
                         [](const auto& info) { return std::string(info.param->name); });

constexpr Decay kDecays[] = {Decay::kNone, Decay::kHead, Decay::kToken, Decay::kChannel};

TEST_P(Linear, EveryFamilyMatchesTheRecurrenceForEveryNumberOfTokens) {
  uint64_t seed = 1;
  for (const Decay decay : kDecays) {
    for (const bool delta : {false, true}) {
      for (const int64_t tokens : {1, 2, 3, 15, 16, 17, 31, 33, 63, 64, 65, 200}) {
        LinearShape shape;
        shape.heads = 3, shape.k_heads = 1, shape.k_dim = 32, shape.v_dim = 48;
        shape.tokens = {tokens, 1, 5}, shape.decay = decay, shape.delta = delta;
        expect_reference(shape, seed++);
      }
    }
  }
}

TEST_P(Linear, OddShapesMatchTheRecurrence) {
  for (uint64_t seed = 1; seed < 1 + rounds(60); ++seed) {
    Random random(seed);
    LinearShape shape;
    shape.k_heads = random.between(1, 3);
    shape.heads = shape.k_heads * random.pick<int64_t>({1, 2, 5});
    shape.k_dim = random.pick<int64_t>({1, 7, 17, 64, 80, 128});
    shape.v_dim = random.pick<int64_t>({1, 5, 17, 64, 96, 112, 128, 160});
    shape.tokens = {random.between(1, 70), random.pick<int64_t>({0, 1, 2})};
    shape.decay = random.pick({Decay::kNone, Decay::kHead, Decay::kToken, Decay::kChannel});
    shape.delta = random.chance(0.5);
    shape.state = random.dtype();
    expect_reference(shape, seed);
  }
}

TEST_P(Linear, StrongDecaysNeitherOverflowNorLoseWhatIsLeft) {
  uint64_t seed = 1;
  for (const Decay decay : kDecays) {
    for (const double forgets : {0.0, 1e-4, 3.0, 50.0, 1e4}) {
      for (const int64_t tokens : {1, 130}) {
        LinearShape shape;
        shape.k_dim = 64, shape.v_dim = 32, shape.tokens = {tokens}, shape.decay = decay,
        shape.forgets = forgets;
        expect_reference(shape, seed++);
      }
    }
  }
}

TEST_P(Linear, ADecayOfZeroForgetsTheStateAndAllTokensBefore) {
  for (const Decay decay : {Decay::kToken, Decay::kChannel}) {
    LinearShape shape;
    shape.k_dim = 16, shape.tokens = {70}, shape.decay = decay;
    LinearProblem problem(shape, 5);
    const int64_t cut = problem.first_row() + 40;
    for (int64_t h = 0; h < shape.heads; ++h) {
      for (int64_t c = 0; c < (decay == Decay::kChannel ? shape.k_dim : 1); ++c)
        (&problem.decay_at(cut, h))[c] = -std::numeric_limits<float>::infinity();
    }
    problem.reset();
    problem.run(*GetParam());
    const std::vector<double> states = problem.states();
    problem.reset();
    problem.sequences[0].row_begin += 40, problem.sequences[0].num_rows -= 40;
    problem.sequences[0].state_in = nullptr;
    problem.run(reference_table());
    EXPECT_LT(distance(states, problem.states()), 1e-5);
  }
}

TEST_P(Linear, APromptInSeveralForwardsGivesTheSameOutputs) {
  uint64_t seed = 1;
  for (const Decay decay : kDecays) {
    for (const bool delta : {false, true}) {
      LinearShape shape;
      shape.heads = 2, shape.k_dim = 64, shape.v_dim = 64, shape.tokens = {150},
      shape.decay = decay, shape.delta = delta;
      LinearProblem problem(shape, seed++);
      problem.reset();
      problem.run(*GetParam());
      const std::vector<double> whole = problem.outputs(), states = problem.states();
      problem.reset();
      const int64_t begin = problem.first_row();
      int64_t done = 0;
      for (const int64_t part : {1, 70, 1, 1, 13, 64}) {
        problem.sequences[0].row_begin = begin + done, problem.sequences[0].num_rows = part;
        problem.run(*GetParam());
        done += part;
      }
      ASSERT_EQ(done, 150);
      EXPECT_LT(distance(problem.outputs(), whole), 1e-5) << "decay " << static_cast<int>(decay);
      EXPECT_LT(distance(problem.states(), states), 1e-5) << "decay " << static_cast<int>(decay);
    }
  }
}

TEST_P(Linear, HeadsComeOutTheSameHoweverTheyAreCut) {
  for (uint64_t seed = 1; seed < 1 + rounds(16); ++seed) {
    LinearShape shape;
    shape.heads = 12, shape.k_heads = 2, shape.k_dim = 24, shape.v_dim = 40;
    shape.tokens = {static_cast<int64_t>(seed % 3 == 0 ? 1 : 45)}, shape.decay = kDecays[seed % 4];
    shape.delta = seed % 8 < 4;
    LinearProblem problem(shape, seed);
    problem.reset();
    problem.run(*GetParam());
    const std::vector<double> outputs = problem.outputs(), states = problem.states();
    for (const int64_t heads : {1, 5}) {
      problem.reset();
      problem.run(*GetParam(), heads);
      EXPECT_EQ(problem.outputs(), outputs) << "seed " << seed;
      EXPECT_EQ(problem.states(), states) << "seed " << seed;
    }
  }
}

TEST_P(Linear, ATokenDoesNotReachTheOutputsBeforeIt) {
  for (const Decay decay : kDecays) {
    LinearShape shape;
    shape.k_dim = 32, shape.v_dim = 32, shape.tokens = {50}, shape.decay = decay,
    shape.any_types = false;
    LinearProblem problem(shape, 3);
    problem.reset();
    problem.run(*GetParam());
    const std::vector<double> clean = problem.outputs();
    const int64_t bad = 33;
    for (TensorOwner* tensor : {&problem.q, &problem.k, &problem.v}) {
      reference::write_element(tensor->row(problem.first_row() + bad, 0), DType::kF32, 4, NAN);
    }
    problem.reset();
    problem.run(*GetParam());
    const std::vector<double> poisoned = problem.outputs();
    const auto before = static_cast<size_t>(bad * shape.heads * shape.v_dim);
    EXPECT_TRUE(
        std::equal(clean.begin(), clean.begin() + static_cast<int64_t>(before), poisoned.begin()));
    EXPECT_TRUE(std::isnan(poisoned[before + 4])) << "the token itself shows it";
  }
}

TEST_P(Linear, AnEmptySequenceBeginsWithZeros) {
  for (const int64_t tokens : {1, 20}) {
    LinearShape shape;
    shape.k_dim = 20, shape.v_dim = 24, shape.tokens = {tokens};
    LinearProblem problem(shape, 17);
    problem.reset();
    problem.sequences[0].state_in = nullptr;
    problem.run(reference_table());
    const std::vector<double> outputs = problem.outputs(), states = problem.states();
    problem.reset();
    problem.sequences[0].state_in = nullptr;
    problem.run(*GetParam());
    EXPECT_LT(distance(problem.outputs(), outputs), kOutputLimit) << tokens << " tokens";
    EXPECT_LT(distance(problem.states(), states), 1e-5) << tokens << " tokens";
  }
}

TEST_P(Linear, NoTokensCarryTheStateToItsNewPlace) {
  for (const DType state : {DType::kF32, DType::kF16, DType::kBF16}) {
    LinearShape shape;
    shape.tokens = {0}, shape.state = state;
    LinearProblem problem(shape, 7);
    problem.reset();
    const std::vector<double> before = problem.states();
    Poisoned elsewhere(problem.states_out.size());
    problem.sequences[0].state_out = elsewhere.data();
    problem.run(*GetParam());
    EXPECT_EQ(problem.states(), before);
    EXPECT_TRUE(elsewhere.guards_intact());
    problem.sequences[0].state_in = nullptr;
    problem.run(*GetParam());
    EXPECT_EQ(problem.states(), std::vector<double>(before.size(), 0.0));
  }
}

TEST_P(Linear, TheOldStateStaysWhenTheNewOneGoesElsewhere) {
  for (const int64_t tokens : {1, 40}) {
    for (const DType state : {DType::kF32, DType::kBF16}) {
      LinearShape shape;
      shape.k_dim = 20, shape.v_dim = 32, shape.tokens = {tokens}, shape.state = state;
      LinearProblem problem(shape, 11);
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
    }
  }
}

TEST_P(Linear, OutputsAreRoundedToTheirType) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    LinearShape shape;
    shape.k_dim = 33, shape.v_dim = 21, shape.tokens = {20, 1};
    LinearProblem problem(shape, 13);
    Random random(1);
    TensorOwner narrow[2];
    const KernelTable* tables[2] = {&reference_table(), GetParam()};
    for (int i = 0; i < 2; ++i) {
      problem.reset();
      narrow[i] = TensorOwner(random, problem.out.tokens, shape.heads, shape.v_dim, dtype);
      problem.params.out = narrow[i].rows;
      problem.run(*tables[i]);
      EXPECT_TRUE(narrow[i].memory.guards_intact());
    }
    for (int64_t t = problem.first_row(); t < problem.out.tokens; ++t) {
      for (int64_t d = 0; d < shape.v_dim; ++d) {
        const double want = narrow[0].at(t, 1, d);
        ASSERT_NEAR(narrow[1].at(t, 1, d), want,
                    std::fabs(want) / (dtype == DType::kF16 ? 1000 : 125) + 1e-5);
      }
    }
  }
}

}  // namespace
}  // namespace kvc::kernels::test
