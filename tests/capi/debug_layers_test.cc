// Debugging of every kind of layer: kvc_debug_get_layer, kvc_debug_get_mla and their set functions,
// kvc_debug_get_kv among mixed layers.
#include "tests/capi/layers.h"

namespace kvc::test {
namespace {

constexpr int64_t kLatent = kRank + kRopeDim;

// Layers: attention, K = V, MLA, CROSS, SHARED with 0, STATE, NONE, a smaller attention layer.
// Sequence 1 has 10 tokens and 6 encoder tokens; sequence 2 is its fork at 9.
class DebugLayers : public testing::Test {
 protected:
  DebugLayers() {
    kvc_layer narrow = attention_layer();
    narrow.k_dim = 4;
    narrow.v_dim = 2;
    net_ = std::make_unique<Net>(std::vector<kvc_layer>{
        attention_layer(), joint_layer(), mla_layer(), cross_layer(), shared_layer(0),
        state_layer(states_), layer_of_kind(KVC_LAYER_NONE), narrow});
    net_->config.state_stride = -1;
    cache_ = std::make_unique<Cache>(net_->config);
    EXPECT_EQ(kvc_seq_add(get(), 1, nullptr), KVC_OK);
    fill(9, 6, 0);
    EXPECT_EQ(kvc_state_checkpoint(get(), 1, nullptr), KVC_OK);
    fill(1, 0, 9);
    EXPECT_EQ(kvc_seq_fork(get(), 1, 2, 9, nullptr), KVC_OK);
  }
  kvc_cache* get() const { return cache_->get(); }
  void fill(int64_t count, int64_t encoder, int64_t begin) {
    Request request{{1}, {count}};
    if (encoder != 0) request.cross_lengths = {encoder};
    ASSERT_EQ(cache_->begin_with(request), KVC_OK);
    kvc_forward* fwd = cache_->forward;
    for (const auto& [layer, tokens] :
         {std::pair<int32_t, Tokens*>{0, &plain_}, {1, &joint_}, {7, &narrow_}}) {
      Rows k(tokens->k, begin, count), v(tokens->v, begin, count);
      ASSERT_EQ(kvc_kv_append(fwd, layer, k.dl(), layer == 1 ? nullptr : v.dl(), nullptr), KVC_OK);
    }
    Rows latent(latent_.k, begin, count);
    ASSERT_EQ(kvc_mla_append(fwd, 2, latent.dl(), nullptr), KVC_OK);
    if (encoder != 0) {
      Rows q(encoder_.q, 0, count), k(encoder_.k, 0, encoder), v(encoder_.v, 0, encoder);
      HostTensor out(Elem::kF32, {count, kHeads, kDim});
      ASSERT_EQ(kvc_attn_cross(fwd, 3, nullptr, q.dl(), k.dl(), v.dl(), out.dl(), nullptr, nullptr),
                KVC_OK);
    }
    cache_->end();
  }
  std::vector<int64_t> shape_{2};
  std::vector<kvc_state_spec> states_{state_spec(shape_)};
  std::unique_ptr<Net> net_;
  std::unique_ptr<Cache> cache_;
  Tokens plain_{10, 1}, joint_{10, 2}, latent_{10, 3, kHeads, kLatent, kRank}, encoder_{10, 4},
      narrow_{10, 5, kHeads, 4, 2};
};

TEST_F(DebugLayers, GetReadsAnyLayerThatKeepsPages) {
  for (const auto& [layer, tokens, count] : {std::tuple<int32_t, Tokens*, int64_t>{0, &plain_, 10},
                                             {1, &joint_, 10},
                                             {2, &latent_, 10},
                                             {3, &encoder_, 6},
                                             {4, &plain_, 10},
                                             {7, &narrow_, 10}}) {
    const bool has_v = layer != 1 && layer != 2;
    const int64_t begin = 3, n = count - begin;
    HostTensor k(Elem::kF32, {n, 1, tokens->k.size(2)}, {.extra_rows = 1, .row_gap = 3}),
        v(Elem::kF32, {n, 1, tokens->v.size(2)});
    expect_ok([&, l = layer, c = count](kvc_error* err) {
      return kvc_debug_get_layer(get(), 1, l, begin, c, k.dl(), has_v ? v.dl() : nullptr, nullptr,
                                 err);
    });
    for (int64_t t = 0; t < n; ++t) {
      for (int64_t d = 0; d < k.size(2); ++d)
        EXPECT_EQ(k.get(t, 0, d), tokens->k.get(begin + t, 0, d)) << "layer " << layer;
      for (int64_t d = 0; has_v && d < v.size(2); ++d)
        EXPECT_EQ(v.get(t, 0, d), tokens->v.get(begin + t, 0, d)) << "layer " << layer;
    }
    EXPECT_TRUE(k.padding_untouched());
    HostTensor rounded(Elem::kBF16, {1, 1, tokens->k.size(2)});
    ASSERT_EQ(kvc_debug_get_layer(get(), 1, layer, 5, 6, rounded.dl(), nullptr, nullptr, nullptr),
              KVC_OK);
    EXPECT_EQ(rounded.get(0, 0, 1), round_to(Elem::kBF16, tokens->k.get(5, 0, 1)));
    int64_t none_shape[] = {0, 1, tokens->k.size(2)};
    DLTensor none{nullptr, {kDLCPU, 0}, 3, {kDLFloat, 32, 1}, none_shape, nullptr, 0};
    EXPECT_EQ(kvc_debug_get_layer(get(), 1, layer, 4, 4, &none, nullptr, nullptr, nullptr), KVC_OK)
        << "an empty range";
  }
}

TEST_F(DebugLayers, SetWritesAsStoredAndLeavesSiblingsAlone) {
  for (const int32_t layer : {0, 1, 2, 3, 4, 7}) {
    const bool has_v = layer != 1 && layer != 2;
    const int64_t k_dim = layer == 2   ? kLatent
                          : layer == 7 ? 4
                                       : kDim,
                  v_dim = layer == 7 ? 2 : kDim;
    HostTensor k(Elem::kF32, {2, 1, k_dim}), v(Elem::kF32, {2, 1, v_dim}),
        got_k(Elem::kF32, {2, 1, k_dim}), got_v(Elem::kF32, {2, 1, v_dim});
    HostTensor old_k(Elem::kF32, {2, 1, k_dim}), sibling(Elem::kF32, {2, 1, k_dim}),
        around(Elem::kF32, {1, 1, k_dim}), around_after(Elem::kF32, {1, 1, k_dim});
    Random random(static_cast<uint64_t>(layer) + 70);
    k.fill_random(random);
    v.fill_random(random);
    ASSERT_EQ(kvc_debug_get_layer(get(), 2, layer, 3, 5, old_k.dl(), nullptr, nullptr, nullptr),
              KVC_OK);
    ASSERT_EQ(kvc_debug_get_layer(get(), 1, layer, 5, 6, around.dl(), nullptr, nullptr, nullptr),
              KVC_OK);
    expect_ok([&](kvc_error* err) {
      return kvc_debug_set_layer(get(), 1, layer, 3, k.dl(), has_v ? v.dl() : nullptr, nullptr,
                                 err);
    });
    ASSERT_EQ(kvc_debug_get_layer(get(), 1, layer, 3, 5, got_k.dl(), has_v ? got_v.dl() : nullptr,
                                  nullptr, nullptr),
              KVC_OK);
    EXPECT_LE(largest_difference(k, got_k), 0);
    if (has_v) {
      EXPECT_LE(largest_difference(v, got_v), 0);
    }
    ASSERT_EQ(kvc_debug_get_layer(get(), 2, layer, 3, 5, sibling.dl(), nullptr, nullptr, nullptr),
              KVC_OK);
    EXPECT_LE(largest_difference(old_k, sibling), 0) << "layer " << layer;
    ASSERT_EQ(
        kvc_debug_get_layer(get(), 1, layer, 5, 6, around_after.dl(), nullptr, nullptr, nullptr),
        KVC_OK);
    EXPECT_LE(largest_difference(around, around_after), 0);
    EXPECT_EQ(kvc_cache_check(get(), nullptr), KVC_OK);
  }
}

TEST_F(DebugLayers, RefuseBadArguments) {
  HostTensor k(Elem::kF32, {2, 1, kDim}), v(Elem::kF32, {2, 1, kDim}),
      latent(Elem::kF32, {2, 1, kLatent});
  const auto refused = [&](kvc_status status, std::initializer_list<const char*> parts, kvc_seq seq,
                           int32_t layer, int64_t begin, DLTensor* k_tensor, DLTensor* v_tensor) {
    expect_refused(*cache_, status, parts, [&](kvc_error* err) {
      return kvc_debug_get_layer(get(), seq, layer, begin, begin + 2, k_tensor, v_tensor, nullptr,
                                 err);
    });
    expect_refused(*cache_, status, parts, [&](kvc_error* err) {
      return kvc_debug_set_layer(get(), seq, layer, begin, k_tensor, v_tensor, nullptr, err);
    });
  };
  refused(KVC_E_NOT_FOUND, {"sequence 9"}, 9, 0, 0, k.dl(), nullptr);
  refused(KVC_E_OUT_OF_RANGE, {"layer 8"}, 1, 8, 0, k.dl(), nullptr);
  refused(KVC_E_OUT_OF_RANGE, {"layer -1"}, 1, -1, 0, k.dl(), nullptr);
  refused(KVC_E_UNSUPPORTED, {"layer 5", "STATE"}, 1, 5, 0, k.dl(), nullptr);
  refused(KVC_E_UNSUPPORTED, {"layer 6", "NONE"}, 1, 6, 0, k.dl(), nullptr);
  refused(KVC_E_OUT_OF_RANGE, {"[9, 11)", "sequence 1", "10"}, 1, 0, 9, k.dl(), nullptr);
  refused(KVC_E_OUT_OF_RANGE, {"[5, 7)", "sequence 1", "6"}, 1, 3, 5, k.dl(), nullptr);
  refused(KVC_E_OUT_OF_RANGE, {"[-1, 1)"}, 1, 0, -1, k.dl(), nullptr);
  refused(KVC_E_INVALID_ARGUMENT, {"k", "v", "NULL"}, 1, 0, 0, nullptr, nullptr);
  refused(KVC_E_INVALID_ARGUMENT, {"v", "layer 1"}, 1, 1, 0, k.dl(), v.dl());
  refused(KVC_E_INVALID_ARGUMENT, {"v", "layer 2"}, 1, 2, 0, latent.dl(), v.dl());
  refused(KVC_E_SHAPE, {"k", "8", "12"}, 1, 2, 0, k.dl(), nullptr);
  refused(KVC_E_SHAPE, {"v", "8", "2"}, 1, 7, 0, nullptr, v.dl());
  HostTensor heads(Elem::kF32, {2, 2, kDim}), rank(Elem::kF32, {2, kDim}),
      integers(Elem::kI32, {2, 1, kDim}), there(Elem::kF32, {2, 1, kDim});
  there.dl()->device = {kDLCUDA, 0};
  refused(KVC_E_SHAPE, {"k", "2", "1"}, 1, 0, 0, heads.dl(), nullptr);
  refused(KVC_E_SHAPE, {"k", "2", "3"}, 1, 0, 0, rank.dl(), nullptr);
  refused(KVC_E_DTYPE, {"v", "int32"}, 1, 0, 0, nullptr, integers.dl());
  refused(KVC_E_DEVICE_MISMATCH, {"k"}, 1, 0, 0, there.dl(), nullptr);
  HostTensor three(Elem::kF32, {3, 1, kDim});
  expect_refused(*cache_, KVC_E_SHAPE, {"k", "2", "3"}, [&](kvc_error* err) {
    return kvc_debug_get_layer(get(), 1, 0, 0, 3, k.dl(), nullptr, nullptr, err);
  });
  expect_refused(*cache_, KVC_E_SHAPE, {"v", "3", "2"}, [&](kvc_error* err) {
    return kvc_debug_set_layer(get(), 1, 0, 0, k.dl(), three.dl(), nullptr, err);
  });
  expect_error(KVC_E_INVALID_ARGUMENT, {"cache"}, [&](kvc_error* err) {
    return kvc_debug_get_layer(nullptr, 1, 0, 0, 2, k.dl(), nullptr, nullptr, err);
  });
  expect_error(KVC_E_INVALID_ARGUMENT, {"cache"}, [&](kvc_error* err) {
    return kvc_debug_set_layer(nullptr, 1, 0, 0, k.dl(), nullptr, nullptr, err);
  });
  ASSERT_EQ(cache_->begin({1}, {1}), KVC_OK);
  expect_refused(*cache_, KVC_E_BUSY, {"sequence 1", "open forward"}, [&](kvc_error* err) {
    return kvc_debug_set_layer(get(), 1, 0, 0, k.dl(), nullptr, nullptr, err);
  });
  for (HostTensor* tensor : {&k, &v, &latent, &heads, &rank, &integers})
    EXPECT_TRUE(tensor->is_untouched());
  EXPECT_EQ(kvc_debug_get_layer(get(), 1, 0, 0, 2, k.dl(), v.dl(), nullptr, nullptr), KVC_OK);
}

TEST_F(DebugLayers, GetKvLeavesOtherKindsAsTheyAre) {
  HostTensor k(Elem::kF32, {8, 4, 1, kDim}), v(Elem::kF32, {8, 4, 1, kDim}),
      zero(Elem::kF32, {8, 4, 1, kDim});
  expect_ok([&](kvc_error* err) {
    return kvc_debug_get_kv(get(), 1, 2, 6, k.dl(), v.dl(), nullptr, err);
  });
  k.for_each([&](int64_t layer, int64_t t, int64_t, int64_t d) {
    const double k_value = k.get(layer, t, 0, d), v_value = v.get(layer, t, 0, d);
    const auto expect_value = [](double got, HostTensor& from, int64_t row, int64_t column) {
      if (column < from.size(2)) {
        EXPECT_EQ(got, from.get(row, 0, column));
      } else {
        EXPECT_TRUE(std::isnan(got)) << "the rest of a smaller layer";
      }
    };
    switch (layer) {
      case 0:
        expect_value(k_value, plain_.k, t + 2, d), expect_value(v_value, plain_.v, t + 2, d);
        break;
      case 1:
        expect_value(k_value, joint_.k, t + 2, d);
        EXPECT_TRUE(std::isnan(v_value)) << "K = V: K only";
        break;
      case 7:
        expect_value(k_value, narrow_.k, t + 2, d), expect_value(v_value, narrow_.v, t + 2, d);
        break;
      default: EXPECT_TRUE(std::isnan(k_value) && std::isnan(v_value)) << "layer " << layer;
    }
  });
  zero.for_each([&](int64_t l, int64_t t, int64_t h, int64_t d) { zero.set(0.25, l, t, h, d); });
  expect_ok([&](kvc_error* err) {
    return kvc_debug_set_kv(get(), 1, 2, zero.dl(), zero.dl(), nullptr, err);
  });
  HostTensor row(Elem::kF32, {4, 1, kDim}), latent(Elem::kF32, {4, 1, kLatent});
  for (const int32_t layer : {0, 1}) {
    ASSERT_EQ(kvc_debug_get_layer(get(), 1, layer, 2, 6, row.dl(), nullptr, nullptr, nullptr),
              KVC_OK);
    EXPECT_EQ(row.get(3, 0, 7), 0.25);
  }
  ASSERT_EQ(kvc_debug_get_layer(get(), 1, 2, 2, 6, latent.dl(), nullptr, nullptr, nullptr), KVC_OK);
  EXPECT_EQ(latent.get(3, 0, 7), latent_.k.get(5, 0, 7)) << "MLA is not touched";
  ASSERT_EQ(kvc_debug_get_layer(get(), 1, 3, 2, 6, row.dl(), nullptr, nullptr, nullptr), KVC_OK);
  EXPECT_EQ(row.get(3, 0, 7), encoder_.k.get(5, 0, 7)) << "nor CROSS";
}

TEST_F(DebugLayers, MlaReadsAndWritesTheLatents) {
  HostTensor got(Elem::kF32, {8, 4, kLatent}), value(Elem::kF16, {8, 4, kLatent + 3});
  expect_ok(
      [&](kvc_error* err) { return kvc_debug_get_mla(get(), 1, 2, 6, got.dl(), nullptr, err); });
  got.for_each([&](int64_t layer, int64_t t, int64_t d, int64_t) {
    if (layer == 2) {
      EXPECT_EQ(got.get(layer, t, d), latent_.k.get(t + 2, 0, d));
    } else {
      EXPECT_TRUE(std::isnan(got.get(layer, t, d))) << "layer " << layer << " is not MLA";
    }
  });
  value.for_each([&](int64_t l, int64_t t, int64_t d, int64_t) {
    value.set(0.5 * static_cast<double>(t) + d, l, t, d);
  });
  expect_ok(
      [&](kvc_error* err) { return kvc_debug_set_mla(get(), 1, 4, value.dl(), nullptr, err); });
  HostTensor all(Elem::kF32, {8, 10, kLatent}), sibling(Elem::kF32, {8, 9, kLatent});
  ASSERT_EQ(kvc_debug_get_mla(get(), 1, 0, 10, all.dl(), nullptr, nullptr), KVC_OK);
  ASSERT_EQ(kvc_debug_get_mla(get(), 2, 0, 9, sibling.dl(), nullptr, nullptr), KVC_OK);
  for (int64_t t = 0; t < 10; ++t) {
    for (int64_t d = 0; d < kLatent; ++d) {
      const bool written = t >= 4 && t < 8;
      EXPECT_EQ(all.get(2, t, d),
                written ? 0.5 * static_cast<double>(t - 4) + d : latent_.k.get(t, 0, d));
      if (t < 9) {
        EXPECT_EQ(sibling.get(2, t, d), latent_.k.get(t, 0, d));
      }
    }
  }
}

TEST_F(DebugLayers, MlaRefusesBadArguments) {
  HostTensor good(Elem::kF32, {8, 2, kLatent}), layers(Elem::kF32, {7, 2, kLatent}),
      dim(Elem::kF32, {8, 2, kLatent - 1});
  HostTensor rank(Elem::kF32, {8, 2, 1, kLatent}), integers(Elem::kI32, {8, 2, kLatent});
  const auto refused = [&](kvc_status status, std::initializer_list<const char*> parts, kvc_seq seq,
                           int64_t begin, DLTensor* latent) {
    expect_refused(*cache_, status, parts, [&](kvc_error* err) {
      return kvc_debug_get_mla(get(), seq, begin, begin + 2, latent, nullptr, err);
    });
    expect_refused(*cache_, status, parts, [&](kvc_error* err) {
      return kvc_debug_set_mla(get(), seq, begin, latent, nullptr, err);
    });
  };
  refused(KVC_E_NOT_FOUND, {"sequence 9"}, 9, 0, good.dl());
  refused(KVC_E_OUT_OF_RANGE, {"[9, 11)", "10"}, 1, 9, good.dl());
  refused(KVC_E_OUT_OF_RANGE, {"[-2, 0)"}, 1, -2, good.dl());
  refused(KVC_E_INVALID_ARGUMENT, {"latent", "NULL"}, 1, 0, nullptr);
  refused(KVC_E_SHAPE, {"latent", "7", "8"}, 1, 0, layers.dl());
  refused(KVC_E_SHAPE, {"latent", "11", "12"}, 1, 0, dim.dl());
  refused(KVC_E_SHAPE, {"latent", "4", "3"}, 1, 0, rank.dl());
  refused(KVC_E_DTYPE, {"latent", "int32"}, 1, 0, integers.dl());
  expect_error(KVC_E_INVALID_ARGUMENT, {"cache"}, [&](kvc_error* err) {
    return kvc_debug_get_mla(nullptr, 1, 0, 2, good.dl(), nullptr, err);
  });
  expect_error(KVC_E_INVALID_ARGUMENT, {"cache"}, [&](kvc_error* err) {
    return kvc_debug_set_mla(nullptr, 1, 0, good.dl(), nullptr, err);
  });
  ASSERT_EQ(cache_->begin({1}, {1}), KVC_OK);
  expect_refused(*cache_, KVC_E_BUSY, {"sequence 1", "open forward"}, [&](kvc_error* err) {
    return kvc_debug_set_mla(get(), 1, 0, good.dl(), nullptr, err);
  });
  EXPECT_TRUE(good.is_untouched() && integers.is_untouched());
}

TEST(DebugOtherCaches, NameTheMissingKindOrStorage) {
  HostTensor k(Elem::kF32, {1, 1, 1, kDim}), latent(Elem::kF32, {1, 1, kLatent}),
      rows(Elem::kF32, {1, 1, kDim});
  const auto check = [&](kvc_layer layer, kvc_storage storage, const char* kv, const char* mla,
                         const char* one) {
    Net net({layer});
    net.config.storage = storage;
    Cache cache(net.config);
    add_tokens(cache, 1, 2);
    const auto refused = [&](const char* part, const Call& fn) {
      if (part != nullptr) expect_refused(cache, KVC_E_UNSUPPORTED, {part}, fn);
    };
    refused(kv, [&](kvc_error* err) {
      return kvc_debug_get_kv(cache.get(), 1, 0, 1, k.dl(), nullptr, nullptr, err);
    });
    refused(kv, [&](kvc_error* err) {
      return kvc_debug_set_kv(cache.get(), 1, 0, k.dl(), nullptr, nullptr, err);
    });
    refused(mla, [&](kvc_error* err) {
      return kvc_debug_get_mla(cache.get(), 1, 0, 1, latent.dl(), nullptr, err);
    });
    refused(mla, [&](kvc_error* err) {
      return kvc_debug_set_mla(cache.get(), 1, 0, latent.dl(), nullptr, err);
    });
    refused(one, [&](kvc_error* err) {
      return kvc_debug_get_layer(cache.get(), 1, 0, 0, 1, rows.dl(), nullptr, nullptr, err);
    });
    refused(one, [&](kvc_error* err) {
      return kvc_debug_set_layer(cache.get(), 1, 0, 0, rows.dl(), nullptr, nullptr, err);
    });
    EXPECT_TRUE(k.is_untouched() && latent.is_untouched() && rows.is_untouched());
  };
  check(mla_layer(), KVC_STORAGE_OWNED, "ATTENTION", nullptr, nullptr);
  check(attention_layer(), KVC_STORAGE_OWNED, nullptr, "MLA", nullptr);
  check(attention_layer(), KVC_STORAGE_NONE, "storage", "storage", "storage");
}

TEST(DebugOtherCaches, SettingASharedPageNeedsAPage) {
  Net net({mla_layer()}, 3);
  Cache cache(net.config);
  add_tokens(cache, 1, 12);
  ASSERT_EQ(kvc_seq_fork(cache.get(), 1, 2, -1, nullptr), KVC_OK);
  HostTensor latent(Elem::kF32, {1, 3, kLatent}), rows(Elem::kF32, {3, 1, kLatent});
  for (const Call& fn : {Call([&](kvc_error* err) {
                           return kvc_debug_set_mla(cache.get(), 2, 2, latent.dl(), nullptr, err);
                         }),
                         Call([&](kvc_error* err) {
                           return kvc_debug_set_layer(cache.get(), 2, 0, 2, rows.dl(), nullptr,
                                                      nullptr, err);
                         })}) {
    EXPECT_EQ(expect_refused(cache, KVC_E_NO_PAGES, {"sequence 2", "2 missing"}, fn).detail, 2);
  }
}

}  // namespace
}  // namespace kvc::test
