/* kvc_config and what it points at, from dictionaries and lists, and back from a config.json. */
#include <stdlib.h>
#include <string.h>

#include "binding.h"

struct kvcpy_arena {
  kvcpy_arena *next;
  kvcpy_tensor *tensor; /* to be given back with the arena */
};

void *kvcpy_arena_take(kvcpy_arena **arena, size_t bytes) {
  kvcpy_arena *block = calloc(1, sizeof *block + bytes);
  if (!block) {
    PyErr_NoMemory();
    return NULL;
  }
  block->next = *arena;
  *arena = block;
  return block + 1;
}

void kvcpy_arena_free(kvcpy_arena *arena) {
  while (arena) {
    kvcpy_arena *next = arena->next;
    if (arena->tensor) kvcpy_tensor_done(arena->tensor);
    free(arena);
    arena = next;
  }
}

static const DLTensor *tensor_in(PyObject *object, kvcpy_arena **arena, int writable,
                                 const char *name) {
  kvcpy_tensor *x = kvcpy_arena_take(arena, sizeof *x);
  if (!x) return NULL;
  kvcpy_tensor_init(x);
  (*arena)->tensor = x;
  return kvcpy_tensor_in(object, x, writable, name) ? NULL : &x->tensor;
}

/* The value of a key, NULL when it is missing or None. */
static PyObject *value_of(PyObject *dict, const char *key) {
  PyObject *value = PyDict_GetItemString(dict, key);
  return value == Py_None ? NULL : value;
}

static int items_of(PyObject *list, const char *name, Py_ssize_t *count) {
  if (!PyList_Check(list)) {
    kvcpy_refuse_type(name, "a list", list);
    return -1;
  }
  *count = PyList_Size(list);
  return 0;
}

static int factors_in(PyObject *dict, const char *key, kvcpy_arena **arena, const float **to,
                      Py_ssize_t *count) {
  PyObject *list = value_of(dict, key);
  float *values;
  Py_ssize_t i;
  *count = 0;
  if (!list) return 0;
  if (items_of(list, key, count)) return -1;
  values = kvcpy_arena_take(arena, sizeof *values * (size_t)(*count ? *count : 1));
  if (!values) return -1;
  for (i = 0; i < *count; ++i) {
    double value;
    if (kvcpy_real_in(PyList_GetItem(list, i), &value, key)) return -1;
    values[i] = (float)value;
  }
  *to = values;
  return 0;
}

int kvcpy_rope_in(PyObject *dict, kvc_rope *rope, kvcpy_arena **arena) {
  static const char *const taken[] = {"freq_factors", "long_freq_factors", NULL};
  Py_ssize_t count, long_count;
  if (kvcpy_struct_in(KVCPY_IS_kvc_rope, rope, dict, taken)) return -1;
  if (factors_in(dict, "freq_factors", arena, &rope->freq_factors, &count) ||
      factors_in(dict, "long_freq_factors", arena, &rope->long_freq_factors, &long_count))
    return -1;
  if (count && long_count && count != long_count) {
    kvcpy_fail(KVC_E_INVALID_ARGUMENT, "long_freq_factors has %zd entries, freq_factors %zd",
               long_count, count);
    return -1;
  }
  if (count || long_count) rope->num_freq_factors = (int32_t)(count ? count : long_count);
  return 0;
}

static int state_in(PyObject *dict, kvc_state_spec *state, kvcpy_arena **arena) {
  static const char *const taken[] = {"shape", "init", NULL};
  PyObject *shape, *init;
  Py_ssize_t i, ndim;
  int64_t *dims;
  if (kvcpy_struct_in(KVCPY_IS_kvc_state_spec, state, dict, taken)) return -1;
  shape = value_of(dict, "shape");
  if (!shape || items_of(shape, "shape", &ndim)) {
    if (!PyErr_Occurred()) kvcpy_refuse(KVCPY_TYPE, "a state needs a shape");
    return -1;
  }
  dims = kvcpy_arena_take(arena, sizeof *dims * (size_t)(ndim ? ndim : 1));
  if (!dims) return -1;
  for (i = 0; i < ndim; ++i)
    if (kvcpy_int64_in(PyList_GetItem(shape, i), &dims[i], "shape")) return -1;
  state->ndim = (int32_t)ndim;
  state->shape = dims;
  init = value_of(dict, "init");
  if (init && !(state->init = tensor_in(init, arena, 0, "init"))) return -1;
  return 0;
}

