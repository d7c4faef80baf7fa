/* Transports, transfers, and what opens them. */
#include <pthread.h>
#include <string.h>

#include "binding.h"

static const char TRANSPORT[] = "kvc_transport", TRANSFER[] = "kvc_transfer";

/* Threads end here, and may log, for which they need the GIL. */
static void transport_gone(PyObject *capsule) {
  kvc_transport *transport = PyCapsule_GetPointer(capsule, TRANSPORT);
  PyThreadState *thread = PyEval_SaveThread();
  kvc_transport_destroy(transport);
  PyEval_RestoreThread(thread);
}

PyObject *kvcpy_transport_capsule(kvc_transport *transport) {
  PyObject *capsule = PyCapsule_New(transport, TRANSPORT, transport_gone);
  if (!capsule) kvc_transport_destroy(transport);
  return capsule;
}

/* ---- on_done: a reference to the function is the transfer's until it has run */

static pthread_mutex_t functions_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t functions_changed = PTHREAD_COND_INITIALIZER;
static int num_functions; /* that run, or wait for the GIL */
static int is_exiting;    /* no more of them: the interpreter ends */

static int function_begins(void) {
  int begins;
  pthread_mutex_lock(&functions_lock);
  begins = !is_exiting;
  num_functions += begins;
  pthread_mutex_unlock(&functions_lock);
  return begins;
}

static void function_ended(void) {
  pthread_mutex_lock(&functions_lock);
  --num_functions;
  pthread_cond_broadcast(&functions_changed);
  pthread_mutex_unlock(&functions_lock);
}

/* Called without the GIL. */
static void transfer_done(void *user, kvc_transfer *transfer, kvc_status status) {
  PyObject *function = user, *result;
  PyGILState_STATE gil;
  (void)transfer;
  if (!function_begins()) return;
  gil = PyGILState_Ensure();
  result = PyObject_CallFunction(function, "i", (int)status);
  if (!result) PyErr_WriteUnraisable(function);
  Py_XDECREF(result);
  Py_DECREF(function);
  PyGILState_Release(gil);
  function_ended();
}

PyObject *kvcpy_transfers_end(void) {
  PyThreadState *thread = PyEval_SaveThread();
  pthread_mutex_lock(&functions_lock);
  is_exiting = 1;
  while (num_functions != 0) pthread_cond_wait(&functions_changed, &functions_lock);
  pthread_mutex_unlock(&functions_lock);
  PyEval_RestoreThread(thread);
  Py_RETURN_NONE;
}

static int function_in(PyObject *function, kvc_transfer_fn *on_done, void **user) {
  if (function == Py_None) return 0;
  if (!PyCallable_Check(function))
    return kvcpy_refuse_type("on_done", "None, or a function that is callable as on_done(status)",
                             function);
  *on_done = transfer_done;
  *user = function;
  return 0;
}

/* A function runs here, or on a thread that this waits for: either needs the GIL. */
static void destroy_transfer(kvc_transfer *transfer) {
  PyObject *type, *value, *trace;
  PyThreadState *thread;
  PyErr_Fetch(&type, &value, &trace);
  thread = PyEval_SaveThread();
  kvc_transfer_destroy(transfer);
  PyEval_RestoreThread(thread);
  PyErr_Restore(type, value, trace);
}

static void transfer_gone(PyObject *capsule) {
  destroy_transfer(PyCapsule_GetPointer(capsule, TRANSFER));
}

PyObject *kvcpy_transfer_capsule(kvc_transfer *transfer) {
  PyObject *capsule = PyCapsule_New(transfer, TRANSFER, transfer_gone);
  if (!capsule) destroy_transfer(transfer);
  return capsule;
}

PyObject *kvcpy_transfer_settle(PyObject *transfer, PyObject *cache) {
  kvcpy_hold hold;
  kvc_status status = KVC_OK;
  kvc_transfer *pointer = kvcpy_pointer_of(transfer, TRANSFER);
  kvcpy_handle *handle = pointer ? kvcpy_handle_of(cache, "kvc_cache") : NULL;
  if (!handle) return NULL;
  if (kvcpy_enter(&hold, handle, KVCPY_EXCLUSIVE))
    status = kvc_transfer_wait(pointer, 0, kvcpy_error());
  if (kvcpy_leave(&hold)) return NULL;
  if (status != KVC_OK) {
    kvcpy_raise(status);
    return NULL;
  }
  Py_RETURN_NONE;
}

