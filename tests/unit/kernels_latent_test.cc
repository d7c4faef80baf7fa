// Decode attention over latent rows (absorbed MLA): V is the beginning of the K row, one row serves
// all heads.
#include "kernels_visibility.h"

namespace kvc::kernels::test {
namespace {

struct LatentShape {
  int32_t heads = 16;
  int32_t rank = 512, rope = 64;
  int32_t kv_heads = 1;
  int32_t page_size = 16;
  bool causal = true;
  DType dtype = DType::kBF16;
  DType q_dtype = DType::kBF16;
};

// One sequence of latents in poisoned memory: unused slots and the gaps between rows hold NaN.
class LatentProblem {
 public:
  LatentProblem(uint64_t seed, const LatentShape& shape_in, int64_t num_rows, int64_t first_key_end)
      : random(seed), shape(shape_in) {
    params.num_kv_heads = shape.kv_heads;
    params.num_q_heads = shape.heads;
    params.k_dim = shape.rank + shape.rope;
    params.v_dim = shape.rank;
    params.page_size = shape.page_size;
    params.causal = shape.causal ? 1 : 0;
    sequence.num_rows = num_rows;
    sequence.first_key_end = first_key_end;
    q = TensorOwner(random, num_rows, shape.heads, params.k_dim, shape.q_dtype);
    q.fill(random);
    params.q = q.rows;
    // About 1.4 / sqrt(k_dim), rounded to a power of two: scaling then changes no significant bit
    // of a bf16 query.
    params.q_scale =
        std::exp2(std::round(std::log2(1.44f / std::sqrt(static_cast<float>(params.k_dim)))));
    const int64_t num_pages = (keys() + params.page_size - 1) / params.page_size;
    pages.resize(static_cast<size_t>(num_pages) + 2);
    std::iota(pages.begin(), pages.end(), 0);
    std::shuffle(pages.begin(), pages.end(), random.engine());
    pool = PoolOwner(random, num_pages + 2, params.page_size, params.num_kv_heads, params.k_dim,
                     shape.dtype);
    params.k = params.v = pool.rows;
    for (int64_t key = 0; key < keys(); ++key) {
      for (int32_t head = 0; head < shape.kv_heads; ++head) {
        for (int64_t d = 0; d < params.k_dim; ++d) write(key, head, d, random.normal());
      }
    }
    sequence.pages = pages.data();
    params.sequences = &sequence;
  }
  LatentProblem(const LatentProblem&) = delete;
  LatentProblem& operator=(const LatentProblem&) = delete;

  int64_t keys() const {
    return sequence.first_key_end + (shape.causal ? sequence.num_rows - 1 : 0);
  }
  std::byte* latent(int64_t key, int32_t head = 0) {
    return row_address(params.k, pages[static_cast<size_t>(key / params.page_size)], head,
                       key % params.page_size);
  }
  void write(int64_t key, int32_t head, int64_t d, double value) {
    reference::write_element(latent(key, head), shape.dtype, d, value);
  }
  AttnItem item(int64_t row_begin, int64_t row_end) const {
    AttnItem item{};
    item.head_end = params.num_kv_heads;
    item.merge_group = -1;
    item.row_begin = row_begin, item.row_end = row_end;
    item.key_end = keys();
    item.partial = -1;
    return item;
  }

  std::string describe() const {
    return "heads " + std::to_string(shape.heads) + "/" + std::to_string(shape.kv_heads) +
           ", rank " + std::to_string(shape.rank) + "+" + std::to_string(shape.rope) + ", page " +
           std::to_string(shape.page_size) + ", rows " + std::to_string(sequence.num_rows) +
           ", keys " + std::to_string(keys());
  }

