// Rotary embeddings through the C interface: modes, styles, positions given by the caller,
// sections. LONGROPE: longrope_test. Frequencies: tests/unit.
#include "tests/capi/layers.h"

namespace kvc::test {
namespace {

// Angles of the four pairs of a row (KVC_ROPE_HALF): row position of each pair times its frequency.
std::vector<double> turned(std::vector<double> row, const std::vector<double>& positions) {
  const size_t pairs = row.size() / 2;
  for (size_t i = 0; i < pairs; ++i) {
    const double angle =
        positions[i] * std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(pairs));
    const double x = row[i], y = row[i + pairs];
    row[i] = x * std::cos(angle) - y * std::sin(angle);
    row[i + pairs] = x * std::sin(angle) + y * std::cos(angle);
  }
  return row;
}

HostTensor& stored_k(const Cache& cache, int64_t begin, int64_t end, HostTensor& k) {
  EXPECT_EQ(kvc_debug_get_layer(cache.get(), 1, 0, begin, end, k.dl(), nullptr, nullptr, nullptr),
            KVC_OK);
  return k;
}

void expect_stored(HostTensor& k, int64_t row, const std::vector<double>& expected) {
  for (size_t d = 0; d < expected.size(); ++d)
    EXPECT_NEAR(k.get(row, 0, static_cast<int64_t>(d)), expected[d], 1e-5) << "row " << row;
}

// One rotated layer, sequence 1.
struct RopeNet {
  explicit RopeNet(const kvc_rope& r) : rope(r), net({layer_with(&rope)}), cache(net.config) {
    EXPECT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  }
  static kvc_layer layer_with(const kvc_rope* rope) {
    kvc_layer layer = attention_layer();
    layer.rope = rope;
    return layer;
  }
  kvc_rope rope;
  Net net;
  Cache cache;
};

TEST(Rope, BothModesAndStylesGiveTheSameAttention) {
  Tokens tokens(20);
  for (const kvc_rope_mode mode : {KVC_ROPE_ON_APPEND, KVC_ROPE_ON_READ}) {
    for (const kvc_rope_style style : {KVC_ROPE_HALF, KVC_ROPE_INTERLEAVED}) {
      // Interleaved pairs of permuted rows are the half pairs of the rows; V is not rotated.
      Tokens given(20);
      for (int64_t t = 0; t < 20; ++t) {
        for (int64_t d = 0; d < kDim; ++d) {
          const int64_t from = style == KVC_ROPE_HALF ? d : d / 2 + d % 2 * kDim / 2;
          for (int64_t h = 0; h < kHeads; ++h) given.q.set(tokens.q.get(t, h, from), t, h, d);
          given.k.set(tokens.k.get(t, 0, from), t, 0, d);
        }
      }
      kvc_rope rope = rope_of(mode);
      rope.style = style;
      RopeNet net(rope);
      HostTensor out(Elem::kF32, {20, kHeads, kDim});
      for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{0, 9}, {9, 1}, {10, 10}})
        attend_rows(net.cache, 1, 0, given, begin, count, out);
      for (int64_t p = 0; p < 20; ++p) {
        const auto turn = [&](std::vector<double> row, int64_t key) {
          return rotated(std::move(row), static_cast<double>(key >= 0 ? key : p));
        };
        expect_row(out, p, {tokens, key_range(0, p + 1), turn}, p);
      }
      HostTensor k(Elem::kF32, {20, 1, kDim});
      stored_k(net.cache, 0, 20, k);
      if (mode == KVC_ROPE_ON_READ) {
        EXPECT_LE(largest_difference(k, given.k), 0) << "stored unrotated";
      } else if (style == KVC_ROPE_HALF) {
        for (int64_t p = 0; p < 20; ++p)
          expect_stored(k, p, rotated(row_of(tokens.k, p, 0), static_cast<double>(p)));
      }
    }
  }
}

TEST(Rope, AttentionFactorMultipliesWhatWasTurned) {
  kvc_rope rope = rope_of(KVC_ROPE_ON_APPEND);
  rope.attention_factor = 2.5;
  rope.rotary_dim = 4;
  RopeNet net(rope);
  Tokens tokens(3);
  HostTensor out(Elem::kF32, {3, kHeads, kDim}), k(Elem::kF32, {3, 1, kDim});
  attend_rows(net.cache, 1, 0, tokens, 0, 3, out);
  stored_k(net.cache, 0, 3, k);
  for (int64_t p = 0; p < 3; ++p) {
    std::vector<double> row = row_of(tokens.k, p, 0), head(row.begin(), row.begin() + 4);
    head = rotated(head, static_cast<double>(p));
    for (size_t d = 0; d < 4; ++d) row[d] = 2.5 * head[d];
    expect_stored(k, p, row);
  }
}

