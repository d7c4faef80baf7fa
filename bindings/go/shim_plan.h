/* Plans. Configurations are put together by config.go in memory of C. SPDX-License-Identifier:
 * Apache-2.0 */
#ifndef KVCACHE_GO_SHIM_PLAN_H_
#define KVCACHE_GO_SHIM_PLAN_H_

#include "shim_abi.h"

extern void *kvcacheGoAlloc(uintptr_t id, uint64_t bytes, uint64_t alignment);
extern void kvcacheGoFree(uintptr_t id, void *ptr, uint64_t bytes);

static void *shim_alloc(void *user, DLDevice device, uint64_t bytes, uint64_t alignment) {
  (void)device;
  return kvcacheGoAlloc((uintptr_t)user, bytes, alignment);
}
static void shim_free(void *user, DLDevice device, void *ptr, uint64_t bytes) {
  (void)device;
  kvcacheGoFree((uintptr_t)user, ptr, bytes);
}
static inline void shim_set_allocator(kvc_allocator *allocator, uintptr_t id) {
  allocator->struct_size = sizeof *allocator;
  allocator->user = (void *)id;
  allocator->alloc = shim_alloc;
  allocator->free = shim_free;
}
static inline void shim_set_executor(kvc_executor *executor, void *user, void *concurrency,
                                     void *parallel_for) {
  executor->struct_size = sizeof *executor;
  executor->user = user;
  executor->concurrency = (int32_t(*)(void *))concurrency;
  executor->parallel_for =
      (void (*)(void *, int64_t, void (*)(void *, int64_t, int32_t), void *))parallel_for;
}

static inline kvc_error *shim_plan_create(uintptr_t api, const kvc_config *config, uintptr_t *out) {
  SHIM_ERROR;
  kvc_plan *plan = NULL;
  const kvc_status status = SHIM_API(api)->plan_create(config, &plan, &err);
  *out = (uintptr_t)plan;
  return shim_result(status, &err);
}

/* `plans` are handles as numbers, which kvc_plan * are as well. */
static inline kvc_error *shim_plan_min_pages(uintptr_t api, const uintptr_t *plans, size_t n,
                                             int64_t *out) {
  SHIM_ERROR;
  return shim_result(SHIM_API(api)->plan_min_pages((const kvc_plan *const *)plans, n, out, &err),
                     &err);
}
/* what 0: the table for people, 1: JSON, 2: the fingerprint. */
static inline kvc_error *shim_plan_text(uintptr_t api, uintptr_t plan, int32_t what, char *buf,
                                        size_t *len) {
  SHIM_ERROR;
  const kvc_api *const table = SHIM_API(api);
  const kvc_status status = what == 0 ? table->plan_describe(SHIM_PLAN(plan), buf, len, &err)
                            : what == 1
                                ? table->plan_to_json(SHIM_PLAN(plan), buf, len, &err)
                                : table->layout_fingerprint(SHIM_PLAN(plan), buf, len, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_config_from_hf(uintptr_t api, const char *json, const char *assume,
                                             int32_t mtp_layers, kvc_config *config,
                                             kvc_layer *layers, size_t *n) {
  SHIM_ERROR;
  const kvc_hf_options options = {
      .struct_size = sizeof options, .assume = assume, .mtp_layers = mtp_layers};
  config->struct_size = sizeof *config;
  if (layers != NULL) layers->struct_size = sizeof *layers;
  return shim_result(SHIM_API(api)->config_from_hf(json, &options, config, layers, n, &err), &err);
}

#endif /* KVCACHE_GO_SHIM_PLAN_H_ */
