// Windows of layers and of sequences: what is seen, what is kept, what is refused.
#include "tests/capi/layers.h"

namespace kvc::test {
namespace {

// Appends `count` tokens cut into forwards of these lengths, again and again.
void append_in(Cache& cache, int32_t layer, Tokens& tokens, int64_t count,
               const std::vector<int64_t>& lengths, HostTensor& out,
               const kvc_attn_opt* opt = nullptr) {
  for (int64_t done = 0, i = 0; done < count; ++i) {
    const int64_t length = std::min(count - done, lengths[static_cast<size_t>(i) % lengths.size()]);
    attend_rows(cache, 1, layer, tokens, done, length, out, opt);
    done += length;
  }
}

TEST(LayerWindow, AQuerySeesTheLastKeysOnlyHoweverThePromptWasCut) {
  for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{23}, {7, 1, 9, 6}, {1}}) {
    for (const int64_t window : {1, 4, 5, 22, 23, 24}) {
      Net net({attention_layer(window)});
      Cache cache(net.config);
      Tokens tokens(23);
      HostTensor out(Elem::kF32, {23, kHeads, kDim});
      ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
      append_in(cache, 0, tokens, 23, lengths, out);
      for (int64_t p = 0; p < 23; ++p)
        expect_row(out, p, {tokens, key_range(p - window + 1, p + 1)}, p);
      EXPECT_EQ(length_of(cache, 1), 23) << "lengths never shrink";
      EXPECT_EQ(static_cast<int64_t>(pages_of(cache, 1, 0).size()),
                6 - std::max<int64_t>(0, 24 - window) / 4);
      EXPECT_EQ(kvc_cache_check(cache.get(), nullptr), KVC_OK);
    }
  }
}

TEST(LayerWindow, AChunkStartsAtItsMultiple) {
  for (const int64_t chunk : {1, 6, 8, 30}) {
    Net net({attention_layer(0, chunk)});
    Cache cache(net.config);
    Tokens tokens(23);
    HostTensor out(Elem::kF32, {23, kHeads, kDim});
    ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
    append_in(cache, 0, tokens, 23, {5, 3, 1}, out);
    for (int64_t p = 0; p < 23; ++p)
      expect_row(out, p, {tokens, key_range(p / chunk * chunk, p + 1)}, p);
    EXPECT_EQ(static_cast<int64_t>(pages_of(cache, 1, 0).size()), 6 - 23 / chunk * chunk / 4);
  }
}

TEST(LayerWindow, HundredThousandTokensHoldOnlyTheWindowsPages) {
  constexpr int64_t kWindow = 1024, kTokens = 100000, kPage = 16, kStep = 512;
  Net net({attention_layer(), attention_layer(kWindow)});
  net.config.storage = KVC_STORAGE_NONE;
  net.config.page_size = kPage;
  net.config.max_tokens_per_forward = kStep;
  net.config.max_seq_len = kTokens;
  net.config.num_pages = kTokens / kPage + (kWindow - 1 + kStep + kPage - 1) / kPage + 1;
  Cache cache(net.config);
  kvc_layer_info layer{};
  layer.struct_size = sizeof layer;
  ASSERT_EQ(kvc_plan_layer_get(cache.plan(), 1, &layer, nullptr), KVC_OK);
  int64_t needed = 0;
  ASSERT_EQ(kvc_plan_request_pages(cache.plan(), kTokens, &needed, nullptr), KVC_OK);
  EXPECT_EQ(needed, net.config.num_pages);
  ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  for (int64_t done = 0; done < kTokens; done += kStep) {
    kvc_error error{};
    ASSERT_EQ(cache.begin({1}, {std::min(kStep, kTokens - done)}, &error), KVC_OK) << error.message;
    cache.end();
    ASSERT_LE(static_cast<int64_t>(pages_of(cache, 1, layer.group).size()), kWindow / kPage + 2)
        << done;
  }
  EXPECT_EQ(length_of(cache, 1), kTokens);
  EXPECT_EQ(static_cast<int64_t>(pages_of(cache, 1, 1 - layer.group).size()), kTokens / kPage);
  EXPECT_LE(stats_of(cache).pages_peak, needed);
  EXPECT_EQ(kvc_cache_check(cache.get(), nullptr), KVC_OK);
}