TEST(Rope, PositionsOfTheCallerTurnAndDoNothingElse) {
  kvc_rope rope = rope_of(KVC_ROPE_ON_APPEND);
  kvc_layer layer = attention_layer(3);
  layer.rope = &rope;
  Net net({layer});
  Cache cache(net.config);
  ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  Tokens tokens(6);
  HostTensor given(Elem::kI32, {6}, {.extra_rows = 2, .byte_offset = 8}),
      out(Elem::kF32, {6, kHeads, kDim}), got(Elem::kI32, {6});
  const int32_t numbers[] = {7, 7, 100, 2, 0, -3};
  for (int i = 0; i < 6; ++i) given.set(numbers[i], i);
  kvc_error error{};
  ASSERT_EQ(cache.begin_with({{1}, {6}, {}, {}, given.dl()}, &error), KVC_OK) << error.message;
  expect_ok([&](kvc_error* err) { return kvc_forward_positions(cache.forward, got.dl(), err); });
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(got.get(i), numbers[i]);
    given.set(55, i);  // was copied
  }
  ASSERT_EQ(kvc_attn(cache.forward, 0, nullptr, tokens.q.dl(), tokens.k.dl(), tokens.v.dl(),
                     out.dl(), nullptr, nullptr),
            KVC_OK);
  cache.end();
  for (int64_t p = 0; p < 6; ++p) {
    const auto turn = [&](std::vector<double> row, int64_t key) {
      return rotated(std::move(row), numbers[key >= 0 ? key : p]);
    };
    expect_row(out, p, {tokens, key_range(p - 2, p + 1), turn}, p);
  }
  EXPECT_EQ(info_of(cache, 1).last_position, 5) << "lengths count tokens";
  ASSERT_EQ(cache.begin({1}, {1}), KVC_OK);
  ASSERT_EQ(kvc_forward_positions(cache.forward, got.dl(), nullptr), KVC_OK);
  EXPECT_EQ(got.get(0), 6);
}

TEST(Rope, SectionsTurnByTheirOwnRow) {
  for (const kvc_rope_section_layout layout :
       {KVC_ROPE_SECTIONS_CONTIGUOUS, KVC_ROPE_SECTIONS_INTERLEAVED}) {
    kvc_rope rope = rope_of(KVC_ROPE_ON_APPEND);
    rope.num_sections = 3;
    rope.section_layout = layout;
    rope.sections[0] = 2, rope.sections[1] = 1, rope.sections[2] = 1;
    // Pairs 0..3: contiguous 0 0 1 2; interleaved 0 1 2 and, section 0 having two, 0.
    const std::vector<size_t> section = layout == KVC_ROPE_SECTIONS_CONTIGUOUS
                                            ? std::vector<size_t>{0, 0, 1, 2}
                                            : std::vector<size_t>{0, 1, 2, 0};
    RopeNet net(rope);
    Tokens tokens(5);
    HostTensor rows(Elem::kI32, {3, 5}, {.row_gap = 2}), flat(Elem::kI32, {5}),
        out(Elem::kF32, {5, kHeads, kDim});
    HostTensor got(Elem::kI32, {3, 5}, {.row_gap = 4}), first(Elem::kI32, {5}),
        few(Elem::kI32, {2, 5}), k(Elem::kF32, {5, 1, kDim});
    for (int64_t s = 0; s < 3; ++s) {
      for (int64_t t = 0; t < 5; ++t)
        rows.set(static_cast<double>(10 * s + t * (s + 1)), s, t),
            flat.set(static_cast<double>(3 * t), t);
    }
    ASSERT_EQ(net.cache.begin_with({{1}, {5}, {}, {}, rows.dl()}), KVC_OK);
    expect_ok(
        [&](kvc_error* err) { return kvc_forward_positions(net.cache.forward, got.dl(), err); });
    expect_ok(
        [&](kvc_error* err) { return kvc_forward_positions(net.cache.forward, first.dl(), err); });
    for (int64_t t = 0; t < 5; ++t) {
      for (int64_t s = 0; s < 3; ++s) EXPECT_EQ(got.get(s, t), rows.get(s, t));
      EXPECT_EQ(first.get(t), rows.get(0, t)) << "row 0";
    }
    EXPECT_TRUE(got.padding_untouched());
    expect_refused(net.cache, KVC_E_SHAPE, {"out", "2", "3"}, [&](kvc_error* err) {
      return kvc_forward_positions(net.cache.forward, few.dl(), err);
    });
    EXPECT_TRUE(few.is_untouched());
    ASSERT_EQ(kvc_attn(net.cache.forward, 0, nullptr, tokens.q.dl(), tokens.k.dl(), tokens.v.dl(),
                       out.dl(), nullptr, nullptr),
              KVC_OK);
    net.cache.end();
    stored_k(net.cache, 0, 5, k);
    const auto angles = [&](int64_t t) {
      std::vector<double> positions;
      for (const size_t s : section) positions.push_back(rows.get(static_cast<int64_t>(s), t));
      return positions;
    };
    for (int64_t t = 0; t < 5; ++t) {
      expect_stored(k, t, turned(row_of(tokens.k, t, 0), angles(t)));
      const auto turn = [&](std::vector<double> row, int64_t key) {
        return turned(std::move(row), angles(key >= 0 ? key : t));
      };
      expect_row(out, t, {tokens, key_range(0, t + 1), turn}, t);
    }
    ASSERT_EQ(kvc_seq_pop(net.cache.get(), 1, 5, nullptr), KVC_OK);
    ASSERT_EQ(net.cache.begin_with({{1}, {5}, {}, {}, flat.dl()}), KVC_OK);
    ASSERT_EQ(kvc_kv_append(net.cache.forward, 0, tokens.k.dl(), tokens.v.dl(), nullptr), KVC_OK);
    net.cache.end();
    stored_k(net.cache, 0, 5, k);
    for (int64_t t = 0; t < 5; ++t)
      // All sections alike
      expect_stored(k, t, rotated(row_of(tokens.k, t, 0), static_cast<double>(3 * t)));
    ASSERT_EQ(net.cache.begin({1}, {1}), KVC_OK);
    HostTensor one(Elem::kI32, {1, 1});
    expect_ok(
        [&](kvc_error* err) { return kvc_forward_positions(net.cache.forward, one.dl(), err); });
    EXPECT_EQ(one.get(0, 0), 5) << "not given: those of the tokens";
  }
}

