// The oracle against cases worked out by hand: what compares everything else must not be wrong
// itself.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/model/naive_cache.h"
#include "tests/model/page_model.h"
#include "tests/model/random.h"
#include "tests/model/visibility.h"

namespace kvc::test {
namespace {

std::vector<int64_t> seen(const KeyRule& rule, int64_t p) {
  std::vector<int64_t> keys;
  for (int64_t j = 0; j <= p; ++j) {
    if (windows_show(rule, p, j)) keys.push_back(j);
  }
  return keys;
}

TEST(Oracle, ALayerWindowShowsItsNewestKeysAndTheQueryItself) {
  EXPECT_EQ(seen({.window = 3}, 7), (std::vector<int64_t>{5, 6, 7}));
  EXPECT_EQ(seen({.window = 3}, 1), (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(seen({.window = 1}, 4), (std::vector<int64_t>{4}));
}

TEST(Oracle, AChunkShowsKeysFromItsBeginning) {
  EXPECT_EQ(seen({.chunk = 4}, 7), (std::vector<int64_t>{4, 5, 6, 7}));
  EXPECT_EQ(seen({.chunk = 4}, 8), (std::vector<int64_t>{8}));
}

TEST(Oracle, ASequenceWindowShowsSinksAndTheNewestAtMostWindowKeysInAll) {
  EXPECT_EQ(seen({.seq_window = 5, .seq_sink = 2}, 9), (std::vector<int64_t>{0, 1, 7, 8, 9}));
  EXPECT_EQ(seen({.seq_window = 5, .seq_sink = 2}, 3), (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(seen({.seq_window = 5, .seq_sink = 2}, 4).size(), 5u);
  EXPECT_EQ(seen({.window = 4, .seq_window = 5, .seq_sink = 2}, 9),
            (std::vector<int64_t>{7, 8, 9}));
}

TEST(Oracle, RangesOfSeenKeysAreThePairwiseDefinition) {
  Random random(1);
  for (int round = 0; round < 20000; ++round) {
    KeyRule rule;
    if (random.chance(0.5)) rule.window = random.range(1, 12);
    if (random.chance(0.3)) rule.chunk = random.range(1, 9);
    if (random.chance(0.5)) rule.seq_window = random.range(1, 14);
    if (rule.seq_window != 0) rule.seq_sink = random.range(0, rule.seq_window - 1);
    const int64_t p = random.range(0, 30);
    const SeenKeys ranges = seen_before(rule, p);
    for (int64_t j = 0; j < p; ++j) {
      const bool inside = (j >= ranges.sinks.begin && j < ranges.sinks.end) ||
                          (j >= ranges.recent.begin && j < ranges.recent.end);
      ASSERT_EQ(inside, windows_show(rule, p, j))
          << "window " << rule.window << " chunk " << rule.chunk << " sequence " << rule.seq_window
          << "/" << rule.seq_sink << " p " << p << " j " << j;
    }
  }
}

TEST(Oracle, ATreeNodeSeesItsAncestorsAndItself) {
  //   0   1        roots
  //  2 3  4
  //  5
  const std::vector<int32_t> parents{-1, -1, 0, 0, 1, 2};
  std::vector<int64_t> path;
  for (int64_t node = 0; node <= 5; ++node) {
    if (is_on_path(parents, 5, node)) path.push_back(node);
  }
  EXPECT_EQ(path, (std::vector<int64_t>{0, 2, 5}));
  EXPECT_EQ(depth_of(parents, 5), 2);
  EXPECT_EQ(depth_of(parents, 1), 0);
  EXPECT_FALSE(is_on_path(parents, 4, 0));
}

TEST(Oracle, AttentionWeighsTwoKeysAsWorkedOutByHand) {
  // Scores ln 1 and ln 3: weights 1/4 and 3/4.
  const Row k0{0.0}, k1{std::log(3.0)}, v0{8.0}, v1{4.0};
  const std::vector<NaiveKey> keys{{&k0, &v0, 0, false, {}, 0}, {&k1, &v1, 1, false, {}, 1}};
  const double q = 1;
  NaiveOptions options;
  const NaiveHeads heads{1, 1, 1, 1, 1};
  NaiveResult result = attend(heads, NaiveRope{}, keys, {&q, 0, 1, 0, {}, {}}, options);
  EXPECT_NEAR(result.out[0], 5, 1e-12);
  EXPECT_NEAR(result.lse, std::log(4.0), 1e-12);
  options.sinks = {std::log(4.0)};  // doubles the denominator, not the LSE
  result = attend(heads, NaiveRope{}, keys, {&q, 0, 1, 0, {}, {}}, options);
  EXPECT_NEAR(result.out[0], 2.5, 1e-12);
  EXPECT_NEAR(result.lse, std::log(4.0), 1e-12);
  options.sinks.clear();
  options.alibi = {std::log(3.0)};  // takes ln 3 from the older key: weights 1/10 and 9/10
  result = attend(heads, NaiveRope{}, keys, {&q, 0, 1, 0, {}, {}}, options);
  EXPECT_NEAR(result.out[0], 4.4, 1e-12);
}

TEST(Oracle, PartsOverDisjointKeysMergeToTheWhole) {
  Random random(2);
  std::vector<Row> k, v;
  for (int i = 0; i < 9; ++i) {
    k.push_back({random.symmetric(), random.symmetric()});
    v.push_back({random.symmetric(), random.symmetric()});
  }
  const auto over = [&](size_t begin, size_t end) {
    std::vector<NaiveKey> keys;
    for (size_t i = begin; i < end; ++i)
      keys.push_back({&k[i], &v[i], static_cast<int64_t>(i), false, {}, 0});
    static const double q[] = {0.7, -1.3};
    return attend({1, 1, 2, 2, 2}, NaiveRope{}, keys, {q, 0, 8, 0, {}, {}}, NaiveOptions{});
  };
  const NaiveResult whole = over(0, 9), parts = merged(over(0, 4), over(4, 9)),
                    same = merged(over(0, 0), over(0, 9));
  for (size_t d = 0; d < 2; ++d) {
    EXPECT_NEAR(parts.out[d], whole.out[d], 1e-12);
    EXPECT_NEAR(same.out[d], whole.out[d], 1e-12);
  }
  EXPECT_NEAR(parts.lse, whole.lse, 1e-12);
}

kvc_rope plain_rope(kvc_rope_style style, int dim) {
  kvc_rope rope{};
  rope.struct_size = sizeof rope;
  rope.mode = KVC_ROPE_ON_READ;
  rope.style = style;
  rope.rotary_dim = dim;
  return rope;
}

TEST(Oracle, RotationTurnsPairsOfItsStyleByTheFrequenciesOfTheta) {
  const NaiveRope half = make_rope(plain_rope(KVC_ROPE_HALF, 4), 0, 4);
  EXPECT_DOUBLE_EQ(half.frequencies[0][1], 0.01);  // 10000^(-2/4)
  const Row x{1, 0, 0, 2};
  const Row turned = rotated(half, 4, x, RopePosition::all(3, false));
  EXPECT_NEAR(turned[0], std::cos(3.0), 1e-12);
  EXPECT_NEAR(turned[2], std::sin(3.0), 1e-12);
  EXPECT_NEAR(turned[1], -2 * std::sin(0.03), 1e-12);
  EXPECT_NEAR(turned[3], 2 * std::cos(0.03), 1e-12);
  const NaiveRope interleaved = make_rope(plain_rope(KVC_ROPE_INTERLEAVED, 4), 0, 4);
  const Row pairs = rotated(interleaved, 4, x, RopePosition::all(3, false));
  EXPECT_NEAR(pairs[1], std::sin(3.0), 1e-12);
  EXPECT_NEAR(pairs[3], 2 * std::cos(0.03), 1e-12);
}

TEST(Oracle, ScoresOfRotatedVectorsDependOnTheDistanceAlone) {
  kvc_rope rope = plain_rope(KVC_ROPE_HALF, 8);
  rope.scaling = KVC_ROPE_SCALING_YARN;
  rope.factor = 4;
  rope.original_context = 64;
  const NaiveRope naive = make_rope(rope, 0, 8);
  const Row q{1, -2, 0.5, 3, 0.25, 1, -1, 2}, k{0.3, 1, 2, -1, 1, 0.5, 0.75, -0.5};
  const auto score = [&](double p, double j) {
    const Row a = rotated(naive, 8, q, RopePosition::all(p, false));
    const Row b = rotated(naive, 8, k, RopePosition::all(j, false));
    double sum = 0;
    for (size_t d = 0; d < 8; ++d) sum += a[d] * b[d];
    return sum;
  };
  EXPECT_NEAR(score(9, 4), score(105, 100), 1e-9);
  EXPECT_GT(std::fabs(score(9, 4) - score(9, 5)), 1e-3);
  // A shift turns a stored row to where it would have been stored.
  const Row moved = rotated(naive, 8, rotated(naive, 8, k, RopePosition::all(20, false)),
                            RopePosition::all(-7, false), true);
  const Row direct = rotated(naive, 8, k, RopePosition::all(13, false));
  for (size_t d = 0; d < 8; ++d) EXPECT_NEAR(moved[d], direct[d], 1e-12);
}

TEST(Oracle, ScaledFrequenciesKeepFastPairsAndStretchSlowOnes) {
  kvc_rope rope = plain_rope(KVC_ROPE_HALF, 128);
  rope.theta = 500000;
  rope.scaling = KVC_ROPE_SCALING_LLAMA3;
  rope.factor = 8;
  rope.original_context = 8192;
  NaiveRope naive = make_rope(rope, 0, 128);
  EXPECT_DOUBLE_EQ(naive.frequencies[0][0], 1);
  EXPECT_DOUBLE_EQ(naive.frequencies[0][63], std::pow(500000.0, -126.0 / 128) / 8);
  rope.scaling = KVC_ROPE_SCALING_YARN;
  naive = make_rope(rope, 0, 128);
  EXPECT_DOUBLE_EQ(naive.frequencies[0][0], 1);
  EXPECT_DOUBLE_EQ(naive.frequencies[0][63], std::pow(500000.0, -126.0 / 128) / 8);
  EXPECT_DOUBLE_EQ(naive.attention_factor, 0.1 * std::log(8.0) + 1);
}

TEST(Oracle, SectionsGiveEachPairItsPosition) {
  kvc_rope rope = plain_rope(KVC_ROPE_HALF, 16);
  rope.num_sections = 3;
  rope.sections[0] = 2;
  rope.sections[1] = rope.sections[2] = 3;
  EXPECT_EQ(make_rope(rope, 0, 16).pair_section, (std::vector<int>{0, 0, 1, 1, 1, 2, 2, 2}));
  rope.section_layout = KVC_ROPE_SECTIONS_INTERLEAVED;
  rope.sections[0] = 4;
  rope.sections[1] = rope.sections[2] = 2;
  EXPECT_EQ(make_rope(rope, 0, 16).pair_section, (std::vector<int>{0, 1, 2, 0, 1, 2, 0, 0}));
}

TEST(Oracle, ALinearAttentionStepIsTheDeltaRule) {
  const LinearShape shape{1, 1, 2, 1, true, 1, {}};
  StateValue state{3, 0};  // S^T k = 3 for k = (1, 0)
  const LinearToken token{{1, 1}, {1, 0}, {5}, {}, {0.5}};
  EXPECT_EQ(linear_step(shape, token, &state), (std::vector<double>{4}));
  EXPECT_EQ(state, (StateValue{4, 0}));  // 3 + 0.5 * (5 - 3)
}

TEST(Oracle, AConvolutionStepTakesItsLastInputs) {
  StateValue state{1, 2};  // width 3, oldest first
  EXPECT_EQ(conv_step(1, 3, {100, 10, 1}, {0.5}, KVC_ACTIVATION_NONE, {3}, &state),
            (std::vector<double>{123.5}));
  EXPECT_EQ(state, (StateValue{2, 3}));
}

TEST(Oracle, CommittingAPathKeepsItsRowsInOrder) {
  NaiveLayer layer;
  NaiveCache cache({layer});
  cache.add(7);
  cache.extend(7, 6);  // two tokens, four nodes
  for (size_t t = 0; t < 6; ++t) cache.at(7).layers[0].k[t] = {static_cast<double>(t)};
  cache.keep_path(7, 2, {-1, -1, 0, 2}, 3);
  std::vector<double> kept;
  for (const Row& row : cache.at(7).layers[0].k) kept.push_back(row[0]);
  EXPECT_EQ(kept, (std::vector<double>{0, 1, 2, 4, 5}));
}

ModelLimits window_limits() {
  ModelLimits limits;
  limits.page_size = 4;
  limits.num_pages = 100;
  limits.has_attention = limits.has_window = true;
  limits.groups = {{}, {.window = 5}};
  for (ModelGroup& group : limits.groups) group.page_size = limits.page_size;
  return limits;
}

TEST(Oracle, AWindowGroupKeepsThePagesThatTheNextQuerySees) {
  PageModel model(window_limits());
  model.add(1);
  ASSERT_TRUE(model.begin({{1}, {14}, {}, {}, false}).ok());
  EXPECT_EQ(model.used_pages(), 8);
  model.end(false);  // the query at 14 sees keys from 10 on: page 2
  EXPECT_EQ(model.used_pages(), 4 + 2);
  EXPECT_EQ(model.expected_info(1).first_position, 8);
  EXPECT_TRUE(model.possible(model.at(1), 12));  // sees keys from 8 on
  EXPECT_FALSE(model.possible(model.at(1), 11));
  EXPECT_EQ(model.possible_below(model.at(1), 9), 0);
  EXPECT_EQ(model.fork(1, 2, 11).detail, 0);
  EXPECT_TRUE(model.fork(1, 2, 13).ok());
  EXPECT_EQ(model.used_pages(), 6);
  EXPECT_EQ(model.pop(1, 2).errors.count(KVC_E_OUT_OF_RANGE), 0u);
}

TEST(Oracle, AForkGoesToCheckpointsOfTheStateOnly) {
  ModelLimits limits;
  limits.page_size = 4;
  limits.num_pages = 100;
  limits.groups = {{}};
  limits.has_states = true;
  limits.state_stride = 4;
  PageModel model(limits);
  model.add(1);
  for (const int64_t append : {8, 3}) {
    ASSERT_TRUE(model.begin({{1}, {append}, {}, {}, false}).ok());
    model.end(true);
  }
  EXPECT_EQ(model.used_states(), 2);
  EXPECT_EQ(model.fork(1, 2, 9).detail, 8);
  EXPECT_TRUE(model.fork(1, 2, 8).ok());
  EXPECT_TRUE(model.fork(1, 3, -1).ok());
  EXPECT_EQ(model.used_states(), 2);
  EXPECT_TRUE(model.pop(1, 11).ok());
}

}  // namespace
}  // namespace kvc::test
