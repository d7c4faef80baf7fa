// kvc_seq_shift: dropping tokens in the middle, moving positions.
#include <utility>

#include "tests/capi/layers.h"

namespace kvc::test {
namespace {

constexpr int64_t kTokens = 15;

struct Kept {
  int64_t token;     // of the original stream
  int64_t position;  // after the shift
};

std::vector<Kept> close_gap(int64_t begin, int64_t end) {
  std::vector<Kept> kept;
  for (int64_t t = 0; t < kTokens; ++t) {
    if (t < begin || t >= end) kept.push_back({t, t < begin ? t : t - (end - begin)});
  }
  return kept;
}

// A layer with one of the rope modes, or MLA, its first kTokens tokens appended in two forwards.
class ShiftModes : public testing::TestWithParam<std::pair<kvc_layer_kind, kvc_rope_mode>> {
 protected:
  ShiftModes() {
    if (GetParam().second != KVC_ROPE_NONE) net_.layers[0].rope = &rope_;
    cache_ = std::make_unique<Cache>(net_.config);
    EXPECT_EQ(kvc_seq_add(cache_->get(), 1, nullptr), KVC_OK);
    append(1, 0, 6);
    append(1, 6, 9);
  }
  bool is_mla() const { return GetParam().first == KVC_LAYER_MLA; }
  kvc_cache* get() const { return cache_->get(); }
  void append(kvc_seq seq, int64_t begin, int64_t count) {
    kvc_error error{};
    ASSERT_EQ(cache_->begin({seq}, {count}, &error), KVC_OK) << error.message;
    Rows q(tokens_.q, begin, count), k(tokens_.k, begin, count), v(tokens_.v, begin, count),
        to(out_, begin, count);
    kvc_attn_opt opt = attn_opt();
    opt.scale = 0.3f;
    ASSERT_EQ(kvc_attn(cache_->forward, 0, &opt, q.dl(), k.dl(), is_mla() ? nullptr : v.dl(),
                       to.dl(), nullptr, nullptr),
              KVC_OK);
    cache_->end();
  }
  // Tokens `fresh` and fresh + 1, appended next, see the kept tokens where they are now, and each
  // other behind the last of them.
  void expect_next(kvc_seq seq, std::vector<Kept> kept, int64_t fresh) {
    append(seq, fresh, 2);
    const int64_t last = kept.empty() ? -1 : kept.back().position;
    for (int64_t i = 0; i < 2; ++i) kept.push_back({fresh + i, last + 1 + i});
    EXPECT_EQ(info_of(*cache_, seq).last_position, kept.back().position);
    for (int64_t i = 0; i < 2; ++i) {
      std::vector<int64_t> keys;
      const int64_t position = kept[kept.size() - 2 + static_cast<size_t>(i)].position;
      for (size_t j = 0; j + 1 < kept.size() + static_cast<size_t>(i); ++j)
        keys.push_back(kept[j].token);
      const auto turn = [&](std::vector<double> row, int64_t key) {
        if (GetParam().second == KVC_ROPE_NONE) return row;
        const auto found =
            std::find_if(kept.begin(), kept.end(), [&](const Kept& k) { return k.token == key; });
        return rotated(std::move(row), static_cast<double>(key >= 0 ? found->position : position),
                       is_mla() ? kRank : 0);
      };
      expect_row(out_, fresh + i,
                 {tokens_, keys, turn, static_cast<double>(0.3f), is_mla() ? kRank : 0}, fresh + i,
                 2e-5);
    }
    EXPECT_EQ(kvc_cache_check(get(), nullptr), KVC_OK);
  }
  kvc_rope rope_ = rope_of(GetParam().second);
  Net net_{{is_mla() ? mla_layer() : attention_layer()}};
  std::unique_ptr<Cache> cache_;
  Tokens tokens_{40, 6, kHeads, is_mla() ? kRank + kRopeDim : kDim, is_mla() ? kRank : kDim};
  HostTensor out_{Elem::kF32, {40, kHeads, kDim}};
};

TEST_P(ShiftModes, ClosesTheGap) {
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{4, 8},
                                   {0, 4},
                                   {3, 8},
                                   {0, 1},
                                   {14, 15},
                                   {5, 15},
                                   {0, 15},
                                   {2, 2}}) {
    ASSERT_EQ(kvc_seq_fork(get(), 1, 2, -1, nullptr), KVC_OK);
    expect_ok([&, b = begin, e = end](kvc_error* err) {
      return kvc_seq_shift(get(), 2, b, e, b - e, err);
    });
    EXPECT_EQ(length_of(*cache_, 2), kTokens - (end - begin));
    EXPECT_EQ(kvc_cache_check(get(), nullptr), KVC_OK);
    expect_next(2, close_gap(begin, end), 20);
    ASSERT_EQ(kvc_seq_remove(get(), 2, nullptr), KVC_OK);
  }
  expect_next(1, close_gap(0, 0), 20);  // the sibling of all these
}