TEST(LayerWindow, ALongPromptGivesTheSameOutputHoweverItWasCut) {
  constexpr int64_t kTokens = 5000, kWindow = 1024;
  Tokens tokens(kTokens, 5);
  std::unique_ptr<HostTensor> whole;
  for (const int64_t cuts : {1, 3, 17}) {
    Net net({attention_layer(kWindow)}, kTokens / 16 + 10);
    net.config.page_size = 16;
    Cache cache(net.config);
    ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
    auto out =
        std::make_unique<HostTensor>(Elem::kF32, std::vector<int64_t>{kTokens, kHeads, kDim});
    append_in(cache, 0, tokens, kTokens, {(kTokens + cuts - 1) / cuts}, *out);
    EXPECT_EQ(stats_of(cache).forwards, static_cast<uint64_t>(cuts));
    if (whole == nullptr) {
      for (const int64_t p : {int64_t{0}, kWindow - 1, kWindow, int64_t{3001}, kTokens - 1})
        expect_row(*out, p, {tokens, key_range(p - kWindow + 1, p + 1)}, p);
      whole = std::move(out);
    } else {
      EXPECT_LE(largest_difference(*whole, *out), 1e-5) << cuts << " forwards";
    }
  }
}

TEST(LayerWindow, AnAbortedForwardDropsNothing) {
  Net net({attention_layer(5)});
  Cache cache(net.config);
  add_tokens(cache, 1, 9);
  const Snapshot before = cache.snapshot();
  ASSERT_EQ(cache.begin({1}, {20}), KVC_OK);
  cache.abort();
  Snapshot after = cache.snapshot();
  after.stats = before.stats;
  EXPECT_EQ(difference(before, after), "");
  EXPECT_EQ(kvc_cache_check(cache.get(), nullptr), KVC_OK);
}

TEST(LayerWindow, PopAndForkIntoDroppedTokensAreRefusedWithTheNearestPosition) {
  Net net({attention_layer(), attention_layer(6)});
  Cache cache(net.config);
  add_tokens(cache, 1,
             // The next query sees 15..19 behind it: pages 0, 1 and 2 of the second group are gone
             20);
  const kvc_seq_info info = info_of(cache, 1);
  EXPECT_EQ(info.first_position, 12);
  EXPECT_EQ(info.last_position, 19);
  EXPECT_EQ(info.num_pages, 5 + 2);
  for (const kvc_seq_op op : {KVC_SEQ_FORK, KVC_SEQ_POP}) {
    for (const auto& [pos, nearest] :
         {std::pair<int64_t, int64_t>{20, 20}, {17, 17}, {16, 0}, {9, 0}, {8, 0}, {0, 0}}) {
      int64_t got = -1, below = -1, above = -1;
      expect_ok(
          [&, p = pos](kvc_error* err) { return kvc_seq_can(cache.get(), 1, op, p, &got, err); });
      EXPECT_EQ(got, nearest) << "position " << pos;
      expect_ok([&, p = pos](kvc_error* err) {
        return kvc_seq_positions(cache.get(), 1, op, p, &below, &above, err);
      });
      EXPECT_EQ(below, nearest) << "position " << pos;
      EXPECT_EQ(above, pos == nearest ? pos : 17) << "position " << pos;
    }
  }
  kvc_error error = expect_refused(
      cache, KVC_E_OUT_OF_RANGE,
      {"pos = 16", "sequence 1", "the window of 6 tokens of layer group 1", "0 and 17"},
      [&](kvc_error* err) { return kvc_seq_fork(cache.get(), 1, 2, 16, err); });
  EXPECT_EQ(error.detail, 0);
  error = expect_refused(cache, KVC_E_OUT_OF_RANGE, {"n = 4", "sequence 1", "window", "0 and 17"},
                         [&](kvc_error* err) { return kvc_seq_pop(cache.get(), 1, 4, err); });
  EXPECT_EQ(error.detail, 0);
  expect_ok([&](kvc_error* err) { return kvc_seq_fork(cache.get(), 1, 2, 17, err); });
  expect_ok([&](kvc_error* err) { return kvc_seq_fork(cache.get(), 1, 3, 0, err); });
  expect_ok([&](kvc_error* err) { return kvc_seq_pop(cache.get(), 1, 3, err); });
  EXPECT_EQ(length_of(cache, 1), 17);
  EXPECT_EQ(length_of(cache, 2), 17);
  add_tokens(cache, 2, 9);
  expect_ok([&](kvc_error* err) { return kvc_seq_pop(cache.get(), 1, 17, err); });
  add_tokens(cache, 1, 13);
  EXPECT_EQ(kvc_cache_check(cache.get(), nullptr), KVC_OK);
  for (const kvc_seq seq : {1, 2, 3}) EXPECT_EQ(kvc_seq_remove(cache.get(), seq, nullptr), KVC_OK);
  EXPECT_EQ(kvc_cache_is_empty(cache.get()), 1) << "no page was lost";
}

