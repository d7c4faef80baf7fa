/*
 * Whole cache: hand over q, k and v, get the attention output. One prompt, a fork that shares its
 * pages, and a few decode steps of both branches in one batch.
 *
 * cc whole_cache.c $(pkg-config --cflags --libs kvcache) -lm && ./a.out
 */
#include <kvcache.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { LAYERS = 2, Q_HEADS = 8, KV_HEADS = 2, DIM = 64, PROMPT = 37, STEPS = 5, MOST = 64 };

static void check(kvc_status status, const kvc_error *err) {
  if (status == KVC_OK) return;
  fprintf(stderr, "%s: %s\n", kvc_status_name(status), err->message);
  exit(1);
}

/* A packed float32 tensor [tokens, heads, DIM]. NULL strides: compact row-major. */
static DLTensor tensor(float *data, int64_t shape[3], int64_t tokens, int64_t heads) {
  shape[0] = tokens, shape[1] = heads, shape[2] = DIM;
  DLTensor view = {
      .data = data, .device = {kDLCPU, 0}, .ndim = 3, .dtype = {kDLFloat, 32, 1}, .shape = shape};
  return view;
}

/* Stands in for the model: one step over the batch. v is 1 for branch 1 and 3 for branch 2, so that
 * averages can be checked. */
static void step(kvc_cache *cache, size_t num_seqs, const kvc_seq *seqs, const int64_t *lengths,
                 float *out) {
  static float q[MOST * Q_HEADS * DIM], k[MOST * KV_HEADS * DIM], v[MOST * KV_HEADS * DIM];
  kvc_error err = {.struct_size = sizeof err};
  kvc_forward_desc desc = {
      .struct_size = sizeof desc, .num_seqs = num_seqs, .seqs = seqs, .append_lengths = lengths};
  kvc_forward *fwd = NULL;
  check(kvc_forward_begin(cache, &desc, &fwd, &err), &err);

  const int64_t tokens = kvc_forward_num_tokens(fwd);
  int64_t row = 0;
  for (size_t s = 0; s < num_seqs; ++s)
    for (int64_t end = row + lengths[s]; row < end; ++row)
      for (int i = 0; i < KV_HEADS * DIM; ++i)
        v[row * KV_HEADS * DIM + i] = seqs[s] == 2 ? 3.0f : 1.0f;
  for (int64_t i = 0; i < tokens * Q_HEADS * DIM; ++i) q[i] = (float)(i % 7) - 3.0f;
  /* k stays 0: every key scores the same, so the output is the plain mean of v. */

  int64_t q_shape[3], k_shape[3], v_shape[3], out_shape[3];
  const DLTensor q_view = tensor(q, q_shape, tokens, Q_HEADS),
                 k_view = tensor(k, k_shape, tokens, KV_HEADS);
  const DLTensor v_view = tensor(v, v_shape, tokens, KV_HEADS);
  DLTensor out_view = tensor(out, out_shape, tokens, Q_HEADS);
  for (int32_t layer = 0; layer < LAYERS; ++layer)
    check(kvc_attn(fwd, layer, NULL, &q_view, &k_view, &v_view, &out_view, NULL, &err), &err);
  check(kvc_forward_end(fwd, &err), &err);
}

int main(void) {
  kvc_error err = {.struct_size = sizeof err};
  kvc_layer layers[LAYERS] = {{0}};
  for (int i = 0; i < LAYERS; ++i) {
    layers[i].struct_size = sizeof layers[i];
    layers[i].num_q_heads = Q_HEADS;
    layers[i].num_kv_heads = KV_HEADS;
    layers[i].k_dim = DIM;
    layers[i].k_dtype = (DLDataType){kDLBfloat, 16, 1};
  }
  kvc_config config = {.struct_size = sizeof config,
                       .num_layers = LAYERS,
                       .layers = layers,
                       .byte_budget = 1u << 20};
  kvc_plan *plan = NULL;
  kvc_cache *cache = NULL;
  check(kvc_plan_create(&config, &plan, &err), &err);
  check(kvc_cache_create(plan, &cache, &err), &err);
  kvc_plan_destroy(plan);

  static float out[MOST * Q_HEADS * DIM];
  const kvc_seq branches[] = {1, 2};
  check(kvc_seq_add(cache, 1, &err), &err);
  step(cache, 1, branches, (const int64_t[]){PROMPT}, out);
  check(kvc_seq_fork(cache, 1, 2, -1, &err),
        &err); /* shares all pages; the half-full one is copied when a branch writes */
  for (int i = 0; i < STEPS; ++i) step(cache, 2, branches, (const int64_t[]){1, 1}, out);

  kvc_stats stats = {.struct_size = sizeof stats};
  check(kvc_cache_stats_get(cache, &stats, &err), &err);
  printf("%lld sequences, %lld tokens in %lld pages, %lld of them shared\n",
         (long long)stats.num_seqs, (long long)stats.total_length, (long long)stats.pages_used,
         (long long)stats.pages_shared);
  kvc_cache_destroy(cache);

  /* Branch 1 saw only ones; branch 2 the prompt's ones and its own threes. */
  const float expected[] = {1.0f, (PROMPT + 3.0f * STEPS) / (PROMPT + STEPS)};
  for (int branch = 0; branch < 2; ++branch) {
    const float got = out[branch * Q_HEADS * DIM];
    printf("branch %d: %.4f, expected %.4f\n", branch + 1, (double)got, (double)expected[branch]);
    if (!(fabsf(got - expected[branch]) < 1e-3f)) return 1;
  }
  return 0;
}