TEST_P(ShiftModes, MovesPositionsAlone) {
  expect_ok([&](kvc_error* err) { return kvc_seq_shift(get(), 1, 5, 5, 7, err); });
  EXPECT_EQ(length_of(*cache_, 1), kTokens);
  EXPECT_EQ(info_of(*cache_, 1).last_position, 21);
  std::vector<Kept> kept;
  for (int64_t t = 0; t < kTokens; ++t) kept.push_back({t, t < 5 ? t : t + 7});
  ASSERT_EQ(kvc_seq_fork(get(), 1, 2, -1, nullptr), KVC_OK);
  ASSERT_EQ(kvc_seq_fork(get(), 1, 3, 5, nullptr), KVC_OK);
  expect_next(2, kept, 20);
  expect_next(3, {kept.begin(), kept.begin() + 5}, 20);
  expect_ok([&](kvc_error* err) { return kvc_seq_shift(get(), 1, 8, 8, 3, err); });
  expect_ok([&](kvc_error* err) { return kvc_seq_shift(get(), 1, 5, 5, -7, err); });
  kept.clear();
  for (int64_t t = 0; t < kTokens; ++t) kept.push_back({t, t < 8 ? t : t + 3});
  expect_next(1, kept, 20);
  ASSERT_EQ(kvc_seq_pop(get(), 1, 2 + 7, nullptr), KVC_OK);
  kept.resize(8);
  expect_next(1, kept, 30);
}

TEST_P(ShiftModes, DropsAndLeavesAGap) {
  expect_ok([&](kvc_error* err) { return kvc_seq_shift(get(), 1, 3, 9, 2, err); });
  std::vector<Kept> kept;
  for (int64_t t = 0; t < kTokens; ++t) {
    if (t < 3 || t >= 9) kept.push_back({t, t < 3 ? t : t + 2});
  }
  EXPECT_EQ(length_of(*cache_, 1), 9);
  expect_next(1, kept, 20);
}

TEST_P(ShiftModes, DropsBeforeAnOlderGap) {
  expect_ok([&](kvc_error* err) { return kvc_seq_shift(get(), 1, 8, 8, 3, err); });
  expect_ok([&](kvc_error* err) { return kvc_seq_shift(get(), 1, 2, 5, -3, err); });
  std::vector<Kept> kept;
  for (int64_t t = 0; t < kTokens; ++t) {
    if (t < 2 || t >= 5) kept.push_back({t, t < 2 ? t : t < 8 ? t - 3 : t});
  }
  expect_next(1, kept, 20);
}

INSTANTIATE_TEST_SUITE_P(Modes, ShiftModes,
                         testing::Values(std::pair{KVC_LAYER_ATTENTION, KVC_ROPE_NONE},
                                         std::pair{KVC_LAYER_ATTENTION, KVC_ROPE_ON_APPEND},
                                         std::pair{KVC_LAYER_ATTENTION, KVC_ROPE_ON_READ},
                                         std::pair{KVC_LAYER_MLA, KVC_ROPE_ON_APPEND},
                                         std::pair{KVC_LAYER_MLA, KVC_ROPE_ON_READ}));

