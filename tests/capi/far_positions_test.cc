// Keys that are rotated on read far from position 0: streams with a window and sinks, and tokens
// that were moved far away. What they need of cos and sin is bounded by what they see.
#include "tests/capi/layers.h"

namespace kvc::test {
namespace {

constexpr int64_t kWindow = 12, kSinks = 3, kStream = 6002;

class FarPositions : public testing::TestWithParam<kvc_rope_style> {
 protected:
  FarPositions() {
    rope_.style = GetParam();
    layer_.rope = &rope_;
    net_ = std::make_unique<Net>(std::vector<kvc_layer>{layer_});
    cache_ = std::make_unique<Cache>(net_->config);
    EXPECT_EQ(kvc_seq_add(cache_->get(), 1, nullptr), KVC_OK);
  }
  uint64_t bytes() const { return stats_of(*cache_).cos_sin_bytes; }
  std::vector<double> turned(std::vector<double> row, double position) const {
    if (rope_.style == KVC_ROPE_HALF) return rotated(std::move(row), position);
    std::vector<double> half(row.size());
    const size_t pairs = row.size() / 2;
    for (size_t i = 0; i < pairs; ++i) half[i] = row[2 * i], half[i + pairs] = row[2 * i + 1];
    half = rotated(std::move(half), position);
    for (size_t i = 0; i < pairs; ++i) row[2 * i] = half[i], row[2 * i + 1] = half[i + pairs];
    return row;
  }
  // Sink tokens keep the distance that they have at the end of the window.
  void expect_stream_row(HostTensor& out, int64_t token, int64_t row) {
    std::vector<int64_t> keys = key_range(0, std::min(kSinks, token + 1));
    for (int64_t key = std::max(kSinks, token - (kWindow - kSinks) + 1); key <= token; ++key)
      keys.push_back(key);
    const auto turn = [&](std::vector<double> of, int64_t key) {
      if (key >= 0) return turned(std::move(of), static_cast<double>(key));
      const int64_t sees = -1 - key;
      return turned(std::move(of),
                    static_cast<double>(sees < kSinks ? std::min(token, kWindow - 1) : token));
    };
    expect_row(out, row, {tokens_, keys, turn}, token);
  }

  kvc_rope rope_ = rope_of(KVC_ROPE_ON_READ);
  kvc_layer layer_ = attention_layer();
  std::unique_ptr<Net> net_;
  std::unique_ptr<Cache> cache_;
  Tokens tokens_{kStream};
  HostTensor out_{Elem::kF32, {kStream, kHeads, kDim}};
};

TEST_P(FarPositions, OfAStreamTakeNoMoreMemory) {
  ASSERT_EQ(kvc_seq_set_window(cache_->get(), 1, kWindow, kSinks, nullptr), KVC_OK);
  Random random(7);
  uint64_t once_far = 0;
  for (int64_t token = 0; token < kStream;) {
    const int64_t count =
        std::min(kStream - token, random.chance(0.1) ? random.range(2, 40) : int64_t{1});
    attend_rows(*cache_, 1, 0, tokens_, token, count, out_);
    token += count;
    if (token > 4096 + 200 && once_far == 0) once_far = bytes();
  }
  for (int64_t token = 0; token < kStream; ++token) expect_stream_row(out_, token, token);
  EXPECT_EQ(bytes(), once_far);
  EXPECT_LT(bytes(), 4096 * uint64_t{8} * kDim / 2 * 2) << "rows for 4,096 positions, and a ring";
  // What left the window cannot come back, what is in it can.
  ASSERT_EQ(kvc_seq_fork(cache_->get(), 1, 2, -1, nullptr), KVC_OK);
  ASSERT_EQ(kvc_seq_pop(cache_->get(), 2, 1, nullptr), KVC_OK);
  attend_rows(*cache_, 2, 0, tokens_, kStream - 1, 1, out_);
  expect_stream_row(out_, kStream - 1, kStream - 1);
}

TEST_P(FarPositions, OfTokensThatWereMovedAreExact) {
  attend_rows(*cache_, 1, 0, tokens_, 0, 10, out_);
  const int64_t last = int64_t{INT32_MAX} - 20, delta = last - 9;
  // A gap behind token 4.
  ASSERT_EQ(kvc_seq_shift(cache_->get(), 1, 4, 4, delta, nullptr), KVC_OK);
  attend_rows(*cache_, 1, 0, tokens_, 10, 7, out_);
  for (int64_t token = 10; token < 17; ++token) {
    const auto turn = [&](std::vector<double> row, int64_t key) {
      const int64_t of = key >= 0 ? key : token;
      return turned(std::move(row), static_cast<double>(of < 4 ? of : of + delta));
    };
    expect_row(out_, token, {tokens_, key_range(0, token + 1), turn}, token);
  }
  EXPECT_LT(bytes(), 100000u);
  // Moved once more, the rows are those of the new positions.
  ASSERT_EQ(kvc_seq_shift(cache_->get(), 1, 4, 6, -2 - 1000000, nullptr), KVC_OK);
  attend_rows(*cache_, 1, 0, tokens_, 17, 1, out_);
  std::vector<int64_t> keys = key_range(0, 4);
  for (int64_t key = 6; key < 18; ++key) keys.push_back(key);
  const auto turn = [&](std::vector<double> row, int64_t key) {
    const int64_t of = key >= 0 ? key : 17;
    return turned(std::move(row), static_cast<double>(of < 4 ? of : of + delta - 1000002));
  };
  expect_row(out_, 17, {tokens_, keys, turn}, 17);
}

TEST_P(FarPositions, OfManySequencesAreGivenUpWithThem) {
  for (kvc_seq seq = 2; seq < 40; ++seq) {
    ASSERT_EQ(kvc_seq_add(cache_->get(), seq, nullptr), KVC_OK);
    attend_rows(*cache_, seq, 0, tokens_, 0, 4, out_);
    ASSERT_EQ(kvc_seq_shift(cache_->get(), seq, 0, 0, 100000, nullptr), KVC_OK);
    attend_rows(*cache_, seq, 0, tokens_, 4, 1, out_);
    ASSERT_EQ(kvc_seq_remove(cache_->get(), seq, nullptr), KVC_OK);
  }
  EXPECT_LT(bytes(), 40000u);
}

INSTANTIATE_TEST_SUITE_P(Styles, FarPositions,
                         testing::Values(KVC_ROPE_HALF, KVC_ROPE_INTERLEAVED));

TEST(FarPositionsPlan, TellsTheBytesOfAToken) {
  const auto bytes_with = [](kvc_rope_mode mode) {
    const kvc_rope rope = rope_of(mode);
    kvc_layer layer = attention_layer();
    layer.rope = &rope;
    Net net({layer, layer});
    Cache cache(net.config);
    kvc_plan_info info{};
    info.struct_size = sizeof info;
    EXPECT_EQ(kvc_plan_info_get(cache.plan(), &info, nullptr), KVC_OK);
    return info.cos_sin_bytes_per_token;
  };
  EXPECT_EQ(bytes_with(KVC_ROPE_ON_READ), uint64_t{4} * kDim) << "layers share them";
  EXPECT_EQ(bytes_with(KVC_ROPE_ON_APPEND), 0u);
}

}  // namespace
}  // namespace kvc::test
