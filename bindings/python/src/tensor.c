/* Tensors of other packages, borrowed for one call. Quickest way first: our own exports, NumPy
 * arrays by their C layout, the C exchange table of the object's type (PyTorch, TVM), then
 * __dlpack__. Shapes and strides are copied, so that nobody can change them under a running
 * call. */
#include <string.h>

#include "binding.h"

/* What is known of a type: its exchange table, and whether its tensors may ask for gradients
 * (PyTorch, whose tensors are always writable). */
typedef struct {
  PyTypeObject *type;
  PyObject *capsule;
  const DLPackExchangeAPI *api;
  int is_torch;
} known_type;
enum { MAX_TYPES = 32 };
static known_type known[MAX_TYPES];
static int num_known;

static int torch_type(PyTypeObject *type) {
  int is = 0;
  PyObject *modules = PySys_GetObject("modules");
  PyObject *torch = modules ? PyMapping_GetItemString(modules, "torch") : NULL;
  PyObject *tensor = torch ? PyObject_GetAttrString(torch, "Tensor") : NULL;
  if (tensor && PyType_Check(tensor)) is = PyType_IsSubtype(type, (PyTypeObject *)tensor);
  Py_XDECREF(tensor);
  Py_XDECREF(torch);
  PyErr_Clear();
  return is;
}

static known_type look_up(PyTypeObject *type) {
  known_type found = {type, NULL, NULL, 0};
  found.is_torch = torch_type(type);
  found.capsule = PyObject_GetAttrString((PyObject *)type, "__dlpack_c_exchange_api__");
  if (found.capsule && PyCapsule_IsValid(found.capsule, "dlpack_exchange_api"))
    found.api = PyCapsule_GetPointer(found.capsule, "dlpack_exchange_api");
  while (found.api &&
         /* Newer tables may carry an older one */
         found.api->header.version.major != DLPACK_MAJOR_VERSION)
    found.api = (const DLPackExchangeAPI *)found.api->header.prev_api;
  PyErr_Clear();
  return found;
}

static known_type type_of(PyObject *object) {
  PyTypeObject *type = Py_TYPE(object);
  known_type found;
  int i;
  for (i = 0; i < num_known; ++i)
    if (known[i].type == type) return known[i];
  found = look_up(type);
  if (num_known < MAX_TYPES) {
    Py_INCREF((PyObject *)type);
    known[num_known++] = found;
  }
  /* Beyond that the table stays with the type: nothing is remembered, and the capsule is the type's
   * own. */
  else
    Py_XDECREF(found.capsule);
  return found;
}

static int refuse(const char *name, const char *what) {
  return kvcpy_refuse(KVCPY_TENSOR, "%s: %s", name, what);
}

/* Take a description over into x; the pointers in it are the producer's. */
static int keep(kvcpy_tensor *x, const DLTensor *from, const char *name) {
  int i;
  x->tensor = *from;
  if (from->ndim < 0 || from->ndim > 64)
    return kvcpy_refuse(KVCPY_TENSOR, "%s: the producer gives %d dimensions", name,
                        (int)from->ndim);
  if (from->ndim > 0 && !from->shape) return refuse(name, "the producer gives no shape");
  for (i = 0; i < from->ndim; ++i)
    if (from->shape[i] < 0)
      return kvcpy_refuse(KVCPY_TENSOR, "%s: the producer gives dimension %d as %lld", name, i,
                          (long long)from->shape[i]);
  if (from->ndim > KVCPY_MAX_DIMS)
    return 0; /* refused by the library, or a pool, which is kept by an export object */
  for (i = 0; i < from->ndim; ++i) x->shape[i] = from->shape[i];
  x->tensor.shape = x->shape;
  if (!from->strides) return 0;
  for (i = 0; i < from->ndim; ++i) x->strides[i] = from->strides[i];
  x->tensor.strides = x->strides;
  return 0;
}

/* PyTorch's __dlpack__ refuses these; its exchange table does not. */
static int wants_gradient(PyObject *object) {
  static PyObject *name;
  PyObject *value;
  int is;
  if (!name && !(name = PyUnicode_InternFromString("requires_grad"))) return -1;
  value = PyObject_GetAttr(object, name);
  if (!value) return -1;
  is = value == Py_True;
  Py_DECREF(value);
  return is;
}