// Rejected drafts: so many tokens back from the most that there have been, whatever the layers are.
TEST(LayerWindow, APopOfTheTokensInFlightAlwaysWorks) {
  struct Case {
    std::vector<kvc_layer> layers;
    int32_t page_size, forwards;
    int64_t tokens;  // of a forward
  };
  for (const Case& c : {Case{{attention_layer(6)}, 4, 1, 5},
                        {{attention_layer(), attention_layer(16)}, 16, 2, 8},
                        {{attention_layer(1)}, 1, 1, 1},
                        {{attention_layer(0, 8)}, 4, 3, 3},
                        {{attention_layer(), attention_layer(7), attention_layer(0, 12)}, 3, 1, 20},
                        {{attention_layer(128)}, 16, 1, 9}}) {
    Net net(c.layers);
    net.config.page_size = c.page_size;
    net.config.forwards_in_flight = c.forwards;
    net.config.max_tokens_per_forward = c.tokens;
    net.config.max_seq_len = 400;
    net.config.num_pages = 0;
    int64_t pages = 0;
    ASSERT_EQ(kvc_plan_request_pages(PlanHandle(net.config).get(), 400, &pages, nullptr), KVC_OK);
    net.config.num_pages = pages;  // Exactly what the plan counts: the reserve is never in the way.
    net.config.storage = KVC_STORAGE_NONE;
    Cache cache(net.config);
    Random random(static_cast<uint64_t>(pages));
    const int64_t reserve = c.forwards * c.tokens;
    for (const kvc_seq seq : {1, 2}) {
      int64_t length = 0, most = 0;
      ASSERT_EQ(kvc_seq_add(cache.get(), seq, nullptr), KVC_OK);
      while (length < 400 - c.tokens) {
        const int64_t count = random.range(1, c.tokens);
        kvc_error error{};
        ASSERT_EQ(cache.begin({seq}, {count}, &error), KVC_OK) << error.message;
        most = std::max(most, length + count);
        if (random.chance(0.1)) {
          cache.abort();
          continue;
        }
        cache.finish();
        length += count;
        if (random.chance(0.6)) continue;
        const int64_t least = std::max<int64_t>(0, most - reserve);
        const int64_t left = random.chance(0.3) ? least : random.range(least, length);
        if (left > length) continue;
        ASSERT_EQ(kvc_seq_pop(cache.get(), seq, length - left, &error), KVC_OK) << error.message;
        length = left;
      }
      EXPECT_EQ(kvc_cache_check(cache.get(), nullptr), KVC_OK);
      ASSERT_EQ(kvc_seq_remove(cache.get(), seq, nullptr), KVC_OK);
    }
    EXPECT_EQ(kvc_cache_is_empty(cache.get()), 1);
  }
}

TEST(LayerWindow, KeepsTheTokensInFlightOnlyWhereBothNumbersAreSet) {
  for (const bool sets_both : {false, true}) {
    Net net({attention_layer(6)});
    net.config.max_tokens_per_forward = 20;
    net.config.forwards_in_flight = sets_both ? 1 : 0;
    Cache cache(net.config);
    Tokens tokens(46);
    HostTensor out(Elem::kF32, {46, kHeads, kDim});
    ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
    append_in(cache, 0, tokens, 46, {20}, out);
    // The next query sees 41 to 45; 20 tokens before, one saw 21 to 25.
    EXPECT_EQ(pages_of(cache, 1, 0).size(), sets_both ? 7u : 2u);
    if (!sets_both) {
      EXPECT_EQ(kvc_seq_pop(cache.get(), 1, 20, nullptr), KVC_E_OUT_OF_RANGE);
      continue;
    }
    ASSERT_EQ(kvc_seq_pop(cache.get(), 1, 20, nullptr), KVC_OK);
    attend_rows(cache, 1, 0, tokens, 26, 20, out);
    for (int64_t p = 0; p < 46; ++p) expect_row(out, p, {tokens, key_range(p - 5, p + 1)}, p);
    // A window of the sequence keeps none; the layer's still does.
    ASSERT_EQ(kvc_seq_set_window(cache.get(), 1, 30, 0, nullptr), KVC_OK);
    EXPECT_EQ(pages_of(cache, 1, 0).size(), 7u);
    ASSERT_EQ(kvc_seq_set_window(cache.get(), 1, 9, 0, nullptr), KVC_OK);
    EXPECT_EQ(pages_of(cache, 1, 0).size(), 3u) << "38 to 45";
  }
}

