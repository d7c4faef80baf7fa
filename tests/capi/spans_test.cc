// Bidirectional spans (kvc_attn_opt.spans): images inside a causal prompt.
#include "tests/capi/layers.h"

namespace kvc::test {
namespace {

// int32 [n, 3].
struct SpanTensor {
  explicit SpanTensor(const std::vector<std::vector<int32_t>>& rows)
      : tensor(Elem::kI32, {static_cast<int64_t>(rows.size()), 3}) {
    for (size_t i = 0; i < rows.size(); ++i) {
      for (size_t j = 0; j < 3; ++j)
        tensor.set(rows[i][j], static_cast<int64_t>(i), static_cast<int64_t>(j));
    }
  }
  HostTensor tensor;
};

// Sequences 1 (4 tokens) and 2 (empty) of one layer, a forward of 8 and 6 new tokens.
class Spans : public testing::Test {
 protected:
  Spans() {
    EXPECT_EQ(kvc_seq_add(cache_.get(), 1, nullptr), KVC_OK);
    EXPECT_EQ(kvc_seq_add(cache_.get(), 2, nullptr), KVC_OK);
    HostTensor unused(Elem::kF32, {4, kHeads, kDim});
    attend_rows(cache_, 1, 0, first_, 0, 4, unused);
    for (int64_t row = 0; row < 8; ++row) {
      copy_row(first_.q, 4 + row, q_, row), copy_row(first_.k, 4 + row, k_, row),
          copy_row(first_.v, 4 + row, v_, row);
    }
    for (int64_t row = 0; row < 6; ++row) {
      copy_row(second_.q, row, q_, 8 + row), copy_row(second_.k, row, k_, 8 + row),
          copy_row(second_.v, row, v_, 8 + row);
    }
    EXPECT_EQ(cache_.begin({1, 2}, {8, 6}), KVC_OK);
  }
  kvc_status attend(const DLTensor* spans, kvc_error* err = nullptr) {
    kvc_attn_opt opt = attn_opt();
    opt.spans = spans;
    return kvc_attn(cache_.forward, 0, &opt, q_.dl(), k_.dl(), v_.dl(), out_.dl(), nullptr, err);
  }
  Net net_{{attention_layer()}};
  Cache cache_{net_.config};
  Tokens first_{12, 3}, second_{6, 4};
  HostTensor q_{Elem::kF32, {14, kHeads, kDim}}, k_{Elem::kF32, {14, 1, kDim}},
      v_{Elem::kF32, {14, 1, kDim}};
  HostTensor out_{Elem::kF32, {14, kHeads, kDim}};
};

TEST_F(Spans, ATokenInsideSeesItsSpanToTheEnd) {
  // The first span began before this forward: its old tokens are not asked again.
  SpanTensor spans({{0, 2, 7}, {0, 9, 11}, {1, 1, 6}});
  expect_ok([&](kvc_error* err) { return attend(spans.tensor.dl(), err); });
  for (int64_t p = 4; p < 12; ++p) {
    const int64_t end = p < 7 ? 7 : p >= 9 && p < 11 ? 11 : p + 1;
    expect_row(out_, p - 4, {first_, key_range(0, end)}, p);
  }
  for (int64_t p = 0; p < 6; ++p)
    expect_row(out_, 8 + p, {second_, key_range(0, p < 1 ? 1 : 6)}, p);
}

TEST_F(Spans, EmptyOnesAndNoneChangeNothing) {
  ASSERT_EQ(attend(nullptr), KVC_OK);
  HostTensor plain(Elem::kF32, {14, kHeads, kDim});
  for (int64_t row = 0; row < 14; ++row) copy_row(out_, row, plain, row);
  SpanTensor empty({{0, 5, 5}, {1, 0, 0}});
  ASSERT_EQ(attend(empty.tensor.dl()), KVC_OK);
  EXPECT_LE(largest_difference(plain, out_), 1e-6);
  int64_t shape[] = {0, 3};
  DLTensor none{nullptr, {kDLCPU, 0}, 2, {kDLInt, 32, 1}, shape, nullptr, 0};
  ASSERT_EQ(attend(&none), KVC_OK);
  EXPECT_LE(largest_difference(plain, out_), 1e-6);
}

TEST_F(Spans, AlsoHoldAmongNewTokensAlone) {
  SpanTensor spans({{0, 5, 9}, {1, 0, 3}});
  kvc_attn_opt opt = attn_opt();
  opt.spans = spans.tensor.dl();
  ASSERT_EQ(kvc_attn_self(cache_.forward, 0, &opt, q_.dl(), k_.dl(), v_.dl(), out_.dl(), nullptr,
                          nullptr),
            KVC_OK);
  for (int64_t p = 4; p < 12; ++p)
    expect_row(out_, p - 4, {first_, key_range(4, p >= 5 && p < 9 ? 9 : p + 1)}, p);
  for (int64_t p = 0; p < 6; ++p)
    expect_row(out_, 8 + p, {second_, key_range(0, p < 3 ? 3 : p + 1)}, p);
}

TEST(SpansWithWindow, TheWindowHidesTheLeftAndTheSpanShowsTheRight) {
  Net net({attention_layer(3)});
  Cache cache(net.config);
  Tokens tokens(10);
  HostTensor out(Elem::kF32, {10, kHeads, kDim});
  ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  SpanTensor spans({{0, 4, 8}});
  kvc_attn_opt opt = attn_opt();
  opt.spans = spans.tensor.dl();
  attend_rows(cache, 1, 0, tokens, 0, 10, out, &opt);
  for (int64_t p = 0; p < 10; ++p)
    expect_row(out, p, {tokens, key_range(p - 2, p >= 4 && p < 8 ? 8 : p + 1)}, p);
}

// A chunk of the prompt that ends inside an image: its rows would never see the rest.
TEST(WholeSpans, RefuseAnImageThatTheForwardCuts) {
  Net net({attention_layer()});
  Cache cache(net.config);
  Tokens tokens(12);
  ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  for (const uint64_t flags : {uint64_t{0}, uint64_t{KVC_FORWARD_WHOLE_SPANS}}) {
    SCOPED_TRACE(flags);
    const kvc_seq seq = 1;
    const int64_t length = 6;
    kvc_forward_desc desc{};
    desc.struct_size = sizeof desc;
    desc.num_seqs = 1, desc.seqs = &seq, desc.append_lengths = &length;
    desc.flags = flags;
    HostTensor out(Elem::kF32, {6, kHeads, kDim});
    const auto attend = [&](std::vector<std::vector<int32_t>> rows, kvc_error* err) {
      SpanTensor spans(rows);
      kvc_attn_opt opt = attn_opt();
      opt.spans = spans.tensor.dl();
      return kvc_attn(cache.forward, 0, &opt, tokens.q.dl(), tokens.k.dl(), tokens.v.dl(), out.dl(),
                      nullptr, err);
    };
    ASSERT_EQ(kvc_forward_begin(cache.get(), &desc, &cache.forward, nullptr), KVC_OK);
    const Call cut = [&](kvc_error* err) { return attend({{0, 0, 2}, {0, 3, 7}}, err); };
    if (flags != 0) {
      const kvc_error error =
          expect_refused(cache, KVC_E_OUT_OF_RANGE,
                         {"opt.spans[1] = [3, 7)", "sequence 1", "6 tokens", "WHOLE"}, cut);
      EXPECT_EQ(error.detail, 7);
      EXPECT_EQ(attend({{0, 3, 7}}, nullptr), KVC_E_OUT_OF_RANGE);
      EXPECT_TRUE(out.is_untouched());
    } else {
      expect_ok(cut);
      expect_row(out, 4, {tokens, key_range(0, 6)}, 4);
    }
    expect_ok([&](kvc_error* err) { return attend({{0, 3, 6}}, err); });
    expect_row(out, 4, {tokens, key_range(0, 6)}, 4);
    ASSERT_EQ(kvc_forward_abort(cache.forward, nullptr), KVC_OK);
  }
  kvc_forward_desc desc{};
  desc.struct_size = sizeof desc;
  desc.flags = 8;
  expect_refused(
      cache, KVC_E_UNSUPPORTED, {"desc->flags = 8", "KVC_FORWARD_WHOLE_SPANS (4)"},
      [&](kvc_error* err) { return kvc_forward_begin(cache.get(), &desc, &cache.forward, err); });
}

TEST_F(Spans, RefuseWhatIsNoSpan) {
  const auto refused = [&](kvc_status status, std::initializer_list<const char*> parts,
                           const std::vector<std::vector<int32_t>>& rows) {
    SpanTensor spans(rows);
    expect_refused(cache_, status, parts,
                   [&](kvc_error* err) { return attend(spans.tensor.dl(), err); });
    EXPECT_TRUE(out_.is_untouched());
  };
  refused(KVC_E_OUT_OF_RANGE, {"spans[0][0] = 2", "2 entries"}, {{2, 0, 1}});
  refused(KVC_E_OUT_OF_RANGE, {"spans[1][0] = -1"}, {{0, 0, 1}, {-1, 0, 1}});
  refused(KVC_E_OUT_OF_RANGE, {"spans[0]", "-1"}, {{0, -1, 3}});
  refused(KVC_E_OUT_OF_RANGE, {"spans[0]", "[5, 4)"}, {{0, 5, 4}});
  refused(KVC_E_INVALID_ARGUMENT, {"spans[1]", "6", "7"}, {{0, 4, 7}, {0, 6, 9}});
  refused(KVC_E_INVALID_ARGUMENT, {"spans[2]", "entry 0"}, {{0, 8, 9}, {1, 0, 3}, {0, 4, 6}});
  HostTensor columns(Elem::kI32, {2, 2}), vector(Elem::kI32, {3}), floats(Elem::kF32, {1, 3});
  expect_refused(cache_, KVC_E_SHAPE, {"spans", "2", "3"},
                 [&](kvc_error* err) { return attend(columns.dl(), err); });
  expect_refused(cache_, KVC_E_SHAPE, {"spans", "1", "2"},
                 [&](kvc_error* err) { return attend(vector.dl(), err); });
  expect_refused(cache_, KVC_E_DTYPE, {"spans", "float32", "int32"},
                 [&](kvc_error* err) { return attend(floats.dl(), err); });
  HostTensor there(Elem::kI32, {1, 3});
  there.dl()->device = {kDLCUDA, 0};
  expect_refused(cache_, KVC_E_DEVICE_MISMATCH, {"spans"},
                 [&](kvc_error* err) { return attend(there.dl(), err); });
  EXPECT_TRUE(out_.is_untouched());
}

TEST_F(Spans, DoNotGoWithTreesOrMovedPositions) {
  cache_.abort();
  ASSERT_EQ(cache_.begin_with({{1, 2}, {8, 6}, {-1, 0, 1, 2, 3, 4, 5, 6, -2, -2, -2, -2, -2, -2}}),
            KVC_OK);
  SpanTensor spans({{1, 0, 2}});
  expect_refused(cache_, KVC_E_UNSUPPORTED, {"spans", "tree"},
                 [&](kvc_error* err) { return attend(spans.tensor.dl(), err); });
  cache_.abort();
  ASSERT_EQ(kvc_seq_shift(cache_.get(), 1, 2, 2, 5, nullptr), KVC_OK);
  ASSERT_EQ(cache_.begin({1, 2}, {8, 6}), KVC_OK);
  SpanTensor moved({{0, 4, 6}});
  expect_refused(cache_, KVC_E_UNSUPPORTED, {"spans[0]", "sequence 1"},
                 [&](kvc_error* err) { return attend(moved.tensor.dl(), err); });
  EXPECT_TRUE(out_.is_untouched());
  EXPECT_EQ(attend(spans.tensor.dl()), KVC_OK) << "the other sequence was not moved";
}

}  // namespace
}  // namespace kvc::test
