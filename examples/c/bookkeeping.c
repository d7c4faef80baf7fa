/*
 * Bookkeeping only: a scheduler that keeps its own kernels and memory. Lengths in, page ids out; no
 * tensor memory anywhere. Requests are admitted while their pages fit; when the cache is full, the
 * newest one is preempted.
 *
 * cc bookkeeping.c $(pkg-config --cflags --libs kvcache) && ./a.out
 */
#include <kvcache.h>
#include <stdio.h>
#include <stdlib.h>

enum { REQUESTS = 6, STEPS = 40, PAGES = 24, PAGE_SIZE = 16 };

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
  config.num_pages = PAGES;
  config.storage = KVC_STORAGE_NONE;
  kvc_plan *plan = NULL;
  kvc_cache *cache = NULL;
  check(kvc_plan_create(&config, &plan, &err), &err);
  check(kvc_cache_create(plan, &cache, &err), &err);
  kvc_plan_destroy(plan);
  return cache;
}

/* The page table a kernel would read: int32 [sequences, most pages], -1 behind the last page. */
static void print_block_table(kvc_forward *fwd) {
  kvc_error err = {.struct_size = sizeof err};
  struct DLManagedTensorVersioned *table = NULL;
  check(kvc_export_page_table(fwd, 0, KVC_TABLE_BLOCK_TABLE, &table, &err), &err);
  const DLTensor *view = &table->dl_tensor;
  const int32_t *rows =
      (const int32_t *)(const void *)((const char *)view->data + view->byte_offset);
  for (int64_t row = 0; row < view->shape[0]; ++row) {
    for (int64_t column = 0; column < view->shape[1]; ++column)
      printf("%4d", rows[row * view->strides[0] + column]);
    printf("\n");
  }
  table->deleter(table);
}

int main(void) {
  kvc_error err = {.struct_size = sizeof err};
  kvc_cache *cache = make_cache();
  kvc_seq running[REQUESTS];
  int64_t lengths[REQUESTS];
  size_t num_running = 0;
  kvc_seq waiting = 0; /* requests come in order of their id */
  int preempted = 0;

  for (int now = 0; now < STEPS; ++now) {
    for (size_t i = 0; i < num_running; ++i) lengths[i] = 1; /* one decoded token each */
    if (waiting < REQUESTS) { /* and the prompt of one more, when it fits */
      int64_t missing = 0;
      running[num_running] = waiting;
      lengths[num_running] = 40 + 10 * waiting;
      check(kvc_seq_add(cache, waiting, &err), &err);
      check(kvc_seq_can_append(cache, num_running + 1, running, lengths, &missing, &err), &err);
      if (missing == 0) {
        ++num_running, ++waiting;
      } else {
        check(kvc_seq_remove(cache, waiting, &err), &err);
      }
    }

    kvc_forward *fwd = NULL;
    kvc_status status;
    for (;;) {
      kvc_forward_desc desc = {
          .struct_size = sizeof desc, .num_seqs = num_running, .seqs = running};
      desc.append_lengths = lengths;
      status = kvc_forward_begin(cache, &desc, &fwd, &err);
      if (status != KVC_E_NO_PAGES) break;
      /* Full, and nothing has changed: make room and ask again. A real engine would queue the
       * request once more. */
      check(kvc_seq_remove(cache, running[--num_running], &err), &err);
      ++preempted;
    }
    check(status, &err);
    if (now == 2) print_block_table(fwd);
    check(kvc_forward_end(fwd, &err), &err);
  }

  check(kvc_cache_check(cache, &err), &err);
  kvc_stats stats = {.struct_size = sizeof stats};
  check(kvc_cache_stats_get(cache, &stats, &err), &err);
  printf("%lld running, %d preempted, %lld tokens, %lld of %lld pages free\n",
         (long long)stats.num_seqs, preempted, (long long)stats.total_length,
         (long long)stats.pages_available, (long long)stats.pages_total);
  const int consistent = stats.num_seqs == (int64_t)num_running &&
                         stats.pages_used + stats.pages_available == PAGES &&
                         stats.pool_bytes == stats.page_bytes * PAGES;
  for (size_t i = 0; i < num_running; ++i) check(kvc_seq_remove(cache, running[i], &err), &err);
  const int empty = kvc_cache_is_empty(cache);
  kvc_cache_destroy(cache);
  return consistent && empty ? 0 : 1;
}
