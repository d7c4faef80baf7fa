#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <random>
#include <utility>
#include <vector>

#include "src/step/cos_sin.h"

namespace kvc {
namespace {

// Spacing of float32 next to 1: cos and sin of a double angle are rounded once.
constexpr double kRounding = 0x1p-24;

RopeSpec rope_of(std::vector<double> frequencies) {
  RopeSpec spec;
  spec.mode = KVC_ROPE_ON_APPEND;
  spec.rotary_dim = static_cast<int32_t>(2 * frequencies.size());
  spec.inverse_frequencies = std::move(frequencies);
  return spec;
}

RopeSpec llama(int32_t dim) {
  std::vector<double> frequencies;
  for (int32_t i = 0; i < dim / 2; ++i) frequencies.push_back(std::pow(500000.0, -2.0 * i / dim));
  return rope_of(std::move(frequencies));
}

TokenPositions positions_of(const std::vector<int32_t>& positions) {
  return {.positions = positions.data(), .num_rows = static_cast<int64_t>(positions.size())};
}

void expect_turn(const kernels::Rotation& rotation, int64_t row, int64_t pair, double angle,
                 double magnitude) {
  const int64_t at = row * (rotation.rotary_dim / 2) + pair;
  EXPECT_NEAR(static_cast<double>(rotation.cos[at]), magnitude * std::cos(angle),
              magnitude * kRounding)
      << "row " << row << " pair " << pair;
  EXPECT_NEAR(static_cast<double>(rotation.sin[at]), magnitude * std::sin(angle),
              magnitude * kRounding)
      << "row " << row << " pair " << pair;
}

std::vector<float> copy_of(const kernels::Rotation& rotation, int64_t rows) {
  const int64_t count = rows * (rotation.rotary_dim / 2);
  std::vector<float> values(rotation.cos, rotation.cos + count);
  values.insert(values.end(), rotation.sin, rotation.sin + count);
  return values;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(TokenCosSin, AreThePositionTimesTheFrequency) {
  Executor executor(1);
  RopeSpec rope = llama(16);
  rope.style = KVC_ROPE_INTERLEAVED;
  rope.begin = 512;
  rope.magnitude = 1.25;
  const std::vector<int32_t> positions{0, 1, 7, 131071, 2147483647, -3};
  TokenCosSin cos_sin;
  const kernels::Rotation rotation = cos_sin.get(rope, positions_of(positions), executor);
  EXPECT_EQ(rotation.rotary_dim, 16);
  EXPECT_EQ(rotation.interleaved, 1);
  EXPECT_EQ(rotation.begin, 512);
  for (size_t t = 0; t < positions.size(); ++t) {
    for (size_t i = 0; i < 8; ++i)
      expect_turn(rotation, static_cast<int64_t>(t), static_cast<int64_t>(i),
                  positions[t] * rope.inverse_frequencies[i], 1.25);
  }
}

TEST(TokenCosSin, AreComputedOnceUntilTheyAreInvalidated) {
  Executor executor(1);
  const RopeSpec rope = llama(8);
  TokenCosSin cos_sin;
  const std::vector<int32_t> first{5};
  const std::vector<int32_t> second{6};
  EXPECT_FALSE(cos_sin.is_valid());
  const kernels::Rotation before = cos_sin.get(rope, positions_of(first), executor);
  EXPECT_TRUE(cos_sin.is_valid());
  const kernels::Rotation again = cos_sin.get(rope, positions_of(second), executor);
  EXPECT_EQ(before.cos, again.cos);
  expect_turn(again, 0, 0, 5, 1);
  cos_sin.invalidate();
  expect_turn(cos_sin.get(rope, positions_of(second), executor), 0, 0, 6, 1);
}

TEST(TokenCosSin, OfEachSectionTurnByItsRow) {
  Executor executor(1);
  RopeSpec rope = llama(12);
  rope.section_of_pair = {0, 1, 2, 0, 1, 0};
  rope.num_sections = 3;
  // Rows may lie farther apart than there are tokens.
  const std::vector<int32_t> positions{10, 11, -1, -1, 20, 25, -1, -1, 30, 39};
  TokenCosSin cos_sin;
  TokenPositions tokens{.positions = positions.data(), .row_stride = 4, .num_rows = 2};
  kernels::Rotation rotation = cos_sin.get(rope, tokens, executor);
  for (int64_t t = 0; t < 2; ++t) {
    for (size_t i = 0; i < 6; ++i) {
      const int32_t position = positions[static_cast<size_t>(4 * rope.section_of_pair[i] + t)];
      expect_turn(rotation, t, static_cast<int64_t>(i), position * rope.inverse_frequencies[i], 1);
    }
  }
  // One row for all sections: text without positions of its own.
  tokens.row_stride = 0;
  cos_sin.invalidate();
  rotation = cos_sin.get(rope, tokens, executor);
  for (int64_t t = 0; t < 2; ++t) {
    for (size_t i = 0; i < 6; ++i)
      expect_turn(rotation, t, static_cast<int64_t>(i),
                  (10 + static_cast<double>(t)) * rope.inverse_frequencies[i], 1);
  }
}

TEST(TokenCosSin, WithoutSectionsTurnByTheFirstRow) {
  Executor executor(1);
  const RopeSpec rope = llama(8);
  const std::vector<int32_t> positions{3, 4, 50, 60};
  TokenCosSin cos_sin;
  const kernels::Rotation rotation =
      cos_sin.get(rope, {.positions = positions.data(), .row_stride = 2, .num_rows = 2}, executor);
  expect_turn(rotation, 0, 1, 3 * rope.inverse_frequencies[1], 1);
  expect_turn(rotation, 1, 1, 4 * rope.inverse_frequencies[1], 1);
}

TEST(TokenCosSin, UseLongFrequenciesForTheTokensThatAreTold) {
  Executor executor(1);
  RopeSpec rope = rope_of({1.0, 0.1});
  rope.long_inverse_frequencies = {0.5, 0.01};
  rope.original_context = 4096;
  const std::vector<int32_t> positions{100, 100, 101};
  const std::vector<uint8_t> uses_long{0, 1, 1};
  TokenPositions tokens = positions_of(positions);
  tokens.uses_long = uses_long.data();
  TokenCosSin cos_sin;
  const kernels::Rotation rotation = cos_sin.get(rope, tokens, executor);
  expect_turn(rotation, 0, 0, 100, 1);
  expect_turn(rotation, 0, 1, 10, 1);
  expect_turn(rotation, 1, 0, 50, 1);
  expect_turn(rotation, 1, 1, 1, 1);
  expect_turn(rotation, 2, 0, 50.5, 1);

  // A rotation without long frequencies is not told apart.
  TokenCosSin plain;
  expect_turn(plain.get(rope_of({1.0, 0.1}), tokens, executor), 1, 0, 100, 1);
}

TEST(TokenCosSin, AreTheSameOnAnyNumberOfThreads) {
  RopeSpec rope = llama(128);
  rope.magnitude = 1.1;
  for (const int64_t tokens : {1, 3, 31, 333, 2000}) {
    std::vector<int32_t> positions;
    for (int64_t i = 0; i < tokens; ++i)
      positions.push_back(static_cast<int32_t>(i * 977 % 100003));
    Executor one(1);
    TokenCosSin expected;
    const std::vector<float> bits =
        copy_of(expected.get(rope, positions_of(positions), one), tokens);
    for (const int32_t threads : {2, 3, 7}) {
      Executor executor(threads);
      TokenCosSin cos_sin;
      EXPECT_TRUE(
          same_bits(copy_of(cos_sin.get(rope, positions_of(positions), executor), tokens), bits))
          << tokens << " tokens on " << threads << " threads";
    }
  }
}

// Counts the tasks that a host's executor is given.
struct CountingHost {
  int64_t calls = 0;
  int64_t tasks = 0;

  static int32_t concurrency(void*) { return 4; }
  static void parallel_for(void* user, int64_t num_tasks, void (*fn)(void*, int64_t, int32_t),
                           void* arg) {
    auto* host = static_cast<CountingHost*>(user);
    ++host->calls;
    host->tasks += num_tasks;
    for (int64_t task = 0; task < num_tasks; ++task) fn(arg, task, 0);
  }
  kvc_executor hooks() {
    return {.struct_size = sizeof(kvc_executor),
            .user = this,
            .concurrency = concurrency,
            .parallel_for = parallel_for};
  }
};

TEST(TokenCosSin, OfManySequencesWithOneTokenAreSpreadOverThreads) {
  CountingHost host;
  Executor executor(host.hooks());
  const std::vector<int32_t> positions(512, 1000);
  TokenCosSin cos_sin;
  cos_sin.get(llama(128), positions_of(positions), executor);
  EXPECT_EQ(host.calls, 1);
  EXPECT_GE(host.tasks, 4);
}

TEST(TokenCosSin, OfAFewTokensStayOnTheCallersThread) {
  CountingHost host;
  Executor executor(host.hooks());
  const std::vector<int32_t> positions(8, 1000);
  TokenCosSin cos_sin;
  cos_sin.get(llama(128), positions_of(positions), executor);
  EXPECT_EQ(host.calls, 0);
}

TEST(PositionCosSin, HaveARowForEveryPosition) {
  Executor executor(2);
  RopeSpec rope = llama(16);
  rope.magnitude = 1.25;
  rope.begin = 4;
  PositionCosSin table;
  const kernels::Rotation rotation = table.ensure(rope, false, 1000, executor);
  EXPECT_EQ(rotation.rotary_dim, 16);
  EXPECT_EQ(rotation.begin, 4);
  for (int64_t p = 0; p < 1000; ++p) {
    for (size_t i = 0; i < 8; ++i)
      expect_turn(rotation, p, static_cast<int64_t>(i),
                  static_cast<double>(p) * rope.inverse_frequencies[i], 1.25);
  }
}

TEST(PositionCosSin, GrowWithoutChangingWhatTheyHad) {
  Executor executor(3);
  RopeSpec rope = llama(20);
  PositionCosSin table;
  std::vector<float> cosines{1};  // row 0
  std::vector<float> sines{0};
  for (const int64_t rows : {1, 2, 255, 256, 257, 100, 1000, 1001, 5001}) {
    const kernels::Rotation rotation = table.ensure(rope, false, rows, executor);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(rotation.cos) % 64, 0u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(rotation.sin) % 64, 0u) << rows;
    const size_t known = std::min(cosines.size(), static_cast<size_t>(rows * 10));
    EXPECT_EQ(0, std::memcmp(cosines.data(), rotation.cos, known * sizeof(float))) << rows;
    EXPECT_EQ(0, std::memcmp(sines.data(), rotation.sin, known * sizeof(float))) << rows;
    expect_turn(rotation, rows - 1, 1, static_cast<double>(rows - 1) * rope.inverse_frequencies[1],
                1);
    cosines.assign(rotation.cos, rotation.cos + rows * 10);
    sines.assign(rotation.sin, rotation.sin + rows * 10);
  }
}

TEST(PositionCosSin, StayInPlaceWhileTheyFit) {
  Executor executor(1);
  const RopeSpec rope = llama(16);
  PositionCosSin table;
  const float* first = table.ensure(rope, false, 300, executor).cos;
  EXPECT_EQ(table.ensure(rope, false, 300, executor).cos, first);
  EXPECT_EQ(table.ensure(rope, false, 1, executor).cos, first);
  int moves = 0;
  for (int64_t rows = 301; rows <= 20000; ++rows) {
    const float* next = table.ensure(rope, false, rows, executor).cos;
    moves += next != first ? 1 : 0;
    first = next;
  }
  EXPECT_LE(moves, 7) << "the table doubles";
}

TEST(PositionCosSin, AreAsBeforeWhenTheyCannotGrow) {
  Executor executor(1);
  const RopeSpec rope = llama(16);
  PositionCosSin table;
  const kernels::Rotation before = table.ensure(rope, false, 100, executor);
  const std::vector<float> bits = copy_of(before, 100);
  EXPECT_THROW(table.ensure(rope, false, int64_t{1} << 60, executor), std::bad_alloc);
  const kernels::Rotation after = table.ensure(rope, false, 100, executor);
  EXPECT_EQ(after.cos, before.cos);
  EXPECT_TRUE(same_bits(copy_of(after, 100), bits));
}

TEST(PositionCosSin, KeepShortAndLongFrequenciesApart) {
  Executor executor(1);
  RopeSpec rope = rope_of({1.0, 0.1});
  rope.long_inverse_frequencies = {0.5, 0.01};
  PositionCosSin table;
  table.ensure(rope, false, 50, executor);
  const kernels::Rotation longs = table.ensure(rope, true, 200, executor);
  const kernels::Rotation shorts = table.ensure(rope, false, 100, executor);
  for (const int64_t p : {10, 70, 99}) {
    expect_turn(shorts, p, 0, static_cast<double>(p), 1);
    expect_turn(longs, p, 0, 0.5 * static_cast<double>(p), 1);
  }
  expect_turn(longs, 199, 1, 1.99, 1);
}

TEST(PositionCosSin, AreBitEqualToTheAnglesOfTokens) {
  Executor executor(1);
  RopeSpec rope = llama(64);
  rope.magnitude = 1.19;
  std::vector<int32_t> positions;
  for (int32_t p = 0; p < 400; ++p) positions.push_back(p);
  TokenCosSin tokens;
  PositionCosSin table;
  EXPECT_TRUE(same_bits(copy_of(tokens.get(rope, positions_of(positions), executor), 400),
                        copy_of(table.ensure(rope, false, 400, executor), 400)));
}

// A window that moves over keys with gaps between their positions, back again at times.
TEST(KeyCosSin, RowsAreThoseOfThePositionsOfTheKeys) {
  Executor executor(2);
  RopeSpec rope = llama(16);
  rope.magnitude = 1.3;
  rope.long_inverse_frequencies = rope.inverse_frequencies;
  for (double& frequency : rope.long_inverse_frequencies) frequency /= 3;
  PositionCosSin near;
  near.ensure(rope, false, 300, executor);
  KeyCosSin keys;
  std::mt19937_64 random(11);
  int64_t begin = 0, gap = 0, bytes = 0;
  for (int round = 0; round < 400; ++round) {
    const bool is_long = round % 50 > 40;
    const auto count = static_cast<int64_t>(1 + random() % (round < 40 ? 700 : 100));
    if (random() % 20 == 0) gap = static_cast<int64_t>(random() % 2000000000);
    std::vector<int32_t> positions;
    for (int64_t key = begin; key < begin + count; ++key)
      positions.push_back(static_cast<int32_t>(key < begin + count / 3 ? key : key + gap));
    const std::vector<float> got =
        copy_of(keys.ensure(rope, is_long, begin, positions, near, executor), count);
    TokenCosSin tokens;
    TokenPositions wanted = positions_of(positions);
    const std::vector<uint8_t> uses_long(positions.size(), is_long ? 1 : 0);
    wanted.uses_long = uses_long.data();
    ASSERT_TRUE(same_bits(got, copy_of(tokens.get(rope, wanted, executor), count))) << round;
    begin = static_cast<int64_t>(random() % 8 == 0 ? static_cast<uint64_t>(begin) / 2
                                                   : static_cast<uint64_t>(begin) + random() % 90);
    if (round == 40) bytes = keys.bytes();
  }
  EXPECT_EQ(keys.bytes(), bytes) << "no more than the most keys need";
}

TEST(ShiftRotation, MovesATurnedKeyToItsNewPosition) {
  RopeSpec rope = llama(16);
  rope.magnitude = 1.3;
  Executor executor(1);
  for (const int64_t delta : {0, 1, -1, 900, -1000}) {
    const std::vector<int32_t> positions{1000, static_cast<int32_t>(1000 + delta)};
    TokenCosSin cos_sin;
    const kernels::Rotation turned = cos_sin.get(rope, positions_of(positions), executor);
    float cosines[8];
    float sines[8];
    const kernels::Rotation shift = shift_rotation(rope, delta, cosines, sines);
    EXPECT_EQ(shift.rotary_dim, 16);
    EXPECT_EQ(shift.cos, cosines);
    EXPECT_EQ(shift.sin, sines);
    for (int i = 0; i < 8; ++i) {
      // The unit vector at position 1000, magnitude included, turned further.
      const double x = static_cast<double>(turned.cos[i]);
      const double y = static_cast<double>(turned.sin[i]);
      const double c = static_cast<double>(cosines[i]);
      const double s = static_cast<double>(sines[i]);
      EXPECT_NEAR(x * c - y * s, static_cast<double>(turned.cos[8 + i]), 4e-7) << delta;
      EXPECT_NEAR(x * s + y * c, static_cast<double>(turned.sin[8 + i]), 4e-7) << delta;
    }
  }
}

}  // namespace
}  // namespace kvc
