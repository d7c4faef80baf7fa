/* Statuses become exceptions that the Python layer makes; the library's log goes to a Python
 * function. */
#include <stdarg.h>
#include <stdio.h>

#include "binding.h"

static _Thread_local kvc_error error_box;
static PyObject *factory;

kvc_error *kvcpy_error(void) {
  error_box.struct_size = sizeof error_box;
  error_box.status = KVC_OK;
  error_box.sys_code = 0;
  error_box.detail = 0;
  error_box.message[0] = 0;
  return &error_box;
}

/* Raise what the Python layer makes of these; takes the reference to `text`. */
static PyObject *raise_made(int status, PyObject *text, int64_t detail, int sys_code) {
  PyObject *exception;
  if (!text) return NULL;
  if (!factory) {
    PyErr_SetObject(PyExc_RuntimeError, text);
    Py_DECREF(text);
    return NULL;
  }
  exception = PyObject_CallFunction(factory, "iNLi", status, text, (long long)detail, sys_code);
  if (!exception) return NULL;
  PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
  Py_DECREF(exception);
  return NULL;
}

PyObject *kvcpy_raise(kvc_status status) {
  const char *message = error_box.message[0] ? error_box.message : kvc_status_name(status);
  PyObject *text = PyUnicode_DecodeUTF8(message, (Py_ssize_t)strlen(message), "replace");
  return raise_made((int)status, text, error_box.detail, (int)error_box.sys_code);
}

int kvcpy_refuse(int kind, const char *format, ...) {
  PyObject *text;
  va_list arguments;
  PyErr_Clear();
  va_start(arguments, format);
  text = PyUnicode_FromFormatV(format, arguments);
  va_end(arguments);
  raise_made(kind, text, 0, 0);
  return -1;
}

/* "list", "numpy.float64": the module is left out where it is Python's own. */
static PyObject *type_name(PyTypeObject *type) {
  PyObject *module = PyObject_GetAttrString((PyObject *)type, "__module__");
  PyObject *name = PyObject_GetAttrString((PyObject *)type, "__qualname__");
  PyObject *text = NULL;
  if (module && name && PyUnicode_Check(module) && PyUnicode_Check(name))
    text = PyUnicode_CompareWithASCIIString(module, "builtins")
               ? PyUnicode_FromFormat("%U.%U", module, name)
               : PyUnicode_FromFormat("%U", name);
  Py_XDECREF(module);
  Py_XDECREF(name);
  if (text) return text;
  PyErr_Clear();
  return PyObject_Repr((PyObject *)type);
}

int kvcpy_refuse_type(const char *name, const char *what, PyObject *object) {
  PyObject *type;
  PyErr_Clear();
  type = type_name(Py_TYPE(object));
  if (!type) return -1;
  kvcpy_refuse(KVCPY_TYPE, "%s: expected %s, got %U", name, what, type);
  Py_DECREF(type);
  return -1;
}

PyObject *kvcpy_fail(kvc_status status, const char *format, ...) {
  va_list arguments;
  kvc_error *box = kvcpy_error();
  va_start(arguments, format);
  vsnprintf(box->message, sizeof box->message, format, arguments);
  va_end(arguments);
  return kvcpy_raise(status);
}

PyObject *kvcpy_set_error_factory(PyObject *make) {
  PyObject *before = factory;
  Py_INCREF(make);
  factory = make;
  Py_XDECREF(before);
  Py_RETURN_NONE;
}

/* Called from any thread, with or without the GIL. What the function raises is reported, never
 * passed on. */
static void log_line(void *user, kvc_log_level level, const char *message) {
  PyGILState_STATE gil;
  PyObject *result;
  if (!Py_IsInitialized()) return;
  gil = PyGILState_Ensure();
  result = PyObject_CallFunction((PyObject *)user, "is", (int)level, message);
  if (!result) PyErr_WriteUnraisable((PyObject *)user);
  Py_XDECREF(result);
  PyGILState_Release(gil);
}

PyObject *kvcpy_set_logger(PyObject *fn, int level) {
  static PyObject *current;
  PyObject *before = current;
  kvc_status status;
  if (fn == Py_None) fn = NULL;
  if (fn && !PyCallable_Check(fn)) {
    kvcpy_refuse_type("fn", "None, or a function that is callable as fn(level, message)", fn);
    return NULL;
  }
  Py_XINCREF(fn);
  status = kvc_set_logger(fn ? log_line : NULL, fn, level, kvcpy_error());
  if (status) {
    Py_XDECREF(fn);
    return kvcpy_raise(status);
  }
  current = fn;
  Py_XDECREF(before);
  Py_RETURN_NONE;
}
