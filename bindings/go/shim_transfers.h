/* Transfers. SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCACHE_GO_SHIM_TRANSFERS_H_
#define KVCACHE_GO_SHIM_TRANSFERS_H_

#include "shim_abi.h"

static inline kvc_error *shim_transport_open(uintptr_t api, kvc_transport_desc *desc,
                                             uintptr_t *out) {
  SHIM_ERROR;
  kvc_transport *transport = NULL;
  desc->struct_size = sizeof *desc;
  const kvc_status status = SHIM_API(api)->transport_open(desc, &transport, &err);
  *out = (uintptr_t)transport;
  return shim_result(status, &err);
}

extern void kvcacheGoDone(uintptr_t id, int32_t status);

static void shim_transfer_done(void *user, kvc_transfer *transfer, kvc_status status) {
  (void)transfer;
  kvcacheGoDone((uintptr_t)user, status);
}

/* on_done: the number of a function, 0: none. */
static inline kvc_error *shim_transfer_recv(uintptr_t api, uintptr_t cache, uintptr_t transport,
                                            const kvc_recv_desc *desc, uintptr_t on_done,
                                            uintptr_t *out) {
  SHIM_ERROR;
  kvc_transfer *transfer = NULL;
  kvc_recv_desc full = *desc;
  full.struct_size = sizeof full;
  full.on_done = on_done == 0 ? NULL : shim_transfer_done;
  full.user = (void *)on_done;
  const kvc_status status = SHIM_API(api)->transfer_recv(
      SHIM_CACHE(cache), (kvc_transport *)transport, &full, &transfer, &err);
  *out = (uintptr_t)transfer;
  return shim_result(status, &err);
}
/* The ticket lies in Go memory: only the copy of the desc names it. */
static inline kvc_error *shim_transfer_send(uintptr_t api, uintptr_t cache, uintptr_t transport,
                                            const kvc_send_desc *desc, const void *ticket,
                                            size_t ticket_len, uintptr_t on_done, uintptr_t *out) {
  SHIM_ERROR;
  kvc_transfer *transfer = NULL;
  kvc_send_desc full = *desc;
  full.struct_size = sizeof full;
  full.ticket = ticket;
  full.ticket_len = ticket_len;
  full.on_done = on_done == 0 ? NULL : shim_transfer_done;
  full.user = (void *)on_done;
  const kvc_status status = SHIM_API(api)->transfer_send(
      SHIM_CACHE(cache), (kvc_transport *)transport, &full, &transfer, &err);
  *out = (uintptr_t)transfer;
  return shim_result(status, &err);
}

#endif /* KVCACHE_GO_SHIM_TRANSFERS_H_ */
