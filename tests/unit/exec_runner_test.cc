// Planned work lists, run: whatever rows see and wherever work is cut, the result is that of a
// plain loop.
#include "kernels_visibility.h"
#include "src/exec/cascade.h"
#include "src/exec/cpu/work_list.h"

namespace kvc::kernels::test {
namespace {

WorkShape shape_of(const AttnParams& params, bool tiles_only, int32_t concurrency) {
  return {.num_q_heads = params.num_q_heads,
          .num_kv_heads = params.num_kv_heads,
          .k_dim = params.k_dim,
          .v_dim = params.v_dim,
          .causal = params.causal != 0,
          .tiles_only = tiles_only,
          .is_latent = false,
          .concurrency = concurrency};
}

// Q is rotated otherwise for the first keys: for sinks, or for any number of keys.
void draw_turns(AttnProblem& problem) {
  for (AttnSequence& sequence : problem.sequences) {
    const int64_t dice = problem.random.between(0, 4);
    if (dice < 2) sequence.sink_q_end = sequence.key_begins != nullptr ? sequence.sink_end : 0;
    if (dice > 2) sequence.sink_q_end = problem.random.between(1, sequence.first_key_end + 5);
  }
}

void run_list(const KernelTable& table, AttnProblem& problem, const WorkList& list,
              Executor& executor) {
  problem.reset_outputs(DType::kF32);
  problem.params.sequences = problem.sequences.data();
  ItemRunner runner(&table, &executor);
  runner.secure(list, problem.params);
  runner.run(list, problem.params);
  EXPECT_TRUE(problem.out.memory.guards_intact() && problem.lse.guards_intact());
}

double limit_of(const KernelTable& table, const AttnParams& params) {
  const bool bf16 = is_bf16_or_shorter(params.k.dtype) && is_bf16_or_shorter(params.v.dtype);
  if (table.isa == Isa::kAvx512Bf16 && bf16) return 1e-2;
  return 4 * std::max({error_limit(params.k.dtype), error_limit(params.v.dtype),
                       words_error(table, params)});
}

std::vector<float> output_bits(AttnProblem& problem) {
  std::vector<float> bits(problem.lse.floats(),
                          problem.lse.floats() + problem.tokens * problem.params.num_q_heads);
  for (int64_t t = 0; t < problem.tokens; ++t) {
    for (int64_t h = 0; h < problem.params.num_q_heads; ++h) {
      const float* row = reinterpret_cast<const float*>(problem.out.row(t, h));
      bits.insert(bits.end(), row, row + problem.params.v_dim);
    }
  }
  return bits;
}

TEST(ItemRunner, GivesThePlainResultForEveryMaskAndShape) {
  Executor executor(3);
  for (uint64_t seed = 1; seed < 1 + rounds(24); ++seed) {
    AttnProblem problem(
        seed, {.infinities = false, .max_rows = seed % 3 == 0 ? 150 : 6, .max_keys = 1300});
    const Visibility visibility(problem, {});
    const RotationOwner sink_rotation(problem.random, problem.tokens, problem.params.k_dim);
    problem.params.sink_q_rotation = sink_rotation.rotation;
    if (problem.random.chance(0.6)) draw_turns(problem);
    const bool tiles_only = problem.random.chance(0.3);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + problem.describe());
    WorkList list;
    schedule_work(problem.sequences.data(), problem.num_sequences(),
                  shape_of(problem.params, tiles_only, 3), {}, &list);
    const NaiveResult expected = naive_attention(problem);
    for (const KernelTable* table : available_tables()) {
      if (table->isa == Isa::kScalar && seed % 6 != 0) continue;  // slow
      SCOPED_TRACE(table->name);
      run_list(*table, problem, list, executor);
      ASSERT_LE(distance_from(problem, expected), limit_of(*table, problem.params));
    }
  }
}

// Prompts of any cut: with one arithmetic for all rows, those of one forward are those of many.
TEST(ItemRunner, GivesRowsTheSameBitsHoweverAPromptIsCutWhenTilesServeAll) {
  Executor executor(1);
  for (uint64_t seed = 100; seed < 100 + rounds(15); ++seed) {
    AttnProblem problem(seed, {.infinities = false, .max_rows = 40, .max_keys = 300});
    const Visibility visibility(problem, {.row_map = false});
    if (problem.random.chance(0.6)) draw_turns(problem);
    const RotationOwner sink_rotation(problem.random, problem.tokens, problem.params.k_dim);
    problem.params.sink_q_rotation = sink_rotation.rotation;
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + problem.describe());
    const KernelTable& table = *cpu::kernel_table(Isa::kAuto);
    const WorkShape shape = shape_of(problem.params, true, 1);
    WorkList list;
    schedule_work(problem.sequences.data(), problem.num_sequences(), shape, {}, &list);
    run_list(table, problem, list, executor);
    const std::vector<float> together = output_bits(problem);
    problem.reset_outputs(DType::kF32);
    std::vector<AttnSequence> rows;  // every row as a sequence of its own
    for (const AttnSequence& sequence : problem.sequences) {
      for (int64_t row = 0; row < sequence.num_rows; ++row) {
        AttnSequence one = sequence;
        one.num_rows = 1;
        one.row_begin += row;
        one.position += row;
        one.first_key_end += problem.params.causal != 0 ? row : 0;
        if (one.key_begins != nullptr) one.key_begins += row;
        if (one.key_ends != nullptr) one.key_ends += row;
        if (one.row_positions != nullptr) one.row_positions += row;
        if (one.tree_mask != nullptr) one.tree_mask += row * one.tree_words;
        rows.push_back(one);
      }
    }
    schedule_work(rows.data(), static_cast<int64_t>(rows.size()), shape, {}, &list);
    problem.params.sequences = rows.data();
    ItemRunner runner(&table, &executor);
    runner.secure(list, problem.params);
    runner.run(list, problem.params);
    const std::vector<float> apart = output_bits(problem);
    ASSERT_EQ(0, std::memcmp(together.data(), apart.data(), together.size() * sizeof(float)));
  }
}

