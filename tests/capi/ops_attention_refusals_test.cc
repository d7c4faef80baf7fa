// kvcache.h, section "Operators": what the attention operators refuse, and that a refused call
// writes nothing.
#include <limits>

#include "tests/capi/ops_fixture.h"

namespace kvc::test {
namespace {

class OpAttentionRefusals : public testing::Test {
 protected:
  OpAttentionRefusals() {
    tables.fill(random, pool);
    for (HostTensor* tensor : {&q, &k, &v}) tensor->fill_random(random);
  }
  kvc_status paged(kvc_error* err) {
    return kvc_op_attention_paged(pool.c(), &table, &opt, q.dl(), out.dl(), lse.dl(), err);
  }
  kvc_status ragged(DLTensor* kv, kvc_error* err) {
    return kvc_op_attention_ragged(tables.qo_indptr->dl(), kv, &opt, q.dl(), k.dl(), v.dl(),
                                   out.dl(), lse.dl(), err);
  }
  void refused(kvc_status status, std::initializer_list<const char*> parts, const Call& fn) {
    expect_error(status, parts, fn);
    EXPECT_TRUE(out.is_untouched() && lse.is_untouched()) << "a refused call wrote";
  }
  void paged_refused(kvc_status status, std::initializer_list<const char*> parts) {
    refused(status, parts, [&](kvc_error* err) { return paged(err); });
  }

