/* State files. SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCACHE_GO_SHIM_FILES_H_
#define KVCACHE_GO_SHIM_FILES_H_

#include "shim_abi.h"

/* path NULL: into `size` bytes at data, or nowhere with data NULL. */
static inline kvc_error *shim_seq_save(uintptr_t api, uintptr_t cache, size_t n,
                                       const int64_t *seqs, const char *path, void *data,
                                       size_t size, const char *model_id, uintptr_t stream,
                                       uint64_t *out_bytes) {
  SHIM_ERROR;
  kvc_save_desc desc = {sizeof desc, 0, path, data, size, NULL, NULL, model_id, NULL};
  return shim_result(SHIM_API(api)->seq_save(SHIM_CACHE(cache), n, seqs, &desc, (kvc_stream)stream,
                                             out_bytes, &err),
                     &err);
}
static inline kvc_load_desc shim_load_desc(const char *path, const void *data, size_t size) {
  const kvc_load_desc desc = {sizeof desc, 0, path, data, size, NULL, NULL, NULL, NULL};
  return desc;
}
static inline kvc_error *shim_seq_load(uintptr_t api, uintptr_t cache, const char *path,
                                       const void *data, size_t size, const char *model_id,
                                       uint64_t flags, size_t n, const int64_t *seqs,
                                       uintptr_t stream) {
  SHIM_ERROR;
  kvc_load_desc desc = shim_load_desc(path, data, size);
  desc.flags = flags;
  desc.model_id = model_id;
  return shim_result(
      SHIM_API(api)->seq_load(SHIM_CACHE(cache), &desc, n, seqs, (kvc_stream)stream, &err), &err);
}
static inline kvc_error *shim_state_file_describe(uintptr_t api, const char *path, const void *data,
                                                  size_t size, char *buf, size_t *len) {
  SHIM_ERROR;
  const kvc_load_desc desc = shim_load_desc(path, data, size);
  return shim_result(SHIM_API(api)->state_file_describe(&desc, buf, len, &err), &err);
}

#endif /* KVCACHE_GO_SHIM_FILES_H_ */
