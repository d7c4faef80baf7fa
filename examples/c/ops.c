/*
 * Operators: the host owns pool and page tables, laid out as FlashInfer and vLLM have them ([pages,
 * page_size, heads, dim]), and asks the library for the arithmetic alone. Two sequences of
 * different length: append with rotary embedding, then one decode step. The token that saw only
 * itself must give back its own V.
 *
 * cc ops.c $(pkg-config --cflags --libs kvcache) -lm && ./a.out
 */
#include <kvcache.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { Q_HEADS = 4, KV_HEADS = 2, DIM = 32, PAGE_SIZE = 4, PAGES = 8, TOKENS = 7 };

static void check(kvc_status status, const kvc_error *err) {
  if (status == KVC_OK) return;
  fprintf(stderr, "%s: %s\n", kvc_status_name(status), err->message);
  exit(1);
}

static DLTensor view(void *data, uint8_t code, uint8_t bits, int32_t ndim, int64_t *shape) {
  return (DLTensor){
      .data = data, .device = {kDLCPU, 0}, .ndim = ndim, .dtype = {code, bits, 1}, .shape = shape};
}

int main(void) {
  kvc_error err = {.struct_size = sizeof err};
  static float k_pool[PAGES * PAGE_SIZE * KV_HEADS * DIM],
      v_pool[PAGES * PAGE_SIZE * KV_HEADS * DIM];
  int64_t pool_shape[] = {PAGES, PAGE_SIZE, KV_HEADS, DIM};
  const DLTensor k_pages = view(k_pool, kDLFloat, 32, 4, pool_shape);
  const DLTensor v_pages = view(v_pool, kDLFloat, 32, 4, pool_shape);
  const kvc_op_pool pool = {
      .struct_size = sizeof pool, .k = &k_pages, .v = &v_pages, .layout = KVC_OP_NHD};

  /* Sequence 0 has 6 tokens on pages 5 and 2, sequence 1 has one on page 7. */
  int64_t slots[TOKENS] = {20, 21, 22, 23, 8, 9, 28}, slots_shape[] = {TOKENS};
  int32_t positions[TOKENS] = {0, 1, 2, 3, 4, 5, 0};
  static float k[TOKENS * KV_HEADS * DIM], v[TOKENS * KV_HEADS * DIM];
  for (int i = 0; i < TOKENS * KV_HEADS * DIM; ++i)
    k[i] = cosf(0.91f * (float)i), v[i] = sinf(0.53f * (float)i);
  int64_t kv_shape[] = {TOKENS, KV_HEADS, DIM};
  const DLTensor slot_view = view(slots, kDLInt, 64, 1, slots_shape);
  const DLTensor position_view = view(positions, kDLInt, 32, 1, slots_shape);
  const DLTensor k_view = view(k, kDLFloat, 32, 3, kv_shape),
                 v_view = view(v, kDLFloat, 32, 3, kv_shape);
  const kvc_rope rope = {.struct_size = sizeof rope, .mode = KVC_ROPE_ON_APPEND};
  kvc_op_opt opt = {.struct_size = sizeof opt, .rope = &rope, .positions = &position_view};
  check(kvc_op_append(&pool, &opt, &slot_view, &k_view, &v_view, &err), &err);

  /* One query per sequence, at the position of its last token. */
  int32_t seq_lens[] = {6, 1}, block_table[] = {5, 2, 7, -1}, last[] = {5, 0};
  int64_t batch_shape[] = {2}, table_shape[] = {2, 2}, q_shape[] = {2, Q_HEADS, DIM};
  static float q[2 * Q_HEADS * DIM], out[2 * Q_HEADS * DIM];
  for (int i = 0; i < 2 * Q_HEADS * DIM; ++i) q[i] = sinf(0.37f * (float)i);
  const DLTensor lens_view = view(seq_lens, kDLInt, 32, 1, batch_shape);
  const DLTensor table_view = view(block_table, kDLInt, 32, 2, table_shape);
  const DLTensor last_view = view(last, kDLInt, 32, 1, batch_shape);
  const DLTensor q_view = view(q, kDLFloat, 32, 3, q_shape);
  DLTensor out_view = view(out, kDLFloat, 32, 3, q_shape);
  const kvc_op_table table = {
      .struct_size = sizeof table, .seq_lens = &lens_view, .block_table = &table_view};
  opt.positions = &last_view;
  check(kvc_op_attention_paged(&pool, &table, &opt, &q_view, &out_view, NULL, &err), &err);

  double worst = 0;
  for (int head = 0; head < Q_HEADS; ++head) {
    const float *own = v + ((TOKENS - 1) * KV_HEADS + head / (Q_HEADS / KV_HEADS)) * DIM;
    for (int i = 0; i < DIM; ++i)
      worst = fmax(worst, fabs((double)out[(Q_HEADS + head) * DIM + i] - own[i]));
  }
  printf("largest difference between the lone token's output and its V: %.2g\n", worst);
  return worst < 1e-6 ? 0 : 1;
}
