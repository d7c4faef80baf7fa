// The tile kernels (prefill, append): every instruction set against the double reference, and bit
// for bit against itself.
#include <functional>

#include "kernels_support.h"

namespace kvc::kernels::test {
namespace {

constexpr int64_t kBlock = 64;  // items are cut at multiples of it

struct TileOutputs {
  TensorOwner out;
  std::vector<float> lse;
};

TileOutputs take(AttnProblem& problem) {
  TileOutputs outputs{std::move(problem.out), {}};
  outputs.lse.assign(problem.lse.floats(),
                     problem.lse.floats() + problem.tokens * problem.params.num_q_heads);
  EXPECT_TRUE(outputs.out.memory.guards_intact() && problem.lse.guards_intact())
      << "written outside the outputs";
  return outputs;
}

void run_tile(const KernelTable& table, const AttnParams& params, const AttnItem& item) {
  run_item(table.attn_tile, table.attn_tile_scratch_bytes(params, item.row_end - item.row_begin),
           params, item);
}

TileOutputs run_whole(const KernelTable& table, AttnProblem& problem,
                      DType out_dtype = DType::kF32) {
  problem.reset_outputs(out_dtype);
  for (int32_t s = 0; s < problem.num_sequences(); ++s)
    run_tile(table, problem.params, problem.whole_item(s));
  return take(problem);
}

// Rows and heads cut at random places; every item is told of no key behind the last one that its
// rows see.
TileOutputs run_in_pieces(const KernelTable& table, AttnProblem& problem, int64_t most_rows) {
  problem.reset_outputs(DType::kF32);
  const AttnParams& params = problem.params;
  for (int32_t s = 0; s < problem.num_sequences(); ++s) {
    const AttnSequence& sequence = problem.sequences[static_cast<size_t>(s)];
    for (int64_t row = 0, next = 0; row < sequence.num_rows; row = next) {
      next = std::min(sequence.num_rows, row + problem.random.between(1, most_rows));
      const int32_t cut = static_cast<int32_t>(problem.random.between(0, params.num_kv_heads));
      const int64_t key_end = sequence.first_key_end + (params.causal != 0 ? next - 1 : 0);
      if (cut > 0) run_tile(table, params, make_item(s, 0, cut, row, next, 0, key_end));
      if (cut < params.num_kv_heads)
        run_tile(table, params, make_item(s, cut, params.num_kv_heads, row, next, 0, key_end));
    }
  }
  return take(problem);
}

// Keys cut into splits, partial results merged.
TileOutputs run_split(const KernelTable& table, AttnProblem& problem, int64_t split_keys) {
  problem.reset_outputs(DType::kF32);
  AttnParams& params = problem.params;
  for (int32_t s = 0; s < problem.num_sequences(); ++s) {
    const int64_t rows = problem.sequences[static_cast<size_t>(s)].num_rows,
                  keys = problem.max_keys(s);
    const int32_t splits =
        static_cast<int32_t>(std::max<int64_t>(1, (keys + split_keys - 1) / split_keys));
    const int64_t stride = rows * params.num_q_heads * (2 + params.v_dim);
    Poisoned partials(splits * stride * 4);
    params.partials = partials.floats();
    for (int32_t split = 0; split < splits; ++split) {
      run_tile(table, params,
               make_item(s, 0, params.num_kv_heads, 0, rows, split * split_keys,
                         std::min(keys, (split + 1) * split_keys), split * stride));
    }
    merge_even_splits(table, params, problem.whole_item(s), splits, stride);
    EXPECT_TRUE(partials.guards_intact());
  }
  return take(problem);
}

bool uses_bf16_dot(const KernelTable& table, const AttnParams& params) {
  return table.isa == Isa::kAvx512Bf16 && is_bf16_or_shorter(params.k.dtype) &&
         is_bf16_or_shorter(params.v.dtype);
}

double limit_of(const KernelTable& table, const AttnProblem& problem) {
  if (uses_bf16_dot(table, problem.params)) return 3e-3;  // Q and P have 8 significant bits
  return std::max(error_limit(problem.params.k.dtype), error_limit(problem.params.v.dtype));
}

void expect_close(const KernelTable& table, AttnProblem& problem, TileOutputs& actual,
                  TileOutputs& expected) {
  EXPECT_LE(relative_error(actual.out, expected.out), limit_of(table, problem));
  const double lse_limit = uses_bf16_dot(table, problem.params) ? 1e-2 : 4e-6;
  for (size_t i = 0; i < expected.lse.size(); ++i) {
    if (std::isinf(expected.lse[i])) {
      EXPECT_EQ(actual.lse[i], expected.lse[i]);
    } else {
      EXPECT_NEAR(actual.lse[i], expected.lse[i],
                  lse_limit * std::max(1.0f, std::fabs(expected.lse[i])));
    }
  }
}

// The rows for which `compared(packed row)` holds.
void expect_same_bits(TileOutputs& actual, TileOutputs& expected,
                      const std::function<bool(int64_t)>& compared = nullptr) {
  for (int64_t t = 0; t < expected.out.tokens; ++t) {
    if (compared && !compared(t)) continue;
    for (int64_t h = 0; h < expected.out.heads; ++h) {
      const size_t bytes =
          static_cast<size_t>(expected.out.dim * dtype_bytes(expected.out.rows.dtype));
      ASSERT_EQ(0, std::memcmp(actual.out.row(t, h), expected.out.row(t, h), bytes))
          << "token " << t << " head " << h;
      const size_t i = static_cast<size_t>(t * expected.out.heads + h);
      ASSERT_EQ(0, std::memcmp(&actual.lse[i], &expected.lse[i], 4))
          << "lse of token " << t << " head " << h;
    }
  }
}

// Runs `check(table, problem)` for every instruction set and seed, until one fails.
void for_each_problem(uint64_t first_seed, uint64_t count, const AttnFeatures& features,
                      const std::function<void(const KernelTable&, AttnProblem&)>& check) {
  for (uint64_t seed = first_seed; seed < first_seed + count; ++seed) {
    for (const KernelTable* table : available_tables()) {
      AttnProblem problem(seed, features);
      SCOPED_TRACE(std::string(table->name) + ", seed " + std::to_string(seed) + ": " +
                   problem.describe());
      check(*table, problem);
      if (testing::Test::HasFailure()) return;
    }
  }
}

// The same for the comparison with the reference, which is computed once for all instruction sets.
void compare_with_reference(
    uint64_t first_seed, uint64_t count, const AttnFeatures& features,
    const std::function<TileOutputs(const KernelTable&, AttnProblem&)>& run) {
  for (uint64_t seed = first_seed; seed < first_seed + rounds(count); ++seed) {
    AttnProblem problem(seed, features);
    TileOutputs expected = run_whole(reference_table(), problem);
    for (const KernelTable* table : available_tables()) {
      SCOPED_TRACE(std::string(table->name) + ", seed " + std::to_string(seed) + ": " +
                   problem.describe());
      TileOutputs actual = run(*table, problem);
      expect_close(*table, problem, actual, expected);
      if (testing::Test::HasFailure()) return;
    }
  }
}

// Keys of a sequence that token row `row` does not see, but a later one does.
template <typename F>
void for_each_future_key(AttnProblem& problem, int32_t sequence, int64_t row, F&& f) {
  const AttnSequence& s = problem.sequences[static_cast<size_t>(sequence)];
  for (int64_t key = s.first_key_end + row; key < problem.max_keys(sequence); ++key) f(key);
}

std::byte* key_row(AttnProblem& problem, const PagedRows& rows, int32_t sequence, int64_t key,
                   int64_t head) {
  const int64_t page_size = problem.params.page_size;
  return row_address(rows, problem.sequences[static_cast<size_t>(sequence)].pages[key / page_size],
                     head, key % page_size);
}

void fill_key(AttnProblem& problem, int32_t sequence, int64_t key, double k_value, double v_value) {
  const AttnParams& params = problem.params;
  const int32_t page =
      problem.sequences[static_cast<size_t>(sequence)].pages[key / params.page_size];
  const int64_t slot = key % params.page_size;
  for (int64_t head = 0; head < params.num_kv_heads; ++head) {
    store_row(params.k, page, head, slot, params.k_dim, [&](int64_t) { return k_value; });
    store_row(params.v, page, head, slot, params.v_dim, [&](int64_t) { return v_value; });
  }
}

TEST(TileKernel, EqualsTheReferenceOnRandomShapes) {
  compare_with_reference(
      1, 40, {.max_rows = 12, .max_keys = 200},
      [](const KernelTable& table, AttnProblem& problem) { return run_whole(table, problem); });
}

TEST(TileKernel, EqualsTheReferenceWithoutAnyScoreRule) {
  compare_with_reference(
      1000, 20, {.rules = false, .max_rows = 12, .max_keys = 300},
      [](const KernelTable& table, AttnProblem& problem) { return run_whole(table, problem); });
}

TEST(TileKernel, EqualsTheReferenceWhenOneItemHoldsManyRows) {
  compare_with_reference(
      2000, 3, {.max_rows = 150, .max_keys = 40},
      [](const KernelTable& table, AttnProblem& problem) { return run_whole(table, problem); });
}

TEST(TileKernel, TakesAnyHeadDimension) {
  for (uint64_t seed = 2500; seed < 2500 + rounds(80); ++seed) {
    AttnProblem problem(seed, {.max_rows = 3, .max_keys = 80});
    // Shorter than the stored rows: what lies behind must not be read as part of a head.
    problem.params.k_dim = static_cast<int32_t>(problem.random.between(16, problem.params.k_dim));
    problem.params.v_dim = static_cast<int32_t>(problem.random.between(16, problem.params.v_dim));
    Rotation& rotation = problem.params.q_rotation;
    rotation.begin = std::min(rotation.begin, problem.params.k_dim);
    rotation.rotary_dim =
        std::min(rotation.rotary_dim, (problem.params.k_dim - rotation.begin) / 2 * 2);
    TileOutputs expected = run_whole(reference_table(), problem);
    for (const KernelTable* table : available_tables()) {
      SCOPED_TRACE(std::string(table->name) + ", seed " + std::to_string(seed) + ": " +
                   problem.describe());
      TileOutputs actual = run_whole(*table, problem);
      expect_close(*table, problem, actual, expected);
      if (HasFailure()) return;
    }
  }
}

TEST(TileKernel, MergedSplitsEqualTheReferenceWhereverTheKeysAreCut) {
  for (int64_t split_keys : {kBlock, 2 * kBlock, 8 * kBlock}) {
    compare_with_reference(3000, 8, {.max_rows = 7, .max_keys = 300},
                           [&](const KernelTable& table, AttnProblem& problem) {
                             return run_split(table, problem, split_keys);
                           });
  }
}

TEST(TileKernel, RoundsItsResultToTheOutputType) {
  for (DType out_dtype : {DType::kF16, DType::kBF16}) {
    for_each_problem(4000, 8, {.max_rows = 5, .max_keys = 100},
                     [&](const KernelTable& table, AttnProblem& problem) {
                       TileOutputs exact = run_whole(table, problem);
                       TileOutputs rounded = run_whole(table, problem, out_dtype);
                       EXPECT_LE(relative_error(rounded.out, exact.out),
                                 out_dtype == DType::kF16 ? 4e-4 : 3e-3);
                     });
  }
}

TEST(TileKernel, GivesARowTheSameBitsInAnyCompany) {
  for (int64_t most_rows : {1, 4, 40}) {
    for_each_problem(5000, rounds(15), {.max_rows = 40, .max_keys = 200},
                     [&](const KernelTable& table, AttnProblem& problem) {
                       TileOutputs together = run_whole(table, problem);
                       TileOutputs in_pieces = run_in_pieces(table, problem, most_rows);
                       expect_same_bits(in_pieces, together);
                     });
  }
}

TEST(TileKernel, GivesARowTheSameBitsWhenAnItemNeedsSeveralPasses) {
  for_each_problem(5500, 6, {.rules = false, .max_rows = 300, .max_keys = 130},
                   [&](const KernelTable& table, AttnProblem& problem) {
                     if (table.isa == Isa::kScalar) return;
                     TileOutputs together = run_whole(table, problem);
                     TileOutputs in_pieces = run_in_pieces(table, problem, 30);
                     expect_same_bits(in_pieces, together);
                   });
}

TEST(TileKernel, DoesNotCareHowKeysAreSpreadOverPages) {
  for_each_problem(
      6000, 20, {.max_rows = 9, .max_keys = 300},
      [](const KernelTable& table, AttnProblem& problem) {
        TileOutputs expected = run_whole(table, problem);
        const AttnParams before = problem.params;
        const int32_t page_size = problem.random.pick({1, 7, 16, 64, 100});
        int64_t num_pages = 0;
        for (int32_t s = 0; s < problem.num_sequences(); ++s)
          num_pages += (problem.max_keys(s) + page_size - 1) / page_size;
        PoolOwner k(problem.random, num_pages, page_size, before.num_kv_heads, before.k_dim,
                    before.k.dtype, &before.k);
        PoolOwner v(problem.random, num_pages, page_size, before.num_kv_heads, before.v_dim,
                    before.v.dtype, &before.v);
        const auto copy_scale = [&](const PagedRows& to, const PagedRows& from, int32_t s,
                                    int64_t key, int32_t page, int64_t head) {
          if (from.scales.base == nullptr) return;
          const int32_t old_page =
              problem
                  .page_tables[static_cast<size_t>(s)][static_cast<size_t>(key / before.page_size)];
          std::memcpy(scale_address(to, page, head, key % page_size),
                      scale_address(from, old_page, head, key % before.page_size), sizeof(float));
        };
        std::vector<std::vector<int32_t>> tables(problem.sequences.size());
        int32_t next_page = 0;
        for (int32_t s = 0; s < problem.num_sequences(); ++s) {
          std::vector<int32_t>& pages = tables[static_cast<size_t>(s)];
          for (int64_t key = 0; key < problem.max_keys(s); ++key) {
            if (key % page_size == 0) pages.push_back(next_page++);
            for (int64_t head = 0; head < before.num_kv_heads; ++head) {
              std::memcpy(row_address(k.rows, pages.back(), head, key % page_size),
                          key_row(problem, before.k, s, key, head),
                          static_cast<size_t>(before.k_dim * dtype_bytes(before.k.dtype)));
              std::memcpy(row_address(v.rows, pages.back(), head, key % page_size),
                          key_row(problem, before.v, s, key, head),
                          static_cast<size_t>(before.v_dim * dtype_bytes(before.v.dtype)));
              copy_scale(k.rows, before.k, s, key, pages.back(), head);
              copy_scale(v.rows, before.v, s, key, pages.back(), head);
            }
          }
        }
        for (size_t s = 0; s < tables.size(); ++s) problem.sequences[s].pages = tables[s].data();
        problem.params.page_size = page_size;
        problem.params.k = k.rows;
        problem.params.v = v.rows;
        TileOutputs actual = run_whole(table, problem);
        expect_same_bits(actual, expected);
      });
}

TEST(TileKernel, KeysInARowsFutureDoNotReachIt) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const auto& [k_value, v_value] :
       {std::pair{NAN + 0.0, NAN + 0.0}, {inf, -inf}, {NAN, 1.0}, {-30.0, 3e4}, {2.0, -inf}}) {
    int sequences_compared = 0;
    for_each_problem(
        7000, 12, {.max_rows = 20, .max_keys = 150},
        [&, k = k_value, v = v_value](const KernelTable& table, AttnProblem& problem) {
          TileOutputs before = run_whole(table, problem);
          // Of every sequence: the last packed row that must stay as it was
          std::vector<int64_t> last_row;
          for (int32_t s = 0; s < problem.num_sequences(); ++s) {
            const int64_t rows = problem.sequences[static_cast<size_t>(s)].num_rows;
            const int64_t row = problem.random.between(0, rows - 1);
            last_row.push_back(problem.sequences[static_cast<size_t>(s)].row_begin + row);
            for_each_future_key(problem, s, row,
                                [&](int64_t key) { fill_key(problem, s, key, k, v); });
            sequences_compared += problem.params.causal != 0 && row + 1 < rows;
          }
          TileOutputs after = run_whole(table, problem);
          expect_same_bits(after, before, [&](int64_t token) {
            for (size_t s = 0; s < last_row.size(); ++s) {
              const AttnSequence& sequence = problem.sequences[s];
              if (token >= sequence.row_begin && token < sequence.row_begin + sequence.num_rows)
                return token <= last_row[s];
            }
            return false;
          });
        });
    EXPECT_GT(sequences_compared, 20);
  }
}

