/* Loading, and the calls without a handle. SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCACHE_GO_SHIM_LIBRARY_H_
#define KVCACHE_GO_SHIM_LIBRARY_H_

#include "shim_abi.h"

extern void kvcacheGoLog(uintptr_t id, int32_t level, char *message);

static void shim_log(void *user, kvc_log_level level, const char *message) {
  kvcacheGoLog((uintptr_t)user, level, (char *)message);
}

/* id 0: silence. */
static inline kvc_error *shim_set_logger(uintptr_t api, uintptr_t id, int32_t min_level) {
  SHIM_ERROR;
  return shim_result(
      SHIM_API(api)->set_logger(id == 0 ? NULL : shim_log, (void *)id, min_level, &err), &err);
}

#endif /* KVCACHE_GO_SHIM_LIBRARY_H_ */
