/* Option structs from tuples. The Python layer has a named tuple for each, so that a call costs no
 * dictionary. */
#include <string.h>

#include "binding.h"

/* The tuple's entry; None counts as absent: NULL. Sets *failed when there is no such entry. */
static PyObject *entry(PyObject *tuple, Py_ssize_t i) {
  PyObject *item = PyTuple_GetItem(tuple, i);
  return item == Py_None ? NULL : item;
}

static int expect(PyObject *object, Py_ssize_t count, const char *name) {
  if (PyTuple_Check(object) && PyTuple_Size(object) == count) return 0;
  if (!PyTuple_Check(object)) return kvcpy_refuse_type(name, "a tuple", object);
  return kvcpy_refuse(KVCPY_TYPE, "%s: expected a tuple of %zd, got one of %zd", name, count,
                      PyTuple_Size(object));
}

static int number(PyObject *tuple, Py_ssize_t i, int64_t *to, const char *name) {
  PyObject *item = entry(tuple, i);
  return item ? kvcpy_int64_in(item, to, name) : 0;
}

static int small_number(PyObject *tuple, Py_ssize_t i, int32_t *to, const char *name) {
  PyObject *item = entry(tuple, i);
  return item ? kvcpy_int32_in(item, to, name) : 0;
}

static int bits(PyObject *tuple, Py_ssize_t i, uint64_t *to, const char *name) {
  PyObject *item = entry(tuple, i);
  return item ? kvcpy_uint64_in(item, to, name) : 0;
}

static int real(PyObject *tuple, Py_ssize_t i, float *to, const char *name) {
  PyObject *item = entry(tuple, i);
  double value = 0;
  if (!item) return 0;
  if (kvcpy_real_in(item, &value, name)) return -1;
  *to = (float)value;
  return 0;
}

static int tensor(PyObject *tuple, Py_ssize_t i, kvcpy_tensor *x, const DLTensor **to,
                  const char *name) {
  PyObject *item = entry(tuple, i);
  if (!item) return PyErr_Occurred() ? -1 : 0;
  if (kvcpy_tensor_in(item, x, 0, name)) return -1;
  *to = &x->tensor;
  return 0;
}

int kvcpy_attn_opt_in(PyObject *object, kvcpy_attn_opt *o) {
  if (object == Py_None) return 0;
  if (!PyTuple_Check(object))
    return kvcpy_refuse_type("opt", "a kvcache.AttnOptions or None", object);
  memset(&o->c, 0, sizeof o->c);
  kvcpy_tensor_init(&o->sink_logits);
  kvcpy_tensor_init(&o->alibi_slopes);
  kvcpy_tensor_init(&o->bias);
  kvcpy_tensor_init(&o->spans);
  o->used = 1;
  o->c.struct_size = sizeof o->c;
  if (expect(object, 8, "opt") || real(object, 0, &o->c.scale, "scale") ||
      real(object, 1, &o->c.soft_cap, "soft_cap") || number(object, 2, &o->c.window, "window") ||
      tensor(object, 3, &o->sink_logits, &o->c.sink_logits, "sink_logits") ||
      tensor(object, 4, &o->alibi_slopes, &o->c.alibi_slopes, "alibi_slopes") ||
      tensor(object, 5, &o->bias, &o->c.bias, "bias") ||
      tensor(object, 6, &o->spans, &o->c.spans, "spans") || bits(object, 7, &o->c.flags, "flags"))
    return -1;
  return 0;
}

void kvcpy_attn_opt_done(kvcpy_attn_opt *o) {
  if (!o->used) return;
  o->used = 0;
  kvcpy_tensor_done(&o->sink_logits);
  kvcpy_tensor_done(&o->alibi_slopes);
  kvcpy_tensor_done(&o->bias);
  kvcpy_tensor_done(&o->spans);
}

