/* Structs as dictionaries, by tables of their fields: what a table says is what the compiler of
 * this module saw. */
#include <stddef.h>
#include <string.h>

#include "binding.h"

enum { OTHER, I32, I64, U64, F32, F64, TYPE, DEVICE, TEXT, U64S, I32S };

#define KIND(x) \
  _Generic((x), int32_t: I32, int64_t: I64, uint64_t: U64, float: F32, double: F64, \
           DLDataType: TYPE, DLDevice: DEVICE, char *: TEXT, uint64_t *: U64S,      \
           int32_t *: I32S, default: OTHER)
#define FIELD(type, field) \
  {#field, offsetof(type, field), sizeof(((type *)0)->field), KIND(((type *)0)->field)},
#define FIELDS(type) \
  static const kvcpy_field type##_fields[] = {KVCPY_FIELDS_##type(FIELD){NULL, 0, 0, OTHER}};
KVCPY_STRUCTS(FIELDS)

#define TABLE(type) {#type, sizeof(type), type##_fields},
const kvcpy_struct kvcpy_structs[] = {KVCPY_STRUCTS(TABLE){NULL, 0, NULL}};

static PyObject *array_out(const char *at, size_t size, int kind) {
  const size_t width = kind == U64S ? sizeof(uint64_t) : sizeof(int32_t);
  const Py_ssize_t count = (Py_ssize_t)(size / width);
  PyObject *tuple = PyTuple_New(count);
  Py_ssize_t i;
  for (i = 0; tuple && i < count; ++i) {
    PyObject *item = kind == U64S ? PyLong_FromUnsignedLongLong(((const uint64_t *)at)[i])
                                  : PyLong_FromLong(((const int32_t *)at)[i]);
    if (!item || PyTuple_SetItem(tuple, i, item)) Py_CLEAR(tuple);
  }
  return tuple;
}

static PyObject *field_out(const char *at, const kvcpy_field *field) {
  switch (field->kind) {
    case I32: return PyLong_FromLong(*(const int32_t *)at);
    case I64: return PyLong_FromLongLong(*(const int64_t *)at);
    case U64: return PyLong_FromUnsignedLongLong(*(const uint64_t *)at);
    case F32: return PyFloat_FromDouble((double)*(const float *)at);
    case F64: return PyFloat_FromDouble(*(const double *)at);
    case TEXT: return PyUnicode_DecodeUTF8(at, (Py_ssize_t)strnlen(at, field->size), "replace");
    case TYPE: {
      const DLDataType *type = (const DLDataType *)at;
      return Py_BuildValue("(iii)", (int)type->code, (int)type->bits, (int)type->lanes);
    }
    case DEVICE:
      return Py_BuildValue("(ii)", (int)((const DLDevice *)at)->device_type,
                           (int)((const DLDevice *)at)->device_id);
    default: return array_out(at, field->size, field->kind);
  }
}

static int internal(const kvcpy_field *field) {
  return field->kind == OTHER || strcmp(field->name, "struct_size") == 0 ||
         strcmp(field->name, "reserved") == 0;
}

PyObject *kvcpy_struct_out(int which, const void *from) {
  const kvcpy_field *field;
  PyObject *dict = PyDict_New();
  for (field = kvcpy_structs[which].fields; dict && field->name; ++field) {
    PyObject *value;
    if (internal(field)) continue;
    value = field_out((const char *)from + field->offset, field);
    if (!value || PyDict_SetItemString(dict, field->name, value)) Py_CLEAR(dict);
    Py_XDECREF(value);
  }
  return dict;
}

static int array_in(char *at, const kvcpy_field *field, PyObject *value) {
  kvcpy_ints items;
  int failed;
  kvcpy_ints_init(&items);
  failed = kvcpy_ints_in(value, &items, 4, field->name);
  if (!failed && items.count * sizeof(int32_t) > field->size) {
    kvcpy_fail(KVC_E_INVALID_ARGUMENT, "%s: %zu entries, at most %zu", field->name, items.count,
               field->size / sizeof(int32_t));
    failed = -1;
  }
  if (!failed && items.count) memcpy(at, items.data, items.count * sizeof(int32_t));
  kvcpy_ints_done(&items);
  return failed;
}

static int type_in(char *at, PyObject *value, const char *name) {
  DLDataType *type = (DLDataType *)at;
  int code, bits, lanes;
  if (!PyTuple_Check(value) || !PyArg_ParseTuple(value, "iii", &code, &bits, &lanes))
    return kvcpy_refuse(KVCPY_TYPE, "%s: expected (code, bits, lanes), got %R", name, value);
  type->code = (uint8_t)code;
  type->bits = (uint8_t)bits;
  type->lanes = (uint16_t)lanes;
  return 0;
}

static int integer_in(char *at, const kvcpy_field *field, PyObject *value) {
  switch (field->kind) {
    case U64: return kvcpy_uint64_in(value, (uint64_t *)at, field->name);
    case I64: return kvcpy_int64_in(value, (int64_t *)at, field->name);
    default: return kvcpy_int32_in(value, (int32_t *)at, field->name);
  }
}

static int field_in(char *at, const kvcpy_field *field, PyObject *value) {
  double real;
  switch (field->kind) {
    case TYPE: return type_in(at, value, field->name);
    case I32S: return array_in(at, field, value);
    case DEVICE: {
      int type, id;
      if (!PyTuple_Check(value) || !PyArg_ParseTuple(value, "ii", &type, &id))
        return kvcpy_refuse(KVCPY_TYPE, "%s: expected (device_type, device_id), got %R",
                            field->name, value);
      ((DLDevice *)at)->device_type = (DLDeviceType)type;
      ((DLDevice *)at)->device_id = id;
      return 0;
    }
    case F32:
    case F64:
      if (kvcpy_real_in(value, &real, field->name)) return -1;
      if (field->kind == F32)
        *(float *)at = (float)real;
      else
        *(double *)at = real;
      return 0;
    default: return integer_in(at, field, value);
  }
}

static const kvcpy_field *find(int which, PyObject *key) {
  const kvcpy_field *field;
  for (field = kvcpy_structs[which].fields; field->name; ++field)
    if (PyUnicode_CompareWithASCIIString(key, field->name) == 0)
      return internal(field) ? NULL : field;
  return NULL;
}

int kvcpy_struct_in(int which, void *to, PyObject *dict, const char *const *taken) {
  PyObject *key, *value;
  Py_ssize_t at = 0;
  if (!PyDict_Check(dict)) return kvcpy_refuse_type(kvcpy_structs[which].name, "a dict", dict);
  memset(to, 0, kvcpy_structs[which].size);
  *(size_t *)to = kvcpy_structs[which].size;
  while (PyDict_Next(dict, &at, &key, &value)) {
    const kvcpy_field *field;
    const char *const *name = taken;
    if (!PyUnicode_Check(key)) continue;
    while (*name && PyUnicode_CompareWithASCIIString(key, *name)) ++name;
    if (*name || value == Py_None) continue;
    field = find(which, key);
    if (!field)
      return kvcpy_refuse(KVCPY_TYPE, "%s has no field %R", kvcpy_structs[which].name, key);
    if (field_in((char *)to + field->offset, field, value)) return -1;
  }
  return 0;
}

PyObject *kvcpy_layout(void) {
  const kvcpy_struct *s;
  const kvcpy_field *field;
  PyObject *all = PyDict_New();
  for (s = kvcpy_structs; all && s->name; ++s) {
    PyObject *fields = PyDict_New(), *entry;
    for (field = s->fields; fields && field->name; ++field) {
      PyObject *place = Py_BuildValue("[nn]", (Py_ssize_t)field->offset, (Py_ssize_t)field->size);
      if (!place || PyDict_SetItemString(fields, field->name, place)) Py_CLEAR(fields);
      Py_XDECREF(place);
    }
    entry =
        fields ? Py_BuildValue("{s:n,s:N}", "size", (Py_ssize_t)s->size, "fields", fields) : NULL;
    if (!entry || PyDict_SetItemString(all, s->name, entry)) Py_CLEAR(all);
    Py_XDECREF(entry);
  }
  return all;
}