// Where the next query sees nothing behind it, the tokens there may be gone; a dropped page can't
// be written to, though.
TEST(LayerWindow, GoingBackBehindDroppedTokensStartsOnAPageEdge) {
  struct Case {
    kvc_layer layer;
    int64_t length;
    std::vector<int64_t> possible;  // pages of 4
  };
  const std::vector<Case> cases{{attention_layer(1), 10, {0, 4, 8, 9, 10}},
                                {attention_layer(0, 6), 21, {0, 12, 18, 19, 20, 21}},
                                {attention_layer(0, 8), 21, {0, 8, 16, 17, 18, 19, 20, 21}},
                                {attention_layer(0, 8), 16, {0, 8, 16}},
                                {attention_layer(2), 11, {0, 9, 10, 11}}};
  for (const Case& one : cases) {
    const int64_t size = one.layer.window + one.layer.chunk;
    SCOPED_TRACE("window or chunk " + std::to_string(size));
    for (const kvc_storage storage : {KVC_STORAGE_OWNED, KVC_STORAGE_NONE}) {
      Net net({one.layer});
      net.config.storage = storage;
      Cache cache(net.config);
      add_tokens(cache, 1, one.length);
      for (int64_t pos = 0; pos <= one.length; ++pos) {
        int64_t expected = one.possible.front(), nearest = -1;
        for (const int64_t possible : one.possible) {
          if (possible <= pos) expected = possible;
        }
        ASSERT_EQ(kvc_seq_can(cache.get(), 1, KVC_SEQ_POP, pos, &nearest, nullptr), KVC_OK);
        EXPECT_EQ(nearest, expected) << "position " << pos;
        kvc_error error{};
        const kvc_status status = kvc_seq_fork(cache.get(), 1, 2, pos, &error);
        EXPECT_EQ(status, expected == pos ? KVC_OK : KVC_E_OUT_OF_RANGE)
            << "position " << pos << ": " << error.message;
        if (status != KVC_OK) {
          EXPECT_EQ(error.detail, expected);
          continue;
        }
        ASSERT_EQ(kvc_cache_check(cache.get(), &error), KVC_OK) << error.message;
        for (int step = 0; step < 6; ++step) add_tokens(cache, 2, 1);
        ASSERT_EQ(kvc_cache_check(cache.get(), &error), KVC_OK)
            << error.message << " after position " << pos;
        ASSERT_EQ(kvc_seq_remove(cache.get(), 2, nullptr), KVC_OK);
      }
    }
  }
}

TEST(LayerWindow, DroppedTokensAreNotReadBack) {
  Net net({attention_layer(6)});
  Cache cache(net.config);
  add_tokens(cache, 1, 20);
  HostTensor all(Elem::kF32, {20, 1, kDim}), debug(Elem::kF32, {1, 20, 1, kDim}),
      kept(Elem::kF32, {8, 1, kDim});
  const auto refused = [&](const Call& fn) {
    EXPECT_EQ(expect_refused(cache, KVC_E_OUT_OF_RANGE, {"window", "12"}, fn).detail, 12)
        << "the first kept";
  };
  refused([&](kvc_error* err) {
    return kvc_debug_get_kv(cache.get(), 1, 0, 20, debug.dl(), nullptr, nullptr, err);
  });
  refused([&](kvc_error* err) {
    return kvc_debug_get_layer(cache.get(), 1, 0, 11, 13, all.dl(), nullptr, nullptr, err);
  });
  refused([&](kvc_error* err) {
    return kvc_debug_set_layer(cache.get(), 1, 0, 0, all.dl(), nullptr, nullptr, err);
  });
  refused([&](kvc_error* err) {
    return kvc_debug_set_kv(cache.get(), 1, 0, debug.dl(), nullptr, nullptr, err);
  });
  expect_ok([&](kvc_error* err) {
    return kvc_debug_get_layer(cache.get(), 1, 0, 12, 20, kept.dl(), nullptr, nullptr, err);
  });
  ASSERT_EQ(kvc_seq_add(cache.get(), 2, nullptr), KVC_OK);
  ASSERT_EQ(cache.begin({2}, {1}), KVC_OK);
  refused(
      [&](kvc_error* err) { return kvc_kv_gather(cache.forward, 0, 1, all.dl(), nullptr, err); });
  EXPECT_TRUE(all.is_untouched() && debug.is_untouched());
}

