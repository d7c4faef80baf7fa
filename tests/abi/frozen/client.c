/*
 * A program of another age: compiled against the header of an earlier version (or one with shorter
 * structs) and run on the library of today. It makes a plan and a cache, computes attention that
 * can be checked by hand, swaps, finds a prefix, reads events and calls an operator through the
 * function table. Structs are followed by guard bytes: the library writes no further than a
 * struct's size says.
 */
#include <kvcache_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 2, DIM = 8, TOKENS = 20, PAGE = 4, ROW = HEADS * DIM };

static void fail(const char *what, int line) {
  fprintf(stderr, "client.c:%d: %s\n", line, what);
  exit(1);
}
#define CHECK(claim) ((claim) ? (void)0 : fail(#claim, __LINE__))
#define CALL(call)                                                                                \
  do {                                                                                            \
    kvc_error err = {.struct_size = sizeof err};                                                  \
    const kvc_status status = (call);                                                             \
    if (status != KVC_OK) fail(err.message[0] ? err.message : kvc_status_name(status), __LINE__); \
  } while (0)

/* An output struct with guard bytes behind it. */
#define GUARDED(type)        \
  struct {                   \
    type value;              \
    unsigned char guard[64]; \
  }
#define ARM(box)                                                                  \
  (memset(&(box), 0x5a, sizeof(box)), memset(&(box).value, 0, sizeof(box).value), \
   (box).value.struct_size = sizeof(box).value)
#define INTACT(box) intact((box).guard)

static int intact(const unsigned char *guard) {
  for (int i = 0; i < 64; ++i)
    if (guard[i] != 0x5a) return 0;
  return 1;
}

static DLTensor tensor(void *data, uint8_t code, uint8_t bits, int32_t ndim, int64_t *shape) {
  return (DLTensor){
      .data = data, .device = {kDLCPU, 0}, .ndim = ndim, .dtype = {code, bits, 1}, .shape = shape};
}

static kvc_cache *make_cache(void) {
  kvc_layer layers[2] = {{.struct_size = sizeof layers[0],
                          .num_kv_heads = HEADS,
                          .k_dim = DIM,
                          .k_dtype = {kDLFloat, 32, 1}},
                         {.struct_size = sizeof layers[0],
                          .num_kv_heads = HEADS,
                          .k_dim = DIM,
                          .k_dtype = {kDLFloat, 32, 1}}};
  kvc_config config = {.struct_size = sizeof config,
                       .num_layers = 2,
                       .layers = layers,
                       .page_size = PAGE,
                       .num_pages = 64};
  config.host_byte_budget = 1 << 20;
  config.num_threads = 1;
#ifndef SHORTER_STRUCTS /* kvc_config ends before this field there */
  config.event_capacity = 64;
#endif
  kvc_plan *plan = NULL;
  kvc_cache *cache = NULL;
  CALL(kvc_plan_create(&config, &plan, &err));
  GUARDED(kvc_plan_info) info;
  ARM(info);
  CALL(kvc_plan_info_get(plan, &info.value, &err));
  CHECK(INTACT(info) && info.value.page_size == PAGE && info.value.num_pages == 64);
  CHECK(info.value.page_bytes == 2ull * 2 * ROW * PAGE * sizeof(float));
  GUARDED(kvc_group_info) group;
  ARM(group);
  CALL(kvc_plan_group_get(plan, 0, &group.value, &err));
  CHECK(INTACT(group) && group.value.num_layers == 2 && group.value.page_size == PAGE);
  GUARDED(kvc_layer_info) layer;
  ARM(layer);
  CALL(kvc_plan_layer_get(plan, 1, &layer.value, &err));
  CHECK(INTACT(layer) && layer.value.num_kv_heads == HEADS && layer.value.k_dim == DIM);
  CALL(kvc_cache_create(plan, &cache, &err));
  kvc_plan_destroy(plan);
  return cache;
}

/* Every K is the same, so every query takes the mean of the values that it sees: V of token t is t
 * everywhere. */
static void compute(kvc_cache *cache, kvc_seq seq, int64_t begin, const int32_t *tokens) {
  const int64_t count = TOKENS - begin;
  kvc_forward_desc desc = {
      .struct_size = sizeof desc, .num_seqs = 1, .seqs = &seq, .append_lengths = &count};
  desc.tokens = tokens + begin;
  kvc_forward *fwd = NULL;
  CALL(kvc_forward_begin(cache, &desc, &fwd, &err));
  static float q[TOKENS * ROW], k[TOKENS * ROW], v[TOKENS * ROW], out[TOKENS * ROW];
  for (int i = 0; i < count * ROW; ++i) q[i] = 0.25f, k[i] = 0.5f, v[i] = (float)(begin + i / ROW);
  int64_t shape[] = {count, HEADS, DIM};
  const DLTensor tq = tensor(q, kDLFloat, 32, 3, shape), tk = tensor(k, kDLFloat, 32, 3, shape),
                 tv = tensor(v, kDLFloat, 32, 3, shape);
  DLTensor to = tensor(out, kDLFloat, 32, 3, shape);
  for (int32_t layer = 0; layer < 2; ++layer) {
    memset(out, 0, sizeof out);
    kvc_attn_opt opt = {.struct_size = sizeof opt};
    CALL(kvc_attn(fwd, layer, layer == 0 ? NULL : &opt, &tq, &tk, &tv, &to, NULL, &err));
    for (int i = 0; i < count * ROW; ++i)
      CHECK(fabsf(out[i] - 0.5f * (float)(begin + i / ROW)) < 1e-4f);
  }
  CALL(kvc_forward_end(fwd, &err));
}

