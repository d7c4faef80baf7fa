/* The C interface for Python: every function of kvcache.h, statuses as exceptions, results returned, tensors by DLPack. The public package is the
 * hand-written layer in kvcache/; this module (kvcache._capi) is its own business.
 *
 * Handles are capsules, options are tuples, large structs are dictionaries; src/ converts them. C mode: with -c++ some typemaps do not match. */
%module(package="kvcache") capi

%{
#include "binding.h"
%}

%include <stdint.i>

/* Words of the header that mean nothing here. */
#define KVC_API
#define KVC_NOEXCEPT
#define KVC_NULLABLE
#define KVC_WARN_UNUSED

/* ---- Left out, or written by hand below -------------------------------------------------------------- */

%ignore kvc_set_logger;
%ignore kvc_config_init;
%ignore kvc_plan_destroy;
%ignore kvc_cache_destroy;
%ignore kvc_fence_destroy;
%ignore kvc_transport_destroy;
%ignore kvc_transfer_destroy;
%ignore kvc_config_from_hf;
%ignore kvc_config_from_hf_json;
%rename("$ignore", %$isclass) ""; /* structs */

/* ---- Statuses ------------------------------------------------------------------------------------------ */

%typemap(in, numinputs=0) kvc_error *err { $1 = kvcpy_error(); }
%typemap(out) kvc_status {
  if ($1 != KVC_OK) {
    kvcpy_raise($1);
    SWIG_fail;
  }
  $result = SWIG_Py_Void();
}
/* The address of a cudaStream_t; left out or None: the legacy default stream. */
%typemap(default) kvc_stream stream { $1 = NULL; }
%typemap(in) kvc_stream stream {
  if (kvcpy_stream_in($input, &$1)) SWIG_fail;
}

/* ---- Numbers, text and bytes in --------------------------------------------------------------- */

%define %number_in(TYPE, CONVERTED, TAKE)
%typemap(in) TYPE (CONVERTED number) {
  if (TAKE($input, &number, "$1_name")) SWIG_fail;
  $1 = ($1_ltype)number;
}
%enddef
%number_in(int64_t, int64_t, kvcpy_int64_in)
%number_in(int32_t, int32_t, kvcpy_int32_in)
%number_in(int, int32_t, kvcpy_int32_in)
%number_in(uint64_t, uint64_t, kvcpy_uint64_in)
%number_in(size_t, uint64_t, kvcpy_uint64_in)

%typemap(in) const char * { if (!($1 = ($1_ltype)kvcpy_text_in($input, "$1_name"))) SWIG_fail; }
%typemap(freearg) const char * ""
%typemap(in) const char *path {
  $1 = NULL;
  if ($input != Py_None && !($1 = ($1_ltype)kvcpy_path_in($input, "$1_name"))) SWIG_fail;
}

/* ---- Handles ------------------------------------------------------------------------------------------- */

/* hold1.handle is set here; %exception takes the lock and fills arg1. */
%typemap(in) kvc_cache *cache (kvcpy_hold hold), const kvc_cache *cache (kvcpy_hold hold) {
  hold.handle = kvcpy_handle_of($input, "kvc_cache");
  if (!hold.handle) SWIG_fail;
  hold.capsule = $input;
}
%typemap(in) kvc_forward *fwd (kvcpy_hold hold), const kvc_forward *fwd (kvcpy_hold hold) {
  hold.handle = kvcpy_handle_of($input, "kvc_forward");
  if (!hold.handle) SWIG_fail;
  hold.capsule = $input;
}
%typemap(in) const kvc_plan *plan { if (!($1 = kvcpy_pointer_of($input, "kvc_plan"))) SWIG_fail; }
%typemap(in) const kvc_fence *fence { if (!($1 = kvcpy_pointer_of($input, "kvc_fence"))) SWIG_fail; }

%typemap(in) kvc_transport *transport, const kvc_transport *transport {
  if (!($1 = kvcpy_pointer_of($input, "kvc_transport"))) SWIG_fail;
}
%typemap(in) kvc_transfer *transfer, const kvc_transfer *transfer {
  if (!($1 = kvcpy_pointer_of($input, "kvc_transfer"))) SWIG_fail;
}