static int layer_in(PyObject *dict, kvc_layer *layer, kvcpy_arena **arena) {
  static const char *const taken[] = {"rope", "states", NULL};
  PyObject *rope, *states;
  Py_ssize_t i, count;
  if (kvcpy_struct_in(KVCPY_IS_kvc_layer, layer, dict, taken)) return -1;
  rope = value_of(dict, "rope");
  if (rope) {
    kvc_rope *r = kvcpy_arena_take(arena, sizeof *r);
    if (!r || kvcpy_rope_in(rope, r, arena)) return -1;
    layer->rope = r;
  }
  states = value_of(dict, "states");
  if (states) {
    kvc_state_spec *specs;
    if (items_of(states, "states", &count)) return -1;
    specs = kvcpy_arena_take(arena, sizeof *specs * (size_t)(count ? count : 1));
    if (!specs) return -1;
    for (i = 0; i < count; ++i)
      if (state_in(PyList_GetItem(states, i), &specs[i], arena)) return -1;
    layer->states = specs;
    layer->num_states = (int32_t)count;
  }
  return 0;
}

static int layers_in(PyObject *list, kvc_config *c, kvcpy_arena **arena) {
  kvc_layer *layers;
  Py_ssize_t i, count;
  if (items_of(list, "layers", &count)) return -1;
  layers = kvcpy_arena_take(arena, sizeof *layers * (size_t)(count ? count : 1));
  if (!layers) return -1;
  for (i = 0; i < count; ++i)
    if (layer_in(PyList_GetItem(list, i), &layers[i], arena)) return -1;
  c->layers = layers;
  c->num_layers = (int32_t)count;
  return 0;
}

/* Pool tensors outlive the call: only export objects are taken, which the caller keeps. */
static int pool_in(PyObject *list, kvc_config *c, kvcpy_arena **arena) {
  const DLTensor **tensors;
  Py_ssize_t i, count;
  if (items_of(list, "pool_tensors", &count)) return -1;
  tensors = kvcpy_arena_take(arena, sizeof *tensors * (size_t)(count ? count : 1));
  if (!tensors) return -1;
  for (i = 0; i < count; ++i) {
    const DLManagedTensorVersioned *tensor = kvcpy_export_tensor(PyList_GetItem(list, i));
    if (!tensor) return kvcpy_refuse(KVCPY_TYPE, "pool_tensors[%zd]: expected a kvcache.Tensor", i);
    if (tensor->flags & DLPACK_FLAG_BITMASK_READ_ONLY)
      return kvcpy_refuse(KVCPY_TENSOR, "pool_tensors[%zd]: is read-only, and written by the cache",
                          i);
    tensors[i] = &tensor->dl_tensor;
  }
  c->pool_tensors = tensors;
  c->num_pool_tensors = (int32_t)count;
  return 0;
}

/* Memory for pools that starts as 0xFF bytes: a NaN in every format. Tests see with it what was
 * never written. */
static void *poison_alloc(void *user, DLDevice device, uint64_t bytes, uint64_t alignment) {
  void *block = NULL;
  (void)user;
  (void)device;
  if (alignment < sizeof(void *)) alignment = sizeof(void *);
  if (posix_memalign(&block, (size_t)alignment, (size_t)bytes)) return NULL;
  return memset(block, 0xFF, (size_t)bytes);
}

static void poison_free(void *user, DLDevice device, void *block, uint64_t bytes) {
  (void)user;
  (void)device;
  (void)bytes;
  free(block);
}

int kvcpy_config_in(PyObject *dict, kvcpy_config *config) {
  static const char *const taken[] = {"layers", "pool_tensors", "poison", NULL};
  static const kvc_allocator poison = {sizeof poison, NULL, poison_alloc, poison_free};
  PyObject *value;
  if (kvcpy_struct_in(KVCPY_IS_kvc_config, &config->c, dict, taken)) return -1;
  if ((value = value_of(dict, "layers")) && layers_in(value, &config->c, &config->arena)) return -1;
  if ((value = value_of(dict, "pool_tensors")) && pool_in(value, &config->c, &config->arena))
    return -1;
  if ((value = value_of(dict, "poison")) && PyObject_IsTrue(value)) config->c.allocator = &poison;
  return 0;
}

/* ---- and back ---- */

static int put(PyObject *dict, const char *key, PyObject *value) {
  const int failed = !value || PyDict_SetItemString(dict, key, value);
  Py_XDECREF(value);
  return failed ? -1 : 0;
}

