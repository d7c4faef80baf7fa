// LongRoPE: a sequence answers as if all of its keys had been rotated for the length that it has
// now, whichever way it came to that length, and whatever the mode says.
#include "tests/capi/hf_config.h"
#include "tests/capi/layers.h"
#include "tests/capi/prefix_support.h"
#include "tests/capi/state_files.h"

namespace kvc::test {
namespace {

class LongRope : public testing::TestWithParam<std::pair<kvc_rope_mode, int64_t>> {
 protected:
  LongRope()
      : context_(GetParam().second),
        tokens_(context_ + 40),
        out_(Elem::kF32, {tokens_.q.size(0), kHeads, kDim}) {
    rope_ = long_rope(GetParam().first, short_factors_, long_factors_, context_);
    rope_.attention_factor = 1.19;
    kvc_layer layer = attention_layer();
    layer.rope = &rope_;
    net_ = std::make_unique<Net>(std::vector<kvc_layer>{layer}, 3 * context_);
    net_->config.page_size = 4;
    opt_.flags = KVC_ATTN_BATCH_INVARIANT;
  }

  // Tokens [begin, end) of the stream, as sequence `seq`.
  void append(Cache& cache, kvc_seq seq, int64_t begin, int64_t end) {
    append_all(cache, {{seq, begin, end}});
  }
  struct Part {
    kvc_seq seq;
    int64_t begin, end;
  };
  // In one forward.
  void append_all(Cache& cache, const std::vector<Part>& parts) {
    Request request;
    int64_t total = 0;
    for (const Part& part : parts) {
      request.seqs.push_back(part.seq);
      request.lengths.push_back(part.end - part.begin);
      const std::vector<int32_t> ids = token_ids(part.end, 1);
      request.tokens.insert(request.tokens.end(), ids.begin() + part.begin, ids.end());
      total += part.end - part.begin;
    }
    HostTensor q(Elem::kF32, {total, kHeads, kDim}), k(Elem::kF32, {total, 1, kDim}),
        v(Elem::kF32, {total, 1, kDim}), out(Elem::kF32, {total, kHeads, kDim});
    int64_t row = 0;
    for (const Part& part : parts) {
      for (int64_t token = part.begin; token < part.end; ++token, ++row) {
        copy_row(tokens_.q, token, q, row);
        copy_row(tokens_.k, token, k, row);
        copy_row(tokens_.v, token, v, row);
      }
    }
    kvc_error error{};
    ASSERT_EQ(cache.begin_with(request, &error), KVC_OK) << error.message;
    ASSERT_EQ(kvc_attn(cache.forward, 0, &opt_, q.dl(), k.dl(), v.dl(), out.dl(), nullptr, &error),
              KVC_OK)
        << error.message;
    cache.finish();
    row = 0;
    for (const Part& part : parts) {
      for (int64_t token = part.begin; token < part.end; ++token, ++row)
        copy_row(out, row, out_, token);
    }
  }
  // The last of `length` tokens has the bits that a prompt of as many gives.
  void expect_fresh(int64_t length) {
    HostTensor got(Elem::kF32, {1, kHeads, kDim}), fresh(Elem::kF32, {1, kHeads, kDim});
    copy_row(out_, length - 1, got, 0);
    Cache cache(net_->config);
    ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
    append(cache, 1, 0, length);
    copy_row(out_, length - 1, fresh, 0);
    EXPECT_LE(largest_difference(got, fresh), 0) << length << " tokens";
    expect_formula(length - 1, 0, length);
  }
  // The output of token `token`, which sees tokens from `first` on at positions from 0 on, follows
  // from the formula with the factors of `length` tokens.
  void expect_formula(int64_t token, int64_t first, int64_t length) {
    const std::vector<float>& factors = length > context_ ? long_factors_ : short_factors_;
    const auto turn = [&](std::vector<double> row, int64_t key) {
      const auto position = static_cast<double>((key >= 0 ? key : token) - first);
      for (size_t i = 0; i < kDim / 2; ++i) {
        const double angle = position * std::pow(10000.0, -2.0 * static_cast<double>(i) / kDim) /
                             static_cast<double>(factors[i]);
        double &x = row[i], &y = row[i + kDim / 2];
        const double turned = x * std::cos(angle) - y * std::sin(angle);
        y = rope_.attention_factor * (x * std::sin(angle) + y * std::cos(angle));
        x = rope_.attention_factor * turned;
      }
      return row;
    };
    expect_row(out_, token, {tokens_, key_range(first, token + 1), turn}, token);
  }
  // Lengths on both sides, and what came before.
  std::vector<std::pair<int64_t, int64_t>> ways() const {
    const int64_t c = context_;
    return {{c - 24, c + 9}, {c - 24, c}, {c, c + 1}, {c + 8, c + 30}};
  }

