/* Tiers. SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCACHE_GO_SHIM_TIERS_H_
#define KVCACHE_GO_SHIM_TIERS_H_

#include "shim_abi.h"

static inline kvc_error *shim_tier_attach(uintptr_t api, uintptr_t cache, kvc_tier_desc *desc) {
  SHIM_ERROR;
  desc->struct_size = sizeof *desc;
  return shim_result(SHIM_API(api)->tier_attach(SHIM_CACHE(cache), desc, &err), &err);
}

#endif /* KVCACHE_GO_SHIM_TIERS_H_ */
