/* Where state files go to and come from. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "binding.h"

/* Called without the GIL. */
static int32_t collect(void *user, const void *data, size_t size) {
  kvcpy_save_desc *d = user;
  if (size > d->room - d->size) {
    size_t room = d->room + d->room / 2;
    char *file;
    if (room < d->size + size) room = d->size + size;
    file = realloc(d->file, room);
    if (!file) return ENOMEM;
    d->file = file;
    d->room = room;
  }
  memcpy(d->file + d->size, data, size);
  d->size += size;
  return 0;
}

void kvcpy_save_desc_init(kvcpy_save_desc *d) { memset(d, 0, sizeof *d); }

int kvcpy_save_desc_in(PyObject *object, kvcpy_save_desc *d) {
  if (!PyTuple_Check(object) || PyTuple_Size(object) != 2)
    return kvcpy_refuse_type("desc", "(path, model_id)", object);
  d->c.struct_size = sizeof d->c;
  if (kvcpy_optional_in(object, 0, kvcpy_path_in, &d->c.path, "path") ||
      kvcpy_optional_in(object, 1, kvcpy_text_in, &d->c.model_id, "model_id"))
    return -1;
  if (!d->c.path) {
    d->c.write = collect;
    d->c.user = d;
  }
  return 0;
}

PyObject *kvcpy_save_desc_out(kvcpy_save_desc *d) {
  if (d->c.path) Py_RETURN_NONE;
  return PyBytes_FromStringAndSize(d->file, (Py_ssize_t)d->size);
}

void kvcpy_save_desc_done(kvcpy_save_desc *d) { free(d->file); }

int kvcpy_load_desc_in(PyObject *object, kvc_load_desc *d) {
  PyObject *data;
  const char *start = NULL;
  memset(d, 0, sizeof *d);
  if (!PyTuple_Check(object) || PyTuple_Size(object) != 4)
    return kvcpy_refuse_type("desc", "(path, data, model_id, flags)", object);
  d->struct_size = sizeof *d;
  if (kvcpy_optional_in(object, 0, kvcpy_path_in, &d->path, "path") ||
      kvcpy_optional_in(object, 2, kvcpy_text_in, &d->model_id, "model_id") ||
      kvcpy_uint64_in(PyTuple_GetItem(object, 3), &d->flags, "flags"))
    return -1;
  data = PyTuple_GetItem(object, 1);
  if (data != Py_None && kvcpy_bytes_in(data, &start, &d->size, "source")) return -1;
  d->data = start;
  return 0;
}