TEST(TileKernel, KeysHiddenByTheBiasDoNotReachTheirRows) {
  int problems_compared = 0;
  for_each_problem(8000, 60, {.infinities = false, .max_rows = 9, .max_keys = 150},
                   [&](const KernelTable& table, AttnProblem& problem) {
                     if (problem.params.bias == nullptr) return;
                     const int32_t s = problem.num_sequences() - 1;
                     const AttnSequence& sequence = problem.sequences[static_cast<size_t>(s)];
                     if (problem.max_keys(s) == 0) return;
                     const int64_t key = problem.random.between(0, problem.max_keys(s) - 1);
                     const AttnParams& params = problem.params;
                     for (int64_t i = 0; i < params.num_q_heads * sequence.num_rows; ++i) {
                       const int64_t head = i / sequence.num_rows,
                                     token = sequence.row_begin + i % sequence.num_rows;
                       problem.bias[static_cast<size_t>(
                           head * params.bias_head_stride + token * params.bias_token_stride +
                           sequence.key_position + key)] = -std::numeric_limits<float>::infinity();
                     }
                     TileOutputs before = run_whole(table, problem);
                     fill_key(problem, s, key, NAN, NAN);
                     TileOutputs after = run_whole(table, problem);
                     expect_same_bits(after, before);
                     ++problems_compared;
                   });
  EXPECT_GT(problems_compared, 20);
}

