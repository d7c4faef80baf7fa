/* The same attention call in a loop of C, for bench/call_cost.py: what remains of a Python call is
 * the binding's. */
#include <time.h>

#include "binding.h"

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* Nanoseconds per kvc_attn of `count` calls in a row. */
PyObject *kvcpy_time_attn(PyObject *capsule, int layer, PyObject *tensors, int count) {
  kvcpy_tensor x[4]; /* q, k, v, out */
  static const char *const names[] = {"q", "k", "v", "out"};
  kvcpy_hold hold;
  kvc_forward *forward;
  kvc_status status = KVC_OK;
  double begin = 0, end = 0;
  int i, failed = 0;
  kvcpy_handle *handle = kvcpy_handle_of(capsule, "kvc_forward");
  if (!handle || !PyTuple_Check(tensors) || PyTuple_Size(tensors) != 4) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "tensors: expected (q, k, v, out)");
    return NULL;
  }
  for (i = 0; i < 4; ++i) kvcpy_tensor_init(&x[i]);
  for (i = 0; i < 4 && !failed; ++i)
    failed = kvcpy_tensor_in(PyTuple_GetItem(tensors, i), &x[i], i == 3, names[i]);
  if (!failed) {
    forward = kvcpy_enter(&hold, handle, KVCPY_ATTEND);
    if (forward) {
      begin = now();
      for (i = 0; i < count && !status; ++i)
        status = kvc_attn(forward, layer, NULL, &x[0].tensor, &x[1].tensor, &x[2].tensor,
                          &x[3].tensor, NULL, kvcpy_error());
      end = now();
    }
    failed = kvcpy_leave(&hold);
  }
  for (i = 0; i < 4; ++i) kvcpy_tensor_done(&x[i]);
  if (failed) return NULL;
  if (status) return kvcpy_raise(status);
  return PyFloat_FromDouble((end - begin) / (count > 0 ? count : 1));
}