int kvcpy_transport_desc_in(PyObject *object, kvc_transport_desc *d) {
  memset(d, 0, sizeof *d);
  if (!PyTuple_Check(object) || PyTuple_Size(object) != 9)
    return kvcpy_refuse_type("desc", "9 settings of a transport", object);
  d->struct_size = sizeof *d;
  if (kvcpy_uint64_in(PyTuple_GetItem(object, 0), &d->flags, "flags") ||
      kvcpy_optional_in(object, 1, kvcpy_text_in, &d->engine, "engine") ||
      kvcpy_optional_in(object, 2, kvcpy_text_in, &d->address, "address") ||
      kvcpy_int64_in(PyTuple_GetItem(object, 3), &d->idle_ns, "idle") ||
      kvcpy_int64_in(PyTuple_GetItem(object, 4), &d->beat_ns, "beat") ||
      kvcpy_int64_in(PyTuple_GetItem(object, 5), &d->drain_ns, "drain") ||
      kvcpy_int64_in(PyTuple_GetItem(object, 6), &d->tombstone_ns, "tombstone") ||
      kvcpy_uint64_in(PyTuple_GetItem(object, 7), &d->bytes_in_flight, "bytes_in_flight") ||
      kvcpy_int32_in(PyTuple_GetItem(object, 8), &d->resend_rounds, "resend_rounds"))
    return -1;
  return 0;
}

int kvcpy_recv_desc_in(PyObject *object, kvc_recv_desc *d) {
  memset(d, 0, sizeof *d);
  if (!PyTuple_Check(object) || PyTuple_Size(object) != 13)
    return kvcpy_refuse_type("desc", "13 settings of a transfer", object);
  d->struct_size = sizeof *d;
  if (kvcpy_uint64_in(PyTuple_GetItem(object, 0), &d->flags, "flags") ||
      kvcpy_int64_in(PyTuple_GetItem(object, 1), &d->seq, "seq") ||
      kvcpy_int64_in(PyTuple_GetItem(object, 2), &d->begin, "begin") ||
      kvcpy_int64_in(PyTuple_GetItem(object, 3), &d->num_tokens, "num_tokens") ||
      kvcpy_int64_in(PyTuple_GetItem(object, 4), &d->cross_length, "cross_length") ||
      kvcpy_int64_in(PyTuple_GetItem(object, 5), &d->deadline_ns, "deadline") ||
      kvcpy_int64_in(PyTuple_GetItem(object, 6), &d->idle_ns, "idle") ||
      kvcpy_int32_in(PyTuple_GetItem(object, 7), &d->priority, "priority") ||
      kvcpy_optional_in(object, 8, kvcpy_text_in, &d->model_id, "model_id") ||
      kvcpy_int32_in(PyTuple_GetItem(object, 9), &d->tp_rank, "tp_rank") ||
      kvcpy_int32_in(PyTuple_GetItem(object, 10), &d->tp_size, "tp_size") ||
      kvcpy_int32_in(PyTuple_GetItem(object, 11), &d->sender_tp_size, "sender_tp_size") ||
      function_in(PyTuple_GetItem(object, 12), &d->on_done, &d->user))
    return -1;
  return 0;
}

int kvcpy_send_desc_in(PyObject *object, kvc_send_desc *d) {
  const char *ticket = NULL;
  memset(d, 0, sizeof *d);
  if (!PyTuple_Check(object) || PyTuple_Size(object) != 10)
    return kvcpy_refuse_type("desc", "10 settings of a transfer", object);
  d->struct_size = sizeof *d;
  if (kvcpy_int64_in(PyTuple_GetItem(object, 0), &d->seq, "seq") ||
      kvcpy_int64_in(PyTuple_GetItem(object, 1), &d->begin, "begin") ||
      kvcpy_bytes_in(PyTuple_GetItem(object, 2), &ticket, &d->ticket_len, "ticket") ||
      kvcpy_int32_in(PyTuple_GetItem(object, 3), &d->mode, "as_computed") ||
      kvcpy_int64_in(PyTuple_GetItem(object, 4), &d->deadline_ns, "deadline") ||
      kvcpy_int64_in(PyTuple_GetItem(object, 5), &d->idle_ns, "idle") ||
      kvcpy_optional_in(object, 6, kvcpy_text_in, &d->model_id, "model_id") ||
      kvcpy_int32_in(PyTuple_GetItem(object, 7), &d->tp_rank, "tp_rank") ||
      kvcpy_int32_in(PyTuple_GetItem(object, 8), &d->tp_size, "tp_size") ||
      function_in(PyTuple_GetItem(object, 9), &d->on_done, &d->user))
    return -1;
  d->ticket = ticket;
  return 0;
}
