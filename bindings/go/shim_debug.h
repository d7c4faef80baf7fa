/* Stored values and exported memory. SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCACHE_GO_SHIM_DEBUG_H_
#define KVCACHE_GO_SHIM_DEBUG_H_

#include "shim_abi.h"

/* Which tensors a call of kvc_debug_* is about. */
enum shim_stored { SHIM_STORED_KV = 0, SHIM_STORED_MLA = 1, SHIM_STORED_LAYER = 2 };

static inline kvc_error *shim_debug_get(uintptr_t api, int32_t which, uintptr_t cache, int64_t seq,
                                        int32_t layer, int64_t begin, int64_t end, SHIM_TENSOR(k),
                                        SHIM_TENSOR(v)) {
  SHIM_ERROR;
  SHIM_DL(k);
  SHIM_DL(v);
  kvc_status status;
  if (which == SHIM_STORED_KV) {
    status =
        SHIM_API(api)->debug_get_kv(SHIM_CACHE(cache), seq, begin, end, k_dl, v_dl, NULL, &err);
  } else if (which == SHIM_STORED_MLA) {
    status = SHIM_API(api)->debug_get_mla(SHIM_CACHE(cache), seq, begin, end, k_dl, NULL, &err);
  } else {
    status = SHIM_API(api)->debug_get_layer(SHIM_CACHE(cache), seq, layer, begin, end, k_dl, v_dl,
                                            NULL, &err);
  }
  return shim_result(status, &err);
}
static inline kvc_error *shim_debug_set(uintptr_t api, int32_t which, uintptr_t cache, int64_t seq,
                                        int32_t layer, int64_t begin, SHIM_TENSOR(k),
                                        SHIM_TENSOR(v)) {
  SHIM_ERROR;
  SHIM_DL(k);
  SHIM_DL(v);
  kvc_status status;
  if (which == SHIM_STORED_KV) {
    status = SHIM_API(api)->debug_set_kv(SHIM_CACHE(cache), seq, begin, k_dl, v_dl, NULL, &err);
  } else if (which == SHIM_STORED_MLA) {
    status = SHIM_API(api)->debug_set_mla(SHIM_CACHE(cache), seq, begin, k_dl, NULL, &err);
  } else {
    status = SHIM_API(api)->debug_set_layer(SHIM_CACHE(cache), seq, layer, begin, k_dl, v_dl, NULL,
                                            &err);
  }
  return shim_result(status, &err);
}
static inline kvc_error *shim_debug_state(uintptr_t api, int32_t set, uintptr_t cache, int64_t seq,
                                          int32_t layer, int32_t state, SHIM_TENSOR(value)) {
  SHIM_ERROR;
  SHIM_DL(value);
  const kvc_status status = set ? SHIM_API(api)->debug_set_state(SHIM_CACHE(cache), seq, layer,
                                                                 state, value_dl, NULL, &err)
                                : SHIM_API(api)->debug_get_state(SHIM_CACHE(cache), seq, layer,
                                                                 state, value_dl, NULL, &err);
  return shim_result(status, &err);
}

static inline DLManagedTensorVersioned *shim_exported(uintptr_t exported) {
  return (DLManagedTensorVersioned *)exported;
}
static inline uint8_t *shim_exported_data(uintptr_t exported) {
  const DLTensor *tensor = &shim_exported(exported)->dl_tensor;
  return tensor->data == NULL ? NULL : (uint8_t *)tensor->data + tensor->byte_offset;
}
static inline void shim_exported_delete(uintptr_t exported) {
  DLManagedTensorVersioned *tensor = shim_exported(exported);
  if (tensor->deleter != NULL) tensor->deleter(tensor);
}

#endif /* KVCACHE_GO_SHIM_DEBUG_H_ */
