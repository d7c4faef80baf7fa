/* Operators over the host's own pools and page tables. SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCACHE_GO_SHIM_OP_H_
#define KVCACHE_GO_SHIM_OP_H_

#include "shim_abi.h"

/* The options of an operator without its tensors; rope and executor are structs in memory of C, 0:
 * none. */
typedef struct shim_op_opt {
  uint64_t flags;
  int64_t window;
  float scale;
  float soft_cap;
  int32_t isa;
  int32_t full;
  int32_t has_attn; /* 0: all options of attention are defaults */
  int32_t reserved;
  uintptr_t rope;
  uintptr_t executor;
  uintptr_t stream;
} shim_op_opt;

#define SHIM_OP_OPT const shim_op_opt *opt, SHIM_TENSOR(positions)
/* What attention takes besides; other operators refuse options of attention whatever their tensors
 * are. */
#define SHIM_OP_ATTN \
  SHIM_TENSOR(sink_logits), SHIM_TENSOR(alibi), SHIM_TENSOR(bias), SHIM_TENSOR(spans)
#define SHIM_POOL                                                                         \
  SHIM_TENSOR(pool_k), SHIM_TENSOR(pool_v), SHIM_TENSOR(k_scales), SHIM_TENSOR(v_scales), \
      int32_t layout, int32_t pool_quant, float k_scale, float v_scale
#define SHIM_TABLE                                                         \
  SHIM_TENSOR(seq_lens), SHIM_TENSOR(qo_indptr), SHIM_TENSOR(page_indptr), \
      SHIM_TENSOR(page_indices), SHIM_TENSOR(block_table)

/* Declare `call`, `pool` and `table`, the structs of these arguments. */
#define SHIM_OP_OPT_BUILD(sink_logits, alibi, bias, spans)                                    \
  SHIM_DL(positions);                                                                         \
  const kvc_attn_opt attn = {sizeof attn, NULL,        opt->flags, opt->scale, opt->soft_cap, \
                             opt->window, sink_logits, alibi,      bias,       spans};        \
  const kvc_op_opt call = {sizeof call,                                                       \
                           NULL,                                                              \
                           (const kvc_executor *)opt->executor,                               \
                           opt->isa,                                                          \
                           opt->full,                                                         \
                           opt->has_attn ? &attn : NULL,                                      \
                           positions_dl,                                                      \
                           (const kvc_rope *)opt->rope,                                       \
                           (kvc_stream)opt->stream}
#define SHIM_OP_ATTN_BUILD \
  SHIM_DL(sink_logits);    \
  SHIM_DL(alibi);          \
  SHIM_DL(bias);           \
  SHIM_DL(spans);          \
  SHIM_OP_OPT_BUILD(sink_logits_dl, alibi_dl, bias_dl, spans_dl)
#define SHIM_POOL_BUILD                                                        \
  SHIM_DL(pool_k);                                                             \
  SHIM_DL(pool_v);                                                             \
  SHIM_DL(k_scales);                                                           \
  SHIM_DL(v_scales);                                                           \
  const kvc_op_pool pool = {sizeof pool, pool_k_dl, pool_v_dl, layout,      0, \
                            pool_quant,  k_scale,   v_scale,   k_scales_dl, v_scales_dl}
#define SHIM_TABLE_BUILD                                                     \
  SHIM_DL(seq_lens);                                                         \
  SHIM_DL(qo_indptr);                                                        \
  SHIM_DL(page_indptr);                                                      \
  SHIM_DL(page_indices);                                                     \
  SHIM_DL(block_table);                                                      \
  const kvc_op_table table = {sizeof table,   seq_lens_dl,     qo_indptr_dl, \
                              page_indptr_dl, page_indices_dl, block_table_dl}