  Random random{41};
  PoolShape shape{.layout = KVC_OP_NHD};
  Pool pool{shape};
  Tables tables{random, shape, {9, 5}, {2, 1}};
  kvc_op_table table = tables.c(false);
  kvc_op_opt opt = op_options();
  HostTensor q{Elem::kF32, {3, 4, 8}}, k{Elem::kF32, {14, 2, 8}}, v{Elem::kF32, {14, 2, 8}};
  HostTensor out{Elem::kF32, {3, 4, 8}}, lse{Elem::kF32, {3, 4}};
};

TEST_F(OpAttentionRefusals, TensorsThatDoNotFit) {
  const auto with = [&](DLTensor* query, DLTensor* result, DLTensor* log_sums) {
    return [=, this](kvc_error* err) {
      return kvc_op_attention_paged(pool.c(), &table, &opt, query, result, log_sums, err);
    };
  };
  HostTensor few(Elem::kF32, {2, 4, 8}), odd_heads(Elem::kF32, {3, 3, 8}),
      wide(Elem::kF32, {3, 4, 9}), flat(Elem::kF32, {3, 32}), f16(Elem::kF16, {3, 4});
  refused(KVC_E_INVALID_ARGUMENT, {"q", "NULL"}, with(nullptr, out.dl(), nullptr));
  refused(KVC_E_SHAPE, {"q", "2", "3"}, with(few.dl(), out.dl(), nullptr));
  refused(KVC_E_SHAPE, {"q", "3", "2 kv heads"}, with(odd_heads.dl(), out.dl(), nullptr));
  refused(KVC_E_SHAPE, {"q", "9", "8"}, with(wide.dl(), out.dl(), nullptr));
  refused(KVC_E_SHAPE, {"q", "2 dimensions"}, with(flat.dl(), out.dl(), nullptr));
  refused(KVC_E_INVALID_ARGUMENT, {"out", "NULL"}, with(q.dl(), nullptr, nullptr));
  refused(KVC_E_SHAPE, {"out", "9", "8"}, with(q.dl(), wide.dl(), nullptr));
  refused(KVC_E_DTYPE, {"lse", "float16"}, with(q.dl(), out.dl(), f16.dl()));
}

TEST_F(OpAttentionRefusals, TablesThatContradictThemselves) {
  (*tables.seq_lens)[0] = 1;
  paged_refused(KVC_E_OUT_OF_RANGE, {"sequence 0", "2 rows", "table.seq_lens", "1 keys"});
  opt.full = 1;
  HostTensor scrap(Elem::kF32, {3, 4, 8});
  EXPECT_EQ(kvc_op_attention_paged(pool.c(), &table, &opt, q.dl(), scrap.dl(), nullptr, nullptr),
            KVC_OK)
      << "a full attention may have more rows than keys";
  opt.full = 0;
  (*tables.seq_lens)[0] = 9;
  (*tables.qo_indptr)[1] = 4;
  paged_refused(KVC_E_OUT_OF_RANGE, {"table.qo_indptr[2]", "3", "4"});
  (*tables.qo_indptr)[1] = 2;
  (*tables.page_indices)[4] = 24;
  paged_refused(KVC_E_OUT_OF_RANGE, {"page 1 of sequence 1", "24"});
  pool.edit().layout = KVC_OP_MLA;
  pool.edit().v = nullptr;
  paged_refused(KVC_E_SHAPE, {"pool.k", "dimensions"});
}

TEST_F(OpAttentionRefusals, OptionsThatAreNotServed) {
  kvc_attn_opt attn = attn_options();
  const kvc_ext ext{};
  Indices<int32_t> positions({7, 8, 4}), span({0, 1, 2}, {1, 3});
  opt.attn = &attn;
  attn.struct_size = 2;
  paged_refused(KVC_E_INVALID_ARGUMENT, {"opt.attn", "struct_size"});
  attn = attn_options(), attn.ext = &ext;
  paged_refused(KVC_E_UNSUPPORTED, {"opt.attn->ext"});
  attn = attn_options(), attn.spans = span.dl();
  paged_refused(KVC_E_UNSUPPORTED, {"opt.attn->spans"});
  attn = attn_options(), attn.flags = 64;
  paged_refused(KVC_E_UNSUPPORTED, {"opt.attn->flags", "0x40"});
  attn = attn_options(), attn.window = -1;
  paged_refused(KVC_E_OUT_OF_RANGE, {"opt.attn->window", "-1"});
  attn = attn_options(), attn.soft_cap = -1;
  paged_refused(KVC_E_OUT_OF_RANGE, {"opt.attn->soft_cap"});
  attn = attn_options(), attn.scale = std::numeric_limits<float>::infinity();
  paged_refused(KVC_E_OUT_OF_RANGE, {"opt.attn->scale"});
  HostTensor three(Elem::kF32, {3}), bias(Elem::kF32, {3, 8});
  attn = attn_options(), attn.sink_logits = three.dl();
  paged_refused(KVC_E_SHAPE, {"opt.attn->sink_logits", "3", "4"});
  attn = attn_options(), attn.alibi_slopes = three.dl();
  paged_refused(KVC_E_SHAPE, {"opt.attn->alibi_slopes", "3", "4"});
  attn = attn_options(), attn.bias = bias.dl();
  paged_refused(KVC_E_SHAPE, {"opt.attn->bias", "8", "9"});
  attn = attn_options(), attn.window = 4, opt.full = 1;
  paged_refused(KVC_E_UNSUPPORTED, {"opt.attn->window", "opt.full"});
  attn = attn_options(), opt.full = 2;
  paged_refused(KVC_E_INVALID_ARGUMENT, {"opt.full", "2"});
  opt = op_options(), opt.positions = positions.dl();
  paged_refused(KVC_E_INVALID_ARGUMENT, {"opt.positions", "opt.rope"});
  kvc_rope rope = rope_on_append(KVC_ROPE_HALF, 8);
  opt = op_options(), opt.rope = &rope;
  paged_refused(KVC_E_INVALID_ARGUMENT, {"opt.positions", "NULL"});
  rope.mode = KVC_ROPE_ON_READ, opt.positions = positions.dl();
  paged_refused(KVC_E_UNSUPPORTED, {"ON_READ"});
  rope.mode = KVC_ROPE_ON_APPEND, opt.cpu_isa = -1;
  paged_refused(KVC_E_OUT_OF_RANGE, {"opt.cpu_isa", "-1"});
}

TEST_F(OpAttentionRefusals, RaggedCutsThatDoNotFit) {
  Indices<int32_t> kv({0, 9, 14}), starts_late({1, 9, 14}), short_cuts({0, 14}),
      too_far({0, 9, 15}), descends({0, 9, 8}), few({0, 1, 14}), none({}, {0});
  const auto refuse = [&](kvc_status status, std::initializer_list<const char*> parts,
                          Indices<int32_t>& cuts) {
    refused(status, parts, [&](kvc_error* err) { return ragged(cuts.dl(), err); });
  };
  refuse(KVC_E_OUT_OF_RANGE, {"kv_indptr[0]", "1"}, starts_late);
  refuse(KVC_E_SHAPE, {"kv_indptr", "2", "3"}, short_cuts);
  refuse(KVC_E_SHAPE, {"k", "14", "15"}, too_far);
  refuse(KVC_E_OUT_OF_RANGE, {"kv_indptr[2]", "8", "9"}, descends);
  refuse(KVC_E_OUT_OF_RANGE, {"sequence 0", "2 rows", "kv_indptr", "1 keys"}, few);
  refused(KVC_E_SHAPE, {"qo_indptr", "0"}, [&](kvc_error* err) {
    return kvc_op_attention_ragged(none.dl(), nullptr, &opt, q.dl(), k.dl(), v.dl(), out.dl(),
                                   nullptr, err);
  });
  refused(KVC_E_INVALID_ARGUMENT, {"qo_indptr", "NULL"}, [&](kvc_error* err) {
    return kvc_op_attention_ragged(nullptr, kv.dl(), &opt, q.dl(), k.dl(), v.dl(), out.dl(),
                                   nullptr, err);
  });
  HostTensor other_heads(Elem::kF32, {14, 1, 8});
  refused(KVC_E_SHAPE, {"v", "1", "2"}, [&](kvc_error* err) {
    return kvc_op_attention_ragged(tables.qo_indptr->dl(), kv.dl(), &opt, q.dl(), k.dl(),
                                   other_heads.dl(), out.dl(), nullptr, err);
  });
  EXPECT_EQ(ragged(kv.dl(), nullptr), KVC_OK);
}

TEST_F(OpAttentionRefusals, LatentsWithoutARankOrScale) {
  Pool latents({.layout = KVC_OP_MLA, .heads = 1});
  kvc_attn_opt attn = attn_options();
  attn.scale = 0.5f;
  opt.attn = &attn;
  HostTensor result(Elem::kF32, {3, 4, 6});
  const auto mla = [&](const kvc_op_pool* used, int32_t rank, const kvc_op_opt* options) {
    return [=, this, &result](kvc_error* err) {
      return kvc_op_mla_paged(used, &table, rank, options, q.dl(), result.dl(), nullptr, err);
    };
  };
  expect_error(KVC_E_INVALID_ARGUMENT, {"opt", "NULL"}, mla(latents.c(), 6, nullptr));
  expect_error(KVC_E_INVALID_ARGUMENT, {"pool.layout", "MLA"}, mla(pool.c(), 6, &opt));
  expect_error(KVC_E_OUT_OF_RANGE, {"latent_rank", "0"}, mla(latents.c(), 0, &opt));
  expect_error(KVC_E_OUT_OF_RANGE, {"latent_rank", "9", "8"}, mla(latents.c(), 9, &opt));
  attn.scale = 0;
  expect_error(KVC_E_INVALID_ARGUMENT, {"opt.attn->scale"}, mla(latents.c(), 6, &opt));
  attn.scale = 0.5f;
  const kvc_rope rope = rope_on_append(KVC_ROPE_HALF, 4);
  Indices<int32_t> positions({7, 8, 4});
  opt.rope = &rope, opt.positions = positions.dl();
  expect_error(KVC_E_OUT_OF_RANGE, {"opt.rope->rotary_dim", "4", "2"}, mla(latents.c(), 6, &opt));
  opt.rope = nullptr, opt.positions = nullptr;
  EXPECT_TRUE(result.is_untouched());
  tables.fill(random, latents);
  EXPECT_EQ(mla(latents.c(), 6, &opt)(nullptr), KVC_OK);
  refused(KVC_E_INVALID_ARGUMENT, {"pool.layout", "kvc_op_mla_paged"}, [&](kvc_error* err) {
    return kvc_op_attention_paged(latents.c(), &table, &opt, q.dl(), out.dl(), nullptr, err);
  });
}

}  // namespace
}  // namespace kvc::test
