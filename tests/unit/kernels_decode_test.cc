// Decode attention and the merge of splits: every instruction set against the double reference.
#include <set>

#include "kernels_support.h"

namespace kvc::kernels::test {
namespace {

class Decode : public testing::TestWithParam<const KernelTable*> {};

INSTANTIATE_TEST_SUITE_P(Isa, Decode, testing::ValuesIn(available_tables()),
                         [](const auto& info) { return std::string(info.param->name); });

struct Outputs {
  TensorOwner out;
  std::vector<float> lse;
};

Outputs take_outputs(AttnProblem& problem) {
  Outputs outputs{std::move(problem.out), {}};
  outputs.lse.assign(problem.lse.floats(),
                     problem.lse.floats() + problem.tokens * problem.params.num_q_heads);
  EXPECT_TRUE(outputs.out.memory.guards_intact() && problem.lse.guards_intact())
      << "written outside the outputs";
  return outputs;
}

Outputs run_whole(const KernelTable& table, AttnProblem& problem, DType out_dtype = DType::kF32) {
  problem.reset_outputs(out_dtype);
  for (int32_t s = 0; s < problem.num_sequences(); ++s)
    run_decode(table, problem.params, problem.whole_item(s));
  return take_outputs(problem);
}

// Keys cut at multiples of split_keys, heads cut at random, partial results merged.
Outputs run_split(const KernelTable& table, AttnProblem& problem, int64_t split_keys) {
  problem.reset_outputs(DType::kF32);
  AttnParams& params = problem.params;
  for (int32_t s = 0; s < problem.num_sequences(); ++s) {
    const int64_t rows = problem.sequences[static_cast<size_t>(s)].num_rows,
                  keys = problem.max_keys(s);
    const int64_t group = params.num_q_heads / params.num_kv_heads;
    const int32_t cut = static_cast<int32_t>(problem.random.between(0, params.num_kv_heads));
    for (const auto& [head_begin, head_end] :
         {std::pair{int32_t{0}, cut}, std::pair{cut, params.num_kv_heads}}) {
      if (head_begin == head_end) continue;
      const int32_t splits =
          static_cast<int32_t>(std::max<int64_t>(1, (keys + split_keys - 1) / split_keys));
      const int64_t stride = rows * (head_end - head_begin) * group * (2 + params.v_dim);
      Poisoned partials(splits * stride * 4);
      params.partials = partials.floats();
      for (int32_t split = 0; split < splits; ++split) {
        run_decode(table, params,
                   make_item(s, head_begin, head_end, 0, rows, split * split_keys,
                             std::min(keys, (split + 1) * split_keys), split * stride));
      }
      merge_even_splits(table, params, make_item(s, head_begin, head_end, 0, rows, 0, keys), splits,
                        stride);
      EXPECT_TRUE(partials.guards_intact());
    }
  }
  return take_outputs(problem);
}

void expect_close(Outputs& actual, Outputs& expected, double limit) {
  EXPECT_LE(relative_error(actual.out, expected.out), limit);
  const double lse_limit = limit > 1e-5 ? 3 * limit : 4e-6;
  for (size_t i = 0; i < expected.lse.size(); ++i) {
    if (std::isinf(expected.lse[i])) {
      EXPECT_EQ(actual.lse[i], expected.lse[i]);
    } else {
      EXPECT_NEAR(actual.lse[i], expected.lse[i],
                  lse_limit * std::max(1.0f, std::fabs(expected.lse[i])));
    }
  }
}

void expect_same_bits(Outputs& actual, Outputs& expected) {
  for (int64_t t = 0; t < expected.out.tokens; ++t) {
    for (int64_t h = 0; h < expected.out.heads; ++h) {
      const size_t bytes =
          static_cast<size_t>(expected.out.dim * dtype_bytes(expected.out.rows.dtype));
      ASSERT_EQ(0, std::memcmp(actual.out.row(t, h), expected.out.row(t, h), bytes))
          << "token " << t << " head " << h;
    }
  }
  EXPECT_EQ(0, std::memcmp(actual.lse.data(), expected.lse.data(), expected.lse.size() * 4));
}

double limit_of(const KernelTable& table, const AttnProblem& problem) {
  return std::max({error_limit(problem.params.k.dtype), error_limit(problem.params.v.dtype),
                   words_error(table, problem.params)});
}

TEST_P(Decode, EqualsTheReferenceOnRandomShapes) {
  for (uint64_t seed = 1; seed < 1 + rounds(60); ++seed) {
    AttnProblem problem(seed, {});
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + problem.describe());
    Outputs expected = run_whole(reference_table(), problem);
    Outputs actual = run_whole(*GetParam(), problem);
    expect_close(actual, expected, limit_of(*GetParam(), problem));
    if (HasFailure()) return;
  }
}

TEST_P(Decode, EqualsTheReferenceWithoutAnyScoreRule) {
  for (uint64_t seed = 1000; seed < 1000 + rounds(40); ++seed) {
    AttnProblem problem(seed,
                        {.rules = false, .infinities = false, .max_rows = 1, .max_keys = 500});
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + problem.describe());
    Outputs expected = run_whole(reference_table(), problem);
    Outputs actual = run_whole(*GetParam(), problem);
    expect_close(actual, expected, limit_of(*GetParam(), problem));
    if (HasFailure()) return;
  }
}

