// Layers that share, join or keep nothing: SHARED, K = V, NONE; and what holds for the calls on
// every kind.
#include "tests/capi/layers.h"

namespace kvc::test {
namespace {

// ----------------------------------------------------------------------------------------------
// SHARED

class Shared : public testing::Test {
 protected:
  Shared() {
    rope_ = rope_of(KVC_ROPE_ON_APPEND);
    net_.layers[0].rope = &rope_;
    net_.layers[2].num_q_heads = 3;
    cache_ = std::make_unique<Cache>(net_.config);
    add_tokens(*cache_, 1, 2);
    EXPECT_EQ(cache_->begin({1}, {7}), KVC_OK);
  }
  kvc_forward* fwd() const { return cache_->forward; }
  void append() {
    ASSERT_EQ(kvc_kv_append(fwd(), 0, tokens_.k.dl(), tokens_.v.dl(), nullptr), KVC_OK);
  }
  kvc_rope rope_;
  Net net_{{attention_layer(6), mla_layer(), shared_layer(0), shared_layer(1), cross_layer()}};
  std::unique_ptr<Cache> cache_;
  Tokens tokens_{7, 3};
  HostTensor out_{Elem::kF32, {7, kHeads, kDim}};
};

TEST_F(Shared, AttendsLikeItsSource) {
  append();
  ASSERT_EQ(
      kvc_attn(fwd(), 0, nullptr, tokens_.q.dl(), nullptr, nullptr, out_.dl(), nullptr, nullptr),
      KVC_OK);
  HostTensor q(Elem::kF32, {7, 3, kDim}), shared(Elem::kF32, {7, 3, kDim}),
      free(Elem::kF32, {7, 3, kDim});
  for (int64_t t = 0; t < 7; ++t) {
    for (int64_t h = 0; h < 3; ++h) {
      for (int64_t d = 0; d < kDim; ++d) q.set(tokens_.q.get(t, h % 2, d), t, h, d);
    }
  }
  expect_ok([&](kvc_error* err) {
    return kvc_attn(fwd(), 2, nullptr, q.dl(), nullptr, nullptr, shared.dl(), nullptr, err);
  });
  expect_ok([&](kvc_error* err) {
    return kvc_attn_shared_kv(fwd(), 0, nullptr, q.dl(), free.dl(), nullptr, err);
  });
  EXPECT_LE(largest_difference(shared, free), 1e-6);
  for (int64_t t = 0; t < 7; ++t) {
    for (int64_t h = 0; h < 3; ++h) {
      for (int64_t d = 0; d < kDim; ++d)
        EXPECT_NEAR(shared.get(t, h, d), out_.get(t, h % 2, d), 1e-6);
    }
  }
  HostTensor one(Elem::kF32, {7, 1, kDim}), one_out(Elem::kF32, {7, 1, kDim});
  for (int64_t t = 0; t < 7; ++t) {
    for (int64_t d = 0; d < kDim; ++d) one.set(tokens_.q.get(t, 1, d), t, 0, d);
  }
  expect_ok([&](kvc_error* err) {
    return kvc_attn_shared_kv(fwd(), 0, nullptr, one.dl(), one_out.dl(), nullptr, err);
  });
  for (int64_t t = 0; t < 7; ++t) EXPECT_NEAR(one_out.get(t, 0, 5), out_.get(t, 1, 5), 1e-6);
  HostTensor cached(Elem::kF32, {7, 3, kDim});
  expect_ok([&](kvc_error* err) {
    return kvc_attn_cached(fwd(), 2, nullptr, q.dl(), cached.dl(), nullptr, err);
  });
}

TEST_F(Shared, ReadsTheLatentsOfAnMlaLayer) {
  Tokens latents(7, 4, kHeads, kRank + kRopeDim, kRank);
  const kvc_attn_opt opt = scaled();
  HostTensor own(Elem::kF32, {7, kHeads, kRank}), shared(Elem::kF32, {7, kHeads, kRank});
  ASSERT_EQ(
      kvc_attn(fwd(), 1, &opt, latents.q.dl(), latents.k.dl(), nullptr, own.dl(), nullptr, nullptr),
      KVC_OK);
  expect_ok([&](kvc_error* err) {
    return kvc_attn(fwd(), 3, &opt, latents.q.dl(), nullptr, nullptr, shared.dl(), nullptr, err);
  });
  EXPECT_LE(largest_difference(own, shared), 1e-6);
  shared.poison();
  expect_ok([&](kvc_error* err) {
    return kvc_attn_shared_kv(fwd(), 1, &opt, latents.q.dl(), shared.dl(), nullptr, err);
  });
  EXPECT_LE(largest_difference(own, shared), 1e-6);
}

TEST_F(Shared, IsPlannedWithoutPagesOfItsOwn) {
  kvc_layer_info info{};
  info.struct_size = sizeof info;
  ASSERT_EQ(kvc_plan_layer_get(cache_->plan(), 2, &info, nullptr), KVC_OK);
  EXPECT_EQ(info.kind, KVC_LAYER_SHARED);
  EXPECT_EQ(info.source_layer, 0);
  EXPECT_EQ(info.num_q_heads, 3);
  EXPECT_EQ(info.num_kv_heads, 1);
  EXPECT_EQ(info.k_dim, kDim);
  EXPECT_EQ(info.window, 6);
  EXPECT_EQ(info.bytes_per_token, 0u);
  EXPECT_EQ(info.page_bytes, 0u);
  kvc_layer_info source{};
  source.struct_size = sizeof source;
  ASSERT_EQ(kvc_plan_layer_get(cache_->plan(), 0, &source, nullptr), KVC_OK);
  EXPECT_EQ(source.source_layer, -1);
  EXPECT_EQ(info.group, source.group) << "the page table it reads";
  DLManagedTensorVersioned *a = nullptr, *b = nullptr;
  ASSERT_EQ(kvc_export_pool(cache_->get(), 2, KVC_POOL_K, &a, nullptr), KVC_OK);
  ASSERT_EQ(kvc_export_pool(cache_->get(), 0, KVC_POOL_K, &b, nullptr), KVC_OK);
  EXPECT_EQ(a->dl_tensor.data, b->dl_tensor.data) << "the source's pool";
  a->deleter(a);
  b->deleter(b);
}

TEST_F(Shared, RefusesBadCalls) {
  const auto refused = [&](kvc_status status, std::initializer_list<const char*> parts,
                           const Call& fn) {
    expect_refused(*cache_, status, parts, fn);
    EXPECT_TRUE(out_.is_untouched());
  };
  HostTensor three(Elem::kF32, {7, 3, kDim}), none(Elem::kF32, {7, 0, kDim});
  refused(KVC_E_INVALID_STATE, {"layer 2", "layer 0"}, [&](kvc_error* err) {
    return kvc_attn(fwd(), 2, nullptr, three.dl(), nullptr, nullptr, out_.dl(), nullptr, err);
  });
  refused(KVC_E_INVALID_STATE, {"layer 0"}, [&](kvc_error* err) {
    return kvc_attn_shared_kv(fwd(), 0, nullptr, tokens_.q.dl(), out_.dl(), nullptr, err);
  });
  append();
  refused(KVC_E_INVALID_ARGUMENT, {"layer 2", "layer 0"}, [&](kvc_error* err) {
    return kvc_attn(fwd(), 2, nullptr, three.dl(), tokens_.k.dl(), tokens_.v.dl(), out_.dl(),
                    nullptr, err);
  });
  refused(KVC_E_INVALID_STATE, {"kvc_kv_append", "layer 2", "SHARED"}, [&](kvc_error* err) {
    return kvc_kv_append(fwd(), 2, tokens_.k.dl(), tokens_.v.dl(), err);
  });
  refused(KVC_E_INVALID_STATE, {"kvc_attn_self", "layer 2", "SHARED"}, [&](kvc_error* err) {
    return kvc_attn_self(fwd(), 2, nullptr, three.dl(), tokens_.k.dl(), tokens_.v.dl(), out_.dl(),
                         nullptr, err);
  });
  refused(KVC_E_INVALID_STATE, {"kvc_attn_shared_kv", "layer 2", "SHARED"}, [&](kvc_error* err) {
    return kvc_attn_shared_kv(fwd(), 2, nullptr, three.dl(), out_.dl(), nullptr, err);
  });
  refused(KVC_E_INVALID_STATE, {"kvc_attn_shared_kv", "layer 4", "CROSS"}, [&](kvc_error* err) {
    return kvc_attn_shared_kv(fwd(), 4, nullptr, three.dl(), out_.dl(), nullptr, err);
  });
  refused(KVC_E_OUT_OF_RANGE, {"layer 5 out of range: the cache has 5 layers"},
          [&](kvc_error* err) {
            return kvc_attn_shared_kv(fwd(), 5, nullptr, three.dl(), out_.dl(), nullptr, err);
          });
  refused(KVC_E_INVALID_ARGUMENT, {"q"}, [&](kvc_error* err) {
    return kvc_attn_shared_kv(fwd(), 0, nullptr, nullptr, out_.dl(), nullptr, err);
  });
  refused(KVC_E_SHAPE, {"q", "0", "layer 0"}, [&](kvc_error* err) {
    return kvc_attn_shared_kv(fwd(), 0, nullptr, none.dl(), out_.dl(), nullptr, err);
  });
  refused(KVC_E_SHAPE, {"out", "2", "3"}, [&](kvc_error* err) {
    return kvc_attn_shared_kv(fwd(), 0, nullptr, three.dl(), out_.dl(), nullptr, err);
  });
  refused(KVC_E_SHAPE, {"q", "2", "3"}, [&](kvc_error* err) {
    return kvc_attn(fwd(), 2, nullptr, tokens_.q.dl(), nullptr, nullptr, out_.dl(), nullptr, err);
  });
  Net wide({attention_layer()});
  wide.layers[0].num_kv_heads = 2;
  Cache cache(wide.config);
  ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  ASSERT_EQ(cache.begin({1}, {7}), KVC_OK);
  expect_refused(cache, KVC_E_SHAPE, {"q", "3", "2 kv heads"}, [&](kvc_error* err) {
    return kvc_attn_shared_kv(cache.forward, 0, nullptr, three.dl(), out_.dl(), nullptr, err);
  });
}

TEST_F(Shared, ThePlanRefusesBadSources) {
  const auto refused = [](kvc_status status, std::initializer_list<const char*> parts,
                          std::vector<kvc_layer> layers,
                          const std::function<void(kvc_layer&, kvc_config&)>& change = {}) {
    Net net(std::move(layers));
    if (change) change(net.layers.back(), net.config);
    expect_error(status, parts, [&](kvc_error* err) { return plan_status(net.config, err); });
  };
  refused(KVC_E_OUT_OF_RANGE, {"layers[1].source_layer", "1"},
          {attention_layer(), shared_layer(1)});
  refused(KVC_E_OUT_OF_RANGE, {"layers[0].source_layer", "0"},
          {shared_layer(0), attention_layer()});
  refused(KVC_E_OUT_OF_RANGE, {"layers[1].source_layer", "-1"},
          {attention_layer(), shared_layer(-1)});
  refused(KVC_E_UNSUPPORTED, {"layers[1].source_layer", "CROSS"}, {cross_layer(), shared_layer(0)});
  refused(KVC_E_UNSUPPORTED, {"layers[2].source_layer", "SHARED"},
          {attention_layer(), shared_layer(0), shared_layer(1)});
  refused(KVC_E_UNSUPPORTED, {"layers[1].source_layer", "0", "layer 1"},
          {attention_layer(), shared_layer(0)},
          [](kvc_layer&, kvc_config& c) { c.layer_begin = 1, c.layer_end = 2; });
  const std::vector<kvc_layer> good{attention_layer(), shared_layer(0)};
  refused(KVC_E_INVALID_ARGUMENT, {"layers[1].k_dim", "4", "8"}, good,
          [](kvc_layer& l, kvc_config&) { l.k_dim = 4; });
  refused(KVC_E_INVALID_ARGUMENT, {"layers[1].v_dim", "4", "8"}, good,
          [](kvc_layer& l, kvc_config&) { l.v_dim = 4; });
  refused(KVC_E_INVALID_ARGUMENT, {"layers[1].num_kv_heads", "2", "1"}, good,
          [](kvc_layer& l, kvc_config&) { l.num_kv_heads = 2; });
  refused(KVC_E_OUT_OF_RANGE, {"layers[1].num_q_heads", "-2"}, good,
          [](kvc_layer& l, kvc_config&) { l.num_q_heads = -2; });
  refused(KVC_E_INVALID_ARGUMENT, {"layers[1].flags", "SHARED"}, good,
          [](kvc_layer& l, kvc_config&) { l.flags = 1; });
  kvc_rope rope = rope_of(KVC_ROPE_ON_READ);
  refused(KVC_E_INVALID_ARGUMENT, {"layers[1].rope->mode", "2", "0"}, good,
          [&](kvc_layer& l, kvc_config&) { l.rope = &rope; });
}

// ----------------------------------------------------------------------------------------------
// K = V

TEST(Joint, OneRowIsKAndV) {
  Net net({joint_layer(), attention_layer()});
  Cache cache(net.config);
  ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  ASSERT_EQ(cache.begin({1}, {9}), KVC_OK);
  Tokens tokens(9);
  HostTensor joint(Elem::kF32, {9, kHeads, kDim}), plain(Elem::kF32, {9, kHeads, kDim});
  expect_ok([&](kvc_error* err) {
    return kvc_attn(cache.forward, 0, nullptr, tokens.q.dl(), tokens.k.dl(), nullptr, joint.dl(),
                    nullptr, err);
  });
  ASSERT_EQ(kvc_attn(cache.forward, 1, nullptr, tokens.q.dl(), tokens.k.dl(), tokens.k.dl(),
                     plain.dl(), nullptr, nullptr),
            KVC_OK);
  EXPECT_LE(largest_difference(joint, plain), 1e-6);
  joint.poison();
  expect_ok(
      [&](kvc_error* err) { return kvc_kv_append(cache.forward, 0, tokens.k.dl(), nullptr, err); });
  expect_ok([&](kvc_error* err) {
    return kvc_attn_self(cache.forward, 0, nullptr, tokens.q.dl(), tokens.k.dl(), nullptr,
                         joint.dl(), nullptr, err);
  });
  EXPECT_LE(largest_difference(joint, plain), 1e-6);
  kvc_layer_info info{};
  info.struct_size = sizeof info;
  ASSERT_EQ(kvc_plan_layer_get(cache.plan(), 0, &info, nullptr), KVC_OK);
  EXPECT_EQ(info.flags, KVC_LAYER_V_IS_K);
  EXPECT_EQ(info.v_dim, kDim);
  EXPECT_EQ(info.v_page_bytes, 0u);
  EXPECT_EQ(info.bytes_per_token, static_cast<uint64_t>(kDim) * 4) << "stored once";
}

TEST(Joint, RefusesAV) {
  Net net({joint_layer()});
  Cache cache(net.config);
  ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  ASSERT_EQ(cache.begin({1}, {3}), KVC_OK);
  Tokens tokens(3);
  HostTensor out(Elem::kF32, {3, kHeads, kDim}), qkv(Elem::kF32, {3, kHeads + 2, kDim});
  const auto refused = [&](kvc_status status, std::initializer_list<const char*> parts,
                           const Call& fn) {
    expect_refused(cache, status, parts, fn);
    EXPECT_TRUE(out.is_untouched());
  };
  kvc_forward* fwd = cache.forward;
  refused(KVC_E_INVALID_ARGUMENT, {"v", "layer 0"}, [&](kvc_error* err) {
    return kvc_attn(fwd, 0, nullptr, tokens.q.dl(), tokens.k.dl(), tokens.v.dl(), out.dl(), nullptr,
                    err);
  });
  refused(KVC_E_INVALID_ARGUMENT, {"k"}, [&](kvc_error* err) {
    return kvc_attn(fwd, 0, nullptr, tokens.q.dl(), nullptr, tokens.v.dl(), out.dl(), nullptr, err);
  });
  refused(KVC_E_INVALID_ARGUMENT, {"v", "layer 0"},
          [&](kvc_error* err) { return kvc_kv_append(fwd, 0, tokens.k.dl(), tokens.v.dl(), err); });
  refused(KVC_E_UNSUPPORTED, {"qkv", "layer 0"}, [&](kvc_error* err) {
    return kvc_attn_fused_qkv(fwd, 0, nullptr, qkv.dl(), out.dl(), err);
  });
  ASSERT_EQ(kvc_kv_append(fwd, 0, tokens.k.dl(), nullptr, nullptr), KVC_OK);
  refused(KVC_E_INVALID_ARGUMENT, {"v_out", "layer 0"}, [&](kvc_error* err) {
    return kvc_kv_gather(fwd, 0, 1, tokens.k.dl(), tokens.v.dl(), err);
  });
  DLManagedTensorVersioned* exported = nullptr;
  refused(KVC_E_UNSUPPORTED, {"layer 0"}, [&](kvc_error* err) {
    return kvc_export_pool(cache.get(), 0, KVC_POOL_V, &exported, err);
  });
  EXPECT_EQ(exported, nullptr);
  kvc_layer uneven = joint_layer();
  uneven.v_dim = 4;
  Net bad({uneven});
  expect_error(KVC_E_INVALID_ARGUMENT, {"flags", "4", "8"},
               [&](kvc_error* err) { return plan_status(bad.config, err); });
  bad.layers[0].v_dim = 0;
  bad.layers[0].v_dtype = {kDLBfloat, 16, 1};
  expect_error(KVC_E_INVALID_ARGUMENT, {"flags", "bfloat16", "float32"},
               [&](kvc_error* err) { return plan_status(bad.config, err); });
}

// ----------------------------------------------------------------------------------------------
// NONE

TEST(NoLayer, IsAPlaceHolderForItsId) {
  Net net({attention_layer(), layer_of_kind(KVC_LAYER_NONE), attention_layer()});
  Cache cache(net.config);
  kvc_layer_info info{};
  info.struct_size = sizeof info;
  ASSERT_EQ(kvc_plan_layer_get(cache.plan(), 1, &info, nullptr), KVC_OK);
  EXPECT_EQ(info.kind, KVC_LAYER_NONE);
  EXPECT_EQ(info.group, -1);
  EXPECT_EQ(info.page_bytes, 0u);
  ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  Tokens tokens(3);
  HostTensor out(Elem::kF32, {3, kHeads, kDim});
  attend_rows(cache, 1, 2, tokens, 0, 3, out);
  expect_row(out, 2, {tokens, key_range(0, 3)}, 2);
  ASSERT_EQ(cache.begin({1}, {3}), KVC_OK);
  out.poison();
  const auto refused = [&](kvc_status status, const Call& fn) {
    expect_refused(cache, status, {"layer 1", "NONE"}, fn);
    EXPECT_TRUE(out.is_untouched());
  };
  kvc_forward* fwd = cache.forward;
  refused(KVC_E_INVALID_STATE, [&](kvc_error* err) {
    return kvc_attn(fwd, 1, nullptr, tokens.q.dl(), tokens.k.dl(), tokens.v.dl(), out.dl(), nullptr,
                    err);
  });
  refused(KVC_E_INVALID_STATE, [&](kvc_error* err) {
    return kvc_attn_cached(fwd, 1, nullptr, tokens.q.dl(), out.dl(), nullptr, err);
  });
  refused(KVC_E_INVALID_STATE,
          [&](kvc_error* err) { return kvc_kv_append(fwd, 1, tokens.k.dl(), tokens.v.dl(), err); });
  refused(KVC_E_INVALID_STATE,
          [&](kvc_error* err) { return kvc_kv_gather(fwd, 1, 1, tokens.k.dl(), nullptr, err); });
  refused(KVC_E_INVALID_STATE, [&](kvc_error* err) {
    return kvc_attn_shared_kv(fwd, 1, nullptr, tokens.q.dl(), out.dl(), nullptr, err);
  });
  refused(KVC_E_INVALID_STATE, [&](kvc_error* err) {
    return kvc_attn_cross(fwd, 1, nullptr, tokens.q.dl(), nullptr, nullptr, out.dl(), nullptr, err);
  });
  DLManagedTensorVersioned* exported = nullptr;
  refused(KVC_E_UNSUPPORTED, [&](kvc_error* err) {
    return kvc_export_pool(cache.get(), 1, KVC_POOL_K, &exported, err);
  });
  EXPECT_EQ(exported, nullptr);
}

TEST(NoLayer, HasNoFields) {
  const auto refused = [](kvc_status status, const char* field,
                          const std::function<void(kvc_layer&)>& change) {
    kvc_layer layer = layer_of_kind(KVC_LAYER_NONE);
    change(layer);
    Net net({attention_layer(), layer});
    expect_error(status, {"layers[1]", field, "NONE"},
                 [&](kvc_error* err) { return plan_status(net.config, err); });
  };
  const kvc_rope rope = rope_of(KVC_ROPE_ON_APPEND);
  refused(KVC_E_INVALID_ARGUMENT, "num_q_heads", [](kvc_layer& l) { l.num_q_heads = 4; });
  refused(KVC_E_INVALID_ARGUMENT, "num_kv_heads", [](kvc_layer& l) { l.num_kv_heads = 4; });
  refused(KVC_E_INVALID_ARGUMENT, "k_dim", [](kvc_layer& l) { l.k_dim = 4; });
  refused(KVC_E_INVALID_ARGUMENT, "v_dim", [](kvc_layer& l) { l.v_dim = 4; });
  refused(KVC_E_INVALID_ARGUMENT, "flags", [](kvc_layer& l) { l.flags = 1; });
  refused(KVC_E_INVALID_ARGUMENT, "source_layer", [](kvc_layer& l) { l.source_layer = 1; });
  refused(KVC_E_INVALID_ARGUMENT, "latent_rank", [](kvc_layer& l) { l.latent_rank = 1; });
  refused(KVC_E_UNSUPPORTED, "rope", [&](kvc_layer& l) { l.rope = &rope; });
}

// ------------------------------------------------------------------------------- what holds for
// all of these calls

TEST(LayerCalls, DeadAndNullForwardsAreAnswered) {
  const std::vector<int64_t> shape{2};
  const std::vector<kvc_state_spec> states{state_spec(shape)};
  Net net({attention_layer(), mla_layer(), cross_layer(), state_layer(states)});
  Cache cache(net.config);
  add_tokens(cache, 1, 1);
  ASSERT_EQ(cache.begin({1}, {1}), KVC_OK);
  kvc_forward* dead = cache.forward;
  cache.finish();
  ASSERT_EQ(cache.begin({1}, {1}), KVC_OK) << "a forward is open while the dead handle is tried";
  Tokens tokens(1);
  HostTensor out(Elem::kF32, {1, kHeads, kDim}), latent(Elem::kF32, {1, kRank + kRopeDim}),
      state(Elem::kF32, {1, 2});
  for (kvc_forward* fwd : {dead, static_cast<kvc_forward*>(nullptr)}) {
    const auto refused = [&](const Call& fn) {
      expect_refused(cache, fwd == nullptr ? KVC_E_INVALID_ARGUMENT : KVC_E_INVALID_STATE, {"fwd"},
                     fn);
    };
    refused([&](kvc_error* err) { return kvc_mla_append(fwd, 1, latent.dl(), err); });
    refused([&](kvc_error* err) {
      return kvc_attn_shared_kv(fwd, 0, nullptr, tokens.q.dl(), out.dl(), nullptr, err);
    });
    refused([&](kvc_error* err) {
      return kvc_attn_cross(fwd, 2, nullptr, tokens.q.dl(), nullptr, nullptr, out.dl(), nullptr,
                            err);
    });
    refused([&](kvc_error* err) { return kvc_state_get(fwd, 3, 0, state.dl(), err); });
    refused([&](kvc_error* err) { return kvc_state_set(fwd, 3, 0, state.dl(), err); });
  }
  EXPECT_TRUE(out.is_untouched() && state.is_untouched());
}

TEST(LayerCalls, WithoutStorageAreRefusedByName) {
  const std::vector<int64_t> shape{2};
  const std::vector<kvc_state_spec> states{state_spec(shape)};
  Net net({attention_layer(), mla_layer(6), cross_layer(), state_layer(states), shared_layer(0)});
  net.config.storage = KVC_STORAGE_NONE;
  Cache cache(net.config);
  add_tokens(cache, 1, 1);
  ASSERT_EQ(cache.begin_with({{1}, {1}, {}, {1}}), KVC_OK);
  Tokens tokens(1);
  HostTensor out(Elem::kF32, {1, kHeads, kDim}), latent(Elem::kF32, {1, kRank + kRopeDim}),
      state(Elem::kF32, {1, 2});
  kvc_forward* fwd = cache.forward;
  const auto refused = [&](const char* function, const Call& fn) {
    expect_refused(cache, KVC_E_UNSUPPORTED, {function, "storage = NONE"}, fn);
    EXPECT_TRUE(out.is_untouched() && state.is_untouched());
  };
  refused("kvc_mla_append",
          [&](kvc_error* err) { return kvc_mla_append(fwd, 1, latent.dl(), err); });
  refused("kvc_attn_shared_kv", [&](kvc_error* err) {
    return kvc_attn_shared_kv(fwd, 0, nullptr, tokens.q.dl(), out.dl(), nullptr, err);
  });
  refused("kvc_attn", [&](kvc_error* err) {
    return kvc_attn(fwd, 4, nullptr, tokens.q.dl(), nullptr, nullptr, out.dl(), nullptr, err);
  });
  refused("kvc_attn_cross", [&](kvc_error* err) {
    return kvc_attn_cross(fwd, 2, nullptr, tokens.q.dl(), tokens.k.dl(), tokens.v.dl(), out.dl(),
                          nullptr, err);
  });
  refused("kvc_state_get",
          [&](kvc_error* err) { return kvc_state_get(fwd, 3, 0, state.dl(), err); });
  refused("kvc_state_set",
          [&](kvc_error* err) { return kvc_state_set(fwd, 3, 0, state.dl(), err); });
}

}  // namespace
}  // namespace kvc::test