%define %handle_out(TYPE, MAKE)
%typemap(in, numinputs=0) TYPE **out (TYPE *handle = NULL) { $1 = &handle; }
%typemap(argout) TYPE **out {
  $result = kvcpy_append($result, MAKE(*$1));
  if (!$result) SWIG_fail;
}
%enddef
%handle_out(kvc_plan, kvcpy_plan_capsule)
%handle_out(kvc_cache, kvcpy_cache_capsule)
%handle_out(kvc_fence, kvcpy_fence_capsule)
%handle_out(kvc_transport, kvcpy_transport_capsule)
%handle_out(kvc_transfer, kvcpy_transfer_capsule)
%typemap(in, numinputs=0) kvc_fence **out_fence (kvc_fence *handle = NULL) { $1 = &handle; }
%typemap(argout) kvc_fence **out_fence {
  $result = kvcpy_append($result, kvcpy_fence_capsule(*$1));
  if (!$result) SWIG_fail;
}
%typemap(in, numinputs=0) kvc_forward **out (kvc_forward *handle = NULL, kvcpy_handle *opened = NULL) { $1 = &handle; }
%typemap(argout) kvc_forward **out {
  $result = kvcpy_append($result, opened$argnum ? kvcpy_forward_capsule(opened$argnum, hold1.capsule) : PyErr_NoMemory());
  if (!$result) SWIG_fail;
}

/* ---- Tensors --------------------------------------------------------------------------------------------- */

%define %tensor_argument(TYPE, WRITABLE)
%typemap(arginit) TYPE * { kvcpy_tensor_init(&borrowed$argnum); }
%typemap(in) TYPE * (kvcpy_tensor borrowed) {
  if ($input == Py_None) {
    $1 = NULL;
  } else {
    if (kvcpy_tensor_in($input, &borrowed, WRITABLE, "$1_name")) SWIG_fail;
    $1 = &borrowed.tensor;
  }
}
%typemap(freearg) TYPE * { kvcpy_tensor_done(&borrowed$argnum); }
%enddef
%tensor_argument(const DLTensor, 0)
%tensor_argument(DLTensor, 1)

%typemap(in, numinputs=0) struct DLManagedTensorVersioned **out (struct DLManagedTensorVersioned *managed = NULL) { $1 = &managed; }
%typemap(argout) struct DLManagedTensorVersioned **out {
  $result = kvcpy_append($result, kvcpy_export_new(*$1));
  if (!$result) SWIG_fail;
}

/* ---- Numbers out ------------------------------------------------------------------------------------------- */

%define %number_out(TYPE, NAME, MAKE)
%typemap(in, numinputs=0) TYPE *NAME (TYPE number = 0) { $1 = &number; }
%typemap(argout) TYPE *NAME {
  $result = kvcpy_append($result, MAKE(*$1));
  if (!$result) SWIG_fail;
}
%enddef
%number_out(int64_t, out_pages, PyLong_FromLongLong)
%number_out(int64_t, out_tokens, PyLong_FromLongLong)
%number_out(int64_t, out_length, PyLong_FromLongLong)
%number_out(int64_t, out_missing_pages, PyLong_FromLongLong)
%number_out(int64_t, out_nearest, PyLong_FromLongLong)
%number_out(int64_t, out_below, PyLong_FromLongLong)
%number_out(int64_t, out_above, PyLong_FromLongLong)
%number_out(int64_t, out_freed, PyLong_FromLongLong)
%number_out(uint64_t, out_number, PyLong_FromUnsignedLongLong)
%number_out(uint64_t, out_saturated, PyLong_FromUnsignedLongLong)
%number_out(uint64_t, out_released, PyLong_FromUnsignedLongLong)
%number_out(int32_t, out_done, PyLong_FromLong)
%number_out(int32_t, out_fd, PyLong_FromLong)

/* ---- Structs -------------------------------------------------------------------------------------------------- */

