/* Where tiers are. */
#include <string.h>

#include "binding.h"

static int text(PyObject *tuple, Py_ssize_t i, const char **to, const char *name) {
  PyObject *item = PyTuple_GetItem(tuple, i);
  if (!item) return -1;
  if (item != Py_None && !(*to = kvcpy_text_in(item, name))) return -1;
  return 0;
}

int kvcpy_tier_desc_in(PyObject *object, kvc_tier_desc *d) {
  memset(d, 0, sizeof *d);
  if (!PyTuple_Check(object) || PyTuple_Size(object) != 12)
    return kvcpy_refuse_type("desc", "12 settings of a tier", object);
  d->struct_size = sizeof *d;
  if (kvcpy_int32_in(PyTuple_GetItem(object, 0), &d->tier, "tier") ||
      kvcpy_int32_in(PyTuple_GetItem(object, 1), &d->shard, "shard") ||
      text(object, 2, &d->address, "address") || text(object, 3, &d->model_id, "model_id") ||
      kvcpy_uint64_in(PyTuple_GetItem(object, 4), &d->byte_limit, "byte_limit") ||
      kvcpy_uint64_in(PyTuple_GetItem(object, 5), &d->queue_bytes, "queue_bytes") ||
      kvcpy_int32_in(PyTuple_GetItem(object, 6), &d->get_ms, "get_ms") ||
      kvcpy_int32_in(PyTuple_GetItem(object, 7), &d->put_ms, "put_ms") ||
      kvcpy_int32_in(PyTuple_GetItem(object, 8), &d->connect_ms, "connect_ms") ||
      kvcpy_int64_in(PyTuple_GetItem(object, 9), &d->ttl_s, "ttl_s") ||
      text(object, 10, &d->username, "username") || text(object, 11, &d->password, "password"))
    return -1;
  return 0;
}