  const int64_t context_;
  const std::vector<float> short_factors_{1, 1.25f, 1.5f, 2}, long_factors_{2, 4, 7, 13};
  kvc_rope rope_{};
  std::unique_ptr<Net> net_;
  Tokens tokens_;
  HostTensor out_;
  kvc_attn_opt opt_ = attn_opt();
};

TEST_P(LongRope, ChunksAnswerAsOneForward) {
  for (const auto& [first, length] : ways()) {
    Cache cache(net_->config);
    ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
    append(cache, 1, 0, first / 2);
    append(cache, 1, first / 2, first);
    if (first < length - 1) append(cache, 1, first, length - 1);
    append(cache, 1, length - 1, length);
    expect_fresh(length);
  }
}

TEST_P(LongRope, APrefixOfALongerOrAShorterRequestAnswersAsOneForward) {
  for (const auto& [shorter, longer] : ways()) {
    for (const bool is_longer_first : {true, false}) {
      Cache cache(net_->config);
      ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
      append(cache, 1, 0, is_longer_first ? longer : shorter);
      const int64_t length = is_longer_first ? shorter : longer;
      const int64_t hit = attach(cache, 2, Query(token_ids(length - 1, 1)));
      ASSERT_GT(hit, 0);
      append(cache, 2, hit, length);
      expect_fresh(length);
    }
  }
}

TEST_P(LongRope, PopAndForkAcrossTheSwitchAnswerAsOneForward) {
  for (const auto& [shorter, longer] : ways()) {
    Cache cache(net_->config);
    ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
    append(cache, 1, 0, longer);
    ASSERT_EQ(kvc_seq_fork(cache.get(), 1, 2, shorter - 1, nullptr), KVC_OK);
    append(cache, 2, shorter - 1, shorter);
    expect_fresh(shorter);
    append(cache, 2, shorter, longer);
    expect_fresh(longer);
    ASSERT_EQ(kvc_seq_pop(cache.get(), 1, longer - shorter + 1, nullptr), KVC_OK);
    append(cache, 1, shorter - 1, shorter);
    expect_fresh(shorter);
  }
}

TEST_P(LongRope, ALoadedSequenceAnswersAsOneForward) {
  for (const auto& [shorter, longer] : ways()) {
    Cache first(net_->config), second(net_->config);
    ASSERT_EQ(kvc_seq_add(first.get(), 1, nullptr), KVC_OK);
    append(first, 1, 0, shorter);
    const Bytes file = saved(first, {1});
    ASSERT_EQ(load(second, {1}, file), KVC_OK);
    append(second, 1, shorter, longer);
    expect_fresh(longer);
  }
}

TEST_P(LongRope, LongAndShortSequencesShareAForward) {
  const int64_t c = context_;
  Cache cache(net_->config);
  for (const kvc_seq seq : {1, 2}) ASSERT_EQ(kvc_seq_add(cache.get(), seq, nullptr), KVC_OK);
  append_all(cache, {{1, 0, c - 3}, {2, 0, 5}});
  append_all(cache, {{2, 5, 9}, {1, c - 3, c + 6}});
  expect_fresh(c + 6);
  append_all(cache, {{1, c + 6, c + 7}, {2, 9, 10}});
  expect_fresh(10);
}

// Dropping tokens brings a sequence back below the switch.
TEST_P(LongRope, AShiftMovesTokensInTheRegimeOfTheNewLength) {
  const int64_t c = context_;
  Cache cache(net_->config);
  ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  append(cache, 1, 0, c + 6);
  ASSERT_EQ(kvc_seq_shift(cache.get(), 1, 0, 10, -10, nullptr), KVC_OK);
  append(cache, 1, c + 6, c + 7);
  expect_formula(c + 6, 10, c - 3);
}

INSTANTIATE_TEST_SUITE_P(Modes, LongRope,
                         testing::Values(std::pair<kvc_rope_mode, int64_t>{KVC_ROPE_ON_APPEND, 64},
                                         std::pair<kvc_rope_mode, int64_t>{KVC_ROPE_ON_READ, 64},
                                         std::pair<kvc_rope_mode, int64_t>{KVC_ROPE_ON_APPEND,
                                                                           1024}));

// What kvc_config_from_hf_json makes of a configuration like Phi-4-mini's: 96 of 128 elements are
// rotated, the factors change behind 4,096 tokens. Fewer heads.
TEST(LongRopeModels, APhiAnswersAsOneForwardOnBothSidesOfItsContext) {
  constexpr int64_t kContext = 4096, kPairs = 48, kLength = kContext + 9;
  std::string short_list, long_list;
  std::vector<double> short_factors, long_factors;
  for (int64_t i = 0; i < kPairs; ++i) {
    short_factors.push_back(1);
    long_factors.push_back(1 + 0.25 * static_cast<double>(i * i) / 16);
    short_list += std::string(i == 0 ? "" : ", ") + "1.0";
    long_list += (i == 0 ? "" : ", ") + std::to_string(long_factors.back());
  }
  HfModel model(R"({"model_type": "phi3", "hidden_size": 384, "num_attention_heads": 3,
      "num_key_value_heads": 1, "num_hidden_layers": 1, "partial_rotary_factor": 0.75,
      "max_position_embeddings": 131072, "original_max_position_embeddings": 4096,
      "rope_theta": 10000.0, "torch_dtype": "float32", "rope_scaling": {"type": "longrope",
      "short_factor": [)" +
                short_list + R"(], "long_factor": [)" + long_list + "]}}");
  ASSERT_EQ(model.status, KVC_OK) << model.message;
  ASSERT_EQ(model.rope(0).rotary_dim, 2 * kPairs);
  model.config.max_seq_len = kLength;
  model.config.page_size = 16;
  model.config.num_pages = 3 * (kLength / 16 + 1);
  model.config.num_threads = 1;
  Tokens tokens(kLength, 3, 3, 128, 128);
  kvc_attn_opt opt = attn_opt();
  opt.flags = KVC_ATTN_BATCH_INVARIANT;
  const auto expect_formula = [&](HostTensor& out, int64_t token) {
    const std::vector<double>& factors = token + 1 > kContext ? long_factors : short_factors;
    const double amplitude = std::sqrt(1 + std::log(32.0) / std::log(4096.0));
    const auto turn = [&](std::vector<double> row, int64_t key) {
      const auto position = static_cast<double>(key >= 0 ? key : token);
      for (size_t i = 0; i < kPairs; ++i) {
        const double angle =
            position * std::pow(10000.0, -static_cast<double>(i) / kPairs) / factors[i];
        double &x = row[i], &y = row[i + kPairs];
        const double turned = x * std::cos(angle) - y * std::sin(angle);
        y = amplitude * (x * std::sin(angle) + y * std::cos(angle));
        x = amplitude * turned;
      }
      return row;
    };
    expect_row(out, token, {tokens, key_range(0, token + 1), turn}, token);
  };
  HostTensor whole(Elem::kF32, {kLength, 3, 128}), below(Elem::kF32, {kLength, 3, 128});
  for (const int64_t length : {kLength, kContext}) {
    Cache cache(model.config);
    ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
    attend_rows(cache, 1, 0, tokens, 0, length, length == kLength ? whole : below, &opt);
  }
  expect_formula(whole, kLength - 1);
  expect_formula(below, kContext - 1);
  const auto expect_bits = [&](HostTensor& out, HostTensor& of, int64_t token) {
    for (int64_t head = 0; head < 3; ++head)
      for (int64_t d = 0; d < 128; ++d)
        ASSERT_EQ(out.get(token, head, d), of.get(token, head, d)) << "token " << token;
  };
  Cache cache(model.config);
  HostTensor out(Elem::kF32, {kLength, 3, 128});
  ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  attend_rows(cache, 1, 0, tokens, 0, kContext - 7, out, &opt);
  ASSERT_EQ(kvc_seq_fork(cache.get(), 1, 2, -1, nullptr), KVC_OK);
  attend_rows(cache, 1, 0, tokens, kContext - 7, 16, out, &opt);
  expect_bits(out, whole, kLength - 1);
  ASSERT_EQ(kvc_seq_pop(cache.get(), 1, 10, nullptr), KVC_OK);
  attend_rows(cache, 1, 0, tokens, kContext - 1, 1, out, &opt);
  expect_bits(out, below, kContext - 1);
  attend_rows(cache, 1, 0, tokens, kContext, 9, out, &opt);
  expect_bits(out, whole, kLength - 1);
  attend_rows(cache, 2, 0, tokens, kContext - 7, 7, out, &opt);
  expect_bits(out, below, kContext - 1);
}

// Where no sequence gets past original_context, rows can be stored rotated.
TEST(LongRopeLimits, ShortSequencesAloneAreRotatedOnAppend) {
  const std::vector<float> ones(kDim / 2, 1.0f), twos(kDim / 2, 2.0f);
  for (const int64_t max_seq_len : {16, 17}) {
    const kvc_rope rope = long_rope(KVC_ROPE_ON_APPEND, ones, twos, 16);
    kvc_layer layer = attention_layer();
    layer.rope = &rope;
    Net net({layer});
    net.config.max_seq_len = max_seq_len;
    Cache cache(net.config);
    Tokens tokens(16);
    HostTensor out(Elem::kF32, {16, kHeads, kDim}), k(Elem::kF32, {16, 1, kDim});
    ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
    attend_rows(cache, 1, 0, tokens, 0, 16, out);
    ASSERT_EQ(kvc_debug_get_layer(cache.get(), 1, 0, 0, 16, k.dl(), nullptr, nullptr, nullptr),
              KVC_OK);
    EXPECT_EQ(largest_difference(k, tokens.k) == 0, max_seq_len > 16) << max_seq_len;
    for (int64_t p = 0; p < 16; ++p) {
      const auto turn = [&](std::vector<double> row, int64_t key) {
        return rotated(std::move(row), static_cast<double>(key >= 0 ? key : p));
      };
      expect_row(out, p, {tokens, key_range(0, p + 1), turn}, p);
    }
  }
}

TEST(LongRopeLimits, RefusesWhatCannotBeRotatedOnRead) {
  const std::vector<float> ones(kDim / 2, 1.0f), twos(kDim / 2, 2.0f);
  kvc_rope rope = long_rope(KVC_ROPE_ON_APPEND, ones, twos, 16);
  kvc_layer layer = attention_layer();
  layer.rope = &rope;
  Net net({layer});
  Cache cache(net.config);
  ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  HostTensor positions(Elem::kI32, {4});
  expect_refused(cache, KVC_E_UNSUPPORTED, {"desc->positions", "LONGROPE"}, [&](kvc_error* err) {
    return cache.begin_with({{1}, {4}, {}, {}, positions.dl()}, err);
  });
  rope.num_sections = 2;
  rope.sections[0] = rope.sections[1] = kDim / 4;
  expect_error(KVC_E_UNSUPPORTED, {"num_sections", "2", "LONGROPE"},
               [&](kvc_error* err) { return plan_status(net.config, err); });
}

}  // namespace
}  // namespace kvc::test
