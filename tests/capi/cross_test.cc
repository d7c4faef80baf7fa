// Encoder-decoder attention: tokens of the encoder, written once per sequence.
#include "tests/capi/layers.h"

namespace kvc::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class Cross : public testing::Test {
 protected:
  Cross() {
    net_.config.max_cross_len = 10;
    cache_ = std::make_unique<Cache>(net_.config);
    for (const kvc_seq seq : {1, 2, 3}) EXPECT_EQ(kvc_seq_add(cache_->get(), seq, nullptr), KVC_OK);
  }
  kvc_status attend(int32_t layer, bool given, HostTensor* lse = nullptr,
                    kvc_error* err = nullptr) {
    return kvc_attn_cross(cache_->forward, layer, nullptr, decoder_.q.dl(),
                          given ? encoder_.k.dl() : nullptr, given ? encoder_.v.dl() : nullptr,
                          out_.dl(), lse == nullptr ? nullptr : lse->dl(), err);
  }
  // Row `row` of out over encoder rows [begin, end).
  void expect_encoder_row(int64_t row, int64_t begin, int64_t end) {
    Tokens mixed(encoder_.k.size(0));
    for (int64_t t = 0; t < encoder_.k.size(0); ++t)
      copy_row(encoder_.k, t, mixed.k, t), copy_row(encoder_.v, t, mixed.v, t),
          copy_row(decoder_.q, row, mixed.q, t);
    expect_row(out_, row, {mixed, key_range(begin, end)}, 0);
  }
  Net net_{{attention_layer(), cross_layer()}};
  std::unique_ptr<Cache> cache_;
  Tokens encoder_{11, 5}, decoder_{5, 6};
  HostTensor out_{Elem::kF32, {5, kHeads, kDim}};
};

TEST_F(Cross, EveryTokenSeesAllEncoderTokensOfItsSequence) {
  ASSERT_EQ(cache_->begin_with({{1, 2, 3}, {2, 1, 2}, {}, {7, 0, 4}}), KVC_OK);
  HostTensor lse(Elem::kF32, {5, kHeads});
  expect_ok([&](kvc_error* err) { return attend(1, true, &lse, err); });
  EXPECT_EQ(attend(1, false), KVC_OK) << "filled before in this forward";
  for (const int64_t row : {0, 1}) expect_encoder_row(row, 0, 7);
  for (const int64_t row : {3, 4}) expect_encoder_row(row, 7, 11);
  for (int64_t h = 0; h < kHeads; ++h) {
    EXPECT_EQ(out_.get(2, h, 3), 0) << "no encoder tokens";
    EXPECT_EQ(lse.get(2, h), -kInfinity);
    EXPECT_TRUE(std::isfinite(lse.get(0, h)));
  }
  EXPECT_EQ(info_of(*cache_, 1).cross_length, 0) << "the forward is open";
  cache_->finish();
  EXPECT_EQ(info_of(*cache_, 1).cross_length, 7);
  EXPECT_EQ(info_of(*cache_, 3).cross_length, 4);
  ASSERT_EQ(kvc_seq_fork(cache_->get(), 1, 4, 0, nullptr), KVC_OK);
  EXPECT_EQ(info_of(*cache_, 4).cross_length, 7) << "a fork inherits the encoder tokens";
  ASSERT_EQ(kvc_seq_remove(cache_->get(), 1, nullptr), KVC_OK);
  ASSERT_EQ(cache_->begin({4, 3}, {4, 1}), KVC_OK);
  out_.poison();
  expect_ok([&](kvc_error* err) { return attend(1, false, nullptr, err); });
  for (const int64_t row : {0, 3}) expect_encoder_row(row, 0, 7);
  expect_encoder_row(4, 7, 11);
  HostTensor gathered(Elem::kF32, {7, 1, kDim});
  expect_ok([&](kvc_error* err) {
    return kvc_kv_gather(cache_->forward, 1, 4, gathered.dl(), nullptr, err);
  });
  for (int64_t t = 0; t < 7; ++t) EXPECT_EQ(gathered.get(t, 0, 2), encoder_.k.get(t, 0, 2));
}

TEST_F(Cross, AbortForgetsTheEncoderTokens) {
  const Snapshot before = cache_->snapshot();
  ASSERT_EQ(cache_->begin_with({{1, 2, 3}, {2, 1, 2}, {}, {7, 0, 4}}), KVC_OK);
  ASSERT_EQ(attend(1, true), KVC_OK);
  cache_->abort();
  Snapshot after = cache_->snapshot();
  after.stats = before.stats;
  EXPECT_EQ(difference(before, after), "");
  ASSERT_EQ(cache_->begin_with({{1}, {1}, {}, {10}}), KVC_OK) << "they may be written again";
}