int kvcpy_linear_opt_in(PyObject *object, kvcpy_linear_opt *o) {
  if (object == Py_None) return 0;
  memset(&o->c, 0, sizeof o->c);
  kvcpy_tensor_init(&o->skip);
  o->used = 1;
  o->c.struct_size = sizeof o->c;
  if (expect(object, 5, "opt") || bits(object, 0, &o->c.flags, "flags") ||
      small_number(object, 1, &o->c.decay, "decay") ||
      small_number(object, 2, &o->c.state, "state") || real(object, 3, &o->c.scale, "scale") ||
      tensor(object, 4, &o->skip, &o->c.skip, "skip"))
    return -1;
  return 0;
}

void kvcpy_linear_opt_done(kvcpy_linear_opt *o) {
  if (!o->used) return;
  o->used = 0;
  kvcpy_tensor_done(&o->skip);
}

void kvcpy_desc_init(kvcpy_desc *d) {
  kvcpy_ints_init(&d->seqs);
  kvcpy_ints_init(&d->lengths);
  kvcpy_ints_init(&d->parents);
  kvcpy_ints_init(&d->tokens);
  kvcpy_ints_init(&d->cross);
  kvcpy_tensor_init(&d->positions);
}

static int per_token(const kvcpy_desc *d, const kvcpy_ints *a, const char *name) {
  uint64_t total = 0;
  size_t i;
  for (i = 0; i < d->lengths.count; ++i) total += (uint64_t)((const int64_t *)d->lengths.data)[i];
  if (a->count == total) return 0;
  kvcpy_fail(KVC_E_INVALID_ARGUMENT, "%s has %zu entries, the lengths sum up to %llu", name,
             a->count, (unsigned long long)total);
  return -1;
}

static int per_seq(const kvcpy_desc *d, const kvcpy_ints *a, const char *name) {
  if (a->count == d->seqs.count) return 0;
  kvcpy_fail(KVC_E_INVALID_ARGUMENT, "%s has %zu entries, seqs has %zu", name, a->count,
             d->seqs.count);
  return -1;
}

int kvcpy_stream_in(PyObject *object, kvc_stream *stream) {
  *stream = NULL;
  if (object == Py_None) return 0;
  if (!PyLong_Check(object)) return kvcpy_refuse_type("stream", "the address of a stream", object);
  *stream = PyLong_AsVoidPtr(object);
  if (*stream || !PyErr_Occurred()) return 0;
  return kvcpy_refuse(KVCPY_OVERFLOW, "stream: the number is no address");
}

/* (seqs, lengths, tree_parents, tokens, positions, cross_lengths, stream, flags). What the library
 * would read is checked to be there. */
int kvcpy_desc_in(PyObject *object, kvcpy_desc *d) {
  PyObject *item;
  memset(&d->c, 0, sizeof d->c);
  d->c.struct_size = sizeof d->c;
  if (expect(object, 8, "desc")) return -1;
  if (kvcpy_stream_in(PyTuple_GetItem(object, 6), &d->c.stream)) return -1;
  if (bits(object, 7, &d->c.flags, "flags")) return -1;
  if (kvcpy_ints_in(PyTuple_GetItem(object, 0), &d->seqs, 8, "seqs") ||
      kvcpy_ints_in(PyTuple_GetItem(object, 1), &d->lengths, 8, "lengths"))
    return -1;
  if (per_seq(d, &d->lengths, "lengths")) return -1;
  d->c.num_seqs = d->seqs.count;
  d->c.seqs = d->seqs.data;
  d->c.append_lengths = d->lengths.data;
  if ((item = entry(object, 2))) {
    if (kvcpy_ints_in(item, &d->parents, 4, "tree_parents") ||
        per_token(d, &d->parents, "tree_parents"))
      return -1;
    d->c.tree_parents = d->parents.data;
  }
  if ((item = entry(object, 3))) {
    if (kvcpy_ints_in(item, &d->tokens, 4, "tokens") || per_token(d, &d->tokens, "tokens"))
      return -1;
    d->c.tokens = d->tokens.data;
  }
  if (tensor(object, 4, &d->positions, &d->c.positions, "positions")) return -1;
  if ((item = entry(object, 5))) {
    if (kvcpy_ints_in(item, &d->cross, 8, "cross_lengths") ||
        per_seq(d, &d->cross, "cross_lengths"))
      return -1;
    d->c.cross_lengths = d->cross.data;
  }
  return 0;
}

