/* Swap, copies of pages, fences. SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCACHE_GO_SHIM_COPY_H_
#define KVCACHE_GO_SHIM_COPY_H_

#include "shim_abi.h"

static inline kvc_error *shim_swap(uintptr_t api, int32_t in, uintptr_t cache, size_t n,
                                   const int64_t *seqs, uintptr_t stream, uintptr_t *out_fence) {
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
      direction < 0
          ? SHIM_API(api)->pages_copy(SHIM_CACHE(cache), &tensor, (kvc_stream)stream, &fence, &err)
          : SHIM_API(api)->pages_swap(SHIM_CACHE(cache), &tensor, direction, (kvc_stream)stream,
                                      &fence, &err);
  *out_fence = (uintptr_t)fence;
  return shim_result(status, &err);
}
/* in: kvc_pages_import; bytes [n, page_bytes]. */
static inline kvc_error *shim_page_bytes(uintptr_t api, int32_t in, uintptr_t cache, int32_t layer,
                                         const int64_t *ids, int64_t n, void *bytes,
                                         int64_t page_bytes) {
  SHIM_ERROR;
  int64_t shape[2] = {n, page_bytes};
  const DLTensor pages = {(void *)ids, {kDLCPU, 0}, 1, {kDLInt, 64, 1}, shape, NULL, 0};
  DLTensor data = {bytes, {kDLCPU, 0}, 2, {kDLUInt, 8, 1}, shape, NULL, 0};
  const kvc_status status =
      in ? SHIM_API(api)->pages_import(SHIM_CACHE(cache), layer, &pages, &data, NULL, &err)
         : SHIM_API(api)->pages_export(SHIM_CACHE(cache), layer, &pages, &data, NULL, &err);
  return shim_result(status, &err);
}

#endif /* KVCACHE_GO_SHIM_COPY_H_ */