TEST(TileKernel, AVisibleNanReachesEveryRowThatSeesIt) {
  for (const auto& [in_k, max_keys] : {std::pair{true, 100}, {false, 100}, {true, 1}, {false, 1}}) {
    const AttnFeatures features = {
        .rules = false, .max_rows = 20, .max_keys = max_keys, .plain = true};
    for_each_problem(
        9000, 10, features,
        [&, in_k = in_k, max_keys = max_keys](const KernelTable& table, AttnProblem& problem) {
          const AttnParams& params = problem.params;
          if (problem.max_keys(0) == 0) return;
          // Key 0 of one: a row whose every score is NaN is not a row that saw nothing.
          const int64_t key =
              max_keys == 1 ? 0 : problem.random.between(0, problem.max_keys(0) - 1);
          for (int64_t head = 0; head < params.num_kv_heads; ++head) {
            const PagedRows& rows = in_k ? params.k : params.v;
            reference::write_element(key_row(problem, rows, 0, key, head), rows.dtype, 3, NAN);
          }
          TileOutputs outputs = run_whole(table, problem);
          for (int64_t row = 0; row < problem.sequences[0].num_rows; ++row) {
            const bool sees =
                key < problem.sequences[0].first_key_end + (params.causal != 0 ? row : 0);
            for (int64_t head = 0; head < params.num_q_heads; ++head) {
              ASSERT_EQ(std::isnan(outputs.out.at(row, head, 3)), sees)
                  << "row " << row << " head " << head;
              ASSERT_EQ(std::isnan(outputs.out.at(row, head, 2)), sees && in_k);
              ASSERT_EQ(
                  std::isnan(outputs.lse[static_cast<size_t>(row * params.num_q_heads + head)]),
                  sees && in_k);
            }
          }
        });
  }
}

