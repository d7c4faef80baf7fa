/* What the parts of the extension module share. Everything keeps to CPython's limited API, so that
 * one wheel serves all versions from 3.10. */
#ifndef KVCACHE_PYTHON_BINDING_H_
#define KVCACHE_PYTHON_BINDING_H_

#ifndef PY_SSIZE_T_CLEAN
#define PY_SSIZE_T_CLEAN
#endif
#include <Python.h>
#include <kvcache.h>

#include "abi_structs.h"

/* ---- errors.c: statuses to exceptions
 * ------------------------------------------------------------- */

/* The calling thread's error box, emptied. It is read again by kvcpy_raise on the same thread. */
kvc_error *kvcpy_error(void);
/* Raise what `status` and the error box say; returns NULL. */
PyObject *kvcpy_raise(kvc_status status);
/* The same with a message of the binding. */
PyObject *kvcpy_fail(kvc_status status, const char *format, ...);
/* `make(status, message, detail, sys_code)` returns the exception to raise. */
PyObject *kvcpy_set_error_factory(PyObject *make);
/* Exceptions of the binding's own, beside the statuses: kvcache.ArgumentTypeError,
 * ArgumentOverflowError, TensorError. */
enum { KVCPY_TYPE = -1, KVCPY_OVERFLOW = -2, KVCPY_TENSOR = -3 };
/* Raise one of them; the format is that of PyUnicode_FromFormat. An exception that is set is
 * replaced. Returns -1. */
int kvcpy_refuse(int kind, const char *format, ...);
/* The same with "name: expected what, got <type of object>". */
int kvcpy_refuse_type(const char *name, const char *what, PyObject *object);
/* Send the library's log to `fn(level, message)`; None: silence. */
PyObject *kvcpy_set_logger(PyObject *fn, int level);

/* ---- handles.c: who may use a cache when
 * ------------------------------------------------------------ */

typedef struct kvcpy_handle kvcpy_handle;
enum {
  KVCPY_SHARED = 0,    /* functions that take a const kvc_cache * */
  KVCPY_EXCLUSIVE = 1, /* functions that change the cache */
  KVCPY_ATTEND = 2,    /* functions of the open forward: beside shared ones, one at a time */
  KVCPY_MODE = 3,
  KVCPY_QUICK = 4 /* keep the GIL unless somebody else is using the cache */
};
typedef struct {
  kvcpy_handle *handle;
  PyObject *capsule; /* the argument, borrowed */
  int mode;
  int entered;
  PyThreadState *thread;
} kvcpy_hold;

/* The handle behind a capsule of this kind ("kvc_cache", "kvc_forward"), or NULL with an
 * exception. */
kvcpy_handle *kvcpy_handle_of(PyObject *capsule, const char *kind);
/* Wait for our turn and return the library's pointer, NULL when the handle is closed. Lets go of
 * the GIL unless it is a quick call. */
void *kvcpy_enter(kvcpy_hold *hold, kvcpy_handle *handle, int mode);
/* 0, or -1 with an exception when the handle was closed. */
int kvcpy_leave(kvcpy_hold *hold);
PyObject *kvcpy_cache_capsule(kvc_cache *cache);
/* Inside the hold of forward_begin: note the open forward; NULL and the forward aborted when memory
 * is missing. */