TEST(LayerWindow, ACallMayNarrowTheLayersWindowAndNotWidenIt) {
  Net net({attention_layer(), attention_layer(6)});
  Cache cache(net.config);
  ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  Tokens tokens(15);
  HostTensor out(Elem::kF32, {15, kHeads, kDim});
  kvc_attn_opt opt = attn_opt();
  for (const auto& [layer, window] :
       {std::pair<int32_t, int64_t>{0, 3}, {0, 100}, {1, 6}, {1, 2}, {1, 1}}) {
    opt.window = window;
    ASSERT_EQ(cache.begin({1}, {15}), KVC_OK);
    ASSERT_EQ(kvc_attn(cache.forward, layer, &opt, tokens.q.dl(), tokens.k.dl(), tokens.v.dl(),
                       out.dl(), nullptr, nullptr),
              KVC_OK);
    cache.abort();
    for (int64_t p = 0; p < 15; ++p)
      expect_row(out, p, {tokens, key_range(p - window + 1, p + 1)}, p);
  }
  ASSERT_EQ(cache.begin({1}, {15}), KVC_OK);
  out.poison();
  opt.window = 7;
  expect_refused(cache, KVC_E_OUT_OF_RANGE, {"opt.window = 7", "6"}, [&](kvc_error* err) {
    return kvc_attn(cache.forward, 1, &opt, tokens.q.dl(), tokens.k.dl(), tokens.v.dl(), out.dl(),
                    nullptr, err);
  });
  EXPECT_TRUE(out.is_untouched());
}

TEST(LayerWindow, IsRefusedWhereALayerCannotHaveOne) {
  const std::vector<int64_t> shape{2};
  const std::vector<kvc_state_spec> states{state_spec(shape)};
  kvc_layer state = state_layer(states), none = layer_of_kind(KVC_LAYER_NONE),
            cross = cross_layer(), shared = shared_layer(0);
  for (const auto& [layer, name] : {std::pair<kvc_layer*, const char*>{&state, "STATE"},
                                    {&none, "NONE"},
                                    {&cross, "CROSS"},
                                    {&shared, "SHARED"}}) {
    for (int64_t kvc_layer::*const field : {&kvc_layer::window, &kvc_layer::chunk}) {
      kvc_layer changed = *layer;
      changed.*field = 64;
      Net net({attention_layer(), changed});
      expect_error(KVC_E_UNSUPPORTED, {"layers[1]", "window", "chunk", "64", name},
                   [&](kvc_error* err) { return plan_status(net.config, err); });
    }
  }
  const auto refused = [](kvc_status status, std::initializer_list<const char*> parts,
                          const kvc_layer& layer) {
    Net net({layer});
    expect_error(status, parts, [&](kvc_error* err) { return plan_status(net.config, err); });
  };
  refused(KVC_E_UNSUPPORTED, {"window", "8", "chunk", "16"}, attention_layer(8, 16));
  refused(KVC_E_OUT_OF_RANGE, {"layers[0].window", "-1"}, attention_layer(-1));
  refused(KVC_E_OUT_OF_RANGE, {"layers[0].chunk", "-4"}, attention_layer(0, -4));
  refused(KVC_E_OUT_OF_RANGE, {"layers[0].window"}, attention_layer(int64_t{INT32_MAX} + 1));
  kvc_layer mla = mla_layer();
  mla.window = 5;
  Net net({mla});
  expect_ok([&](kvc_error* err) { return plan_status(net.config, err); });
}

// Of a query at position p with window and sinks of the sequence.
std::vector<int64_t> seen(int64_t p, int64_t window, int64_t sink) {
  std::vector<int64_t> keys;
  for (int64_t key = 0; key <= p; ++key) {
    if (key < sink || key > p - (window - sink)) keys.push_back(key);
  }
  return keys;
}