static PyObject *floats_out(const float *values, int32_t count) {
  PyObject *list = PyList_New(values ? count : 0);
  int32_t i;
  for (i = 0; list && values && i < count; ++i)
    if (PyList_SetItem(list, i, PyFloat_FromDouble((double)values[i]))) Py_CLEAR(list);
  return list;
}

static PyObject *rope_out(const kvc_rope *rope) {
  PyObject *dict = kvcpy_struct_out(KVCPY_IS_kvc_rope, rope);
  if (!dict) return NULL;
  if ((rope->freq_factors &&
       put(dict, "freq_factors", floats_out(rope->freq_factors, rope->num_freq_factors))) ||
      (rope->long_freq_factors &&
       put(dict, "long_freq_factors", floats_out(rope->long_freq_factors, rope->num_freq_factors))))
    Py_CLEAR(dict);
  return dict;
}

static PyObject *states_out(const kvc_state_spec *states, int32_t count) {
  PyObject *list = PyList_New(count);
  int32_t i, d;
  for (i = 0; list && i < count; ++i) {
    PyObject *dict = kvcpy_struct_out(KVCPY_IS_kvc_state_spec, &states[i]),
             *shape = PyList_New(states[i].ndim);
    for (d = 0; shape && d < states[i].ndim; ++d)
      if (PyList_SetItem(shape, d, PyLong_FromLongLong(states[i].shape[d]))) Py_CLEAR(shape);
    if (!dict || put(dict, "shape", shape) || PyList_SetItem(list, i, dict)) Py_CLEAR(list);
  }
  return list;
}

static PyObject *layer_out(const kvc_layer *layer) {
  PyObject *dict = kvcpy_struct_out(KVCPY_IS_kvc_layer, layer);
  if (!dict) return NULL;
  if ((layer->rope && put(dict, "rope", rope_out(layer->rope))) ||
      (layer->num_states && put(dict, "states", states_out(layer->states, layer->num_states))))
    Py_CLEAR(dict);
  return dict;
}

/* A text without zero bytes, or NULL with an exception set. `*bytes` owns it. */
static const char *text_in(PyObject *text, PyObject **bytes) {
  char *out;
  *bytes = PyUnicode_AsUTF8String(text);
  if (!*bytes || PyBytes_AsStringAndSize(*bytes, &out, NULL)) return NULL;
  return out;
}

/* The elements of a configuration, which the caller frees. NULL: `*status` says why. */
static kvc_layer *read_hf(const char *json, const kvc_hf_options *options, kvc_config *config,
                          kvc_status *status) {
  kvc_layer *elements = NULL;
  size_t count = 0;
  memset(config, 0, sizeof *config);
  config->struct_size = sizeof *config;
  *status = kvc_config_from_hf(json, options, config, NULL, &count, kvcpy_error());
  if (*status) return NULL;
  elements = calloc(count ? count : 1, sizeof *elements);
  if (!elements) return NULL;
  elements[0].struct_size = sizeof *elements;
  *status = kvc_config_from_hf(json, options, config, elements, &count, kvcpy_error());
  if (!*status) return elements;
  free(elements);
  return NULL;
}

PyObject *kvcpy_config_from_hf(PyObject *json, PyObject *assume, int mtp_layers) {
  const char *text;
  PyObject *bytes = NULL, *family = NULL, *layers, *dict;
  kvc_layer *elements = NULL;
  kvc_hf_options options;
  kvc_config config;
  kvc_status status = KVC_OK;
  int32_t i;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.mtp_layers = mtp_layers;
  text = text_in(json, &bytes);
  if (text && assume != Py_None) options.assume = text_in(assume, &family);
  if (!PyErr_Occurred()) elements = read_hf(text, &options, &config, &status);
  Py_XDECREF(bytes);
  Py_XDECREF(family);
  if (PyErr_Occurred()) return NULL;
  if (status) return kvcpy_raise(status);
  if (!elements) return PyErr_NoMemory();
  layers = PyList_New(config.num_layers);
  for (i = 0; layers && i < config.num_layers; ++i) {
    PyObject *layer = layer_out(&config.layers[i]);
    if (!layer || PyList_SetItem(layers, i, layer)) Py_CLEAR(layers);
  }
  dict = layers ? Py_BuildValue("{s:L,s:L,s:N}", "max_seq_len", (long long)config.max_seq_len,
                                "max_cross_len", (long long)config.max_cross_len, "layers", layers)
                : NULL;
  free(elements);
  return dict;
}
