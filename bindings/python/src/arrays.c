/* Arrays of integers in, lists of events out. */
#include <stdlib.h>
#include <string.h>

#include "binding.h"

void kvcpy_ints_done(kvcpy_ints *a) {
  kvcpy_tensor_done(&a->view);
  free(a->block);
  a->block = NULL;
}

static int room(kvcpy_ints *a, size_t count, int bytes) {
  a->count = count;
  if (count * (size_t)bytes <= sizeof a->small) {
    a->data = a->small;
    return 0;
  }
  a->data = a->block = malloc(count * (size_t)bytes);
  if (a->data) return 0;
  PyErr_NoMemory();
  return -1;
}

static int store(kvcpy_ints *a, size_t i, int64_t value, int bytes, const char *name) {
  if (bytes == 8) {
    ((int64_t *)a->data)[i] = value;
    return 0;
  }
  if (value < INT32_MIN || value > INT32_MAX) {
    return kvcpy_refuse(KVCPY_OVERFLOW, "%s[%zu]: %lld is no 32-bit integer", name, i,
                        (long long)value);
  }
  ((int32_t *)a->data)[i] = (int32_t)value;
  return 0;
}

/* An element with the name that an exception gives it: "seqs[3]". */
static int element_in(PyObject *item, int64_t *value, const char *name, Py_ssize_t i) {
  char element[96];
  PyErr_Clear();
  PyOS_snprintf(element, sizeof element, "%s[%lld]", name, (long long)i);
  return kvcpy_int64_in(item, value, element);
}

static int from_items(PyObject *list, kvcpy_ints *a, int bytes, const char *name) {
  int tuple = PyTuple_Check(list);
  Py_ssize_t i, count = tuple ? PyTuple_Size(list) : PyList_Size(list);
  if (room(a, (size_t)count, bytes)) return -1;
  for (i = 0; i < count; ++i) {
    PyObject *item = tuple ? PyTuple_GetItem(list, i) : PyList_GetItem(list, i);
    int64_t value;
    int failed;
    if (!item) return -1;
    if (PyLong_Check(item)) {
      value = PyLong_AsLongLong(item);
      failed = value == -1 && PyErr_Occurred() ? element_in(item, &value, name, i) : 0;
    } else {
      Py_INCREF(item); /* its __index__ may take it out of the list */
      failed = element_in(item, &value, name, i);
      Py_DECREF(item);
    }
    if (failed || store(a, (size_t)i, value, bytes, name)) return -1;
  }
  return 0;
}

static int is_integer(DLDataType type) {
  return (type.code == kDLInt || type.code == kDLUInt) && type.lanes == 1 &&
         (type.bits == 8 || type.bits == 16 || type.bits == 32 || type.bits == 64);
}

/* The integer of that type at an address; -1: an unsigned one beyond int64_t, whose bits are in
 * *value. */
static int number_at(const char *at, DLDataType type, int64_t *value) {
  uint64_t bits = 0;
  memcpy(&bits, at, type.bits / 8u); /* little endian, as NumPy's arrays that come this far */
  if (type.code == kDLInt && type.bits < 64 && bits >> (type.bits - 1))
    bits |= UINT64_MAX << type.bits;
  *value = (int64_t)bits;
  return type.code == kDLUInt && bits > INT64_MAX ? -1 : 0;
}