// Sequences 0..5 share their first pages, 0..2 some more.
void share_pages(AttnProblem& problem, int64_t keys, int64_t inner_keys) {
  const int64_t page_size = problem.params.page_size;
  for (AttnSequence& sequence : problem.sequences) sequence.key_position = 0;
  for (size_t s = 1; s < 6; ++s) {
    const int64_t pages = (s < 3 ? inner_keys : keys) / page_size;
    std::copy_n(problem.page_tables[0].begin(), pages, problem.page_tables[s].begin());
  }
}

std::vector<CommonPrefix> common_prefixes(const AttnProblem& problem, const CascadeCosts& costs) {
  std::vector<PrefixCandidate> candidates;
  for (int32_t s = 0; s < problem.num_sequences(); ++s) {
    const AttnSequence& sequence = problem.sequences[static_cast<size_t>(s)];
    candidates.push_back({s, sequence.pages, sequence.first_key_end, sequence.num_rows});
  }
  const AttnParams& params = problem.params;
  const CascadeShape shape{params.page_size, params.num_q_heads, params.num_kv_heads,
                           params.k_dim,     params.v_dim,       (params.k_dim + params.v_dim) * 4};
  std::vector<CommonPrefix> found;
  find_shared_prefixes(candidates.data(), static_cast<int64_t>(candidates.size()), shape, costs,
                       &found);
  return found;
}

constexpr CascadeCosts kAlwaysShare = {.tile_flops_per_second = 1e15,
                                       .packed_bytes_per_second = 1e15,
                                       .seconds_per_item = 0,
                                       .smallest_gain = 0};

TEST(Cascade, GivesThePlainResult) {
  Executor executor(3);
  int64_t nested = 0;
  for (uint64_t seed = 200; seed < 200 + rounds(24); ++seed) {
    const int64_t max_keys = seed % 8 == 0 ? 2900 : 900, shared = seed % 8 == 0 ? 2400 : 420;
    AttnProblem problem(seed, {.infinities = false,
                               .max_rows = 3,
                               .max_keys = max_keys,
                               .sequences = 8,
                               .min_keys = shared + 200});
    share_pages(problem, shared, shared + 180);
    // Rows of one prefix have positions of their own.
    if (seed % 2 == 0) problem.params.alibi = problem.alibi.data();
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + problem.describe());
    const NaiveResult expected = naive_attention(problem);
    std::vector<CommonPrefix> found = common_prefixes(problem, kAlwaysShare);
    const WorkShape shape = shape_of(problem.params, false, 3);
    std::erase_if(found, [&](const CommonPrefix& prefix) {  // of the decode kernel's sequences only
      return std::any_of(prefix.sequences.begin(), prefix.sequences.end(), [&](int32_t s) {
        return !runs_on_decode(shape, problem.sequences[static_cast<size_t>(s)].num_rows);
      });
    });
    if (found.size() == 2) ++nested;
    if (found.size() == 1 && found[0].key_begin > 0) continue;  // its outer one is gone
    SharedEntries entries;
    entries.build(found, &problem.sequences);
    WorkList list;
    schedule_work(problem.sequences.data(), problem.num_sequences(), shape, entries.prefixes(),
                  &list);
    for (const KernelTable* table : available_tables()) {
      if (table->isa == Isa::kScalar && seed % 4 != 0) continue;  // slow
      SCOPED_TRACE(table->name);
      run_list(*table, problem, list, executor);
      ASSERT_LE(distance_from(problem, expected), limit_of(*table, problem.params));
    }
  }
  if (rounds(24) == 24) {
    EXPECT_GE(nested, 4);
  }
}

}  // namespace
}  // namespace kvc::kernels::test