TEST(Rope, BeginRefusesBadPositions) {
  kvc_rope rope = rope_of(KVC_ROPE_ON_APPEND);
  rope.num_sections = 2;
  rope.sections[0] = rope.sections[1] = 2;
  RopeNet net(rope);
  const auto refused = [&](kvc_status status, std::initializer_list<const char*> parts,
                           DLTensor* positions) {
    expect_refused(net.cache, status, parts, [&](kvc_error* err) {
      return net.cache.begin_with({{1}, {4}, {}, {}, positions}, err);
    });
  };
  HostTensor few(Elem::kI32, {3}), short_rows(Elem::kI32, {2, 3}), three(Elem::kI32, {3, 4}),
      one(Elem::kI32, {1, 4});
  HostTensor cube(Elem::kI32, {1, 2, 4}), floats(Elem::kF32, {4}), there(Elem::kI32, {2, 4}),
      apart(Elem::kI32, {4});
  there.dl()->device = {kDLCUDA, 0};
  int64_t stride = 2;
  apart.dl()->strides = &stride;
  refused(KVC_E_SHAPE, {"positions", "3", "4"}, few.dl());
  refused(KVC_E_SHAPE, {"positions", "3", "4"}, short_rows.dl());
  refused(KVC_E_SHAPE, {"positions", "3", "2"}, three.dl());
  refused(KVC_E_SHAPE, {"positions", "1", "2"}, one.dl());
  refused(KVC_E_SHAPE, {"positions", "3", "1 or 2"}, cube.dl());
  refused(KVC_E_SHAPE, {"positions", "2", "1"}, apart.dl());
  refused(KVC_E_DTYPE, {"positions", "float32", "int32"}, floats.dl());
  refused(KVC_E_DEVICE_MISMATCH, {"positions"}, there.dl());
  RopeNet reading(rope_of(KVC_ROPE_ON_READ));
  HostTensor good(Elem::kI32, {4});
  expect_refused(reading.cache, KVC_E_UNSUPPORTED, {"positions", "ON_READ"}, [&](kvc_error* err) {
    return reading.cache.begin_with({{1}, {4}, {}, {}, good.dl()}, err);
  });
}

