/*
 * Many continuations of one prompt: the first computes it, the others find it. Bookkeeping only; a
 * cache with memory works alike, and the loop over the layers goes between begin and end.
 *
 * cc prefix.c $(pkg-config --cflags --libs kvcache) && ./a.out
 */
#include <kvcache.h>
#include <stdio.h>
#include <stdlib.h>

enum { PROMPT = 1000, QUESTION = 20, CONTINUATIONS = 50, PAGE_SIZE = 16 };

static void check(kvc_status status, const kvc_error *err) {
  if (status == KVC_OK) return;
  fprintf(stderr, "%s: %s\n", kvc_status_name(status), err->message);
  exit(1);
}

static kvc_cache *make_cache(void) {
  kvc_error err = {.struct_size = sizeof err};
  kvc_layer layer = {
      .struct_size = sizeof layer, .num_q_heads = 32, .num_kv_heads = 8, .k_dim = 128};
  kvc_config config = {
      .struct_size = sizeof config, .num_layers = 1, .layers = &layer, .page_size = PAGE_SIZE};
  config.num_pages = 1000;
  config.storage = KVC_STORAGE_NONE;
  kvc_plan *plan = NULL;
  kvc_cache *cache = NULL;
  check(kvc_plan_create(&config, &plan, &err), &err);
  check(kvc_cache_create(plan, &cache, &err), &err);
  kvc_plan_destroy(plan);
  return cache;
}

int main(void) {
  kvc_error err = {.struct_size = sizeof err};
  kvc_cache *cache = make_cache();
  int32_t tokens[PROMPT + QUESTION];
  for (int i = 0; i < PROMPT; ++i) tokens[i] = 7 * i % 1009;

  int64_t computed = 0;
  for (kvc_seq seq = 0; seq < CONTINUATIONS; ++seq) {
    for (int i = 0; i < QUESTION; ++i) tokens[PROMPT + i] = (int32_t)(1000 * seq + i);

    /* The namespace keeps tenants apart: nothing is ever shared across. */
    kvc_prefix_query query = {
        .struct_size = sizeof query, .num_tokens = PROMPT + QUESTION, .tokens = tokens};
    query.salt = "tenant 1", query.salt_size = 8;
    int64_t hit = 0;
    check(kvc_prefix_attach(cache, seq, &query, &hit, &err), &err);

    /* What is left has to be computed. Giving its token ids publishes full blocks when the forward
     * ends. */
    const int64_t rest = PROMPT + QUESTION - hit;
    kvc_forward_desc desc = {
        .struct_size = sizeof desc, .num_seqs = 1, .seqs = &seq, .append_lengths = &rest};
    desc.tokens = tokens + hit;
    kvc_forward *fwd = NULL;
    check(kvc_forward_begin(cache, &desc, &fwd, &err), &err);
    check(kvc_forward_end(fwd, &err), &err);
    computed += rest;
  }

  kvc_stats stats = {.struct_size = sizeof stats};
  check(kvc_cache_stats_get(cache, &stats, &err), &err);
  printf("%d continuations of %d tokens: %lld tokens computed, %lld found, %lld pages used\n",
         CONTINUATIONS, PROMPT, (long long)computed, (long long)stats.prefix_hit_tokens,
         (long long)stats.pages_used);
  const int shared = computed == PROMPT + CONTINUATIONS * QUESTION;
  kvc_cache_destroy(cache);
  return shared ? 0 : 1;
}
