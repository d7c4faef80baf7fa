/* Swap, copies of pages, fences. SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCACHE_GO_SHIM_COPY_H_
#define KVCACHE_GO_SHIM_COPY_H_

#include "shim.h"

#define SHIM_FENCE(handle) ((kvc_fence *)(handle))

static inline kvc_error *shim_swap(uintptr_t api, int32_t in, uintptr_t cache, size_t n, const int64_t *seqs,
                                   uintptr_t stream, uintptr_t *out_fence) {
  SHIM_ERROR;
  kvc_fence *fence = NULL;
  const kvc_status status =
      in ? SHIM_API(api)->swap_in(SHIM_CACHE(cache), n, seqs, (kvc_stream)stream, &fence, &err)
         : SHIM_API(api)->swap_out(SHIM_CACHE(cache), n, seqs, (kvc_stream)stream, &fence, &err);
  *out_fence = (uintptr_t)fence;
  return shim_result(status, &err);
}
/* pairs int64 [n, 2]; direction < 0: kvc_pages_copy. */
static inline kvc_error *shim_pages(uintptr_t api, uintptr_t cache, const int64_t *pairs, int64_t n,
                                    int32_t direction, uintptr_t stream, uintptr_t *out_fence) {
  SHIM_ERROR;
  kvc_fence *fence = NULL;
  int64_t shape[2] = {n, 2};
  const DLTensor tensor = {(void *)pairs, {kDLCPU, 0}, 2, {kDLInt, 64, 1}, shape, NULL, 0};
  const kvc_status status =
      direction < 0 ? SHIM_API(api)->pages_copy(SHIM_CACHE(cache), &tensor, (kvc_stream)stream, &fence, &err)
                    : SHIM_API(api)->pages_swap(SHIM_CACHE(cache), &tensor, direction, (kvc_stream)stream,
                                                &fence, &err);
  *out_fence = (uintptr_t)fence;
  return shim_result(status, &err);
}
static inline kvc_error *shim_fence_query(uintptr_t api, uintptr_t fence, int32_t *out) {
  SHIM_ERROR;
  return shim_result(SHIM_API(api)->fence_query(SHIM_FENCE(fence), out, &err), &err);
}
static inline kvc_error *shim_fence_wait(uintptr_t api, uintptr_t fence, int64_t timeout_ns) {
  SHIM_ERROR;
  return shim_result(SHIM_API(api)->fence_wait(SHIM_FENCE(fence), timeout_ns, &err), &err);
}
static inline kvc_error *shim_fence_wait_on_stream(uintptr_t api, uintptr_t fence, uintptr_t stream) {
  SHIM_ERROR;
  return shim_result(SHIM_API(api)->fence_wait_on_stream(SHIM_FENCE(fence), (kvc_stream)stream, &err), &err);
}
static inline void shim_fence_destroy(uintptr_t api, uintptr_t fence) {
  SHIM_API(api)->fence_destroy(SHIM_FENCE(fence));
}

#endif /* KVCACHE_GO_SHIM_COPY_H_ */
