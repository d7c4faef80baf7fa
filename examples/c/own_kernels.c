/*
 * Own kernels: the library owns the pages, you own the attention. kvc_kv_append writes K and V into
 * the pool, kvc_export_page_table says where they are, kvc_export_pool shares the memory itself,
 * and the loop below stands for your kernel. Its result is compared with kvc_attn on the same
 * pages.
 *
 * cc own_kernels.c $(pkg-config --cflags --libs kvcache) -lm && ./a.out
 */
#include <kvcache.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { Q_HEADS = 4, KV_HEADS = 2, DIM = 32, PAGE_SIZE = 8, TOKENS = 29 };

static void check(kvc_status status, const kvc_error *err) {
  if (status == KVC_OK) return;
  fprintf(stderr, "%s: %s\n", kvc_status_name(status), err->message);
  exit(1);
}

static const void *data_of(const struct DLManagedTensorVersioned *tensor) {
  return (const char *)tensor->dl_tensor.data + tensor->dl_tensor.byte_offset;
}

/* Element 0 of one K or V row in the pool [num_pages, KV_HEADS, PAGE_SIZE, DIM]; strides count
 * elements. */
static const float *row_of(const struct DLManagedTensorVersioned *pool, const int32_t *pages,
                           int64_t key, int head) {
  const int64_t *strides = pool->dl_tensor.strides;
  return (const float *)data_of(pool) + pages[key / PAGE_SIZE] * strides[0] + head * strides[1] +
         key % PAGE_SIZE * strides[2];
}

/* The caller's kernel: causal attention of one sequence, two passes, no cleverness. */
static void my_attention(const float *q, const struct DLManagedTensorVersioned *k_pool,
                         const struct DLManagedTensorVersioned *v_pool, const int32_t *pages,
                         float *out) {
  for (int64_t token = 0; token < TOKENS; ++token) {
    for (int head = 0; head < Q_HEADS; ++head) {
      const int kv_head = head / (Q_HEADS / KV_HEADS);
      const float *query = q + (token * Q_HEADS + head) * DIM;
      float *result = out + (token * Q_HEADS + head) * DIM;
      double scores[TOKENS], largest = -INFINITY, sum = 0;
      for (int64_t key = 0; key <= token; ++key) {
        const float *k = row_of(k_pool, pages, key, kv_head);
        double dot = 0;
        for (int i = 0; i < DIM; ++i) dot += (double)query[i] * k[i];
        scores[key] = dot / sqrt(DIM);
        if (scores[key] > largest) largest = scores[key];
      }
      double mean[DIM] = {0};
      for (int64_t key = 0; key <= token; ++key) {
        const float *v = row_of(v_pool, pages, key, kv_head);
        const double weight = exp(scores[key] - largest);
        sum += weight;
        for (int i = 0; i < DIM; ++i) mean[i] += weight * v[i];
      }
      for (int i = 0; i < DIM; ++i) result[i] = (float)(mean[i] / sum);
    }
  }
}

int main(void) {
  kvc_error err = {.struct_size = sizeof err};
  kvc_layer layer = {
      .struct_size = sizeof layer, .num_q_heads = Q_HEADS, .num_kv_heads = KV_HEADS, .k_dim = DIM};
  layer.k_dtype = (DLDataType){kDLFloat, 32, 1};
  kvc_config config = {
      .struct_size = sizeof config, .num_layers = 1, .layers = &layer, .page_size = PAGE_SIZE};
  config.num_pages = 16;
  kvc_plan *plan = NULL;
  kvc_cache *cache = NULL;
  check(kvc_plan_create(&config, &plan, &err), &err);
  check(kvc_cache_create(plan, &cache, &err), &err);
  kvc_plan_destroy(plan);

  static float q[TOKENS * Q_HEADS * DIM], k[TOKENS * KV_HEADS * DIM], v[TOKENS * KV_HEADS * DIM];
  static float mine[TOKENS * Q_HEADS * DIM], theirs[TOKENS * Q_HEADS * DIM];
  for (int i = 0; i < TOKENS * Q_HEADS * DIM; ++i) q[i] = sinf(0.37f * (float)i);
  for (int i = 0; i < TOKENS * KV_HEADS * DIM; ++i)
    k[i] = cosf(0.91f * (float)i), v[i] = sinf(0.53f * (float)i);
  int64_t q_shape[] = {TOKENS, Q_HEADS, DIM}, kv_shape[] = {TOKENS, KV_HEADS, DIM};
  const DLTensor empty = {.device = {kDLCPU, 0}, .ndim = 3, .dtype = {kDLFloat, 32, 1}};
  DLTensor q_view = empty, k_view = empty, v_view = empty, out_view = empty;
  q_view.data = q, q_view.shape = q_shape;
  k_view.data = k, k_view.shape = kv_shape;
  v_view.data = v, v_view.shape = kv_shape;
  out_view.data = theirs, out_view.shape = q_shape;

  const kvc_seq seq = 0;
  const int64_t length = TOKENS;
  kvc_forward_desc desc = {
      .struct_size = sizeof desc, .num_seqs = 1, .seqs = &seq, .append_lengths = &length};
  kvc_forward *fwd = NULL;
  check(kvc_seq_add(cache, seq, &err), &err);
  check(kvc_forward_begin(cache, &desc, &fwd, &err), &err);
  check(kvc_kv_append(fwd, 0, &k_view, &v_view, &err), &err);

  struct DLManagedTensorVersioned *k_pool = NULL, *v_pool = NULL, *pages = NULL;
  check(kvc_export_pool(cache, 0, KVC_POOL_K, &k_pool, &err), &err);
  check(kvc_export_pool(cache, 0, KVC_POOL_V, &v_pool, &err), &err);
  check(kvc_export_page_table(fwd, 0, KVC_TABLE_INDICES, &pages, &err), &err);
  my_attention(q, k_pool, v_pool, (const int32_t *)data_of(pages), mine);
  check(kvc_attn(fwd, 0, NULL, &q_view, NULL, NULL, &out_view, NULL, &err), &err);
  check(kvc_forward_end(fwd, &err), &err);
  kvc_cache_destroy(cache);
  pages->deleter(pages); /* exports outlive the cache */
  v_pool->deleter(v_pool);
  k_pool->deleter(k_pool);

  double worst = 0;
  for (int i = 0; i < TOKENS * Q_HEADS * DIM; ++i)
    worst = fmax(worst, fabs((double)mine[i] - theirs[i]));
  printf("largest difference between the two kernels: %.2g\n", worst);
  return worst < 1e-5 ? 0 : 1;
}