static void use_cache(kvc_cache *cache) {
  int32_t tokens[TOKENS];
  for (int i = 0; i < TOKENS; ++i) tokens[i] = 100 + i;
  CALL(kvc_seq_add(cache, 1, &err));
  compute(cache, 1, 0, tokens);

  GUARDED(kvc_seq_info) info;
  ARM(info);
  CALL(kvc_seq_info_get(cache, 1, &info.value, &err));
  CHECK(INTACT(info) && info.value.length == TOKENS && info.value.num_pages == TOKENS / PAGE);

  kvc_prefix_query query = {.struct_size = sizeof query, .num_tokens = TOKENS, .tokens = tokens};
  int64_t hit = 0;
  CALL(kvc_prefix_match(cache, &query, &hit, &err));
  CHECK(hit > 0 && hit < TOKENS);
  CALL(kvc_prefix_attach(cache, 2, &query, &hit, &err));
  compute(cache, 2, hit, tokens);

#ifndef SHORTER_STRUCTS
  kvc_event events[16];
  size_t count = 16;
  memset(events, 0, sizeof events);
  events[0].struct_size = sizeof events[0];
  CALL(kvc_events_poll(cache, events, &count, &err));
  CHECK(count == TOKENS / PAGE);
  for (size_t i = 0; i < count; ++i)
    CHECK(events[i].number == i + 1 && events[i].num_tokens == PAGE);
#endif

  const kvc_seq first = 1;
  CALL(kvc_swap_out(cache, 1, &first, NULL, NULL, &err));
  CALL(kvc_swap_in(cache, 1, &first, NULL, NULL, &err));
  CALL(kvc_seq_pop(cache, 1, 3, &err));
  CALL(kvc_seq_fork(cache, 1, 3, 10, &err));
  CALL(kvc_cache_check(cache, &err));
  GUARDED(kvc_stats) stats;
  ARM(stats);
  CALL(kvc_cache_stats_get(cache, &stats.value, &err));
  CHECK(INTACT(stats) && stats.value.num_seqs == 3 &&
        stats.value.total_length == 2 * TOKENS - 3 + 10);

  /* A refusal names what was wrong, in as much room as this program's kvc_error has. */
  GUARDED(kvc_error) error;
  ARM(error);
  CHECK(kvc_seq_pop(cache, 1, 1000, &error.value) != KVC_OK);
  CHECK(INTACT(error) && error.value.status != KVC_OK && error.value.message[0] != 0);
}

/* One operator, through the table that this program's header declares. */
static void use_table(void) {
  const kvc_api *api = kvc_get_api(KVC_ABI_VERSION);
  CHECK(api != NULL && api->struct_size >= sizeof *api);
  float pool_k[2 * PAGE * ROW] = {0}, pool_v[2 * PAGE * ROW] = {0}, k[ROW], v[ROW];
  for (int i = 0; i < ROW; ++i) k[i] = (float)i, v[i] = (float)-i;
  int64_t slot = 5, pool_shape[] = {2, PAGE, HEADS, DIM}, row_shape[] = {1, HEADS, DIM},
          slot_shape[] = {1};
  const DLTensor tpk = tensor(pool_k, kDLFloat, 32, 4, pool_shape),
                 tpv = tensor(pool_v, kDLFloat, 32, 4, pool_shape),
                 tk = tensor(k, kDLFloat, 32, 3, row_shape),
                 tv = tensor(v, kDLFloat, 32, 3, row_shape),
                 slots = tensor(&slot, kDLInt, 64, 1, slot_shape);
  const kvc_op_pool pool = {.struct_size = sizeof pool, .k = &tpk, .v = &tpv, .layout = KVC_OP_NHD};
  CALL(api->op_append(&pool, NULL, &slots, &tk, &tv, &err));
  for (int i = 0; i < ROW; ++i) CHECK(pool_k[5 * ROW + i] == k[i] && pool_v[5 * ROW + i] == v[i]);
}

int main(void) {
  CHECK(kvc_abi_version() >> 16 == KVC_ABI_VERSION_MAJOR);
  kvc_cache *cache = make_cache();
  use_cache(cache);
  kvc_cache_destroy(cache);
  use_table();
  printf("frozen client: ok with %s, kvc_config of %zu bytes\n", kvc_version_string(),
         sizeof(kvc_config));
  return 0;
}
