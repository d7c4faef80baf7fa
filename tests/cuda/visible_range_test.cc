// What the masks say of 32 keys and of tiles, against what they say of every key, against what
// AttnSequence says.
#include "kernels/cuda/attn/visible_range.h"

#include <gtest/gtest.h>

#include "tests/unit/kernels_visibility.h"

namespace kvc::cuda::row_test {
namespace {

using kernels::test::AttnProblem;
using kernels::test::Visibility;

struct MaskCase {
  explicit MaskCase(uint64_t seed)
      : problem(seed, {.max_rows = 20, .max_keys = 300, .small = true}),
        visibility(problem, {.tree = 0.5}) {}

  AttnProblem problem;
  Visibility visibility;
};

template <typename Check>
void for_every_sequence(const Check& check) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    MaskCase random(seed);
    SCOPED_TRACE("seed " + std::to_string(seed));
    check(random.problem, 0, random.problem.sequences[0]);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(CudaMask, EveryKeyIsVisibleToTheRowsThatSeeIt) {
  for_every_sequence(
      [](const AttnProblem& problem, int32_t s, const kernels::AttnSequence& sequence) {
        const SequenceMask mask = sequence_mask(sequence);
        for (int64_t row = 0; row < sequence.num_rows; ++row) {
          const RowRange own = row_range(sequence, problem.params.causal, row);
          for (int32_t key = 0; key < problem.max_keys(s) + 40; ++key)
            ASSERT_EQ(is_visible(mask, own, row, key), Visibility::sees(problem, s, row, key))
                << row << " " << key;
        }
      });
}

TEST(CudaMask, BitsOfThirtyTwoKeysAreThoseOfTheKeys) {
  for_every_sequence(
      [](const AttnProblem& problem, int32_t s, const kernels::AttnSequence& sequence) {
        const SequenceMask mask = sequence_mask(sequence);
        for (int64_t row = 0; row < sequence.num_rows; ++row) {
          const RowRange own = row_range(sequence, problem.params.causal, row);
          for (int32_t first = 0; first < problem.max_keys(s); first += 5) {
            uint32_t bits = 0;
            for (int32_t i = 0; i < 32; ++i)
              bits |= (is_visible(mask, own, row, first + i) ? 1u : 0u) << i;
            ASSERT_EQ(visible_bits(mask, own, row, first), bits) << row << " " << first;
          }
        }
      });
}

TEST(CudaMask, TilesAreCoveredAsTheirRowsSay) {
  int full = 0, none = 0, jumps = 0;
  for_every_sequence(
      [&](const AttnProblem& problem, int32_t s, const kernels::AttnSequence& sequence) {
        const SequenceMask mask = sequence_mask(sequence);
        for (int64_t begin = 0; begin < sequence.num_rows; begin += 3) {
          const int64_t end = std::min(begin + 4, sequence.num_rows);
          const TileRange tile =
              kernels::tile_range<int32_t>(sequence, problem.params.causal, begin, end);
          const auto seen = [&](int32_t first, int32_t count, bool all) {
            for (int64_t row = begin; row < end; ++row) {
              for (int32_t key = first; key < first + count; ++key) {
                if (Visibility::sees(problem, s, row, key) != all) return !all;
              }
            }
            return all;
          };
          for (int32_t first = 0; first < problem.max_keys(s) + 32; first += 16) {
            const Cover covered = cover(mask, tile, first, first + 16);
            if (covered == Cover::kNone) {
              ASSERT_FALSE(seen(first, 16, false));
              ++none;
            }
            if (covered == Cover::kFull) {
              ASSERT_TRUE(seen(first, 16, true));
              ++full;
            }
            const int32_t next = skip_masked(mask, tile, first, 0, 16);
            ASSERT_GE(next, first);
            ASSERT_EQ(next % 16, 0);
            if (next > first) {
              ASSERT_FALSE(seen(first, next - first, false));
              ++jumps;
            }
          }
        }
      });
  EXPECT_GT(full, 20);
  EXPECT_GT(none, 20);
  EXPECT_GT(jumps, 5);
}

}  // namespace
}  // namespace kvc::cuda::row_test