  Random random;
  LatentShape shape;
  AttnParams params{};
  AttnSequence sequence{};
  std::vector<int32_t> pages;
  TensorOwner q;
  PoolOwner pool;
};

struct Result {
  TensorOwner out;
  std::vector<float> lse;
};

// Points the outputs at poisoned memory, lets `work` run and takes them.
template <typename Work>
Result collect(LatentProblem& problem, const Work& work) {
  AttnParams& params = problem.params;
  Result result{TensorOwner(problem.random, problem.sequence.num_rows, params.num_q_heads,
                            params.v_dim, DType::kF32),
                {}};
  Poisoned lse(problem.sequence.num_rows * params.num_q_heads * 4);
  params.out = result.out.rows;
  params.lse = lse.floats();
  params.lse_token_stride = params.num_q_heads;
  work();
  result.lse.assign(lse.floats(), lse.floats() + problem.sequence.num_rows * params.num_q_heads);
  EXPECT_TRUE(result.out.memory.guards_intact() && lse.guards_intact())
      << "written outside the outputs";
  return result;
}

Result run_whole(const KernelTable& table, LatentProblem& problem) {
  return collect(problem, [&] {
    run_decode(table, problem.params, problem.item(0, problem.sequence.num_rows));
  });
}

Result run_row_by_row(const KernelTable& table, LatentProblem& problem) {
  return collect(problem, [&] {
    for (int64_t row = 0; row < problem.sequence.num_rows; ++row) {
      for (int32_t head = 0; head < problem.shape.kv_heads; ++head) {
        AttnItem item = problem.item(row, row + 1);
        item.head_begin = head, item.head_end = head + 1;
        run_decode(table, problem.params, item);
      }
    }
  });
}

// Keys cut at multiples of split_keys, partial results merged.
Result run_split(const KernelTable& table, LatentProblem& problem, int64_t split_keys) {
  return collect(problem, [&] {
    AttnParams& params = problem.params;
    const int64_t rows = problem.sequence.num_rows, keys = problem.keys();
    const int64_t splits = std::max<int64_t>(1, (keys + split_keys - 1) / split_keys);
    const int64_t stride = rows * params.num_q_heads * (2 + params.v_dim);
    Poisoned partials(splits * stride * 4);
    params.partials = partials.floats();
    std::vector<int64_t> offsets;
    for (int64_t split = 0; split < splits; ++split) {
      AttnItem item = problem.item(0, rows);
      item.key_begin = split * split_keys, item.key_end = std::min(keys, (split + 1) * split_keys);
      item.partial = split * stride;
      offsets.push_back(item.partial);
      run_decode(table, params, item);
    }
    params.split_offsets = offsets.data();
    AttnMergeGroup group{};
    group.head_end = params.num_kv_heads;
    group.num_splits = static_cast<int32_t>(splits);
    group.row_end = rows;
    table.attn_merge_splits(params, group);
    EXPECT_TRUE(partials.guards_intact());
  });
}

// Where Q is exact in bf16, what is left is P rounded to bf16: every weight is off by 2^-8 of
// itself at most (8 significant bits), by 2^-9.3 in the mean square. Errors of different keys are
// independent, so the whole is off by about as much.
constexpr double kWeightRounding = 0x1p-8;
// Q rounded too: the terms of a score are off by 2^-9.3 in the mean square and independent, scores
// have a deviation of about 1.4 (log2 units): each weight moves by 2^-9.3 once more, and where the
// scale is larger than usual, a little further.
constexpr double kQueryRounding = 0x1p-7;
// With a single key LSE is its score: ten times its mean error.
constexpr double kQueryLseRounding = 2e-2;
// Sums over fp32 weights of fp32 scores: LSE knows nothing of the rounding of P.
constexpr double kLseRounding = 2e-5;

void expect_close(Result& actual, Result& expected, double limit, double lse_limit) {
  EXPECT_LE(relative_error(actual.out, expected.out), limit);
  for (size_t i = 0; i < expected.lse.size(); ++i) {
    if (std::isinf(expected.lse[i])) {
      EXPECT_EQ(actual.lse[i], expected.lse[i]);
    } else {
      EXPECT_NEAR(actual.lse[i], expected.lse[i], lse_limit);
    }
  }
}

void expect_same_bits(Result& actual, Result& expected) {
  for (int64_t t = 0; t < expected.out.tokens; ++t) {
    for (int64_t h = 0; h < expected.out.heads; ++h) {
      ASSERT_EQ(0, std::memcmp(actual.out.row(t, h), expected.out.row(t, h),
                               static_cast<size_t>(expected.out.dim * 4)))
          << "token " << t << " head " << h;
    }
  }
  EXPECT_EQ(0, std::memcmp(actual.lse.data(), expected.lse.data(), expected.lse.size() * 4));
}

// NaN where the reference has NaN, and the other elements close to its own.
void expect_same_nans(Result& actual, Result& expected, double limit) {
  int64_t nans = 0;
  for (int64_t t = 0; t < expected.out.tokens; ++t) {
    for (int64_t h = 0; h < expected.out.heads; ++h) {
      for (int64_t d = 0; d < expected.out.dim; ++d) {
        const double a = actual.out.at(t, h, d), e = expected.out.at(t, h, d);
        nans += std::isnan(e) ? 1 : 0;
        ASSERT_EQ(std::isnan(a), std::isnan(e))
            << "token " << t << " head " << h << " element " << d;
        if (std::isnan(e)) continue;
        ASSERT_NEAR(a, e, limit) << "token " << t << " head " << h << " element " << d;
      }
      const auto i = static_cast<size_t>(t * expected.out.heads + h);
      EXPECT_EQ(std::isnan(actual.lse[i]), std::isnan(expected.lse[i]))
          << "token " << t << " head " << h;
    }
  }
  EXPECT_GT(nans, 0);
  EXPECT_LT(nans, expected.out.tokens * expected.out.heads * expected.out.dim);
}

LatentShape random_shape(Random& random) {
  LatentShape shape;
  shape.heads = random.pick({1, 5, 8, 9, 16, 20, 128});
  const auto [rank, rope] =
      random.pick({std::pair{512, 64}, {256, 32}, {80, 16}, {33, 2}, {40, 1}, {64, 0}});
  shape.rank = rank, shape.rope = rope;
  shape.page_size = random.pick({1, 16, 48});
  return shape;
}

// Around the edges of pages, blocks and splits; the double reference needs its time, so many heads
// see fewer keys.
int64_t random_length(Random& random, const LatentShape& shape) {
  const int64_t length =
      random.pick<int64_t>({1, 15, 16, 17, 47, 48, 63, 64, 65, 127, 128, 130, 511, 512, 513, 577});
  return shape.heads * shape.rank > 20 * 256 && length > 70 ? length % 70 : length;
}

class Latent : public testing::TestWithParam<const KernelTable*> {};

INSTANTIATE_TEST_SUITE_P(Isa, Latent, testing::ValuesIn(available_tables()),
                         [](const auto& info) { return std::string(info.param->name); });

TEST_P(Latent, OneRowEqualsTheReferenceInEveryShape) {
  for (uint64_t seed = 1; seed < 1 + rounds(40); ++seed) {
    Random random(seed);
    const LatentShape shape = random_shape(random);
    LatentProblem problem(seed, shape, 1, random_length(random, shape));
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + problem.describe());
    Result expected = run_whole(reference_table(), problem);
    Result actual = run_whole(*GetParam(), problem);
    expect_close(actual, expected, kWeightRounding, kLseRounding);
    if (HasFailure()) return;
  }
}

TEST_P(Latent, SixteenHeadsOfDeepSeekEqualTheReferenceOverAThousandKeys) {
  LatentProblem problem(2, {}, 1, 1001);
  Result expected = run_whole(reference_table(), problem);
  Result actual = run_split(*GetParam(), problem, 512);
  expect_close(actual, expected, kWeightRounding, kLseRounding);
}

TEST_P(Latent, SeveralCausalRowsEqualTheReference) {
  for (uint64_t seed = 100; seed < 100 + rounds(30); ++seed) {
    Random random(seed);
    LatentShape shape = random_shape(random);
    shape.causal = random.chance(0.8);
    const int64_t rows = shape.heads == 128 ? 2 : random.between(2, 7);
    LatentProblem problem(seed, shape, rows, random_length(random, shape) % 140);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + problem.describe());
    Result expected = run_whole(reference_table(), problem);
    Result actual = run_whole(*GetParam(), problem);
    expect_close(actual, expected, kWeightRounding, kLseRounding);
    if (HasFailure()) return;
  }
}