TEST(Shift, TellsThePositionsOfTokens) {
  Net net({attention_layer()});
  Cache cache(net.config);
  add_tokens(cache, 1, 10);
  ASSERT_EQ(kvc_seq_shift(cache.get(), 1, 0, 0, 100, nullptr), KVC_OK);
  EXPECT_EQ(info_of(cache, 1).first_position, 100);
  EXPECT_EQ(info_of(cache, 1).last_position, 109);
  ASSERT_EQ(cache.begin({1}, {2}), KVC_OK);
  HostTensor positions(Elem::kI32, {2});
  ASSERT_EQ(kvc_forward_positions(cache.forward, positions.dl(), nullptr), KVC_OK);
  EXPECT_EQ(positions.get(0), 110);
  EXPECT_EQ(positions.get(1), 111);
  cache.finish();
  ASSERT_EQ(kvc_seq_pop(cache.get(), 1, 12, nullptr), KVC_OK);
  add_tokens(cache, 1, 1);
  EXPECT_EQ(info_of(cache, 1).last_position, 0) << "an empty sequence begins anew";
}

TEST(Shift, ReleasesTheDroppedPagesAndKeepsEncoderTokens) {
  Net net({attention_layer(), attention_layer(), cross_layer()});
  Cache cache(net.config);
  ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  ASSERT_EQ(cache.begin_with({{1}, {15}, {}, {6}}), KVC_OK);
  cache.finish();
  const int64_t before = kvc_cache_available_pages(cache.get());
  const int64_t tables = info_of(cache, 1).num_pages;
  ASSERT_EQ(kvc_seq_shift(cache.get(), 1, 1, 14, -13, nullptr), KVC_OK);
  EXPECT_EQ(length_of(cache, 1), 2);
  EXPECT_EQ(info_of(cache, 1).cross_length, 6);
  EXPECT_EQ(kvc_cache_available_pages(cache.get()) - before, tables - info_of(cache, 1).num_pages);
  EXPECT_EQ(kvc_cache_total_length(cache.get()), 2);
  EXPECT_EQ(kvc_cache_check(cache.get(), nullptr), KVC_OK);
}

TEST(Shift, WorksWithoutStorage) {
  Net net({attention_layer()});
  net.config.storage = KVC_STORAGE_NONE;
  Cache cache(net.config);
  add_tokens(cache, 1, 15);
  ASSERT_EQ(kvc_seq_fork(cache.get(), 1, 2, -1, nullptr), KVC_OK);
  expect_ok([&](kvc_error* err) { return kvc_seq_shift(cache.get(), 1, 3, 9, -6, err); });
  EXPECT_EQ(length_of(cache, 1), 9);
  EXPECT_EQ(length_of(cache, 2), 15);
  EXPECT_EQ(kvc_cache_check(cache.get(), nullptr), KVC_OK);
}

TEST(Shift, NeedsPagesForPrivateCopies) {
  Net net({attention_layer()}, 6);
  Cache cache(net.config);
  add_tokens(cache, 1, 15);
  ASSERT_EQ(kvc_seq_fork(cache.get(), 1, 2, -1, nullptr), KVC_OK);
  const kvc_error error =
      expect_refused(cache, KVC_E_NO_PAGES, {"sequence 2", "4 pages", "2 missing"},
                     [&](kvc_error* err) { return kvc_seq_shift(cache.get(), 2, 1, 3, -2, err); });
  EXPECT_EQ(error.detail, 2) << "four shared pages to copy, two are free";
}