TEST_P(Decode, TakesSixtyFourTokenRowsAtOnce) {
  for (uint64_t seed = 2000; seed < 2002; ++seed) {
    AttnProblem problem(seed, {.max_rows = 64, .max_keys = 100});
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + problem.describe());
    Outputs expected = run_whole(reference_table(), problem);
    Outputs actual = run_whole(*GetParam(), problem);
    expect_close(actual, expected, limit_of(*GetParam(), problem));
  }
}

TEST_P(Decode, RoundsItsResultToTheOutputType) {
  for (DType out_dtype : {DType::kF16, DType::kBF16}) {
    for (uint64_t seed = 3000; seed < 3000 + rounds(10); ++seed) {
      AttnProblem problem(seed, {});
      SCOPED_TRACE("seed " + std::to_string(seed) + ": " + problem.describe());
      Outputs expected = run_whole(reference_table(), problem);
      Outputs actual = run_whole(*GetParam(), problem, out_dtype);
      EXPECT_LE(
          relative_error(actual.out, expected.out),
          (out_dtype == DType::kF16 ? 4e-4 : 3e-3) + words_error(*GetParam(), problem.params));
    }
  }
}

TEST_P(Decode, MergedSplitsEqualTheReferenceWhereverTheKeysAreCut) {
  for (uint64_t seed = 4000; seed < 4000 + rounds(15); ++seed) {
    AttnProblem problem(seed, {});
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + problem.describe());
    Outputs expected = run_whole(reference_table(), problem);
    for (int64_t split_keys : {7, 16, 100, 512}) {
      SCOPED_TRACE("split " + std::to_string(split_keys));
      Outputs actual = run_split(*GetParam(), problem, split_keys);
      expect_close(actual, expected, limit_of(*GetParam(), problem));
    }
    if (HasFailure()) return;
  }
}

TEST_P(Decode, RepeatsItselfBitForBit) {
  for (uint64_t seed = 5000; seed < 5000 + rounds(10); ++seed) {
    AttnProblem problem(seed, {});
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + problem.describe());
    Outputs first = run_split(*GetParam(), problem, 48);
    Outputs second = run_split(*GetParam(), problem, 48);
    expect_same_bits(second, first);
  }
}

TEST_P(Decode, GivesARowTheSameBitsInAnyCompany) {
  for (uint64_t seed = 6000; seed < 6000 + rounds(20); ++seed) {
    AttnProblem problem(seed, {.max_rows = 9});
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + problem.describe());
    Outputs together = run_whole(*GetParam(), problem);
    problem.reset_outputs(DType::kF32);
    for (int32_t s = 0; s < problem.num_sequences(); ++s) {
      const AttnItem whole = problem.whole_item(s);
      for (int64_t row = 0; row < whole.row_end; ++row) {
        for (int32_t head = 0; head < whole.head_end; ++head) {
          AttnItem item = whole;
          item.head_begin = head, item.head_end = head + 1;
          item.row_begin = row, item.row_end = row + 1;
          run_decode(*GetParam(), problem.params, item);
        }
      }
    }
    Outputs alone = take_outputs(problem);
    expect_same_bits(alone, together);
    if (HasFailure()) return;
  }
}