TEST_P(Latent, QueriesOfAnyTypeScaleAndRotationAreRoundedOnce) {
  for (uint64_t seed = 200; seed < 200 + rounds(20); ++seed) {
    Random random(seed);
    LatentShape shape = random_shape(random);
    shape.q_dtype = random.dtype();
    LatentProblem problem(seed, shape, 2, 1 + random_length(random, shape) % 140);
    problem.params.q_scale *= 1.17f;
    RotationOwner rotation(random, 2, problem.params.k_dim);
    problem.params.q_rotation = rotation.rotation;
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + problem.describe());
    Result expected = run_whole(reference_table(), problem);
    Result actual = run_whole(*GetParam(), problem);
    expect_close(actual, expected, kQueryRounding, kQueryLseRounding);
    if (HasFailure()) return;
  }
}

TEST_P(Latent, MergedSplitsEqualTheReferenceWhereverTheKeysAreCut) {
  for (uint64_t seed = 300; seed < 308; ++seed) {
    Random random(seed);
    const LatentShape shape = random_shape(random);
    LatentProblem problem(seed, shape, shape.heads == 128 ? 1 : 3,
                          40 + random_length(random, shape) % 140);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + problem.describe());
    Result expected = run_whole(reference_table(), problem);
    for (int64_t split_keys : {7, 64, 100, 512}) {
      SCOPED_TRACE("split " + std::to_string(split_keys));
      Result actual = run_split(*GetParam(), problem, split_keys);
      expect_close(actual, expected, kWeightRounding, kLseRounding);
    }
    if (HasFailure()) return;
  }
}

