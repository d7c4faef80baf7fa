/* The cache and its sequences. SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCACHE_GO_SHIM_CACHE_H_
#define KVCACHE_GO_SHIM_CACHE_H_

#include "shim.h"

static inline kvc_error *shim_cache_create(uintptr_t api, uintptr_t plan, uintptr_t *out) {
  SHIM_ERROR;
  kvc_cache *cache = NULL;
  const kvc_status status = SHIM_API(api)->cache_create(SHIM_PLAN(plan), &cache, &err);
  *out = (uintptr_t)cache;
  return shim_result(status, &err);
}
static inline void shim_cache_destroy(uintptr_t api, uintptr_t cache) {
  SHIM_API(api)->cache_destroy(SHIM_CACHE(cache));
}
static inline kvc_error *shim_cache_clear(uintptr_t api, uintptr_t cache) {
  SHIM_ERROR;
  return shim_result(SHIM_API(api)->cache_clear(SHIM_CACHE(cache), &err), &err);
}
static inline kvc_error *shim_cache_resize(uintptr_t api, uintptr_t cache, int64_t num_pages) {
  SHIM_ERROR;
  return shim_result(SHIM_API(api)->cache_resize(SHIM_CACHE(cache), num_pages, &err), &err);
}
static inline kvc_error *shim_cache_stats(uintptr_t api, uintptr_t cache, kvc_stats *out) {
  SHIM_ERROR;
  out->struct_size = sizeof *out;
  return shim_result(SHIM_API(api)->cache_stats_get(SHIM_CACHE(cache), out, &err), &err);
}
static inline int64_t shim_cache_free_pages(uintptr_t api, uintptr_t cache) {
  return SHIM_API(api)->cache_free_pages(SHIM_CACHE(cache));
}
static inline int64_t shim_cache_total_length(uintptr_t api, uintptr_t cache) {
  return SHIM_API(api)->cache_total_length(SHIM_CACHE(cache));
}
static inline int32_t shim_cache_is_empty(uintptr_t api, uintptr_t cache) {
  return SHIM_API(api)->cache_is_empty(SHIM_CACHE(cache));
}
static inline kvc_error *shim_cache_check(uintptr_t api, uintptr_t cache) {
  SHIM_ERROR;
  return shim_result(SHIM_API(api)->cache_check(SHIM_CACHE(cache), &err), &err);
}

static inline kvc_error *shim_seq_add(uintptr_t api, uintptr_t cache, int64_t seq) {
  SHIM_ERROR;
  return shim_result(SHIM_API(api)->seq_add(SHIM_CACHE(cache), seq, &err), &err);
}
static inline kvc_error *shim_seq_remove(uintptr_t api, uintptr_t cache, int64_t seq) {
  SHIM_ERROR;
  return shim_result(SHIM_API(api)->seq_remove(SHIM_CACHE(cache), seq, &err), &err);
}
static inline kvc_error *shim_seq_fork(uintptr_t api, uintptr_t cache, int64_t parent, int64_t child,
                                       int64_t pos) {
  SHIM_ERROR;
  return shim_result(SHIM_API(api)->seq_fork(SHIM_CACHE(cache), parent, child, pos, &err), &err);
}
static inline kvc_error *shim_seq_pop(uintptr_t api, uintptr_t cache, int64_t seq, int64_t n) {
  SHIM_ERROR;
  return shim_result(SHIM_API(api)->seq_pop(SHIM_CACHE(cache), seq, n, &err), &err);
}
static inline kvc_error *shim_seq_shift(uintptr_t api, uintptr_t cache, int64_t seq, int64_t begin,
                                        int64_t end, int64_t delta) {
  SHIM_ERROR;
  return shim_result(SHIM_API(api)->seq_shift(SHIM_CACHE(cache), seq, begin, end, delta, &err), &err);
}
static inline kvc_error *shim_seq_set_window(uintptr_t api, uintptr_t cache, int64_t seq, int64_t window,
                                             int64_t sink) {
  SHIM_ERROR;
  return shim_result(SHIM_API(api)->seq_set_window(SHIM_CACHE(cache), seq, window, sink, &err), &err);
}
static inline kvc_error *shim_seq_length(uintptr_t api, uintptr_t cache, int64_t seq, int64_t *out) {
  SHIM_ERROR;
  return shim_result(SHIM_API(api)->seq_length(SHIM_CACHE(cache), seq, out, &err), &err);
}
static inline kvc_error *shim_seq_info(uintptr_t api, uintptr_t cache, int64_t seq, kvc_seq_info *out) {
  SHIM_ERROR;
  out->struct_size = sizeof *out;
  return shim_result(SHIM_API(api)->seq_info_get(SHIM_CACHE(cache), seq, out, &err), &err);
}
static inline kvc_error *shim_seq_list(uintptr_t api, uintptr_t cache, int64_t *ids, size_t *count) {
  SHIM_ERROR;
  return shim_result(SHIM_API(api)->seq_list(SHIM_CACHE(cache), ids, count, &err), &err);
}
static inline kvc_error *shim_seq_can_append(uintptr_t api, uintptr_t cache, size_t n, const int64_t *seqs,
                                             const int64_t *lengths, int64_t *out) {
  SHIM_ERROR;
  return shim_result(SHIM_API(api)->seq_can_append(SHIM_CACHE(cache), n, seqs, lengths, out, &err), &err);
}
static inline kvc_error *shim_seq_can(uintptr_t api, uintptr_t cache, int64_t seq, int32_t op, int64_t pos,
                                      int64_t *out) {
  SHIM_ERROR;
  return shim_result(SHIM_API(api)->seq_can(SHIM_CACHE(cache), seq, op, pos, out, &err), &err);
}
static inline kvc_error *shim_tree_commit(uintptr_t api, uintptr_t cache, size_t n, const int64_t *seqs,
                                          const int32_t *leaves, uintptr_t stream) {
  SHIM_ERROR;
  return shim_result(SHIM_API(api)->tree_commit(SHIM_CACHE(cache), n, seqs, leaves, (kvc_stream)stream, &err),
                     &err);
}
static inline kvc_error *shim_state_checkpoint(uintptr_t api, uintptr_t cache, int64_t seq) {
  SHIM_ERROR;
  return shim_result(SHIM_API(api)->state_checkpoint(SHIM_CACHE(cache), seq, &err), &err);
}

#endif /* KVCACHE_GO_SHIM_CACHE_H_ */