static int from_table(PyObject *object, kvcpy_tensor *x, const known_type *type, int writable,
                      const char *name) {
  DLTensor seen;
  if (type->is_torch) {
    int gradient = wants_gradient(object);
    if (gradient)
      return gradient < 0
                 ? -1
                 : refuse(name,
                          "requires grad; the library computes no gradients, pass tensor.detach()");
  }
  if (type->api->dltensor_from_py_object_no_sync && (type->is_torch || !writable)) {
    if (type->api->dltensor_from_py_object_no_sync(object, &seen)) return -1;
    return keep(x, &seen, name);
  }
  if (type->api->managed_tensor_from_py_object_no_sync(object, &x->managed)) {
    x->managed = NULL;
    return -1;
  }
  if (writable && x->managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY)
    return refuse(name, "is read-only, and written by this call");
  return keep(x, &x->managed->dl_tensor, name);
}

PyObject *kvcpy_ask_dlpack(PyObject *object, const char *name) {
  static PyObject *method, *none, *options;
  PyObject *bound, *capsule;
  if (!options) {
    if (!method && !(method = PyUnicode_InternFromString("__dlpack__"))) return NULL;
    if (!none && !(none = PyTuple_New(0))) return NULL;
    options = Py_BuildValue("{s(ii)}", "max_version", DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION);
    if (!options) return NULL;
  }
  bound = PyObject_GetAttr(object, method);
  if (!bound) {
    if (PyErr_ExceptionMatches(PyExc_AttributeError))
      kvcpy_refuse_type(name, "a tensor, which has __dlpack__ and __dlpack_device__", object);
    return NULL;
  }
  capsule = PyObject_Call(bound, none, options);
  if (!capsule && PyErr_ExceptionMatches(PyExc_TypeError)) { /* producers older than DLPack 1.0 */
    PyErr_Clear();
    capsule = PyObject_Call(bound, none, NULL);
  }
  Py_DECREF(bound);
  return capsule;
}

static int from_protocol(PyObject *object, kvcpy_tensor *x, int writable, const char *name) {
  x->capsule = kvcpy_ask_dlpack(object, name);
  if (!x->capsule) return -1;
  if (PyCapsule_IsValid(x->capsule, "dltensor_versioned")) {
    const DLManagedTensorVersioned *managed =
        PyCapsule_GetPointer(x->capsule, "dltensor_versioned");
    if (managed->version.major != DLPACK_MAJOR_VERSION)
      return kvcpy_refuse(KVCPY_TENSOR, "%s: the producer speaks DLPack %u, this package %d", name,
                          (unsigned)managed->version.major, DLPACK_MAJOR_VERSION);
    if (writable && managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY)
      return refuse(name, "is read-only, and written by this call");
    return keep(x, &managed->dl_tensor, name);
  }
  if (PyCapsule_IsValid(x->capsule, "dltensor"))
    return keep(x,
                &((const DLManagedTensor *)PyCapsule_GetPointer(x->capsule, "dltensor"))->dl_tensor,
                name);
  return kvcpy_refuse(KVCPY_TENSOR, "%s: __dlpack__ gave %R, not an unused DLPack capsule", name,
                      x->capsule);
}

int kvcpy_tensor_in(PyObject *object, kvcpy_tensor *x, int writable, const char *name) {
  const DLManagedTensorVersioned *own;
  known_type type;
  int direct;
  kvcpy_tensor_init(x);
  direct = kvcpy_numpy_in(object, x, writable, name);
  if (direct) return direct < 0 ? -1 : 0;
  own = kvcpy_export_tensor(object);
  if (own) {
    if (writable && own->flags & DLPACK_FLAG_BITMASK_READ_ONLY)
      return refuse(name, "is read-only, and written by this call");
    return keep(x, &own->dl_tensor, name);
  }
  type = type_of(object);
  return type.api ? from_table(object, x, &type, writable, name)
                  : from_protocol(object, x, writable, name);
}

void kvcpy_tensor_done(kvcpy_tensor *x) {
  if (x->managed) {
    DLManagedTensorVersioned *managed = x->managed;
    x->managed = NULL;
    if (managed->deleter) managed->deleter(managed);
  }
  Py_CLEAR(x->capsule);
}