kvcpy_handle *kvcpy_forward_opened(kvcpy_handle *cache, kvc_forward *forward);
PyObject *kvcpy_forward_capsule(kvcpy_handle *forward, PyObject *cache);
/* Inside the hold of forward_end or forward_abort: the handle is dead. */
void kvcpy_forward_closed(kvcpy_handle *forward);
PyObject *kvcpy_cache_close(PyObject *capsule);
/* Let `owner` live as long as the cache's handle: the tensors of a borrowed pool. */
PyObject *kvcpy_cache_keep(PyObject *capsule, PyObject *owner);
int kvcpy_is_open(PyObject *capsule, const char *kind);
PyObject *kvcpy_plan_capsule(kvc_plan *plan);
PyObject *kvcpy_fence_capsule(kvc_fence *fence);
PyObject *kvcpy_transport_capsule(kvc_transport *transport);
PyObject *kvcpy_transfer_capsule(kvc_transfer *transfer);
/* Under the lock of the receiving cache: what has arrived becomes a sequence. */
PyObject *kvcpy_transfer_settle(PyObject *transfer, PyObject *cache);
/* The interpreter ends: waits for functions of transfers that run, and runs no more of them. */
PyObject *kvcpy_transfers_end(void);
void *kvcpy_pointer_of(PyObject *capsule, const char *kind);

/* ---- tensor.c: tensors of other packages, borrowed for one call
 * ------------------------------------- */

enum { KVCPY_MAX_DIMS = 8 };
typedef struct {
  /* Owns the producer's description until the call is over; NULL: the argument itself does */
  PyObject *capsule;
  DLManagedTensorVersioned *managed;
  DLTensor tensor;
  int64_t shape[KVCPY_MAX_DIMS];
  int64_t strides[KVCPY_MAX_DIMS];
} kvcpy_tensor;

/* Describe `object` in x->tensor without copying its data; 0, or -1 with an exception. `name` is
 * the argument's. */
int kvcpy_tensor_in(PyObject *object, kvcpy_tensor *x, int writable, const char *name);
static inline void kvcpy_tensor_init(kvcpy_tensor *x) {
  x->capsule = NULL;
  x->managed = NULL;
}
void kvcpy_tensor_done(kvcpy_tensor *x);
/* What the object's __dlpack__ gives: a new capsule of DLPack 1, or of before when it knows no
 * better. */
PyObject *kvcpy_ask_dlpack(PyObject *object, const char *name);
/* Read NumPy arrays directly: `ndarray` is the type. None: by __dlpack__ only. */
PyObject *kvcpy_numpy_enable(PyObject *ndarray);
/* What the direct reader sees in an array: (address, shape, strides in bytes, type number, kind,
 * writeable). */
PyObject *kvcpy_numpy_probe(PyObject *array);
/* 1: x is filled, 0: not an array that is read directly, -1: exception. */
int kvcpy_numpy_in(PyObject *object, kvcpy_tensor *x, int writable, const char *name);

/* ---- export.c: tensors for other packages
 * ------------------------------------------------------------ */

int kvcpy_export_ready(PyObject *module);
/* Takes `managed` over, also when it fails. */
PyObject *kvcpy_export_new(DLManagedTensorVersioned *managed);
/* Let the memory of a list of tensors live as long as `tensor`'s: an export of a borrowed pool lies
 * in it. */
PyObject *kvcpy_export_keep(PyObject *tensor, PyObject *list);
/* The tensor of an export object, or NULL (no exception) when `object` is none. */
const DLManagedTensorVersioned *kvcpy_export_tensor(PyObject *object);

/* ---- numbers.c: one number
 * --------------------------------------------------------------------------- */

/* What operator.index takes, of NumPy and PyTorch too, as a number of that width; 0, or -1 with an
 * exception that names the argument. */
int kvcpy_int64_in(PyObject *object, int64_t *to, const char *name);
int kvcpy_int32_in(PyObject *object, int32_t *to, const char *name);
int kvcpy_uint64_in(PyObject *object, uint64_t *to, const char *name);
int kvcpy_uint32_in(PyObject *object, uint32_t *to, const char *name);
/* What float() takes, but no text. */
int kvcpy_real_in(PyObject *object, double *to, const char *name);
/* UTF-8 of a str, which keeps it; NULL with an exception. */
const char *kvcpy_text_in(PyObject *object, const char *name);
/* A str, or the bytes of a path as the system has it. */
const char *kvcpy_path_in(PyObject *object, const char *name);
typedef const char *(*kvcpy_text_reader)(PyObject *object, const char *name);
/* An item of a tuple, None for NULL. */
int kvcpy_optional_in(PyObject *tuple, Py_ssize_t i, kvcpy_text_reader read, const char **to,
                      const char *name);
