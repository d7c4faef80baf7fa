/* Loading, and the calls without a handle. SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCACHE_GO_SHIM_LIBRARY_H_
#define KVCACHE_GO_SHIM_LIBRARY_H_

#include "shim.h"

extern void kvcacheGoLog(uintptr_t id, int32_t level, char *message);

static void shim_log(void *user, kvc_log_level level, const char *message) {
  kvcacheGoLog((uintptr_t)user, level, (char *)message);
}

static inline uint32_t shim_abi_version(uintptr_t api) { return SHIM_API(api)->get_abi_version(); }
static inline const char *shim_version_string(uintptr_t api) { return SHIM_API(api)->version_string(); }
static inline const char *shim_status_name(uintptr_t api, int32_t status) {
  return SHIM_API(api)->status_name(status);
}
static inline int32_t shim_has_feature(uintptr_t api, const char *name) {
  return SHIM_API(api)->has_feature(name);
}

static inline kvc_error *shim_device_query(uintptr_t api, DLDevice device, kvc_device_caps *out) {
  SHIM_ERROR;
  out->struct_size = sizeof *out;
  return shim_result(SHIM_API(api)->device_query(device, out, &err), &err);
}

/* NULL: the library's own directory. */
static inline kvc_error *shim_module_path_set(uintptr_t api, const char *path) {
  SHIM_ERROR;
  return shim_result(SHIM_API(api)->module_path_set(path, &err), &err);
}

/* id 0: silence. */
static inline kvc_error *shim_set_logger(uintptr_t api, uintptr_t id, int32_t min_level) {
  SHIM_ERROR;
  return shim_result(SHIM_API(api)->set_logger(id == 0 ? NULL : shim_log, (void *)id, min_level, &err), &err);
}

#endif /* KVCACHE_GO_SHIM_LIBRARY_H_ */