TEST(Shift, OnAWindowClosesGapsOnlyAndNeedsWhatTheNextTokenSees) {
  Net net({attention_layer(6)});
  Cache cache(net.config);
  add_tokens(cache, 1, 7);  // nothing dropped yet
  expect_refused(cache, KVC_E_UNSUPPORTED, {"delta = 4", "window"},
                 [&](kvc_error* err) { return kvc_seq_shift(cache.get(), 1, 2, 2, 4, err); });
  expect_refused(cache, KVC_E_UNSUPPORTED, {"delta = -1", "window", "-2"},
                 [&](kvc_error* err) { return kvc_seq_shift(cache.get(), 1, 2, 4, -1, err); });
  expect_ok([&](kvc_error* err) { return kvc_seq_shift(cache.get(), 1, 2, 4, -2, err); });
  EXPECT_EQ(length_of(cache, 1), 5);
  add_tokens(cache, 1, 15);
  const kvc_error error = expect_refused(
      cache, KVC_E_OUT_OF_RANGE, {"sequence 1", "window", "from 12 on"},
      [&](kvc_error* err) { return kvc_seq_shift(cache.get(), 1, 14, 19, -5, err); });
  EXPECT_EQ(error.detail, 12);
  for (const int64_t position : {3, 18}) {  // Dropped long ago; inside the window.
    int64_t nearest = -2;
    expect_ok([&](kvc_error* err) {
      return kvc_seq_can(cache.get(), 1, KVC_SEQ_SHIFT, position, &nearest, err);
    });
    EXPECT_EQ(nearest, position);
  }
  expect_ok([&](kvc_error* err) { return kvc_seq_shift(cache.get(), 1, 3, 8, -5, err); });
  EXPECT_EQ(length_of(cache, 1), 15);
  EXPECT_EQ(info_of(cache, 1).first_position, 8) << "token 12 went to 7, whose page is hidden";
  expect_ok([&](kvc_error* err) { return kvc_seq_shift(cache.get(), 1, 13, 14, -1, err); });
  EXPECT_EQ(kvc_cache_check(cache.get(), nullptr), KVC_OK);
  Net plain({attention_layer()});
  Cache windowed(plain.config);
  add_tokens(windowed, 1, 7);
  ASSERT_EQ(kvc_seq_set_window(windowed.get(), 1, 20, 2, nullptr), KVC_OK);
  expect_refused(windowed, KVC_E_UNSUPPORTED, {"delta = 4", "window"},
                 [&](kvc_error* err) { return kvc_seq_shift(windowed.get(), 1, 2, 2, 4, err); });
  expect_ok([&](kvc_error* err) { return kvc_seq_shift(windowed.get(), 1, 2, 4, -2, err); });
}

TEST(Shift, BehindAWindowMayNeedOnePage) {
  Net net({attention_layer(6)}, 8);
  Cache cache(net.config);
  add_tokens(cache, 1, 17);  // Tokens from 8 or 12 on, at the beginning of a page.
  const int64_t held = info_of(cache, 1).num_pages;
  for (kvc_seq other = 2; other < 2 + 8 - held; ++other) add_tokens(cache, other, 4);
  const kvc_error error =
      expect_refused(cache, KVC_E_NO_PAGES, {"sequence 1", "needs 1 new ones", "1 missing"},
                     [&](kvc_error* err) { return kvc_seq_shift(cache.get(), 1, 1, 3, -2, err); });
  EXPECT_EQ(error.detail, 1) << "rows move to the page before";
  expect_ok([&](kvc_error* err) { return kvc_seq_shift(cache.get(), 1, 1, 5, -4, err); });
  EXPECT_EQ(length_of(cache, 1), 13);
  EXPECT_EQ(info_of(cache, 1).num_pages, held) << "whole pages move without any";
  EXPECT_EQ(kvc_cache_check(cache.get(), nullptr), KVC_OK);
}