TEST(SequenceWindow, SeesTheSinksAndTheNewestTokens) {
  for (const auto& [window, sink] :
       {std::pair<int64_t, int64_t>{10, 3}, {10, 0}, {9, 8}, {1, 0}, {12, 4}, {40, 5}}) {
    Net net({attention_layer()});
    Cache cache(net.config);
    ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
    expect_ok([&, w = window, s = sink](kvc_error* err) {
      return kvc_seq_set_window(cache.get(), 1, w, s, err);
    });
    Tokens tokens(40);
    HostTensor out(Elem::kF32, {40, kHeads, kDim});
    append_in(cache, 0, tokens, 40, {3, 11, 1, 6}, out);
    for (int64_t p = 0; p < 40; ++p) {
      EXPECT_LE(seen(p, window, sink).size(), static_cast<size_t>(window));
      expect_row(out, p, {tokens, seen(p, window, sink)}, p);
    }
    const kvc_seq_info info = info_of(cache, 1);
    EXPECT_EQ(info.window, window);
    EXPECT_EQ(info.sink, sink);
    EXPECT_LE(info.num_pages, (sink + 3) / 4 + (window - sink + 3) / 4 + 1);
    EXPECT_EQ(kvc_cache_check(cache.get(), nullptr), KVC_OK);
  }
}

// StreamingLLM: sinks are met at the distance that they have at position window - 1, the other keys
// at their true one.
TEST(SequenceWindow, SinksKeepTheirDistanceWithRopeOnRead) {
  constexpr int64_t kWindow = 9, kSink = 2;
  const kvc_rope rope = rope_of(KVC_ROPE_ON_READ);
  kvc_layer layer = attention_layer();
  layer.rope = &rope;
  Net net({layer});
  Cache cache(net.config);
  ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  ASSERT_EQ(kvc_seq_set_window(cache.get(), 1, kWindow, kSink, nullptr), KVC_OK);
  Tokens tokens(60);
  HostTensor out(Elem::kF32, {60, kHeads, kDim});
  append_in(cache, 0, tokens, 60, {5, 1, 1, 13}, out);
  for (int64_t p = 0; p < 60; ++p) {
    const auto turn = [&](std::vector<double> row, int64_t key) {
      if (key >= 0) return rotated(std::move(row), static_cast<double>(key));
      return rotated(std::move(row),
                     static_cast<double>(-1 - key < kSink ? std::min(p, kWindow - 1) : p));
    };
    expect_row(out, p, {tokens, seen(p, kWindow, kSink), turn}, p);
  }
}

TEST(SequenceWindow, OfAnyWidthWithAsManySinksHidesNothing) {
  for (const int64_t window : {int64_t{1} << 31, int64_t{1} << 62, INT64_MAX - 3, INT64_MAX}) {
    SCOPED_TRACE(window);
    Net net({attention_layer()});
    Cache cache(net.config);
    ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
    ASSERT_EQ(kvc_seq_set_window(cache.get(), 1, window, window - 1, nullptr), KVC_OK);
    Tokens tokens(12);
    HostTensor out(Elem::kF32, {12, kHeads, kDim});
    append_in(cache, 0, tokens, 12, {9, 1}, out);
    for (int64_t p = 0; p < 12; ++p) expect_row(out, p, {tokens, key_range(0, p + 1)}, p);
    EXPECT_EQ(kvc_cache_check(cache.get(), nullptr), KVC_OK);
  }
}

TEST(SequenceWindow, NarrowsTheWindowOfALayer) {
  Net net({attention_layer(5), attention_layer()});
  Cache cache(net.config);
  ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  ASSERT_EQ(kvc_seq_set_window(cache.get(), 1, 3, 0, nullptr), KVC_OK);
  Tokens tokens(12);
  HostTensor out(Elem::kF32, {12, kHeads, kDim});
  append_in(cache, 0, tokens, 12, {4, 1}, out);
  for (int64_t p = 0; p < 12; ++p) expect_row(out, p, {tokens, key_range(p - 2, p + 1)}, p);
  ASSERT_EQ(kvc_seq_set_window(cache.get(), 1, 12, 0, nullptr), KVC_E_OUT_OF_RANGE);
}