TEST_P(Latent, GivesARowTheSameBitsInAnyCompany) {
  for (uint64_t seed = 400; seed < 400 + rounds(30); ++seed) {
    Random random(seed);
    LatentShape shape = random_shape(random);
    LatentProblem problem(seed, shape, random.between(2, 9), random_length(random, shape));
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + problem.describe());
    Result together = run_whole(*GetParam(), problem);
    Result alone = run_row_by_row(*GetParam(), problem);
    expect_same_bits(alone, together);
    if (HasFailure()) return;
  }
}

TEST_P(Latent, RowsOfAMapReadAndWriteTheirOwnTokens) {
  LatentProblem problem(5, {.causal = false}, 3, 70);
  Result plain = run_whole(*GetParam(), problem);
  const int32_t map[] = {2, 0, 1};
  problem.sequence.row_map = map;
  Result mapped = run_whole(*GetParam(), problem);
  expect_same_bits(mapped, plain);
}

TEST_P(Latent, ALatentHiddenFromARowMayHoldNaN) {
  for (int64_t first_key_end : {1, 16, 62, 63, 64, 127, 200}) {
    SCOPED_TRACE(first_key_end);
    LatentProblem problem(6, {.heads = 20, .rank = 80, .rope = 16}, 4, first_key_end);
    for (int64_t d = 0; d < problem.params.k_dim; ++d) problem.write(first_key_end + 1, 0, d, NAN);
    Result expected = run_whole(reference_table(), problem);
    Result actual = run_whole(*GetParam(), problem);
    expect_same_nans(actual, expected, 2e-2);
    Result alone = run_row_by_row(*GetParam(), problem);
    for (int64_t head = 0; head < 20; ++head) {
      EXPECT_EQ(0, std::memcmp(actual.out.row(1, head), alone.out.row(1, head), 80 * 4))
          << "head " << head;
    }
  }
}

TEST_P(Latent, AnInfiniteLatentHidesItselfOrShowsAsInTheReference) {
  LatentProblem problem(7, {.heads = 16, .rank = 80, .rope = 16}, 1, 70);
  // Heads whose query is positive there score -inf, so the key is as good as masked for them; the
  // others score +inf.
  problem.write(3, 0, 5, -std::numeric_limits<double>::infinity());
  Result expected = run_whole(reference_table(), problem);
  Result actual = run_whole(*GetParam(), problem);
  expect_same_nans(actual, expected, 2e-2);
}

TEST_P(Latent, ARowThatSeesNothingButNaNIsNotTakenForAnEmptyOne) {
  LatentProblem problem(12, {.heads = 16, .rank = 80, .rope = 16}, 1, 1);
  for (int64_t d = 0; d < problem.params.k_dim; ++d) problem.write(0, 0, d, NAN);
  Result actual = run_whole(*GetParam(), problem);
  for (int64_t head = 0; head < 16; ++head) {
    EXPECT_TRUE(std::isnan(actual.lse[static_cast<size_t>(head)])) << "head " << head;
    for (int64_t d = 0; d < 80; ++d)
      EXPECT_TRUE(std::isnan(actual.out.at(0, head, d))) << "head " << head;
  }
}

TEST_P(Latent, RowsThatSeeNothingGiveZerosAndMinusInfinity) {
  LatentProblem problem(8, {}, 2, 0);
  Result actual = run_whole(*GetParam(), problem);
  for (int64_t head = 0; head < 16; ++head) {
    EXPECT_EQ(actual.lse[static_cast<size_t>(head)], -std::numeric_limits<float>::infinity());
    for (int64_t d = 0; d < 512; ++d) EXPECT_EQ(actual.out.at(0, head, d), 0.0);
  }
}

TEST_P(Latent, OneKeyReturnsItsLatentExactly) {
  LatentProblem problem(9, {.heads = 20, .rank = 80, .rope = 16}, 1, 1);
  Result actual = run_whole(*GetParam(), problem);
  for (int64_t head = 0; head < 20; ++head) {
    for (int64_t d = 0; d < 80; ++d)
      EXPECT_EQ(actual.out.at(0, head, d),
                reference::read_element(problem.latent(0), DType::kBF16, d));
  }
}