static int from_tensor(PyObject *object, kvcpy_ints *a, int bytes, const char *name) {
  const DLTensor *t = &a->view.tensor;
  const char *data;
  int64_t i, stride;
  if (kvcpy_tensor_in(object, &a->view, 0, name)) return -1;
  if (t->ndim != 1 || t->device.device_type != kDLCPU || !is_integer(t->dtype))
    return kvcpy_refuse(
        KVCPY_TYPE,
        "%s: expected integers in one dimension on the CPU, got %d dimensions of DLPack type "
        "(%d, %d, %d) on device %d",
        name, (int)t->ndim, t->dtype.code, t->dtype.bits, t->dtype.lanes,
        (int)t->device.device_type);
  data = (const char *)t->data + t->byte_offset;
  stride = t->strides ? t->strides[0] : 1;
  if (t->dtype.code == kDLInt && t->dtype.bits == 8 * bytes && stride == 1 && t->shape[0] > 0) {
    a->data = (void *)(uintptr_t)data;
    a->count = (size_t)t->shape[0];
    return 0;
  }
  if (room(a, (size_t)t->shape[0], bytes)) return -1;
  for (i = 0; i < t->shape[0]; ++i) {
    int64_t value;
    if (number_at(data + i * stride * (t->dtype.bits / 8), t->dtype, &value))
      return kvcpy_refuse(KVCPY_OVERFLOW, "%s[%lld]: %llu is no 64-bit integer", name, (long long)i,
                          (unsigned long long)value);
    if (store(a, (size_t)i, value, bytes, name)) return -1;
  }
  return 0;
}

int kvcpy_ints_in(PyObject *object, kvcpy_ints *a, int bytes, const char *name) {
  PyObject *list;
  int failed;
  if (PyList_Check(object) || PyTuple_Check(object)) return from_items(object, a, bytes, name);
  if (PyObject_HasAttrString(object, "__dlpack__")) return from_tensor(object, a, bytes, name);
  list = PySequence_List(object);
  if (!list)
    return PyErr_ExceptionMatches(PyExc_TypeError)
               ? kvcpy_refuse_type(name, "integers in a row", object)
               : -1;
  failed = from_items(list, a, bytes, name);
  Py_DECREF(list);
  return failed;
}

PyObject *kvcpy_append(PyObject *result, PyObject *item) {
  PyObject *both;
  if (!item || !result || result == Py_None) {
    Py_XDECREF(result);
    return item;
  }
  both = PyTuple_New(2);
  if (!both) {
    Py_DECREF(result);
    Py_DECREF(item);
    return NULL;
  }
  PyTuple_SetItem(both, 0, result);
  PyTuple_SetItem(both, 1, item);
  return both;
}

int kvcpy_events_keep(kvc_event *events, size_t count) {
  size_t i;
  int failed = 0;
  for (i = 0; i < count; ++i) {
    const size_t bytes = sizeof(int32_t) * (size_t)events[i].num_tokens;
    void *copy;
    if (!events[i].tokens) continue;
    copy = malloc(bytes ? bytes : 1);
    if (copy)
      memcpy(copy, events[i].tokens, bytes);
    else
      failed = -1;
    events[i].tokens = copy;
  }
  return failed;
}

void kvcpy_events_free(kvc_event *events, size_t count) {
  size_t i;
  for (i = 0; events && i < count; ++i) free((void *)(uintptr_t)events[i].tokens);
  free(events);
}

static PyObject *tokens_of(const kvc_event *event) {
  PyObject *tuple;
  int32_t i;
  if (!event->tokens) Py_RETURN_NONE;
  tuple = PyTuple_New(event->num_tokens);
  for (i = 0; tuple && i < event->num_tokens; ++i)
    if (PyTuple_SetItem(tuple, i, PyLong_FromLong(event->tokens[i]))) Py_CLEAR(tuple);
  return tuple;
}

/* (number, type, tier, from_tier, group, num_tokens, tokens, hash, parent) each. */
PyObject *kvcpy_event_list(const kvc_event *events, size_t count) {
  PyObject *list = PyList_New((Py_ssize_t)count);
  size_t i;
  for (i = 0; list && i < count; ++i) {
    const kvc_event *e = &events[i];
    PyObject *item = Py_BuildValue(
        "(KiiiiiNy#y#)", (unsigned long long)e->number, (int)e->type, (int)e->tier,
        (int)e->from_tier, (int)e->group, (int)e->num_tokens, tokens_of(e), (const char *)e->hash,
        (Py_ssize_t)KVC_HASH_BYTES, (const char *)e->parent, (Py_ssize_t)KVC_HASH_BYTES);
    if (!item || PyList_SetItem(list, (Py_ssize_t)i, item)) Py_CLEAR(list);
  }
  return list;
}