/* The content of a bytes object, which keeps it. */
int kvcpy_bytes_in(PyObject *object, const char **data, size_t *size, const char *name);

/* ---- arrays.c, options.c, prefix.c: arguments
 * ---------------------------------------------------------- */

enum { KVCPY_SMALL = 32 };
typedef struct {
  void *data; /* of int32_t or int64_t */
  size_t count;
  void *block; /* to be freed */
  kvcpy_tensor view;
  int64_t small[KVCPY_SMALL];
} kvcpy_ints;
static inline void kvcpy_ints_init(kvcpy_ints *a) {
  a->data = a->block = NULL;
  a->count = 0;
  kvcpy_tensor_init(&a->view);
}
void kvcpy_ints_done(kvcpy_ints *a);
/* Integers of a list, tuple, other sequence or one-dimensional tensor, as int32 (bytes 4) or int64
 * (bytes 8). */
int kvcpy_ints_in(PyObject *object, kvcpy_ints *a, int bytes, const char *name);
/* Append an output of a wrapped function; takes both references. */
PyObject *kvcpy_append(PyObject *result, PyObject *item);
PyObject *kvcpy_event_list(const kvc_event *events, size_t count);
/* Tokens of events are borrowed from the library: copy them. -1: no memory. */
int kvcpy_events_keep(kvc_event *events, size_t count);
void kvcpy_events_free(kvc_event *events, size_t count);

typedef struct {
  int used; /* 0: NULL is passed */
  kvc_attn_opt c;
  kvcpy_tensor sink_logits, alibi_slopes, bias, spans;
} kvcpy_attn_opt;
int kvcpy_attn_opt_in(PyObject *object, kvcpy_attn_opt *o);
void kvcpy_attn_opt_done(kvcpy_attn_opt *o);

typedef struct {
  int used;
  kvc_linear_opt c;
  kvcpy_tensor skip;
} kvcpy_linear_opt;
int kvcpy_linear_opt_in(PyObject *object, kvcpy_linear_opt *o);
void kvcpy_linear_opt_done(kvcpy_linear_opt *o);

typedef struct {
  kvc_forward_desc c;
  kvcpy_ints seqs, lengths, parents, tokens, cross;
  kvcpy_tensor positions;
} kvcpy_desc;
int kvcpy_stream_in(PyObject *object, kvc_stream *stream);
void kvcpy_desc_init(kvcpy_desc *d);
int kvcpy_desc_in(PyObject *object, kvcpy_desc *d);
void kvcpy_desc_done(kvcpy_desc *d);

typedef struct {
  kvc_prefix_query c;
  kvcpy_ints tokens;
  kvc_prefix_key *keys;
} kvcpy_query;
void kvcpy_query_init(kvcpy_query *q);
int kvcpy_query_in(PyObject *object, kvcpy_query *q);
void kvcpy_query_done(kvcpy_query *q);
/* A sequence of (type, offset, bytes); the data is borrowed from the bytes objects. */
int kvcpy_keys_in(PyObject *object, kvc_prefix_key **keys, size_t *count);