// Accumulators of -0 (here: negative sums scaled to nothing by a later, much larger score) meet P =
// +0 times a value of either sign when unseen keys follow.
TEST(TileKernel, UnseenKeysDoNotChangeTheSignOfAZero) {
  for (const KernelTable* table : available_tables()) {
    for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      SCOPED_TRACE(table->name);
      constexpr int64_t kDim = 16, kRows = 6, kSeen = 70,
                        kKeys = kSeen + kRows - 1;  // row 0 sees kSeen keys, row 5 all
      Poisoned k_memory(kKeys * kDim * 4), v_memory(kKeys * kDim * 4), q_memory(kRows * kDim * 4),
          out_memory(kRows * kDim * 4);
      const int32_t page = 0;
      AttnSequence sequence{};
      sequence.pages = &page;
      sequence.num_rows = kRows;
      sequence.first_key_end = kSeen;
      AttnParams params{};
      params.q = {q_memory.data(), kDim * 4, kDim * 4, DType::kF32};
      params.q_scale = 1.0f;
      params.k = {k_memory.data(), 0, 0, kDim * dtype_bytes(dtype), dtype};
      params.v = {v_memory.data(), 0, 0, kDim * dtype_bytes(dtype), dtype};
      params.page_size = kKeys;
      params.num_q_heads = params.num_kv_heads = 1;
      params.k_dim = params.v_dim = kDim;
      params.causal = 1;
      params.out = {out_memory.data(), kDim * 4, kDim * 4, DType::kF32};
      params.sequences = &sequence;
      for (int64_t d = 0; d < kRows * kDim; ++d)
        reference::write_element(q_memory.data(), DType::kF32, d, 10.0);
      std::vector<float> outputs;  // of row 0
      for (double unseen : {1.0, -1.0}) {
        for (int64_t key = 0; key < kKeys; ++key) {
          for (int64_t d = 0; d < kDim; ++d) {
            reference::write_element(row_address(params.k, 0, 0, key), dtype, d,
                                     key < kBlock ? -10.0 : 10.0);
            reference::write_element(row_address(params.v, 0, 0, key), dtype, d,
                                     key < kBlock  ? -1.0
                                     : key < kSeen ? -0.0
                                                   : unseen);
          }
        }
        run_tile(*table, params, make_item(0, 0, 1, 0, kRows, 0, kKeys));
        for (int64_t d = 0; d < kDim; ++d) outputs.push_back(out_memory.floats()[d]);
      }
      for (size_t d = 0; d < kDim; ++d) {
        ASSERT_EQ(outputs[d], 0.0f);
        ASSERT_EQ(std::signbit(outputs[d]), std::signbit(outputs[d + kDim]));
      }
    }
  }
}

