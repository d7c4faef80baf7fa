/*
 * What the shims of this package share. A shim is a static C function that takes scalars, addresses
 * and plain structs without pointers, puts the structs of kvcache.h together on the C stack, and
 * calls through the function table. So no pointer to Go memory is ever stored in Go memory that C
 * sees, and none is kept after the call. Addresses of Go memory come as typed arguments, which keep
 * it in place and alive for the call; handles of the library come as numbers.
 * shim_abi.h holds the shims whose form follows from the function's declaration; they are
 * generated. A function that a shim by hand calls, in the other files, has none there.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef KVCACHE_GO_SHIM_H_
#define KVCACHE_GO_SHIM_H_

#include <stdlib.h>
#include <string.h>

/* The module's own, before one that flags of pkg-config bring: the Go code knows these names. */
#include "internal/headers/dlpack/dlpack.h"
#include "internal/headers/kvcache_api.h"

enum { SHIM_MAX_DIMS = 9 }; /* of a state (8) and the batch */

/* A DLTensor without its addresses. */
typedef struct shim_tensor {
  DLDevice device;
  DLDataType dtype;
  int32_t ndim;
  uint64_t byte_offset;
  int64_t shape[SHIM_MAX_DIMS];
  int64_t strides[SHIM_MAX_DIMS];
  int32_t has_strides;
  int32_t reserved;
} shim_tensor;

/* A tensor argument: its shape, NULL for none, and where its data is. */
#define SHIM_TENSOR(name) const shim_tensor *name, uint8_t *name##_data

/* Declares `name##_dl`, a DLTensor * for that argument, or NULL. */
#define SHIM_DL(name)   \
  DLTensor name##_room; \
  DLTensor *name##_dl = shim_dl(name, name##_data, &name##_room)

static inline DLTensor *shim_dl(const shim_tensor *tensor, uint8_t *data, DLTensor *room) {
  if (tensor == NULL) return NULL;
  room->data = data;
  room->device = tensor->device;
  room->ndim = tensor->ndim;
  room->dtype = tensor->dtype;
  room->shape = (int64_t *)tensor->shape;
  room->strides = tensor->has_strides ? (int64_t *)tensor->strides : NULL;
  room->byte_offset = tensor->byte_offset;
  return room;
}

/* Handles and the table come as numbers: Go then neither checks nor follows them. */
#define SHIM_API(api) ((const kvc_api *)(api))
#define SHIM_PLAN(handle) ((kvc_plan *)(handle))
#define SHIM_CACHE(handle) ((kvc_cache *)(handle))
#define SHIM_FORWARD(handle) ((kvc_forward *)(handle))

/* A failure is a copy of its kvc_error on the heap, to be freed by Go; success is NULL and costs
 * nothing. */
#define SHIM_ERROR \
  kvc_error err;   \
  err.struct_size = sizeof err

static kvc_error shim_no_memory = {sizeof(kvc_error), KVC_E_NO_MEMORY, 0, 0,
                                   "no memory for the arguments of a call"};

static inline kvc_error *shim_result(kvc_status status, const kvc_error *err) {
  if (status == KVC_OK) return NULL;
  kvc_error *copy = malloc(sizeof *copy);
  if (copy == NULL) return &shim_no_memory;
  *copy = *err;
  copy->status = status;
  return copy;
}

/* Every Go file has a shim_no_memory of its own, so that it is known by what it says. */
static inline void shim_error_free(kvc_error *err) {
  if (err->status != KVC_E_NO_MEMORY || strcmp(err->message, shim_no_memory.message) != 0)
    free(err);
}

#endif /* KVCACHE_GO_SHIM_H_ */