static inline kvc_error *shim_op_append(uintptr_t api, SHIM_POOL, SHIM_OP_OPT, SHIM_TENSOR(slots),
                                        SHIM_TENSOR(k), SHIM_TENSOR(v)) {
  SHIM_ERROR;
  SHIM_POOL_BUILD;
  SHIM_OP_OPT_BUILD(NULL, NULL, NULL, NULL);
  SHIM_DL(slots);
  SHIM_DL(k);
  SHIM_DL(v);
  return shim_result(SHIM_API(api)->op_append(&pool, &call, slots_dl, k_dl, v_dl, &err), &err);
}
/* mla 0: kvc_op_attention_paged, else kvc_op_mla_paged. */
static inline kvc_error *shim_op_attention_paged(uintptr_t api, SHIM_POOL, SHIM_TABLE, SHIM_OP_OPT,
                                                 SHIM_OP_ATTN, int32_t mla, int32_t latent_rank,
                                                 SHIM_TENSOR(q), SHIM_TENSOR(out),
                                                 SHIM_TENSOR(lse)) {
  SHIM_ERROR;
  SHIM_POOL_BUILD;
  SHIM_TABLE_BUILD;
  SHIM_OP_ATTN_BUILD;
  SHIM_DL(q);
  SHIM_DL(out);
  SHIM_DL(lse);
  const kvc_status status =
      mla ? SHIM_API(api)->op_mla_paged(&pool, &table, latent_rank, &call, q_dl, out_dl, lse_dl,
                                        &err)
          : SHIM_API(api)->op_attention_paged(&pool, &table, &call, q_dl, out_dl, lse_dl, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_op_attention_ragged(uintptr_t api, SHIM_TENSOR(qo_indptr),
                                                  SHIM_TENSOR(kv_indptr), SHIM_OP_OPT, SHIM_OP_ATTN,
                                                  SHIM_TENSOR(q), SHIM_TENSOR(k), SHIM_TENSOR(v),
                                                  SHIM_TENSOR(out), SHIM_TENSOR(lse)) {
  SHIM_ERROR;
  SHIM_DL(qo_indptr);
  SHIM_DL(kv_indptr);
  SHIM_OP_ATTN_BUILD;
  SHIM_DL(q);
  SHIM_DL(k);
  SHIM_DL(v);
  SHIM_DL(out);
  SHIM_DL(lse);
  return shim_result(SHIM_API(api)->op_attention_ragged(qo_indptr_dl, kv_indptr_dl, &call, q_dl,
                                                        k_dl, v_dl, out_dl, lse_dl, &err),
                     &err);
}
static inline kvc_error *shim_op_merge(uintptr_t api, SHIM_OP_OPT, SHIM_TENSOR(out),
                                       SHIM_TENSOR(lse), SHIM_TENSOR(other_out),
                                       SHIM_TENSOR(other_lse)) {
  SHIM_ERROR;
  SHIM_OP_OPT_BUILD(NULL, NULL, NULL, NULL);
  SHIM_DL(out);
  SHIM_DL(lse);
  SHIM_DL(other_out);
  SHIM_DL(other_lse);
  return shim_result(
      SHIM_API(api)->op_merge(&call, out_dl, lse_dl, other_out_dl, other_lse_dl, &err), &err);
}
static inline kvc_error *shim_op_gather(uintptr_t api, SHIM_POOL, SHIM_TABLE, SHIM_OP_OPT,
                                        SHIM_TENSOR(k), SHIM_TENSOR(v)) {
  SHIM_ERROR;
  SHIM_POOL_BUILD;
  SHIM_TABLE_BUILD;
  SHIM_OP_OPT_BUILD(NULL, NULL, NULL, NULL);
  SHIM_DL(k);
  SHIM_DL(v);
  return shim_result(SHIM_API(api)->op_gather(&pool, &table, &call, k_dl, v_dl, &err), &err);
}
static inline kvc_error *shim_op_copy_pages(uintptr_t api, SHIM_POOL, SHIM_OP_OPT,
                                            const int64_t *pairs, int64_t num_pairs) {
  SHIM_ERROR;
  SHIM_POOL_BUILD;
  SHIM_OP_OPT_BUILD(NULL, NULL, NULL, NULL);
  int64_t shape[2] = {num_pairs, 2};
  const DLTensor pairs_dl = {(void *)pairs, {kDLCPU, 0}, 2, {kDLInt, 64, 1}, shape, NULL, 0};
  return shim_result(SHIM_API(api)->op_copy_pages(&pool, &call, &pairs_dl, &err), &err);
}
static inline kvc_error *shim_op_rotate(uintptr_t api, SHIM_OP_OPT, SHIM_TENSOR(x),
                                        SHIM_TENSOR(out)) {
  SHIM_ERROR;
  SHIM_OP_OPT_BUILD(NULL, NULL, NULL, NULL);
  SHIM_DL(x);
  SHIM_DL(out);
  return shim_result(SHIM_API(api)->op_rotate(&call, x_dl, out_dl, &err), &err);
}
static inline kvc_error *shim_op_quantize(uintptr_t api, SHIM_OP_OPT, int32_t quant, SHIM_TENSOR(x),
                                          SHIM_TENSOR(out), SHIM_TENSOR(scales),
                                          uint64_t *saturated) {
  SHIM_ERROR;
  SHIM_OP_OPT_BUILD(NULL, NULL, NULL, NULL);
  SHIM_DL(x);
  SHIM_DL(out);
  SHIM_DL(scales);
  return shim_result(
      SHIM_API(api)->op_quantize(&call, quant, x_dl, out_dl, scales_dl, saturated, &err), &err);
}
static inline kvc_error *shim_op_dequantize(uintptr_t api, SHIM_OP_OPT, int32_t quant,
                                            SHIM_TENSOR(x), SHIM_TENSOR(scales), SHIM_TENSOR(out)) {
  SHIM_ERROR;
  SHIM_OP_OPT_BUILD(NULL, NULL, NULL, NULL);
  SHIM_DL(x);
  SHIM_DL(scales);
  SHIM_DL(out);
  return shim_result(SHIM_API(api)->op_dequantize(&call, quant, x_dl, scales_dl, out_dl, &err),
                     &err);
}
static inline kvc_error *shim_op_linear_step(uintptr_t api, uint64_t flags, int32_t decay_kind,
                                             float scale, SHIM_TENSOR(skip), SHIM_OP_OPT,
                                             SHIM_TENSOR(qo_indptr), SHIM_TENSOR(states),
                                             SHIM_TENSOR(q), SHIM_TENSOR(k), SHIM_TENSOR(v),
                                             SHIM_TENSOR(decay), SHIM_TENSOR(beta),
                                             SHIM_TENSOR(out)) {
  SHIM_ERROR;
  SHIM_DL(skip);
  const kvc_linear_opt linear = {sizeof linear, NULL, flags, decay_kind, 0, scale, 0, skip_dl};
  SHIM_OP_OPT_BUILD(NULL, NULL, NULL, NULL);
  SHIM_DL(qo_indptr);
  SHIM_DL(states);
  SHIM_DL(q);
  SHIM_DL(k);
  SHIM_DL(v);
  SHIM_DL(decay);
  SHIM_DL(beta);
  SHIM_DL(out);
  return shim_result(SHIM_API(api)->op_linear_step(&linear, &call, qo_indptr_dl, states_dl, q_dl,
                                                   k_dl, v_dl, decay_dl, beta_dl, out_dl, &err),
                     &err);
}

#endif /* KVCACHE_GO_SHIM_OP_H_ */