// The rest of the range that an earlier chunk has hidden goes with it.
TEST(Shift, AcrossTheEdgeOfAChunkKeepsNoHiddenPage) {
  Net net({attention_layer(0, 13)});
  net.config.page_size = 3;
  Cache cache(net.config);
  add_tokens(cache, 1, 38);
  EXPECT_EQ(info_of(cache, 1).num_pages, 5) << "tokens from 26 on, and two of their page";
  expect_ok([&](kvc_error* err) { return kvc_seq_shift(cache.get(), 1, 13, 34, -21, err); });
  EXPECT_EQ(length_of(cache, 1), 17);
  EXPECT_EQ(info_of(cache, 1).num_pages, 2) << "tokens 13 to 16, and one of their page";
  expect_ok([&](kvc_error* err) { return kvc_cache_check(cache.get(), err); });
  add_tokens(cache, 1, 26);
  EXPECT_EQ(length_of(cache, 1), 43);
  expect_ok([&](kvc_error* err) { return kvc_seq_shift(cache.get(), 1, 11, 37, -26, err); });
  EXPECT_EQ(length_of(cache, 1), 17);
  EXPECT_EQ(info_of(cache, 1).num_pages, 2);
  expect_ok([&](kvc_error* err) { return kvc_cache_check(cache.get(), err); });
}

TEST(Shift, RefusesBadArguments) {
  Net net({attention_layer()});
  Cache cache(net.config);
  add_tokens(cache, 1, 10);
  add_tokens(cache, 2, 10);
  const auto refused = [&](kvc_status status, std::initializer_list<const char*> parts, kvc_seq seq,
                           int64_t begin, int64_t end, int64_t delta) {
    expect_refused(cache, status, parts, [&](kvc_error* err) {
      return kvc_seq_shift(cache.get(), seq, begin, end, delta, err);
    });
  };
  refused(KVC_E_NOT_FOUND, {"sequence 9"}, 9, 0, 1, -1);
  refused(KVC_E_OUT_OF_RANGE, {"[-1, 2)", "sequence 1", "10"}, 1, -1, 2, -3);
  refused(KVC_E_OUT_OF_RANGE, {"[3, 2)"}, 1, 3, 2, 1);
  refused(KVC_E_OUT_OF_RANGE, {"[3, 11)", "10"}, 1, 3, 11, -8);
  refused(KVC_E_OUT_OF_RANGE, {"sequence 1"}, 1, INT64_MIN, INT64_MAX, 0);
  refused(KVC_E_OUT_OF_RANGE, {"delta = -1"}, 1, 0, 0, -1);
  refused(KVC_E_OUT_OF_RANGE, {"delta = -1", "token 5", "5"}, 1, 5, 5, -1);
  refused(KVC_E_OUT_OF_RANGE, {"delta = -3", "token 7"}, 1, 5, 7, -3);
  refused(KVC_E_OUT_OF_RANGE, {"delta = 2147483638"}, 1, 5, 5, INT32_MAX - 9);
  refused(KVC_E_OUT_OF_RANGE, {"delta"}, 1, 5, 5, INT64_MAX);
  refused(KVC_E_OUT_OF_RANGE, {"delta"}, 1, 5, 5, INT64_MIN);
  expect_error(KVC_E_INVALID_ARGUMENT, {"cache"},
               [&](kvc_error* err) { return kvc_seq_shift(nullptr, 1, 0, 1, -1, err); });
  ASSERT_EQ(cache.begin({1}, {1}), KVC_OK);
  refused(KVC_E_BUSY, {"sequence 1", "open forward"}, 1, 0, 1, -1);
  expect_ok([&](kvc_error* err) { return kvc_seq_shift(cache.get(), 2, 0, 1, -1, err); });
  cache.finish();
  expect_ok(
      [&](kvc_error* err) { return kvc_seq_shift(cache.get(), 2, 5, 5, INT32_MAX - 9, err); });
  expect_refused(cache, KVC_E_NEVER_FITS, {"sequence 2"},
                 [&](kvc_error* err) { return cache.begin({2}, {1}, err); });
  expect_refused(cache, KVC_E_UNSUPPORTED, {"sequence 2", "moved"},
                 [&](kvc_error* err) { return kvc_seq_set_window(cache.get(), 2, 5, 0, err); });
}