void kvcpy_desc_done(kvcpy_desc *d) {
  kvcpy_ints_done(&d->seqs);
  kvcpy_ints_done(&d->lengths);
  kvcpy_ints_done(&d->parents);
  kvcpy_ints_done(&d->tokens);
  kvcpy_ints_done(&d->cross);
  kvcpy_tensor_done(&d->positions);
}

void kvcpy_query_init(kvcpy_query *q) {
  kvcpy_ints_init(&q->tokens);
  q->keys = NULL;
}

int kvcpy_keys_in(PyObject *object, kvc_prefix_key **keys, size_t *count) {
  Py_ssize_t i, n;
  *keys = NULL;
  *count = 0;
  if (object == Py_None) return 0;
  if (!PyTuple_Check(object))
    return kvcpy_refuse_type("keys", "a tuple of (type, offset, data)", object);
  n = PyTuple_Size(object);
  if (!n) return 0;
  *keys = PyMem_Calloc((size_t)n, sizeof **keys);
  if (!*keys) {
    PyErr_NoMemory();
    return -1;
  }
  for (i = 0; i < n; ++i) {
    PyObject *key = PyTuple_GetItem(object, i);
    kvc_prefix_key *to = *keys + i;
    const char *data = NULL;
    if (expect(key, 3, "keys[]") ||
        kvcpy_uint32_in(PyTuple_GetItem(key, 0), &to->type, "keys[].type") ||
        kvcpy_int64_in(PyTuple_GetItem(key, 1), &to->offset, "keys[].offset") ||
        kvcpy_bytes_in(PyTuple_GetItem(key, 2), &data, &to->size, "keys[].data"))
      return -1;
    to->struct_size = sizeof *to;
    to->data = data;
  }
  *count = (size_t)n;
  return 0;
}

/* (tokens, num_tokens, hashes, salt, keys, flags, priority). Of tokens the first num_tokens count,
 * all when it is None. */
int kvcpy_query_in(PyObject *object, kvcpy_query *q) {
  PyObject *item;
  const char *data = NULL;
  size_t size = 0;
  memset(&q->c, 0, sizeof q->c);
  q->c.struct_size = sizeof q->c;
  if (expect(object, 7, "query") || number(object, 1, &q->c.num_tokens, "num_tokens")) return -1;
  if ((item = entry(object, 0))) {
    if (kvcpy_ints_in(item, &q->tokens, 4, "tokens")) return -1;
    q->c.tokens = q->tokens.data;
    if (PyTuple_GetItem(object, 1) == Py_None) q->c.num_tokens = (int64_t)q->tokens.count;
    if (q->c.num_tokens > (int64_t)q->tokens.count) {
      kvcpy_fail(KVC_E_OUT_OF_RANGE, "num_tokens %lld: tokens has %zu", (long long)q->c.num_tokens,
                 q->tokens.count);
      return -1;
    }
  }
  if ((item = entry(object, 2))) {
    if (kvcpy_bytes_in(item, &data, &size, "hashes")) return -1;
    if (size % KVC_HASH_BYTES) {
      kvcpy_fail(KVC_E_INVALID_ARGUMENT, "hashes: %zu bytes are no multiple of a key's %d", size,
                 KVC_HASH_BYTES);
      return -1;
    }
    q->c.hashes = (const uint8_t *)data;
    q->c.num_hashes = size / KVC_HASH_BYTES;
  }
  if ((item = entry(object, 3))) {
    if (kvcpy_bytes_in(item, &data, &size, "salt")) return -1;
    q->c.salt = data;
    q->c.salt_size = size;
  }
  if (kvcpy_keys_in(PyTuple_GetItem(object, 4), &q->keys, &q->c.num_keys)) return -1;
  q->c.keys = q->keys;
  if (bits(object, 5, &q->c.flags, "flags") || small_number(object, 6, &q->c.priority, "priority"))
    return -1;
  return 0;
}

void kvcpy_query_done(kvcpy_query *q) {
  kvcpy_ints_done(&q->tokens);
  PyMem_Free(q->keys);
  q->keys = NULL;
}

/* (k, v, k_scales, v_scales, layout, quant, k_scale, v_scale); pools are written by some
 * operators. */
