// Windows, sinks, spans, token trees, dropped pages, row maps and keys rotated on read: every
// kernel against a plain double loop, and bit for bit against itself wherever the work is cut.
#include "kernels_visibility.h"

namespace kvc::kernels::test {
namespace {

struct Kernel {
  const KernelTable* table;
  bool tile;

  void run(const AttnParams& params, const AttnItem& item) const {
    const int64_t rows = item.row_end - item.row_begin;
    if (tile) {
      run_item(table->attn_tile, table->attn_tile_scratch_bytes(params, rows), params, item);
    } else {
      run_item(table->attn_decode, table->attn_decode_scratch_bytes(params, rows), params, item);
    }
  }
  void run_all(AttnProblem& problem) const {
    problem.reset_outputs(DType::kF32);
    for (int32_t s = 0; s < problem.num_sequences(); ++s)
      run(problem.params, problem.whole_item(s));
    EXPECT_TRUE(problem.out.memory.guards_intact() && problem.lse.guards_intact());
  }
  double limit(const AttnParams& params) const {
    const bool bf16 = is_bf16_or_shorter(params.k.dtype) && is_bf16_or_shorter(params.v.dtype);
    if (tile && table->isa == Isa::kAvx512Bf16 && bf16)
      return 1e-2;  // Q, P and rotated K have 8 significant bits
    // ALiBi over far positions makes large scores, whose rounding shows.
    return 4 * std::max({error_limit(params.k.dtype), error_limit(params.v.dtype),
                         tile ? 0 : words_error(*table, params)});
  }
};

std::vector<Kernel> kernels() {
  std::vector<Kernel> all;
  for (const KernelTable* table : available_tables(true)) {
    all.push_back({table, false});
    all.push_back({table, true});
  }
  return all;
}

class Masks : public testing::TestWithParam<Kernel> {};

INSTANTIATE_TEST_SUITE_P(Isa, Masks, testing::ValuesIn(kernels()), [](const auto& info) {
  return std::string(info.param.table->name) + (info.param.tile ? "Tile" : "Decode");
});

std::vector<float> output_bits(AttnProblem& problem, int64_t token) {
  std::vector<float> values;
  for (int64_t h = 0; h < problem.params.num_q_heads; ++h) {
    values.push_back(problem.lse_at(token, h));
    for (int64_t d = 0; d < problem.params.v_dim; ++d)
      values.push_back(reinterpret_cast<const float*>(problem.out.row(token, h))[d]);
  }
  return values;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

constexpr AttnFeatures kFeatures = {.infinities = false, .max_rows = 9, .max_keys = 260};

TEST_P(Masks, EqualAPlainLoopWhateverRowsSee) {
  for (uint64_t seed = 1; seed < 1 + rounds(40); ++seed) {
    AttnProblem problem(seed, kFeatures);
    const Visibility visibility(problem, {});
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + problem.describe());
    const NaiveResult expected = naive_attention(problem);
    GetParam().run_all(problem);
    ASSERT_LE(distance_from(problem, expected), GetParam().limit(problem.params));
  }
}

TEST_P(Masks, ServeTreesOfElevenHundredNodes) {
  for (uint64_t seed = 100; seed < 102; ++seed) {
    AttnProblem problem(
        seed, {.infinities = false, .max_rows = 1, .max_keys = 40, .small = true, .rows = 1100});
    const Visibility visibility(problem, {.tree = 1.0});
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + problem.describe());
    const NaiveResult expected = naive_attention(problem);
    GetParam().run_all(problem);
    ASSERT_LE(distance_from(problem, expected), GetParam().limit(problem.params));
  }
}

TEST_P(Masks, KeepWhatARowDoesNotSeeOutOfItsBits) {
  for (uint64_t seed = 200; seed < 200 + rounds(15); ++seed) {
    AttnProblem problem(seed, kFeatures);
    const Visibility visibility(problem, {});
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + problem.describe());
    const AttnParams& params = problem.params;
    const AttnSequence& sequence = problem.sequences[0];
    const int64_t row = problem.random.between(0, sequence.num_rows - 1);
    const int64_t token =
        sequence.row_map != nullptr ? sequence.row_map[row] : sequence.row_begin + row;
    GetParam().run_all(problem);
    const std::vector<float> before = output_bits(problem, token);
    for (int64_t key = 0; key < problem.max_keys(0); ++key) {
      const int32_t page = sequence.pages[key / params.page_size];
      if (page < 0 || Visibility::sees(problem, 0, row, key)) continue;
      for (int64_t head = 0; head < params.num_kv_heads; ++head) {
        const int64_t slot = key % params.page_size;
        const double value = problem.random.pick<double>({NAN, INFINITY, -7.0});
        const auto same = [&](int64_t) { return value; };
        store_row(params.k, page, head, slot, params.k_dim, same);
        store_row(params.v, page, head, slot, params.v_dim, same);
      }
    }
    GetParam().run_all(problem);
    ASSERT_TRUE(same_bits(output_bits(problem, token), before)) << "row " << row;
  }
}

TEST_P(Masks, GiveARowTheSameBitsInAnyCompany) {
  for (uint64_t seed = 300; seed < 300 + rounds(12); ++seed) {
    AttnProblem problem(seed, kFeatures);
    const Visibility visibility(problem, {});
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + problem.describe());
    GetParam().run_all(problem);
    std::vector<std::vector<float>> together;
    for (int64_t t = 0; t < problem.tokens; ++t) together.push_back(output_bits(problem, t));
    problem.reset_outputs(DType::kF32);
    for (int32_t s = 0; s < problem.num_sequences(); ++s) {
      const AttnItem whole = problem.whole_item(s);
      for (int64_t row = 0; row < whole.row_end; ++row) {
        AttnItem item = whole;
        item.row_begin = row, item.row_end = row + 1;
        GetParam().run(problem.params, item);
      }
    }
    for (int64_t t = 0; t < problem.tokens; ++t)
      ASSERT_TRUE(same_bits(output_bits(problem, t), together[static_cast<size_t>(t)]))
          << "token " << t;
  }
}

// K and V rows that begin at the same byte: latents, or layers whose K is their V.
TEST_P(Masks, ReadVOutOfTheKRows) {
  for (uint64_t seed = 400; seed < 400 + rounds(10); ++seed) {
    AttnProblem problem(seed, kFeatures);
    problem.params.v = problem.params.k;
    problem.params.v_dim = std::min(problem.params.v_dim, problem.params.k_dim);
    const Visibility visibility(problem, {});
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + problem.describe());
    problem.reset_outputs(DType::kF32);
    const NaiveResult expected = naive_attention(problem);
    GetParam().run_all(problem);
    ASSERT_LE(distance_from(problem, expected), GetParam().limit(problem.params));
  }
}

}  // namespace
}  // namespace kvc::kernels::test