%define %struct_out(TYPE)
%typemap(in, numinputs=0) TYPE *out (TYPE info) {
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  $1 = &info;
}
%typemap(argout) TYPE *out {
  $result = kvcpy_append($result, kvcpy_struct_out(KVCPY_IS_##TYPE, $1));
  if (!$result) SWIG_fail;
}
%enddef
%struct_out(kvc_plan_info)
%struct_out(kvc_group_info)
%struct_out(kvc_layer_info)
%struct_out(kvc_stats)
%struct_out(kvc_seq_info)
%struct_out(kvc_tier_stats)
%struct_out(kvc_transport_stats)
%struct_out(kvc_transfer_info)
%struct_out(kvc_device_caps)

%define %option_struct(TYPE, CONVERTED)
%typemap(arginit) const TYPE * { chosen$argnum.used = 0; }
%typemap(in) const TYPE * (CONVERTED chosen) {
  if (CONVERTED##_in($input, &chosen)) SWIG_fail;
  $1 = chosen.used ? &chosen.c : NULL;
}
%typemap(freearg) const TYPE * { CONVERTED##_done(&chosen$argnum); }
%enddef
%option_struct(kvc_attn_opt, kvcpy_attn_opt)
%option_struct(kvc_linear_opt, kvcpy_linear_opt)
%option_struct(kvc_op_opt, kvcpy_op_opt)
%option_struct(kvc_op_pool, kvcpy_op_pool)
%option_struct(kvc_op_table, kvcpy_op_table)

%typemap(arginit) const kvc_forward_desc *desc { kvcpy_desc_init(&wanted$argnum); }
%typemap(in) const kvc_forward_desc *desc (kvcpy_desc wanted) {
  if (kvcpy_desc_in($input, &wanted)) SWIG_fail;
  $1 = &wanted.c;
}
%typemap(freearg) const kvc_forward_desc *desc { kvcpy_desc_done(&wanted$argnum); }

%typemap(arginit) const kvc_prefix_query *query { kvcpy_query_init(&asked$argnum); }
%typemap(in) const kvc_prefix_query *query (kvcpy_query asked) {
  if (kvcpy_query_in($input, &asked)) SWIG_fail;
  $1 = &asked.c;
}
%typemap(freearg) const kvc_prefix_query *query { kvcpy_query_done(&asked$argnum); }

%typemap(arginit) const kvc_config *config { given$argnum.arena = NULL; }
%typemap(in) const kvc_config *config (kvcpy_config given) {
  if (kvcpy_config_in($input, &given)) SWIG_fail;
  $1 = &given.c;
}
%typemap(freearg) const kvc_config *config { kvcpy_arena_free(given$argnum.arena); }

%typemap(arginit) const kvc_save_desc *desc { kvcpy_save_desc_init(&place$argnum); }
%typemap(in) const kvc_save_desc *desc (kvcpy_save_desc place) {
  if (kvcpy_save_desc_in($input, &place)) SWIG_fail;
  $1 = &place.c;
}
%typemap(argout) const kvc_save_desc *desc {
  $result = kvcpy_append($result, kvcpy_save_desc_out(&place$argnum));
  if (!$result) SWIG_fail;
}
%typemap(freearg) const kvc_save_desc *desc { kvcpy_save_desc_done(&place$argnum); }
%typemap(in, numinputs=0) uint64_t *out_bytes { $1 = NULL; }

%define %desc_in(TYPE, TAKE)
%typemap(in) const TYPE *desc (TYPE read) {
  if (TAKE($input, &read)) SWIG_fail;
  $1 = &read;
}
%enddef
%desc_in(kvc_transport_desc, kvcpy_transport_desc_in)
%desc_in(kvc_recv_desc, kvcpy_recv_desc_in)
%desc_in(kvc_send_desc, kvcpy_send_desc_in)
%desc_in(kvc_load_desc, kvcpy_load_desc_in)
%desc_in(kvc_tier_desc, kvcpy_tier_desc_in)

%typemap(in) DLDevice device {
  int type, id;
  if (!PyTuple_Check($input) || !PyArg_ParseTuple($input, "ii", &type, &id)) {
    kvcpy_refuse(KVCPY_TYPE, "device: expected (type, id), got %R", $input);
    SWIG_fail;
  }
  $1.device_type = (DLDeviceType)type;
  $1.device_id = id;
}

/* ---- Arrays in --------------------------------------------------------------------------------------------------- */

%define %integers(COUNT, TYPE, NAME, BYTES)
%typemap(arginit) (COUNT, const TYPE *NAME) { kvcpy_ints_init(&list$argnum); }
%typemap(in) (COUNT, const TYPE *NAME) (kvcpy_ints list) {
  if (kvcpy_ints_in($input, &list, BYTES, #NAME)) SWIG_fail;
  $1 = list.count;
  $2 = list.data;
}
%typemap(freearg) (COUNT, const TYPE *NAME) { kvcpy_ints_done(&list$argnum); }
%enddef
%integers(size_t n, kvc_seq, seqs, 8)

/* As many as the sequences before them: arg2 is n in all of these functions. */
%define %integers_of_seqs(TYPE, NAME, BYTES)
%typemap(arginit) const TYPE *NAME { kvcpy_ints_init(&list$argnum); }
%typemap(in) const TYPE *NAME (kvcpy_ints list) {
  if (kvcpy_ints_in($input, &list, BYTES, #NAME)) SWIG_fail;
  if (list.count != arg2) {
    kvcpy_fail(KVC_E_INVALID_ARGUMENT, #NAME " has %zu entries, seqs has %zu", list.count, arg2);
    SWIG_fail;
  }
  $1 = list.data;
}
%typemap(freearg) const TYPE *NAME { kvcpy_ints_done(&list$argnum); }
%enddef
%integers_of_seqs(int64_t, lengths, 8)
%integers_of_seqs(int32_t, leaves, 4)

%typemap(arginit) (const int32_t *tokens, size_t num_tokens) { kvcpy_ints_init(&list$argnum); }
%typemap(in) (const int32_t *tokens, size_t num_tokens) (kvcpy_ints list) {
  if (kvcpy_ints_in($input, &list, 4, "tokens")) SWIG_fail;
  $1 = list.data;
  $2 = list.count;
}
%typemap(freearg) (const int32_t *tokens, size_t num_tokens) { kvcpy_ints_done(&list$argnum); }

%typemap(in) (const void *salt, size_t salt_size) {
  const char *data = NULL;
  size_t size = 0;
  if ($input != Py_None && kvcpy_bytes_in($input, &data, &size, "salt")) SWIG_fail;
  $1 = (void *)data;
  $2 = size;
}
%typemap(in) (const kvc_prefix_key *keys, size_t num_keys) (kvc_prefix_key *items = NULL) {
  size_t count;
  if (kvcpy_keys_in($input, &items, &count)) SWIG_fail;
  $1 = items;
  $2 = count;
}
%typemap(freearg) (const kvc_prefix_key *keys, size_t num_keys) { PyMem_Free(items$argnum); }

%typemap(in) (const kvc_plan *const *plans, size_t n) (const kvc_plan **items = NULL) {
  Py_ssize_t i, count = PyTuple_Check($input) ? PyTuple_Size($input) : -1;
  if (count < 0) {
    kvcpy_refuse_type("plans", "a tuple", $input);
    SWIG_fail;
  }
  items = PyMem_Calloc((size_t)count + 1, sizeof *items);
  for (i = 0; items && i < count; ++i)
    if (!(items[i] = kvcpy_pointer_of(PyTuple_GetItem($input, i), "kvc_plan"))) SWIG_fail;
  $1 = (kvc_plan **)items;
  $2 = (size_t)count;
}
%typemap(freearg) (const kvc_plan *const *plans, size_t n) { PyMem_Free((void *)items$argnum); }

/* ---- Arrays out: the first call asks for the count, the second one (see %two_calls) fills the buffer --------------- */

%define %array_out(TYPE, BUFFER, COUNT, MAKE)
%typemap(in, numinputs=0) (TYPE *BUFFER, size_t *COUNT) (size_t count = 0) {
  $1 = NULL;
  $2 = &count;
}
%typemap(argout) (TYPE *BUFFER, size_t *COUNT) {
  $result = kvcpy_append($result, MAKE($1, *$2));
  if (!$result) SWIG_fail;
}
%typemap(freearg) (TYPE *BUFFER, size_t *COUNT) { free($1); }
%enddef
%{
#include <stdlib.h>

static PyObject *text_of(const char *text, size_t size) { return PyUnicode_DecodeUTF8(text, size ? (Py_ssize_t)size - 1 : 0, "replace"); }

static PyObject *ids_of(const kvc_seq *ids, size_t count) {
  PyObject *list = PyList_New((Py_ssize_t)count);
  size_t i;
  for (i = 0; list && i < count; ++i)
    if (PyList_SetItem(list, (Py_ssize_t)i, PyLong_FromLongLong(ids[i]))) Py_CLEAR(list);
  return list;
}

static PyObject *bytes_of(const void *data, size_t size) { return PyBytes_FromStringAndSize(data, (Py_ssize_t)size); }

static PyObject *hashes_of(const uint8_t *hashes, size_t count) {
  return PyBytes_FromStringAndSize((const char *)hashes, (Py_ssize_t)(count * KVC_HASH_BYTES));
}
%}
%array_out(char, buf, len, text_of)
%array_out(void, buf, len, bytes_of)
%array_out(kvc_seq, ids, count, ids_of)
%array_out(uint8_t, out_hashes, len, hashes_of)

%typemap(in, numinputs=0) (kvc_event *out, size_t *count) (size_t count = 0) {
  $1 = NULL;
  $2 = &count;
}
%typemap(argout) (kvc_event *out, size_t *count) {
  $result = kvcpy_append($result, kvcpy_event_list($1, *$2));
  if (!$result) SWIG_fail;
}
%typemap(freearg) (kvc_event *out, size_t *count) { kvcpy_events_free($1, count$argnum); }

%include "locks.i"
%include "kvcache.h"

/* ---- By hand --------------------------------------------------------------------------------------------------------- */

%exception;
%typemap(in) PyObject * { $1 = $input; }
%typemap(out) PyObject * { $result = $1; if (!$result) SWIG_fail; }
%rename(cache_close) kvcpy_cache_close;
%rename(cache_keep) kvcpy_cache_keep;
%rename(export_keep) kvcpy_export_keep;
%rename(set_error_factory) kvcpy_set_error_factory;
%rename(set_logger) kvcpy_set_logger;
%rename(config_from_hf) kvcpy_config_from_hf;
%rename(numpy_enable) kvcpy_numpy_enable;
%rename(numpy_probe) kvcpy_numpy_probe;
%rename(layout) kvcpy_layout;
%rename(is_open) kvcpy_is_open;
%rename(time_attn) kvcpy_time_attn;
%rename(transfer_settle) kvcpy_transfer_settle;
%rename(transfers_end) kvcpy_transfers_end;
PyObject *kvcpy_cache_close(PyObject *cache);
PyObject *kvcpy_cache_keep(PyObject *cache, PyObject *owner);
PyObject *kvcpy_export_keep(PyObject *tensor, PyObject *list);
PyObject *kvcpy_set_error_factory(PyObject *make);
PyObject *kvcpy_set_logger(PyObject *fn, int min_level);
PyObject *kvcpy_config_from_hf(PyObject *json, PyObject *assume, int mtp_layers);
PyObject *kvcpy_numpy_enable(PyObject *ndarray);
PyObject *kvcpy_numpy_probe(PyObject *array);
PyObject *kvcpy_layout(void);
PyObject *kvcpy_transfer_settle(PyObject *transfer, PyObject *cache);
PyObject *kvcpy_transfers_end(void);
int kvcpy_is_open(PyObject *capsule, const char *kind);
PyObject *kvcpy_time_attn(PyObject *forward, int layer, PyObject *tensors, int count);

%init %{
  if (kvcpy_export_ready(m)) return -1;
%}
