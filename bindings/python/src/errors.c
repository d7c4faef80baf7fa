/* Statuses become exceptions that the Python layer makes; the library's log goes to a Python function. */
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

PyObject *kvcpy_raise(kvc_status status) {
  PyObject *exception;
  PyObject *text;
  const char *message = error_box.message[0] ? error_box.message : kvc_status_name(status);
  if (!factory) {
    PyErr_Format(PyExc_RuntimeError, "%s: %s", kvc_status_name(status), message);
    return NULL;
  }
  text = PyUnicode_DecodeUTF8(message, (Py_ssize_t)strlen(message), "replace");
  if (!text) return NULL;
  exception = PyObject_CallFunction(factory, "iNLi", (int)status, text, (long long)error_box.detail,
                                    (int)error_box.sys_code);
  if (!exception) return NULL;
  PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
  Py_DECREF(exception);
  return NULL;
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

/* Called from any thread, with or without the GIL. What the function raises is reported, never passed on. */
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
    PyErr_SetString(PyExc_TypeError, "the logger must be callable as fn(level, message), or None");
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
