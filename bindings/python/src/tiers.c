/* Where tiers are. */
#include <string.h>

#include "binding.h"

int kvcpy_tier_desc_in(PyObject *object, kvc_tier_desc *d) {
  memset(d, 0, sizeof *d);
  if (!PyTuple_Check(object) || PyTuple_Size(object) != 12)
    return kvcpy_refuse_type("desc", "12 settings of a tier", object);
  d->struct_size = sizeof *d;
  if (kvcpy_int32_in(PyTuple_GetItem(object, 0), &d->tier, "tier") ||
      kvcpy_int32_in(PyTuple_GetItem(object, 1), &d->shard, "shard") ||
      kvcpy_optional_in(object, 2, kvcpy_path_in, &d->address, "address") ||
      kvcpy_optional_in(object, 3, kvcpy_text_in, &d->model_id, "model_id") ||
      kvcpy_uint64_in(PyTuple_GetItem(object, 4), &d->byte_limit, "byte_limit") ||
      kvcpy_uint64_in(PyTuple_GetItem(object, 5), &d->queue_bytes, "queue_bytes") ||
      kvcpy_int32_in(PyTuple_GetItem(object, 6), &d->get_ms, "get_ms") ||
      kvcpy_int32_in(PyTuple_GetItem(object, 7), &d->put_ms, "put_ms") ||
      kvcpy_int32_in(PyTuple_GetItem(object, 8), &d->connect_ms, "connect_ms") ||
      kvcpy_int64_in(PyTuple_GetItem(object, 9), &d->ttl_s, "ttl_s") ||
      kvcpy_optional_in(object, 10, kvcpy_text_in, &d->username, "username") ||
      kvcpy_optional_in(object, 11, kvcpy_text_in, &d->password, "password"))
    return -1;
  return 0;
}
