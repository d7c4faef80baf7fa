/* One step over a batch, and all that happens inside of it. SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCACHE_GO_SHIM_FORWARD_H_
#define KVCACHE_GO_SHIM_FORWARD_H_

#include "shim_abi.h"

static inline kvc_error *shim_forward_begin(uintptr_t api, uintptr_t cache, size_t n,
                                            const int64_t *seqs, const int64_t *lengths,
                                            const int32_t *tree_parents, const int32_t *tokens,
                                            SHIM_TENSOR(positions), const int64_t *cross_lengths,
                                            uintptr_t stream, uint64_t flags, uintptr_t *out) {
  SHIM_ERROR;
  SHIM_DL(positions);
  kvc_forward_desc desc;
  memset(&desc, 0, sizeof desc);
  desc.struct_size = sizeof desc;
  desc.num_seqs = n;
  desc.seqs = seqs;
  desc.append_lengths = lengths;
  desc.tree_parents = tree_parents;
  desc.tokens = tokens;
  desc.positions = positions_dl;
  desc.cross_lengths = cross_lengths;
  desc.stream = (kvc_stream)stream;
  desc.flags = flags;
  kvc_forward *fwd = NULL;
  const kvc_status status = SHIM_API(api)->forward_begin(SHIM_CACHE(cache), &desc, &fwd, &err);
  *out = (uintptr_t)fwd;
  return shim_result(status, &err);
}

/* The functions of one form: (forward, layer, options, q, k, v, out, lse). */
enum shim_attention {
  SHIM_ATTN = 0,
  SHIM_ATTN_SELF = 1,
  SHIM_ATTN_CACHED = 2,
  SHIM_ATTN_CROSS = 3,
  SHIM_ATTN_SHARED_KV = 4,
  SHIM_ATTN_FUSED_QKV = 5 /* q is qkv */
};

static inline kvc_status shim_attend(const kvc_api *api, int32_t which, kvc_forward *fwd,
                                     int32_t layer, const kvc_attn_opt *opt, const DLTensor *q,
                                     const DLTensor *k, const DLTensor *v, DLTensor *out,
                                     DLTensor *lse, kvc_error *err) {
  switch (which) {
    case SHIM_ATTN_SELF: return api->attn_self(fwd, layer, opt, q, k, v, out, lse, err);
    case SHIM_ATTN_CACHED: return api->attn_cached(fwd, layer, opt, q, out, lse, err);
    case SHIM_ATTN_CROSS: return api->attn_cross(fwd, layer, opt, q, k, v, out, lse, err);
    case SHIM_ATTN_SHARED_KV: return api->attn_shared_kv(fwd, layer, opt, q, out, lse, err);
    case SHIM_ATTN_FUSED_QKV: return api->attn_fused_qkv(fwd, layer, opt, q, out, err);
    default: return api->attn(fwd, layer, opt, q, k, v, out, lse, err);
  }
}

/* Without options: what a step of most models calls for every layer. */
static inline kvc_error *shim_attn(uintptr_t api, int32_t which, uintptr_t fwd, int32_t layer,
                                   SHIM_TENSOR(q), SHIM_TENSOR(k), SHIM_TENSOR(v),
                                   SHIM_TENSOR(out)) {
  SHIM_ERROR;
  SHIM_DL(q);
  SHIM_DL(k);
  SHIM_DL(v);
  SHIM_DL(out);
  return shim_result(shim_attend(SHIM_API(api), which, SHIM_FORWARD(fwd), layer, NULL, q_dl, k_dl,
                                 v_dl, out_dl, NULL, &err),
                     &err);
}

static inline kvc_error *shim_attn_opt(uintptr_t api, int32_t which, uintptr_t fwd, int32_t layer,
                                       SHIM_TENSOR(q), SHIM_TENSOR(k), SHIM_TENSOR(v),
                                       SHIM_TENSOR(out), SHIM_TENSOR(lse), uint64_t flags,
                                       float scale, float soft_cap, int64_t window,
                                       SHIM_TENSOR(sink_logits), SHIM_TENSOR(alibi),
                                       SHIM_TENSOR(bias), SHIM_TENSOR(spans)) {
  SHIM_ERROR;
  SHIM_DL(q);
  SHIM_DL(k);
  SHIM_DL(v);
  SHIM_DL(out);
  SHIM_DL(lse);
  SHIM_DL(sink_logits);
  SHIM_DL(alibi);
  SHIM_DL(bias);
  SHIM_DL(spans);
  const kvc_attn_opt opt = {sizeof opt, NULL,           flags,    scale,   soft_cap,
                            window,     sink_logits_dl, alibi_dl, bias_dl, spans_dl};
  return shim_result(shim_attend(SHIM_API(api), which, SHIM_FORWARD(fwd), layer, &opt, q_dl, k_dl,
                                 v_dl, out_dl, lse_dl, &err),
                     &err);
}

/* set 0: kvc_state_get. */
static inline kvc_error *shim_state(uintptr_t api, int32_t set, uintptr_t fwd, int32_t layer,
                                    int32_t state, SHIM_TENSOR(value)) {
  SHIM_ERROR;
  SHIM_DL(value);
  const kvc_status status =
      set ? SHIM_API(api)->state_set(SHIM_FORWARD(fwd), layer, state, value_dl, &err)
          : SHIM_API(api)->state_get(SHIM_FORWARD(fwd), layer, state, value_dl, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_attn_linear(uintptr_t api, uintptr_t fwd, int32_t layer,
                                          uint64_t flags, int32_t decay_kind, int32_t state,
                                          float scale, SHIM_TENSOR(skip), SHIM_TENSOR(q),
                                          SHIM_TENSOR(k), SHIM_TENSOR(v), SHIM_TENSOR(decay),
                                          SHIM_TENSOR(beta), SHIM_TENSOR(out)) {
  SHIM_ERROR;
  SHIM_DL(skip);
  SHIM_DL(q);
  SHIM_DL(k);
  SHIM_DL(v);
  SHIM_DL(decay);
  SHIM_DL(beta);
  SHIM_DL(out);
  const kvc_linear_opt opt = {sizeof opt, NULL, flags, decay_kind, state, scale, 0, skip_dl};
  return shim_result(SHIM_API(api)->attn_linear(SHIM_FORWARD(fwd), layer, &opt, q_dl, k_dl, v_dl,
                                                decay_dl, beta_dl, out_dl, &err),
                     &err);
}

#endif /* KVCACHE_GO_SHIM_FORWARD_H_ */
