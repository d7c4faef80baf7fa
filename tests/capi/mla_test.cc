// Multi-head latent attention: absorbed over the pool, ragged over new tokens.
#include "tests/capi/layers.h"

namespace kvc::test {
namespace {

NaiveQuery latent_query(Tokens& tokens, std::vector<int64_t> keys, NaiveQuery::Turn turn = {}) {
  return {tokens, std::move(keys), std::move(turn), static_cast<double>(kScale), kRank};
}

class Mla : public testing::Test {
 protected:
  static constexpr int64_t kLatent = kRank + kRopeDim;
  Mla() { EXPECT_EQ(kvc_seq_add(cache_.get(), 1, nullptr), KVC_OK); }
  kvc_forward* fwd() const { return cache_.forward; }
  Net net_{{mla_layer(6), attention_layer()}};
  Cache cache_{net_.config};
  Tokens tokens_{9, 2, kHeads, kLatent, kRank};
  HostTensor out_{Elem::kF32, {9, kHeads, kRank}};
};

TEST_F(Mla, IsPlannedAsOneLatentRow) {
  kvc_layer_info info{};
  info.struct_size = sizeof info;
  ASSERT_EQ(kvc_plan_layer_get(cache_.plan(), 0, &info, nullptr), KVC_OK);
  EXPECT_EQ(info.kind, KVC_LAYER_MLA);
  EXPECT_EQ(info.num_q_heads, kHeads);
  EXPECT_EQ(info.num_kv_heads, 1);
  EXPECT_EQ(info.latent_rank, kRank);
  EXPECT_EQ(info.latent_rope_dim, kRopeDim);
  EXPECT_EQ(info.bytes_per_token, static_cast<uint64_t>(kLatent) * 4);
  EXPECT_EQ(info.k_page_bytes, static_cast<uint64_t>(kLatent) * 4 * 4);
  EXPECT_EQ(info.v_page_bytes, 0u);
}

TEST_F(Mla, AbsorbedFormEqualsAttentionOverTheLatents) {
  const kvc_attn_opt opt = scaled();
  ASSERT_EQ(cache_.begin({1}, {5}), KVC_OK);
  Rows q(tokens_.q, 0, 5), k(tokens_.k, 0, 5), to(out_, 0, 5);
  expect_ok([&](kvc_error* err) {
    return kvc_attn(fwd(), 0, &opt, q.dl(), k.dl(), nullptr, to.dl(), nullptr, err);
  });
  cache_.finish();
  ASSERT_EQ(cache_.begin({1}, {4}), KVC_OK);
  Rows q2(tokens_.q, 5, 4), k2(tokens_.k, 5, 4), to2(out_, 5, 4);
  expect_ok([&](kvc_error* err) { return kvc_mla_append(fwd(), 0, k2.dl(), err); });
  HostTensor flat(Elem::kF32, {4, kLatent});
  for (int64_t t = 0; t < 4; ++t) {
    for (int64_t d = 0; d < kLatent; ++d) flat.set(tokens_.k.get(5 + t, 0, d), t, d);
  }
  EXPECT_EQ(kvc_mla_append(fwd(), 0, flat.dl(), nullptr), KVC_OK)
      << "without the dimension of heads";
  ASSERT_EQ(kvc_attn(fwd(), 0, &opt, q2.dl(), nullptr, nullptr, to2.dl(), nullptr, nullptr),
            KVC_OK);
  for (int64_t p = 0; p < 9; ++p)
    expect_row(out_, p, latent_query(tokens_, key_range(0, p + 1)), p);
  HostTensor gathered(Elem::kF32, {9, 1, kLatent}), cached(Elem::kF32, {4, kHeads, kRank});
  expect_ok(
      [&](kvc_error* err) { return kvc_kv_gather(fwd(), 0, 1, gathered.dl(), nullptr, err); });
  EXPECT_LE(largest_difference(gathered, tokens_.k), 0);
  expect_ok([&](kvc_error* err) {
    return kvc_attn_cached(fwd(), 0, &opt, q2.dl(), cached.dl(), nullptr, err);
  });
  for (int64_t i = 0; i < 4; ++i)
    expect_row(cached, i, latent_query(tokens_, key_range(0, 5)), 5 + i);
}

TEST_F(Mla, RotatesWhatFollowsTheLatent) {
  for (const kvc_rope_mode mode : {KVC_ROPE_ON_APPEND, KVC_ROPE_ON_READ}) {
    const kvc_rope rope = rope_of(mode);
    kvc_layer layer = mla_layer();
    layer.rope = &rope;
    Net net({layer});
    Cache cache(net.config);
    ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
    ASSERT_EQ(cache.begin({1}, {9}), KVC_OK);
    const kvc_attn_opt opt = scaled();
    ASSERT_EQ(kvc_attn(cache.forward, 0, &opt, tokens_.q.dl(), tokens_.k.dl(), nullptr, out_.dl(),
                       nullptr, nullptr),
              KVC_OK);
    for (int64_t p = 0; p < 9; ++p) {
      const auto turn = [&](std::vector<double> row, int64_t key) {
        return rotated(std::move(row), static_cast<double>(key >= 0 ? key : p), kRank);
      };
      expect_row(out_, p, latent_query(tokens_, key_range(0, p + 1), turn), p);
    }
  }
}

// Far from position 0 a sequence has a table of its own for keys that are rotated on read. Moved
// together, tokens keep their distances, and results stay what they were.
TEST_F(Mla, RotatesWhatFollowsTheLatentFarFromPositionZero) {
  const kvc_rope rope = rope_of(KVC_ROPE_ON_READ);
  kvc_layer layer = mla_layer(6);
  layer.rope = &rope;
  const kvc_attn_opt opt = scaled();
  HostTensor q(Elem::kF32, {4, kHeads, 6}), k(Elem::kF32, {4, kHeads, 6}),
      v(Elem::kF32, {4, kHeads, 6});
  Random random(5);
  for (HostTensor* tensor : {&q, &k, &v}) tensor->fill_random(random);
  for (const kvc_cpu_isa isa : {KVC_CPU_ISA_AUTO, KVC_CPU_ISA_SCALAR, KVC_CPU_ISA_REFERENCE}) {
    HostTensor absorbed[2] = {{Elem::kF32, {4, kHeads, kRank}}, {Elem::kF32, {4, kHeads, kRank}}},
               ragged[2] = {{Elem::kF32, {4, kHeads, 6}}, {Elem::kF32, {4, kHeads, 6}}};
    for (const int far : {0, 1}) {
      Net net({layer});
      net.config.cpu_isa = isa;
      Cache cache(net.config);
      ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
      ASSERT_EQ(cache.begin({1}, {5}), KVC_OK);
      Rows first(tokens_.k, 0, 5), next(tokens_.k, 5, 4), query(tokens_.q, 5, 4);
      ASSERT_EQ(kvc_mla_append(cache.forward, 0, first.dl(), nullptr), KVC_OK);
      cache.finish();
      ASSERT_EQ(kvc_seq_shift(cache.get(), 1, 0, 0, far * 100000, nullptr), KVC_OK);
      ASSERT_EQ(cache.begin({1}, {4}), KVC_OK);
      ASSERT_EQ(kvc_attn(cache.forward, 0, &opt, query.dl(), next.dl(), nullptr, absorbed[far].dl(),
                         nullptr, nullptr),
                KVC_OK);
      ASSERT_EQ(kvc_attn_self(cache.forward, 0, &opt, q.dl(), k.dl(), v.dl(), ragged[far].dl(),
                              nullptr, nullptr),
                KVC_OK);
      cache.finish();
    }
    EXPECT_LE(largest_difference(absorbed[0], absorbed[1]), 1e-5) << "isa " << isa;
    EXPECT_LE(largest_difference(ragged[0], ragged[1]), 1e-5) << "isa " << isa;
  }
}

TEST_F(Mla, RaggedFormAttendsAmongTheNewTokens) {
  Tokens heads(4, 8, kHeads, 6, 6);
  HostTensor k(Elem::kF32, {4, kHeads, 6}), v(Elem::kF32, {4, kHeads, 6}),
      out(Elem::kF32, {4, kHeads, 6});
  for (int64_t t = 0; t < 4; ++t) {
    for (int64_t h = 0; h < kHeads; ++h) {
      for (int64_t d = 0; d < 6; ++d)
        k.set(heads.k.get(t, 0, d), t, h, d), v.set(heads.v.get(t, 0, d), t, h, d);
    }
  }
  ASSERT_EQ(cache_.begin({1}, {4}), KVC_OK);
  expect_ok([&](kvc_error* err) {
    return kvc_attn_self(fwd(), 0, nullptr, heads.q.dl(), k.dl(), v.dl(), out.dl(), nullptr, err);
  });
  for (int64_t p = 0; p < 4; ++p) expect_row(out, p, {heads, key_range(0, p + 1)}, p);
  HostTensor one_head(Elem::kF32, {4, 1, 6});
  out.poison();
  expect_refused(cache_, KVC_E_SHAPE, {"k", "1", "2"}, [&](kvc_error* err) {
    return kvc_attn_self(fwd(), 0, nullptr, heads.q.dl(), one_head.dl(), v.dl(), out.dl(), nullptr,
                         err);
  });
  EXPECT_TRUE(out.is_untouched());
}

TEST_F(Mla, RefusesBadCalls) {
  add_tokens(cache_, 1, 3);
  ASSERT_EQ(cache_.begin({1}, {9}), KVC_OK);
  const kvc_attn_opt opt = scaled();
  const auto refused = [&](kvc_status status, std::initializer_list<const char*> parts,
                           const Call& fn) {
    expect_refused(cache_, status, parts, fn);
    EXPECT_TRUE(out_.is_untouched());
  };
  HostTensor &q = tokens_.q, &k = tokens_.k, &v = tokens_.v;
  refused(KVC_E_INVALID_ARGUMENT, {"scale"}, [&](kvc_error* err) {
    return kvc_attn(fwd(), 0, nullptr, q.dl(), k.dl(), nullptr, out_.dl(), nullptr, err);
  });
  refused(KVC_E_INVALID_ARGUMENT, {"v", "layer 0"}, [&](kvc_error* err) {
    return kvc_attn(fwd(), 0, &opt, q.dl(), k.dl(), v.dl(), out_.dl(), nullptr, err);
  });
  refused(KVC_E_SHAPE, {"k", "8", "12"}, [&](kvc_error* err) {
    return kvc_attn(fwd(), 0, &opt, q.dl(), v.dl(), nullptr, out_.dl(), nullptr, err);
  });
  refused(KVC_E_SHAPE, {"out", "12", "8"}, [&](kvc_error* err) {
    return kvc_attn(fwd(), 0, &opt, q.dl(), k.dl(), nullptr, q.dl(), nullptr, err);
  });
  refused(KVC_E_INVALID_STATE, {"layer 0", "NULL"}, [&](kvc_error* err) {
    return kvc_attn(fwd(), 0, &opt, q.dl(), nullptr, nullptr, out_.dl(), nullptr, err);
  });
  refused(KVC_E_INVALID_STATE, {"kvc_kv_append", "layer 0", "MLA"},
          [&](kvc_error* err) { return kvc_kv_append(fwd(), 0, k.dl(), v.dl(), err); });
  refused(KVC_E_INVALID_STATE, {"kvc_attn_fused_qkv", "layer 0", "MLA"}, [&](kvc_error* err) {
    return kvc_attn_fused_qkv(fwd(), 0, &opt, q.dl(), out_.dl(), err);
  });
  refused(KVC_E_INVALID_STATE, {"kvc_attn_cross", "layer 0", "MLA"}, [&](kvc_error* err) {
    return kvc_attn_cross(fwd(), 0, &opt, q.dl(), nullptr, nullptr, out_.dl(), nullptr, err);
  });
  HostTensor few(Elem::kF32, {8, kLatent}), heads(Elem::kF32, {9, 2, kLatent}),
      wide(Elem::kF32, {9, kLatent + 1});
  HostTensor vector(Elem::kF32, {9}), integers(Elem::kI32, {9, kLatent}),
      there(Elem::kF32, {9, kLatent});
  there.dl()->device = {kDLCUDA, 0};
  const auto append = [&](int32_t layer, const DLTensor* latent) {
    return [&, layer, latent](kvc_error* err) { return kvc_mla_append(fwd(), layer, latent, err); };
  };
  refused(KVC_E_INVALID_ARGUMENT, {"latent"}, append(0, nullptr));
  refused(KVC_E_SHAPE, {"latent", "8", "9"}, append(0, few.dl()));
  refused(KVC_E_SHAPE, {"latent", "2", "1"}, append(0, heads.dl()));
  refused(KVC_E_SHAPE, {"latent", "13", "12"}, append(0, wide.dl()));
  refused(KVC_E_SHAPE, {"latent", "1", "2"}, append(0, vector.dl()));
  refused(KVC_E_DTYPE, {"latent", "int32"}, append(0, integers.dl()));
  refused(KVC_E_DEVICE_MISMATCH, {"latent"}, append(0, there.dl()));
  refused(KVC_E_INVALID_STATE,
          {"kvc_mla_append", "layer 1 is of kind ATTENTION (0), expected MLA (1)"},
          append(1, k.dl()));
  refused(KVC_E_OUT_OF_RANGE, {"layer 2"}, append(2, k.dl()));
  HostTensor gathered(Elem::kF32, {12, 1, kLatent});
  refused(KVC_E_INVALID_ARGUMENT, {"v_out", "layer 0"},
          [&](kvc_error* err) { return kvc_kv_gather(fwd(), 0, 1, nullptr, gathered.dl(), err); });
  refused(KVC_E_INVALID_STATE, {"layer 0", "sequence 1"},
          [&](kvc_error* err) { return kvc_kv_gather(fwd(), 0, 1, gathered.dl(), nullptr, err); });
  Net other({mla_layer()});
  Cache absorbed(other.config);
  ASSERT_EQ(kvc_seq_add(absorbed.get(), 1, nullptr), KVC_OK);
  ASSERT_EQ(absorbed.begin({1}, {9}), KVC_OK);
  expect_refused(absorbed, KVC_E_UNSUPPORTED, {"layer 0", "k_dim = 0"}, [&](kvc_error* err) {
    return kvc_attn_self(absorbed.forward, 0, nullptr, q.dl(), q.dl(), q.dl(), out_.dl(), nullptr,
                         err);
  });
  EXPECT_TRUE(out_.is_untouched());
}

TEST_F(Mla, ExportsItsLatentsOnly) {
  DLManagedTensorVersioned* out = nullptr;
  ASSERT_EQ(kvc_export_pool(cache_.get(), 0, KVC_POOL_K, &out, nullptr), KVC_OK);
  EXPECT_EQ(std::vector<int64_t>(out->dl_tensor.shape, out->dl_tensor.shape + out->dl_tensor.ndim),
            (std::vector<int64_t>{32, 1, 4, kLatent}));
  out->deleter(out);
  out = nullptr;
  for (const kvc_pool_kind kind : {KVC_POOL_V, KVC_POOL_KV}) {
    expect_refused(
        cache_, KVC_E_UNSUPPORTED, {"layer 0", std::to_string(kind).c_str()},
        [&](kvc_error* err) { return kvc_export_pool(cache_.get(), 0, kind, &out, err); });
  }
  EXPECT_EQ(out, nullptr);
}

TEST_F(Mla, ThePlanRefusesBadFields) {
  const auto refused = [](kvc_status status, std::initializer_list<const char*> parts,
                          const std::function<void(kvc_layer&)>& change) {
    kvc_layer layer = mla_layer(6);
    change(layer);
    Net net({layer});
    expect_error(status, parts, [&](kvc_error* err) { return plan_status(net.config, err); });
  };
  refused(KVC_E_OUT_OF_RANGE, {"num_q_heads", "0"}, [](kvc_layer& l) { l.num_q_heads = 0; });
  refused(KVC_E_OUT_OF_RANGE, {"num_kv_heads", "2"}, [](kvc_layer& l) { l.num_kv_heads = 2; });
  refused(KVC_E_OUT_OF_RANGE, {"latent_rank", "0"}, [](kvc_layer& l) { l.latent_rank = 0; });
  refused(KVC_E_OUT_OF_RANGE, {"latent_rank", "1025"}, [](kvc_layer& l) { l.latent_rank = 1025; });
  refused(KVC_E_OUT_OF_RANGE, {"latent_rope_dim", "26"},
          [](kvc_layer& l) { l.latent_rank = 1000, l.latent_rope_dim = 26; });
  refused(KVC_E_INVALID_ARGUMENT, {"latent_rope_dim", "3"},
          [](kvc_layer& l) { l.latent_rope_dim = 3; });
  refused(KVC_E_OUT_OF_RANGE, {"latent_rope_dim", "-2"},
          [](kvc_layer& l) { l.latent_rope_dim = -2; });
  refused(KVC_E_INVALID_ARGUMENT, {"k_dim", "2", "4"}, [](kvc_layer& l) { l.k_dim = 2; });
  refused(KVC_E_INVALID_ARGUMENT, {"v_dim", "5"}, [](kvc_layer& l) { l.k_dim = 0, l.v_dim = 5; });
  refused(KVC_E_INVALID_ARGUMENT, {"v_dtype", "float16", "float32"}, [](kvc_layer& l) {
    l.v_dtype = {kDLFloat, 16, 1};
  });
  refused(KVC_E_INVALID_ARGUMENT, {"flags", "MLA"},
          [](kvc_layer& l) { l.flags = KVC_LAYER_V_IS_K; });
  refused(KVC_E_INVALID_ARGUMENT, {"source_layer", "MLA"},
          [](kvc_layer& l) { l.source_layer = 1; });
  refused(KVC_E_INVALID_ARGUMENT, {"latent_rank", "ATTENTION"},
          [](kvc_layer& l) { l = attention_layer(), l.latent_rank = 4; });
  refused(KVC_E_INVALID_ARGUMENT, {"latent_rope_dim", "ATTENTION"},
          [](kvc_layer& l) { l = attention_layer(), l.latent_rope_dim = 4; });
}

}  // namespace
}  // namespace kvc::test