// Of a speech model: the next clip.
TEST_F(Cross, AnEmptySequenceTakesOthersInThePlaceOfItsEncoderTokens) {
  ASSERT_EQ(cache_->begin_with({{1, 2, 3}, {2, 1, 2}, {}, {5, 0, 0}}), KVC_OK);
  cache_->finish();
  ASSERT_EQ(kvc_seq_pop(cache_->get(), 1, 2, nullptr), KVC_OK);
  EXPECT_EQ(info_of(*cache_, 1).cross_length, 5) << "the same ones may be decoded again";
  const int64_t available = kvc_cache_available_pages(cache_->get());
  for (const bool keeps : {false, true}) {
    ASSERT_EQ(cache_->begin_with({{1, 2, 3}, {2, 1, 2}, {}, {7, 0, 4}}), KVC_OK);
    expect_ok([&](kvc_error* err) { return attend(1, true, nullptr, err); });
    for (const int64_t row : {0, 1}) expect_encoder_row(row, 0, 7);
    EXPECT_EQ(kvc_cache_check(cache_->get(), nullptr), KVC_OK);
    if (keeps) break;
    cache_->abort();
    EXPECT_EQ(info_of(*cache_, 1).cross_length, 0) << "those of before are gone from begin on";
    EXPECT_EQ(kvc_cache_check(cache_->get(), nullptr), KVC_OK);
    EXPECT_GT(kvc_cache_available_pages(cache_->get()), available);
  }
  cache_->finish();
  EXPECT_EQ(info_of(*cache_, 1).cross_length, 7);
}

TEST_F(Cross, EncoderTokensAreReplacedInAFullPoolAndStayWithForks) {
  Net net({attention_layer(), cross_layer()}, 6);
  Cache cache(net.config);
  ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  ASSERT_EQ(cache.begin_with({{1}, {4}, {}, {20}}), KVC_OK);
  cache.finish();
  ASSERT_EQ(kvc_cache_available_pages(cache.get()), 0);
  ASSERT_EQ(kvc_seq_pop(cache.get(), 1, 4, nullptr), KVC_OK);
  ASSERT_EQ(kvc_seq_fork(cache.get(), 1, 2, -1, nullptr), KVC_OK);
  expect_refused(cache, KVC_E_NO_PAGES, {"6 pages", "1 are free"}, [&](kvc_error* err) {
    return cache.begin_with({{1}, {4}, {}, {20}}, err);
  });
  EXPECT_EQ(info_of(cache, 1).cross_length, 20) << "a begin that fails changes nothing";
  ASSERT_EQ(kvc_seq_remove(cache.get(), 2, nullptr), KVC_OK);
  for (const int64_t length : {20, 1, 19}) {
    expect_ok([&](kvc_error* err) { return cache.begin_with({{1}, {4}, {}, {length}}, err); });
    EXPECT_EQ(kvc_cache_check(cache.get(), nullptr), KVC_OK);
    cache.finish();
    EXPECT_EQ(info_of(cache, 1).cross_length, length);
    ASSERT_EQ(kvc_seq_pop(cache.get(), 1, 4, nullptr), KVC_OK);
  }
}

TEST_F(Cross, RefusesWhatWasNotAnnounced) {
  ASSERT_EQ(cache_->begin_with({{1, 2, 3}, {2, 1, 2}, {}, {7, 0, 4}}), KVC_OK);
  const auto refused = [&](kvc_status status, std::initializer_list<const char*> parts,
                           const Call& fn) {
    expect_refused(*cache_, status, parts, fn);
    EXPECT_TRUE(out_.is_untouched());
  };
  refused(KVC_E_INVALID_STATE, {"layer 1"},
          [&](kvc_error* err) { return attend(1, false, nullptr, err); });
  refused(KVC_E_INVALID_ARGUMENT, {"k", "v", "NULL"}, [&](kvc_error* err) {
    return kvc_attn_cross(cache_->forward, 1, nullptr, decoder_.q.dl(), encoder_.k.dl(), nullptr,
                          out_.dl(), nullptr, err);
  });
  refused(KVC_E_SHAPE, {"k", "5", "11"}, [&](kvc_error* err) {
    return kvc_attn_cross(cache_->forward, 1, nullptr, decoder_.q.dl(), decoder_.k.dl(),
                          decoder_.v.dl(), out_.dl(), nullptr, err);
  });
  refused(KVC_E_INVALID_STATE, {"kvc_attn", "layer 1", "CROSS"}, [&](kvc_error* err) {
    return kvc_attn(cache_->forward, 1, nullptr, decoder_.q.dl(), decoder_.k.dl(), decoder_.v.dl(),
                    out_.dl(), nullptr, err);
  });
  refused(KVC_E_INVALID_STATE, {"kvc_attn_cached", "layer 1", "CROSS"}, [&](kvc_error* err) {
    return kvc_attn_cached(cache_->forward, 1, nullptr, decoder_.q.dl(), out_.dl(), nullptr, err);
  });
  refused(KVC_E_INVALID_STATE, {"kvc_attn_cross", "layer 0", "ATTENTION"},
          [&](kvc_error* err) { return attend(0, true, nullptr, err); });
  refused(KVC_E_OUT_OF_RANGE, {"layer 2"},
          [&](kvc_error* err) { return attend(2, true, nullptr, err); });
  for (const bool window : {true, false}) {
    HostTensor spans(Elem::kI32, {1, 3});
    for (int i = 0; i < 3; ++i) spans.set(i == 2 ? 1 : 0, 0, i);
    kvc_attn_opt opt = attn_opt();
    if (window) opt.window = 5;
    if (!window) opt.spans = spans.dl();
    refused(KVC_E_UNSUPPORTED, {"opt.window", "opt.spans"}, [&](kvc_error* err) {
      return kvc_attn_cross(cache_->forward, 1, &opt, decoder_.q.dl(), encoder_.k.dl(),
                            encoder_.v.dl(), out_.dl(), nullptr, err);
    });
  }
  cache_->finish();
  ASSERT_EQ(cache_->begin({1}, {5}), KVC_OK);
  refused(KVC_E_INVALID_STATE, {"layer 1", "cross_lengths", "0"},
          [&](kvc_error* err) { return attend(1, true, nullptr, err); });
}