TEST(Rope, ThePlanRefusesFieldsThatDontGoTogether) {
  const std::vector<float> ones(kDim / 2, 1.0f), bad{1, 1, -1, 1};
  const auto refused = [](kvc_status status, std::initializer_list<const char*> parts,
                          const std::function<void(kvc_rope&)>& change) {
    kvc_rope rope = rope_of(KVC_ROPE_ON_APPEND);
    change(rope);
    Net net({RopeNet::layer_with(&rope)});
    expect_error(status, parts, [&](kvc_error* err) { return plan_status(net.config, err); });
  };
  refused(KVC_E_INVALID_ARGUMENT, {"rope->mode", "theta", "500"},
          [](kvc_rope& r) { r.mode = KVC_ROPE_NONE, r.theta = 500; });
  refused(KVC_E_INVALID_ARGUMENT, {"rope->factor", "8"}, [](kvc_rope& r) { r.factor = 8; });
  refused(KVC_E_INVALID_ARGUMENT, {"rope->original_context", "4096"},
          [](kvc_rope& r) { r.original_context = 4096; });
  refused(KVC_E_INVALID_ARGUMENT, {"rope->long_freq_factors"},
          [&](kvc_rope& r) { r.long_freq_factors = ones.data(); });
  refused(KVC_E_INVALID_ARGUMENT, {"rope->beta_fast", "32", "LLAMA3"}, [](kvc_rope& r) {
    r.scaling = KVC_ROPE_SCALING_LLAMA3, r.factor = 8, r.original_context = 100, r.beta_fast = 32;
  });
  refused(KVC_E_OUT_OF_RANGE, {"rope->factor", "0"},
          [](kvc_rope& r) { r.scaling = KVC_ROPE_SCALING_YARN, r.original_context = 100; });
  refused(KVC_E_OUT_OF_RANGE, {"rope->original_context", "0"},
          [](kvc_rope& r) { r.scaling = KVC_ROPE_SCALING_LLAMA3, r.factor = 8; });
  refused(KVC_E_INVALID_ARGUMENT, {"rope->high_freq_factor", "2", "3"}, [](kvc_rope& r) {
    r.scaling = KVC_ROPE_SCALING_LLAMA3, r.factor = 8, r.original_context = 100,
    r.low_freq_factor = 3, r.high_freq_factor = 2;
  });
  refused(KVC_E_INVALID_ARGUMENT, {"rope->long_freq_factors", "NULL", "LONGROPE"},
          [&](kvc_rope& r) {
            r.scaling = KVC_ROPE_SCALING_LONGROPE, r.original_context = 100, r.num_freq_factors = 4,
            r.freq_factors = ones.data();
          });
  refused(KVC_E_OUT_OF_RANGE, {"rope->long_freq_factors[2]", "-1"},
          [&](kvc_rope& r) { r = long_rope(KVC_ROPE_ON_READ, ones, bad, 10); });
  refused(KVC_E_UNSUPPORTED, {"rope->scaling", "4"}, [](kvc_rope& r) { r.scaling = 4; });
  refused(KVC_E_UNSUPPORTED, {"rope->reserved", "1"}, [](kvc_rope& r) { r.reserved = 1; });
  refused(KVC_E_OUT_OF_RANGE, {"rope->attention_factor", "-1"},
          [](kvc_rope& r) { r.attention_factor = -1; });
  refused(KVC_E_OUT_OF_RANGE, {"rope->num_sections", "5"}, [](kvc_rope& r) { r.num_sections = 5; });
  refused(KVC_E_OUT_OF_RANGE, {"rope->num_sections", "-1"},
          [](kvc_rope& r) { r.num_sections = -1; });
  refused(KVC_E_INVALID_ARGUMENT, {"rope->sections", "3", "4"},
          [](kvc_rope& r) { r.num_sections = 2, r.sections[0] = 3; });
  refused(KVC_E_INVALID_ARGUMENT, {"rope->sections[2]", "1", "2"},
          [](kvc_rope& r) { r.num_sections = 2, r.sections[0] = 3, r.sections[2] = 1; });
  refused(KVC_E_OUT_OF_RANGE, {"rope->sections[0]", "-1"},
          [](kvc_rope& r) { r.num_sections = 2, r.sections[0] = -1, r.sections[1] = 5; });
  refused(KVC_E_UNSUPPORTED, {"rope->num_sections", "2", "ON_READ"}, [](kvc_rope& r) {
    r.mode = KVC_ROPE_ON_READ, r.num_sections = 2, r.sections[0] = r.sections[1] = 2;
  });
  refused(KVC_E_UNSUPPORTED, {"rope->section_layout", "2"}, [](kvc_rope& r) {
    r.num_sections = 2, r.sections[0] = r.sections[1] = 2, r.section_layout = 2;
  });
  refused(KVC_E_INVALID_ARGUMENT, {"rope->section_layout", "INTERLEAVED"},
          [](kvc_rope& r) { r.section_layout = 1; });
}

}  // namespace
}  // namespace kvc::test