TEST(TileKernel, AnEmptySequenceGivesZerosAndMinusInfinity) {
  for_each_problem(10000, 3, {.rules = false, .max_rows = 1, .max_keys = 0},
                   [](const KernelTable& table, AttnProblem& problem) {
                     TileOutputs actual = run_whole(table, problem);
                     for (int64_t t = 0; t < problem.tokens; ++t) {
                       for (int64_t h = 0; h < problem.params.num_q_heads; ++h) {
                         ASSERT_EQ(
                             actual.lse[static_cast<size_t>(t * problem.params.num_q_heads + h)],
                             -std::numeric_limits<float>::infinity());
                         for (int64_t d = 0; d < problem.params.v_dim; ++d)
                           ASSERT_EQ(actual.out.at(t, h, d), 0.0);
                       }
                     }
                   });
}

TEST(TileKernel, OneKeyReturnsItsValueExactly) {
  int64_t compared = 0;
  for_each_problem(
      11000, 6, {.rules = false, .max_rows = 1, .max_keys = 1},
      [&](const KernelTable& table, AttnProblem& problem) {
        TileOutputs actual = run_whole(table, problem);
        const AttnParams& params = problem.params;
        for (int32_t s = 0; s < problem.num_sequences(); ++s) {
          if (problem.max_keys(s) != 1) continue;
          for (int64_t h = 0; h < params.num_q_heads; ++h) {
            const std::byte* row =
                key_row(problem, params.v, s, 0, h / (params.num_q_heads / params.num_kv_heads));
            const float scale =
                row_scale(params.v, problem.sequences[static_cast<size_t>(s)].pages[0],
                          h / (params.num_q_heads / params.num_kv_heads), 0);
            for (int64_t d = 0; d < params.v_dim; ++d, ++compared) {
              const auto element =
                  static_cast<float>(reference::read_element(row, params.v.dtype, d));
              // Weights times scales are rounded there.
              const double rounding =
                  is_quantised(params.v.dtype) && uses_bf16_dot(table, params) ? 0x1p-8 : 0;
              ASSERT_NEAR(actual.out.at(problem.sequences[static_cast<size_t>(s)].row_begin, h, d),
                          element * scale, rounding * std::fabs(element * scale));
            }
          }
        }
      });
  EXPECT_GT(compared, 1000);
}

}  // namespace
}  // namespace kvc::kernels::test