TEST(Shift, IsRefusedWithStates) {
  const std::vector<int64_t> shape{2};
  const std::vector<kvc_state_spec> states{state_spec(shape)};
  Net net({attention_layer(), state_layer(states)});
  Cache cache(net.config);
  add_tokens(cache, 1, 8);
  expect_refused(cache, KVC_E_UNSUPPORTED, {"sequence 1", "STATE"},
                 [&](kvc_error* err) { return kvc_seq_shift(cache.get(), 1, 0, 1, -1, err); });
  int64_t nearest = 0;
  ASSERT_EQ(kvc_seq_can(cache.get(), 1, KVC_SEQ_SHIFT, 0, &nearest, nullptr), KVC_OK);
  EXPECT_EQ(nearest, -1);
}

TEST(Shift, CanSaysTheNearestToken) {
  Net net({attention_layer()});
  Cache cache(net.config);
  add_tokens(cache, 1, 10);
  ASSERT_EQ(kvc_seq_add(cache.get(), 2, nullptr), KVC_OK);
  int64_t nearest = 7;
  for (const auto& [pos, want] :
       {std::pair<int64_t, int64_t>{0, 0}, {9, 9}, {10, 9}, {INT64_MAX, 9}, {-1, 9}}) {
    expect_ok([&, p = pos](kvc_error* err) {
      return kvc_seq_can(cache.get(), 1, KVC_SEQ_SHIFT, p, &nearest, err);
    });
    EXPECT_EQ(nearest, want) << pos;
  }
  ASSERT_EQ(kvc_seq_can(cache.get(), 2, KVC_SEQ_SHIFT, 0, &nearest, nullptr), KVC_OK);
  EXPECT_EQ(nearest, -1) << "no token to drop";
}

// K that is stored in four bits cannot be rotated on: only the end can be dropped, and kvc_seq_can
// says so.
TEST(Shift, OfFourBitKRotatedOnAppendIsRefused) {
  kvc_rope rope = rope_of(KVC_ROPE_ON_APPEND);
  for (const bool is_rotated : {true, false}) {
    SCOPED_TRACE(is_rotated ? "rotated on append" : "not rotated");
    kvc_layer layer = attention_layer();
    layer.quant = KVC_QUANT_PER_TOKEN_HEAD;
    layer.k_dtype = {kDLInt, 4, 1};
    layer.rope = is_rotated ? &rope : nullptr;
    Net net({layer});
    net.config.storage = KVC_STORAGE_NONE;
    Cache cache(net.config);
    add_tokens(cache, 1, 10);
    int64_t nearest = 0;
    ASSERT_EQ(kvc_seq_can(cache.get(), 1, KVC_SEQ_SHIFT, 2, &nearest, nullptr), KVC_OK);
    EXPECT_EQ(nearest, is_rotated ? -1 : 2);
    int64_t below = 0, above = 0;
    ASSERT_EQ(kvc_seq_positions(cache.get(), 1, KVC_SEQ_SHIFT, 2, &below, &above, nullptr), KVC_OK);
    EXPECT_EQ(below, nearest);
    EXPECT_EQ(above, is_rotated ? 9 : 2);
    const auto shift = [&](kvc_error* err) { return kvc_seq_shift(cache.get(), 1, 2, 3, -1, err); };
    if (is_rotated)
      expect_refused(cache, KVC_E_UNSUPPORTED,
                     {"layer 0", "int4", "quant = PER_TOKEN_HEAD (2)", "the CPU"}, shift);
    else
      expect_ok(shift);
    expect_ok([&](kvc_error* err) {
      return kvc_seq_shift(cache.get(), 1, is_rotated ? 9 : 8, is_rotated ? 10 : 9, -1, err);
    });
  }
}

}  // namespace
}  // namespace kvc::test