TEST(SequenceWindow, SetLaterFreesPagesAtOnceAndMayBeWidenedWhileTheTokensAreThere) {
  Net net({attention_layer()});
  Cache cache(net.config);
  add_tokens(cache, 1, 20);
  EXPECT_EQ(kvc_cache_available_pages(cache.get()), 27);
  expect_ok([&](kvc_error* err) { return kvc_seq_set_window(cache.get(), 1, 8, 2, err); });
  EXPECT_EQ(pages_of(cache, 1, 0).size(), 3u) << "the sinks' page and tokens 12..19";
  EXPECT_EQ(kvc_cache_available_pages(cache.get()), 29);
  kvc_seq_info info = info_of(cache, 1);
  EXPECT_EQ(info.first_position, 12);
  EXPECT_EQ(info.last_position, 19);
  EXPECT_EQ(info.length, 20);
  expect_ok([&](kvc_error* err) { return kvc_seq_set_window(cache.get(), 1, 11, 2, err); });
  const kvc_error error = expect_refused(
      cache, KVC_E_OUT_OF_RANGE, {"window = 12", "sink = 2", "sequence 1", "12"},
      [&](kvc_error* err) { return kvc_seq_set_window(cache.get(), 1, 12, 2, err); });
  EXPECT_EQ(error.detail, 12);
  expect_refused(cache, KVC_E_OUT_OF_RANGE, {"window = 8", "sink = 5", "sequence 1"},
                 [&](kvc_error* err) { return kvc_seq_set_window(cache.get(), 1, 8, 5, err); });
  expect_ok([&](kvc_error* err) { return kvc_seq_set_window(cache.get(), 1, 3, 0, err); });
  EXPECT_EQ(pages_of(cache, 1, 0).size(), 1u) << "the sinks are given up too";
  EXPECT_EQ(kvc_cache_check(cache.get(), nullptr), KVC_OK);
}

TEST(SequenceWindow, IsInheritedByForksAndOutlivesAClearedLength) {
  Net net({attention_layer()});
  Cache cache(net.config);
  add_tokens(cache, 1, 20);
  ASSERT_EQ(kvc_seq_set_window(cache.get(), 1, 8, 2, nullptr), KVC_OK);
  ASSERT_EQ(kvc_seq_fork(cache.get(), 1, 2, -1, nullptr), KVC_OK);
  EXPECT_EQ(info_of(cache, 2).window, 8);
  EXPECT_EQ(info_of(cache, 2).sink, 2);
  const kvc_error error =
      expect_refused(cache, KVC_E_OUT_OF_RANGE, {"pos = 16", "its window of 8 tokens", "and 17"},
                     [&](kvc_error* err) { return kvc_seq_fork(cache.get(), 1, 3, 16, err); });
  EXPECT_EQ(error.detail, 2) << "the sinks";
  add_tokens(cache, 2, 20);
  ASSERT_EQ(kvc_seq_pop(cache.get(), 1, 20, nullptr), KVC_OK)
      << "an empty sequence needs no tokens";
  EXPECT_EQ(info_of(cache, 1).window, 8);
  Tokens tokens(15);
  HostTensor out(Elem::kF32, {15, kHeads, kDim});
  append_in(cache, 0, tokens, 15, {4}, out);
  for (int64_t p = 0; p < 15; ++p) expect_row(out, p, {tokens, seen(p, 8, 2)}, p);
  EXPECT_EQ(kvc_cache_check(cache.get(), nullptr), KVC_OK);
}

TEST(SequenceWindow, GoingBackToTheSinksStartsAnew) {
  Net net({attention_layer()});
  Cache cache(net.config);
  Tokens tokens(20);
  HostTensor out(Elem::kF32, {20, kHeads, kDim});
  ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  ASSERT_EQ(kvc_seq_set_window(cache.get(), 1, 8, 3, nullptr), KVC_OK);
  append_in(cache, 0, tokens, 20, {6}, out);
  expect_ok([&](kvc_error* err) { return kvc_seq_fork(cache.get(), 1, 2, 3, err); });
  expect_ok([&](kvc_error* err) { return kvc_seq_pop(cache.get(), 1, 18, err); });
  for (const kvc_seq seq : {1, 2}) {
    add_tokens(cache, seq, 4);  // nothing of what is there now was ever dropped
    const int64_t length = length_of(cache, seq);
    EXPECT_EQ(info_of(cache, seq).first_position, 0);
    HostTensor k(Elem::kF32, {length, 1, kDim});
    expect_ok([&](kvc_error* err) {
      return kvc_debug_get_layer(cache.get(), seq, 0, 0, length, k.dl(), nullptr, nullptr, err);
    });
    EXPECT_EQ(k.get(1, 0, 3), tokens.k.get(1, 0, 3));
    expect_ok([&](kvc_error* err) { return kvc_seq_pop(cache.get(), seq, 2, err); });
    add_tokens(cache, seq, 12);
    EXPECT_EQ(info_of(cache, seq).num_pages, seq == 1 ? 2 : 3) << "the window moves on as before";
    EXPECT_EQ(kvc_cache_check(cache.get(), nullptr), KVC_OK);
  }
}