TEST_P(Decode, AnEmptySequenceGivesZerosAndMinusInfinity) {
  AttnProblem problem(7, {.rules = false, .max_rows = 1, .max_keys = 0});
  Outputs actual = run_whole(*GetParam(), problem);
  for (int64_t t = 0; t < problem.tokens; ++t) {
    for (int64_t h = 0; h < problem.params.num_q_heads; ++h) {
      EXPECT_EQ(actual.lse[static_cast<size_t>(t * problem.params.num_q_heads + h)],
                -std::numeric_limits<float>::infinity());
      for (int64_t d = 0; d < problem.params.v_dim; ++d) EXPECT_EQ(actual.out.at(t, h, d), 0.0);
    }
  }
}

TEST_P(Decode, OneKeyReturnsItsValueExactly) {
  AttnProblem problem(8, {.rules = false, .max_rows = 1, .max_keys = 1});
  for (AttnSequence& sequence : problem.sequences)
    sequence.first_key_end = std::min<int64_t>(sequence.first_key_end, 1);
  Outputs actual = run_whole(*GetParam(), problem);
  int compared = 0;
  for (const AttnSequence& sequence : problem.sequences) {
    if (sequence.first_key_end == 0) continue;
    for (int64_t h = 0; h < problem.params.num_q_heads; ++h) {
      const int64_t kv_head = h / (problem.params.num_q_heads / problem.params.num_kv_heads);
      const std::byte* row = row_address(problem.params.v, sequence.pages[0], kv_head, 0);
      const float scale = row_scale(problem.params.v, sequence.pages[0], kv_head, 0);
      for (int64_t d = 0; d < problem.params.v_dim; ++d, ++compared) {
        const double element = reference::read_element(row, problem.params.v.dtype, d);
        ASSERT_EQ(actual.out.at(sequence.row_begin, h, d), static_cast<float>(element) * scale);
      }
    }
  }
  EXPECT_GT(compared, 0);
}

// One element of a query that is not finite is in all scores of its row, and in no other row.
TEST_P(Decode, AQueryThatIsNotFiniteIsNaNAlone) {
  std::set<DType> types;  // Both K and V are of them.
  for (uint64_t seed = 8000; seed < 8060; ++seed) {
    AttnProblem problem(seed, {.rules = false, .max_keys = 60, .rows = 2, .min_keys = 1});
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + problem.describe());
    if (problem.params.k.dtype == problem.params.v.dtype) types.insert(problem.params.k.dtype);
    const int64_t token = problem.sequences[0].row_begin, head = problem.params.num_q_heads - 1;
    reference::write_element(problem.q.row(token, head), problem.params.q.dtype,
                             problem.params.k_dim - 1, NAN);
    Outputs actual = run_whole(*GetParam(), problem);
    for (int64_t t = 0; t < problem.tokens; ++t) {
      for (int64_t h = 0; h < problem.params.num_q_heads; ++h)
        ASSERT_EQ(std::isnan(actual.out.at(t, h, 0)), t == token && h == head) << t << " " << h;
    }
  }
  EXPECT_EQ(types.size(), 6u);
}

TEST_P(Decode, LargeScoresNeitherOverflowNorLoseTheWinner) {
  for (uint64_t seed = 9000; seed < 9000 + rounds(10); ++seed) {
    AttnProblem problem(seed, {.rules = false, .max_rows = 2, .plain = true});
    problem.params.q_scale = 40.0f;  // scores of several hundred, in log2 units
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + problem.describe());
    Outputs expected = run_whole(reference_table(), problem);
    Outputs actual = run_whole(*GetParam(), problem);
    // The scores themselves are rounded to 2^-15
    EXPECT_LE(relative_error(actual.out, expected.out), 2e-3);
  }
}

}  // namespace
}  // namespace kvc::kernels::test