TEST_F(Cross, BeginRefusesBadEncoderLengths) {
  const auto refused = [&](kvc_status status, std::initializer_list<const char*> parts,
                           const std::vector<int64_t>& lengths) {
    expect_refused(*cache_, status, parts, [&](kvc_error* err) {
      return cache_->begin_with({{1, 2}, {1, 1}, {}, lengths}, err);
    });
  };
  refused(KVC_E_OUT_OF_RANGE, {"cross_lengths", "sequence 2", "-1"}, {1, -1});
  refused(KVC_E_OUT_OF_RANGE, {"cross_lengths", "sequence 1", "11", "10"}, {11, 0});
  refused(KVC_E_OUT_OF_RANGE, {"cross_lengths"}, {INT64_MAX, 0});
  refused(KVC_E_OUT_OF_RANGE, {"cross_lengths"}, {INT64_MIN, 0});
  ASSERT_EQ(cache_->begin_with({{1, 2}, {1, 1}, {}, {3, 0}}), KVC_OK);
  cache_->finish();
  refused(KVC_E_INVALID_STATE, {"cross_lengths", "sequence 1", "3", "it has 1"}, {2, 2});
  EXPECT_EQ(cache_->begin_with({{1, 2}, {1, 1}, {}, {0, 2}}), KVC_OK);
  Net net({attention_layer()});
  Cache plain(net.config);
  ASSERT_EQ(kvc_seq_add(plain.get(), 1, nullptr), KVC_OK);
  expect_refused(plain, KVC_E_UNSUPPORTED, {"cross_lengths", "CROSS"}, [&](kvc_error* err) {
    return plain.begin_with({{1}, {1}, {}, {1}}, err);
  });
}

TEST_F(Cross, EncoderTokensThatNeverFitAreSaidAtOnce) {
  Net net({cross_layer()}, 2);
  Cache cache(net.config);
  ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  expect_refused(cache, KVC_E_NEVER_FITS, {"sequence 1", "3 pages", "2"}, [&](kvc_error* err) {
    return cache.begin_with({{1}, {1}, {}, {9}}, err);
  });
  ASSERT_EQ(cache.begin_with({{1}, {1}, {}, {8}}), KVC_OK);
  cache.finish();
  add_tokens(cache, 1, 1000);  // tokens take no pages where every layer is CROSS
  ASSERT_EQ(kvc_seq_add(cache.get(), 2, nullptr), KVC_OK);
  const kvc_error error = expect_refused(cache, KVC_E_NO_PAGES, {"1 missing"}, [&](kvc_error* err) {
    return cache.begin_with({{2}, {1}, {}, {1}}, err);
  });
  EXPECT_EQ(error.detail, 1);
}

TEST_F(Cross, HasNoRotation) {
  const kvc_rope rope = rope_of(KVC_ROPE_ON_APPEND);
  kvc_layer layer = cross_layer();
  layer.rope = &rope;
  Net net({layer});
  expect_error(KVC_E_UNSUPPORTED, {"layers[0]", "rope", "1", "CROSS"},
               [&](kvc_error* err) { return plan_status(net.config, err); });
}

}  // namespace
}  // namespace kvc::test