/* (path, model_id); without path the file is collected in memory. */
typedef struct {
  kvc_save_desc c;
  char *file;
  size_t size, room;
} kvcpy_save_desc;
void kvcpy_save_desc_init(kvcpy_save_desc *d);
int kvcpy_save_desc_in(PyObject *object, kvcpy_save_desc *d);
/* The collected file as bytes, None with a path. */
PyObject *kvcpy_save_desc_out(kvcpy_save_desc *d);
void kvcpy_save_desc_done(kvcpy_save_desc *d);
/* (path, data, model_id, flags); the data is borrowed from the bytes object. */
int kvcpy_load_desc_in(PyObject *object, kvc_load_desc *d);
/* (flags, engine, address, idle, beat, drain, tombstone, bytes_in_flight, resend_rounds) */
int kvcpy_transport_desc_in(PyObject *object, kvc_transport_desc *d);
/* (flags, seq, begin, num_tokens, cross_length, deadline, idle, priority, model_id) */
int kvcpy_recv_desc_in(PyObject *object, kvc_recv_desc *d);
/* (seq, begin, ticket, deadline, idle, model_id); the ticket is borrowed from the bytes object. */
int kvcpy_send_desc_in(PyObject *object, kvc_send_desc *d);
/* (tier, shard, address, model_id, byte_limit, queue_bytes, get_ms, put_ms, connect_ms, ttl_s,
 * username, password) */
int kvcpy_tier_desc_in(PyObject *object, kvc_tier_desc *d);

typedef struct {
  int used;
  kvc_op_pool c;
  kvcpy_tensor part[4]; /* k, v, k_scales, v_scales */
} kvcpy_op_pool;
int kvcpy_op_pool_in(PyObject *object, kvcpy_op_pool *p);
void kvcpy_op_pool_done(kvcpy_op_pool *p);

typedef struct {
  int used;
  kvc_op_table c;
  kvcpy_tensor part[5];
} kvcpy_op_table;
int kvcpy_op_table_in(PyObject *object, kvcpy_op_table *t);
void kvcpy_op_table_done(kvcpy_op_table *t);

/* ---- structs.c, config.c: structs as dictionaries
 * -------------------------------------------------------- */

typedef struct {
  const char *name;
  size_t offset, size;
  int kind;
} kvcpy_field;
typedef struct {
  const char *name;
  size_t size;
  const kvcpy_field *fields;
} kvcpy_struct;
/* KVCPY_IS_kvc_config is the place of kvc_config in the table, and so for every struct. */
#define KVCPY_IS(type) KVCPY_IS_##type,
enum { KVCPY_STRUCTS(KVCPY_IS) KVCPY_NUM_STRUCTS };
extern const kvcpy_struct kvcpy_structs[];
/* Plain fields of a struct. Pointers are left out. */
PyObject *kvcpy_struct_out(int which, const void *from);
/* Plain fields from a dictionary; keys for which `taken` holds a name are skipped, unknown ones
 * refused. */
int kvcpy_struct_in(int which, void *to, PyObject *dict, const char *const *taken);
/* {struct: {"size": n, "fields": {field: [offset, size]}}} as the compiler of this module saw
 * them. */
PyObject *kvcpy_layout(void);

typedef struct kvcpy_arena kvcpy_arena; /* memory that lives as long as one call */
typedef struct {
  kvcpy_arena *arena;
  kvc_config c;
} kvcpy_config;
int kvcpy_config_in(PyObject *object, kvcpy_config *config);
int kvcpy_rope_in(PyObject *object, kvc_rope *rope, kvcpy_arena **arena);
void kvcpy_arena_free(kvcpy_arena *arena);
void *kvcpy_arena_take(kvcpy_arena **arena, size_t bytes);
/* {"max_seq_len", "max_cross_len", "layers": [...]} of a config.json. `assume`: a text, or None. */
PyObject *kvcpy_config_from_hf(PyObject *json, PyObject *assume, int mtp_layers);

typedef struct {
  int used;
  kvc_op_opt c;
  kvcpy_attn_opt attn;
  kvcpy_tensor positions;
  kvc_rope rope;
  kvcpy_arena *arena;
} kvcpy_op_opt;
int kvcpy_op_opt_in(PyObject *object, kvcpy_op_opt *o);
void kvcpy_op_opt_done(kvcpy_op_opt *o);

/* ---- timing.c
 * --------------------------------------------------------------------------------------------- */

PyObject *kvcpy_time_attn(PyObject *capsule, int layer, PyObject *tensors, int count);

#endif
