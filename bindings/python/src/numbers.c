/* One number, text or bytes as an argument: what Python takes for it, or an exception that names
 * the argument. */
#include <string.h>

#include "binding.h"

/* The integer that `object` stands for, a new reference: Python's own, and what has __index__. */
static PyObject *index_of(PyObject *object, const char *name) {
  PyObject *number = PyNumber_Index(object);
  if (!number && PyErr_ExceptionMatches(PyExc_TypeError))
    kvcpy_refuse_type(name, "an integer", object);
  return number;
}

/* After a conversion that failed: too large becomes an exception that says so, others stay. */
static int too_large(PyObject *number, const char *what, const char *name) {
  PyObject *digits;
  if (!PyErr_ExceptionMatches(PyExc_OverflowError) && !PyErr_ExceptionMatches(PyExc_TypeError))
    return -1;
  PyErr_Clear();
  digits = PyObject_Str(number);
  if (!digits) /* Python writes no number of thousands of digits */
    return kvcpy_refuse(KVCPY_OVERFLOW, "%s: the number is no %s integer", name, what);
  kvcpy_refuse(KVCPY_OVERFLOW, "%s: %U is no %s integer", name, digits, what);
  Py_DECREF(digits);
  return -1;
}

/* `object` itself where it is an int, which nearly all are. */
static int wide_in(PyObject *object, int64_t *to, const char *what, const char *name) {
  int failed = 0;
  if (PyLong_Check(object)) {
    *to = PyLong_AsLongLong(object);
    return *to == -1 && PyErr_Occurred() ? too_large(object, what, name) : 0;
  }
  object = index_of(object, name);
  if (!object) return -1;
  *to = PyLong_AsLongLong(object);
  if (*to == -1 && PyErr_Occurred()) failed = too_large(object, what, name);
  Py_DECREF(object);
  return failed;
}

int kvcpy_int64_in(PyObject *object, int64_t *to, const char *name) {
  return wide_in(object, to, "64-bit", name);
}

int kvcpy_int32_in(PyObject *object, int32_t *to, const char *name) {
  int64_t wide;
  if (wide_in(object, &wide, "32-bit", name)) return -1;
  if (wide < INT32_MIN || wide > INT32_MAX)
    return kvcpy_refuse(KVCPY_OVERFLOW, "%s: %lld is no 32-bit integer", name, (long long)wide);
  *to = (int32_t)wide;
  return 0;
}

int kvcpy_uint64_in(PyObject *object, uint64_t *to, const char *name) {
  int failed = 0;
  if (PyLong_Check(object)) {
    *to = PyLong_AsUnsignedLongLong(object);
    return *to == (uint64_t)-1 && PyErr_Occurred() ? too_large(object, "unsigned 64-bit", name) : 0;
  }
  object = index_of(object, name);
  if (!object) return -1;
  *to = PyLong_AsUnsignedLongLong(object);
  if (*to == (uint64_t)-1 && PyErr_Occurred()) failed = too_large(object, "unsigned 64-bit", name);
  Py_DECREF(object);
  return failed;
}

int kvcpy_uint32_in(PyObject *object, uint32_t *to, const char *name) {
  uint64_t wide;
  if (kvcpy_uint64_in(object, &wide, name)) return -1;
  if (wide > UINT32_MAX)
    return kvcpy_refuse(KVCPY_OVERFLOW, "%s: %llu is no unsigned 32-bit integer", name,
                        (unsigned long long)wide);
  *to = (uint32_t)wide;
  return 0;
}

int kvcpy_real_in(PyObject *object, double *to, const char *name) {
  *to = PyFloat_AsDouble(object);
  if (*to != -1 || !PyErr_Occurred()) return 0;
  if (PyErr_ExceptionMatches(PyExc_TypeError)) return kvcpy_refuse_type(name, "a number", object);
  if (PyErr_ExceptionMatches(PyExc_OverflowError))
    return kvcpy_refuse(KVCPY_OVERFLOW, "%s: the integer is no floating point number", name);
  return -1;
}

/* C would take the part before the first NUL byte for the whole. */
static const char *whole_text(const char *text, Py_ssize_t length, const char *name) {
  if (!text || strlen(text) == (size_t)length) return text;
  kvcpy_fail(KVC_E_INVALID_ARGUMENT, "%s holds a NUL byte, at %zu of %zd bytes", name, strlen(text),
             length);
  return NULL;
}

const char *kvcpy_path_in(PyObject *object, const char *name) {
  if (PyBytes_Check(object))
    return whole_text(PyBytes_AsString(object), PyBytes_Size(object), name);
  return kvcpy_text_in(object, name);
}

const char *kvcpy_text_in(PyObject *object, const char *name) {
  const char *text;
  Py_ssize_t length = 0;
  if (!PyUnicode_Check(object)) {
    kvcpy_refuse_type(name, "a str", object);
    return NULL;
  }
  text = PyUnicode_AsUTF8AndSize(object, &length);
  if (!text && PyErr_ExceptionMatches(PyExc_UnicodeError)) {
    PyErr_Clear();
    kvcpy_fail(KVC_E_INVALID_ARGUMENT, "%s: the text has no UTF-8", name);
  }
  return whole_text(text, length, name);
}

int kvcpy_optional_in(PyObject *tuple, Py_ssize_t i, kvcpy_text_reader read, const char **to,
                      const char *name) {
  PyObject *item = PyTuple_GetItem(tuple, i);
  if (!item) return -1;
  if (item != Py_None && !(*to = read(item, name))) return -1;
  return 0;
}

int kvcpy_bytes_in(PyObject *object, const char **data, size_t *size, const char *name) {
  char *start;
  Py_ssize_t length;
  if (!PyBytes_Check(object)) return kvcpy_refuse_type(name, "bytes", object);
  if (PyBytes_AsStringAndSize(object, &start, &length)) return -1;
  *data = start;
  *size = (size_t)length;
  return 0;
}