int kvcpy_op_pool_in(PyObject *object, kvcpy_op_pool *p) {
  static const char *const names[] = {"pool.k", "pool.v", "pool.k_scales", "pool.v_scales"};
  const DLTensor **parts[4];
  PyObject *item;
  int i;
  memset(&p->c, 0, sizeof p->c);
  for (i = 0; i < 4; ++i) kvcpy_tensor_init(&p->part[i]);
  p->used = 1;
  p->c.struct_size = sizeof p->c;
  parts[0] = &p->c.k;
  parts[1] = &p->c.v;
  parts[2] = &p->c.k_scales;
  parts[3] = &p->c.v_scales;
  if (expect(object, 8, "pool") || small_number(object, 4, &p->c.layout, "layout") ||
      small_number(object, 5, &p->c.quant, "quant") ||
      real(object, 6, &p->c.k_scale, "pool.k_scale") ||
      real(object, 7, &p->c.v_scale, "pool.v_scale"))
    return -1;
  for (i = 0; i < 4; ++i) {
    if (!(item = entry(object, i))) continue;
    if (kvcpy_tensor_in(item, &p->part[i], 1, names[i])) return -1;
    *parts[i] = &p->part[i].tensor;
  }
  return 0;
}

void kvcpy_op_pool_done(kvcpy_op_pool *p) {
  int i;
  if (!p->used) return;
  for (i = 0; i < 4; ++i) kvcpy_tensor_done(&p->part[i]);
}

/* (seq_lens, qo_indptr, page_indptr, page_indices, block_table). */
int kvcpy_op_table_in(PyObject *object, kvcpy_op_table *t) {
  static const char *const names[] = {"seq_lens", "qo_indptr", "page_indptr", "page_indices",
                                      "block_table"};
  const DLTensor **parts[5];
  int i;
  memset(&t->c, 0, sizeof t->c);
  for (i = 0; i < 5; ++i) kvcpy_tensor_init(&t->part[i]);
  t->used = 1;
  t->c.struct_size = sizeof t->c;
  parts[0] = &t->c.seq_lens;
  parts[1] = &t->c.qo_indptr;
  parts[2] = &t->c.page_indptr;
  parts[3] = &t->c.page_indices;
  parts[4] = &t->c.block_table;
  if (expect(object, 5, "table")) return -1;
  for (i = 0; i < 5; ++i)
    if (tensor(object, i, &t->part[i], parts[i], names[i])) return -1;
  return 0;
}

void kvcpy_op_table_done(kvcpy_op_table *t) {
  int i;
  if (!t->used) return;
  for (i = 0; i < 5; ++i) kvcpy_tensor_done(&t->part[i]);
}

/* (cpu_isa, full, attn options, positions, rope dictionary, stream). */
int kvcpy_op_opt_in(PyObject *object, kvcpy_op_opt *o) {
  PyObject *item;
  if (object == Py_None) return 0;
  memset(&o->c, 0, sizeof o->c);
  o->attn.used = 0;
  o->arena = NULL;
  kvcpy_tensor_init(&o->positions);
  o->used = 1;
  o->c.struct_size = sizeof o->c;
  if (expect(object, 6, "opt") || kvcpy_stream_in(PyTuple_GetItem(object, 5), &o->c.stream) ||
      small_number(object, 0, &o->c.cpu_isa, "cpu_isa") ||
      small_number(object, 1, &o->c.full, "full"))
    return -1;
  if ((item = entry(object, 2))) {
    if (kvcpy_attn_opt_in(item, &o->attn)) return -1;
    o->c.attn = &o->attn.c;
  }
  if (tensor(object, 3, &o->positions, &o->c.positions, "positions")) return -1;
  if ((item = entry(object, 4))) {
    if (kvcpy_rope_in(item, &o->rope, &o->arena)) return -1;
    o->c.rope = &o->rope;
  }
  return 0;
}

void kvcpy_op_opt_done(kvcpy_op_opt *o) {
  if (!o->used) return;
  o->used = 0;
  kvcpy_attn_opt_done(&o->attn);
  kvcpy_tensor_done(&o->positions);
  kvcpy_arena_free(o->arena);
}