// What the bf16 kernel does not serve runs on the same fp32 arithmetic as without it, to the bit.
TEST(LatentBf16, LeavesEverythingElseToTheDecodeKernel) {
  const KernelTable* bf16 = cpu::kernel_table(Isa::kAvx512Bf16);
  const KernelTable* fp32 = cpu::kernel_table(Isa::kAvx512);
  if (bf16 == nullptr || fp32 == nullptr) GTEST_SKIP() << "no avx512bf16 on this machine";
  const auto check = [&](const char* what, const LatentShape& shape, auto&& change) {
    SCOPED_TRACE(what);
    LatentProblem problem(10, shape, 1, 100);
    change(problem);
    Result expected = run_whole(*fp32, problem);
    Result actual = run_whole(*bf16, problem);
    expect_same_bits(actual, expected);
  };
  const auto nothing = [](LatentProblem&) {};
  check("three heads", {.heads = 3}, nothing);
  check("two latents per token", {.heads = 32, .kv_heads = 2}, nothing);
  check("fp16", {.dtype = DType::kF16}, nothing);
  check("soft cap", {}, [](LatentProblem& problem) { problem.params.softcap = 30.0f; });
  check("V elsewhere in the row", {}, [](LatentProblem& problem) { problem.params.v.base += 64; });
  const std::vector<float> slopes(16, 0.1f);
  check("ALiBi", {}, [&](LatentProblem& problem) { problem.params.alibi = slopes.data(); });
  const std::vector<float> bias(100, 0.5f);
  check("bias", {}, [&](LatentProblem& problem) { problem.params.bias = bias.data(); });
}

TEST(LatentBf16, ServesFourHeadsAndMore) {
  const KernelTable* bf16 = cpu::kernel_table(Isa::kAvx512Bf16);
  const KernelTable* fp32 = cpu::kernel_table(Isa::kAvx512);
  if (bf16 == nullptr || fp32 == nullptr) GTEST_SKIP() << "no avx512bf16 on this machine";
  LatentProblem problem(11, {.heads = 4}, 1, 100);
  Result fp32_result = run_whole(*fp32, problem);
  Result bf16_result = run_whole(*bf16, problem);
  EXPECT_GT(relative_error(bf16_result.out, fp32_result.out), 1e-5);  // the rounding of P shows
}

// Windows, sinks, spans, trees, row maps and dropped pages; of random problems those that are
// latents for this kernel.
TEST(LatentBf16, ServesWhateverRowsSee) {
  const KernelTable* bf16 = cpu::kernel_table(Isa::kAvx512Bf16);
  if (bf16 == nullptr) GTEST_SKIP() << "no avx512bf16 on this machine";
  int served = 0;
  for (uint64_t seed = 1000; seed < 1200; ++seed) {
    AttnProblem problem(seed,
                        {.rules = false, .infinities = false, .max_rows = 9, .max_keys = 260});
    AttnParams& params = problem.params;
    if (params.num_kv_heads != 1 || params.num_q_heads < 4 || params.k.dtype != DType::kBF16)
      continue;
    ++served;
    params.v = params.k;
    params.v_dim = std::min(params.v_dim, params.k_dim);
    const Visibility visibility(problem, {.rotated_keys = false});
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + problem.describe());
    const auto run = [&](const KernelTable& table, bool row_by_row) {
      problem.reset_outputs(DType::kF32);
      for (int32_t s = 0; s < problem.num_sequences(); ++s) {
        AttnItem item = problem.whole_item(s);
        const int64_t rows = item.row_end, step = row_by_row ? 1 : rows;
        for (int64_t row = 0; row < rows; row += step) {
          item.row_begin = row, item.row_end = row + step;
          run_decode(table, params, item);
        }
      }
      Result result{std::move(problem.out), {}};
      result.lse.assign(problem.lse.floats(),
                        problem.lse.floats() + problem.tokens * params.num_q_heads);
      return result;
    };
    Result expected = run(reference_table(), false);
    Result together = run(*bf16, false);
    Result alone = run(*bf16, true);
    expect_close(together, expected, kQueryRounding, kQueryLseRounding);
    expect_same_bits(alone, together);
    if (HasFailure()) return;
  }
  EXPECT_GT(served, 4);
}

}  // namespace
}  // namespace kvc::kernels::test