TEST(SequenceWindow, ACallsWindowMayNotReachBeyondTheSinks) {
  Net net({attention_layer()});
  Cache cache(net.config);
  add_tokens(cache, 1, 3);
  ASSERT_EQ(kvc_seq_set_window(cache.get(), 1, 10, 4, nullptr), KVC_OK);
  Tokens tokens(2);
  HostTensor out(Elem::kF32, {2, kHeads, kDim});
  ASSERT_EQ(cache.begin({1}, {2}), KVC_OK);
  kvc_attn_opt opt = attn_opt();
  opt.window = 7;
  expect_refused(cache, KVC_E_OUT_OF_RANGE, {"opt.window = 7", "sequence 1", "10", "4", "6"},
                 [&](kvc_error* err) {
                   return kvc_attn(cache.forward, 0, &opt, tokens.q.dl(), tokens.k.dl(),
                                   tokens.v.dl(), out.dl(), nullptr, err);
                 });
  EXPECT_TRUE(out.is_untouched());
  opt.window = 6;
  EXPECT_EQ(kvc_attn(cache.forward, 0, &opt, tokens.q.dl(), tokens.k.dl(), tokens.v.dl(), out.dl(),
                     nullptr, nullptr),
            KVC_OK);
}

TEST(SequenceWindow, RefusesBadArguments) {
  Net net({attention_layer(), attention_layer(16)});
  Cache cache(net.config);
  add_tokens(cache, 1, 5);
  add_tokens(cache, 2, 5);
  const auto refused = [&](kvc_status status, std::initializer_list<const char*> parts, kvc_seq seq,
                           int64_t window, int64_t sink) {
    expect_refused(cache, status, parts, [&](kvc_error* err) {
      return kvc_seq_set_window(cache.get(), seq, window, sink, err);
    });
  };
  refused(KVC_E_NOT_FOUND, {"sequence 9"}, 9, 8, 0);
  refused(KVC_E_INVALID_ARGUMENT, {"window", "0"}, 1, 0, 0);
  refused(KVC_E_INVALID_ARGUMENT, {"window", "-5"}, 1, -5, 0);
  refused(KVC_E_INVALID_ARGUMENT, {"window"}, 1, INT64_MIN, 0);
  refused(KVC_E_INVALID_ARGUMENT, {"sink", "-1"}, 1, 8, -1);
  refused(KVC_E_INVALID_ARGUMENT, {"sink = 8", "7"}, 1, 8, 8);
  refused(KVC_E_INVALID_ARGUMENT, {"sink = 9", "7"}, 1, 8, 9);
  refused(KVC_E_INVALID_ARGUMENT, {"sink"}, 1, 8, INT64_MAX);
  refused(KVC_E_UNSUPPORTED, {"sink = 2", "group 1", "16", "15"}, 1, 17, 2);
  expect_ok([&](kvc_error* err) { return kvc_seq_set_window(cache.get(), 1, INT64_MAX, 2, err); });
  expect_error(KVC_E_INVALID_ARGUMENT, {"cache"},
               [&](kvc_error* err) { return kvc_seq_set_window(nullptr, 1, 8, 0, err); });
  ASSERT_EQ(cache.begin({1}, {1}), KVC_OK);
  refused(KVC_E_BUSY, {"sequence 1", "open forward"}, 1, 8, 0);
  expect_ok([&](kvc_error* err) { return kvc_seq_set_window(cache.get(), 2, 8, 0, err); });
}

TEST(SequenceWindow, IsRefusedWhereNoLayerCanHaveOne) {
  const std::vector<int64_t> shape{2};
  const std::vector<kvc_state_spec> states{state_spec(shape)};
  const auto refused = [](std::initializer_list<const char*> parts,
                          const std::vector<kvc_layer>& layers) {
    Net net(layers);
    Cache cache(net.config);
    ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
    expect_refused(cache, KVC_E_UNSUPPORTED, parts,
                   [&](kvc_error* err) { return kvc_seq_set_window(cache.get(), 1, 8, 0, err); });
  };
  refused({"sequence 1"}, {state_layer(states)});
  refused({"sequence 1"}, {cross_layer()});
  refused({"group 1", "chunk = 32"}, {attention_layer(), attention_layer(0, 32)});
  Net mla({mla_layer()});
  Cache cache(mla.config);
  add_tokens(cache, 1, 20);
  expect_ok([&](kvc_error* err) { return kvc_seq_set_window(cache.get(), 1, 8, 2, err); });
  EXPECT_EQ(pages_of(cache, 1, 0).size(), 3u);
}

}  // namespace
}  // namespace kvc::test
