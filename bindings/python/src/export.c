/* `Tensor`: memory of the library, or of another package, that any package can take by
 * __dlpack__. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "binding.h"

/* The memory behind any number of views. The last of them frees it, on whatever thread. */
typedef struct memory {
  atomic_long views;
  DLManagedTensorVersioned *managed; /* one of the two */
  DLManagedTensor *legacy;
  struct memory **below; /* whose memory this one lies in, NULL at the end; a view of each */
} memory;

typedef struct {
  PyObject head;
  memory *memory;
  DLManagedTensorVersioned view; /* shape and strides are the memory's */
  int64_t compact[KVCPY_MAX_DIMS];
} tensor_object;

static PyTypeObject *tensor_type;

static void let_go(memory *m) {
  if (!m || atomic_fetch_sub(&m->views, 1) != 1) return;
  if (m->managed && m->managed->deleter) m->managed->deleter(m->managed);
  if (m->legacy && m->legacy->deleter) m->legacy->deleter(m->legacy);
  if (m->below) {
    memory **each = m->below;
    while (*each) let_go(*each++);
    free(m->below);
  }
  free(m);
}

static void versioned_done(DLManagedTensorVersioned *view) {
  let_go(view->manager_ctx);
  free(view);
}

static void legacy_done(DLManagedTensor *view) {
  let_go(view->manager_ctx);
  free(view);
}

static void unused_versioned(PyObject *capsule) {
  DLManagedTensorVersioned *view;
  if (!PyCapsule_IsValid(capsule, "dltensor_versioned")) return; /* taken: it has another name */
  view = PyCapsule_GetPointer(capsule, "dltensor_versioned");
  view->deleter(view);
}

static void unused_legacy(PyObject *capsule) {
  DLManagedTensor *view;
  if (!PyCapsule_IsValid(capsule, "dltensor")) return;
  view = PyCapsule_GetPointer(capsule, "dltensor");
  view->deleter(view);
}

/* Shape and strides travel with each view, behind it. */
static void *copy_view(size_t head, const DLTensor *from) {
  char *block = malloc(head + 2 * sizeof(int64_t) * (size_t)from->ndim);
  int64_t *shape = (int64_t *)(block + head);
  if (!block) return NULL;
  if (from->ndim) memcpy(shape, from->shape, sizeof *shape * (size_t)from->ndim);
  if (from->ndim) memcpy(shape + from->ndim, from->strides, sizeof *shape * (size_t)from->ndim);
  return block;
}

static PyObject *give_versioned(tensor_object *self) {
  PyObject *capsule;
  DLManagedTensorVersioned *view = copy_view(sizeof *view, &self->view.dl_tensor);
  if (!view) return PyErr_NoMemory();
  *view = self->view;
  view->version.major = DLPACK_MAJOR_VERSION;
  view->version.minor = DLPACK_MINOR_VERSION;
  view->manager_ctx = self->memory;
  view->deleter = versioned_done;
  view->dl_tensor.shape = (int64_t *)(view + 1);
  view->dl_tensor.strides = view->dl_tensor.shape + view->dl_tensor.ndim;
  atomic_fetch_add(&self->memory->views, 1);
  capsule = PyCapsule_New(view, "dltensor_versioned", unused_versioned);
  if (!capsule) versioned_done(view);
  return capsule;
}

static PyObject *give_legacy(tensor_object *self) {
  PyObject *capsule;
  DLManagedTensor *view;
  if (self->view.flags & DLPACK_FLAG_BITMASK_READ_ONLY) {
    kvcpy_refuse(KVCPY_TENSOR,
                 "this tensor is read-only, which DLPack before 1.0 cannot say; ask with "
                 "max_version=(1, 0)");
    return NULL;
  }
  view = copy_view(sizeof *view, &self->view.dl_tensor);
  if (!view) return PyErr_NoMemory();
  view->dl_tensor = self->view.dl_tensor;
  view->manager_ctx = self->memory;
  view->deleter = legacy_done;
  view->dl_tensor.shape = (int64_t *)(view + 1);
  view->dl_tensor.strides = view->dl_tensor.shape + view->dl_tensor.ndim;
  atomic_fetch_add(&self->memory->views, 1);
  capsule = PyCapsule_New(view, "dltensor", unused_legacy);
  if (!capsule) legacy_done(view);
  return capsule;
}

static int same_device(tensor_object *self, PyObject *device) {
  int type, id;
  if (!PyTuple_Check(device) || !PyArg_ParseTuple(device, "ii", &type, &id)) {
    kvcpy_refuse(KVCPY_TYPE, "dl_device: expected (device_type, device_id), got %R", device);
    return 0;
  }
  if (type == (int)self->view.dl_tensor.device.device_type &&
      id == self->view.dl_tensor.device.device_id)
    return 1;
  kvcpy_refuse(KVCPY_TENSOR, "dl_device (%d, %d): this tensor is on (%d, %d) and is not copied",
               type, id, (int)self->view.dl_tensor.device.device_type,
               (int)self->view.dl_tensor.device.device_id);
  return 0;
}

static PyObject *tensor_dlpack(PyObject *object, PyObject *args, PyObject *kwargs) {
  static char *names[] = {"stream", "max_version", "dl_device", "copy", NULL};
  tensor_object *self = (tensor_object *)object;
  PyObject *stream = Py_None, *version = Py_None, *device = Py_None, *copy = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$OOOO", names, &stream, &version, &device,
                                   &copy))
    return NULL;
  /* On a GPU the consumer's stream is not made to wait: what writes the pool, and when, the caller
   * knows. */
  if (stream != Py_None && self->view.dl_tensor.device.device_type == kDLCPU) {
    return kvcpy_fail(KVC_E_INVALID_ARGUMENT, "stream must be None: this tensor is on the CPU");
  }
  if (device != Py_None && !same_device(self, device)) return NULL;
  if (copy == Py_True) {
    kvcpy_refuse(KVCPY_TENSOR, "copy=True: this tensor is shared, never copied");
    return NULL;
  }
  if (version != Py_None) {
    int major, minor;
    if (!PyTuple_Check(version) || !PyArg_ParseTuple(version, "ii", &major, &minor)) {
      kvcpy_refuse(KVCPY_TYPE, "max_version: expected (major, minor), got %R", version);
      return NULL;
    }
    if (major >= 1) return give_versioned(self);
  }
  return give_legacy(self);
}

static PyObject *tensor_device(PyObject *object, PyObject *unused) {
  const DLDevice *device = &((tensor_object *)object)->view.dl_tensor.device;
  (void)unused;
  return Py_BuildValue("(ii)", (int)device->device_type, (int)device->device_id);
}

static PyObject *numbers(const int64_t *values, int count) {
  PyObject *tuple = PyTuple_New(count);
  int i;
  for (i = 0; tuple && i < count; ++i)
    if (PyTuple_SetItem(tuple, i, PyLong_FromLongLong(values[i]))) Py_CLEAR(tuple);
  return tuple;
}

static PyObject *get_shape(PyObject *object, void *unused) {
  const DLTensor *t = &((tensor_object *)object)->view.dl_tensor;
  (void)unused;
  return numbers(t->shape, t->ndim);
}

static PyObject *get_strides(PyObject *object, void *unused) {
  const DLTensor *t = &((tensor_object *)object)->view.dl_tensor;
  (void)unused;
  return numbers(t->strides, t->ndim);
}

static PyObject *get_type(PyObject *object, void *unused) {
  const DLDataType *type = &((tensor_object *)object)->view.dl_tensor.dtype;
  (void)unused;
  return Py_BuildValue("(iii)", (int)type->code, (int)type->bits, (int)type->lanes);
}

static PyObject *get_readonly(PyObject *object, void *unused) {
  (void)unused;
  return PyBool_FromLong(
      (long)(((tensor_object *)object)->view.flags & DLPACK_FLAG_BITMASK_READ_ONLY));
}

static PyObject *get_address(PyObject *object, void *unused) {
  const DLTensor *t = &((tensor_object *)object)->view.dl_tensor;
  (void)unused;
  return PyLong_FromUnsignedLongLong((unsigned long long)(uintptr_t)t->data + t->byte_offset);
}

/* A new object over `m`, whose count already includes it. NULL strides become compact ones. */
static PyObject *over(PyTypeObject *type, memory *m, const DLManagedTensorVersioned *view) {
  allocfunc make = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
  tensor_object *self = (tensor_object *)make(type, 0);
  int i;
  if (!self) {
    let_go(m);
    return NULL;
  }
  self->memory = m;
  self->view = *view;
  if (!self->view.dl_tensor.strides) {
    int64_t stride = 1;
    for (i = self->view.dl_tensor.ndim - 1; i >= 0; --i) {
      self->compact[i] = stride;
      stride *= self->view.dl_tensor.shape[i];
    }
    self->view.dl_tensor.strides = self->compact;
  }
  return (PyObject *)self;
}

PyObject *kvcpy_export_new(DLManagedTensorVersioned *managed) {
  memory *m = calloc(1, sizeof *m);
  if (!m) {
    if (managed->deleter) managed->deleter(managed);
    return PyErr_NoMemory();
  }
  atomic_init(&m->views, 1);
  m->managed = managed;
  return over(tensor_type, m, managed);
}

PyObject *kvcpy_export_keep(PyObject *tensor, PyObject *list) {
  memory *m = kvcpy_export_tensor(tensor) ? ((tensor_object *)tensor)->memory : NULL;
  Py_ssize_t i, count = PyList_Check(list) ? PyList_Size(list) : -1;
  for (i = 0; i < count; ++i)
    if (!kvcpy_export_tensor(PyList_GetItem(list, i))) count = -1;
  if (!m || m->below || count < 0) {
    kvcpy_refuse(KVCPY_TYPE, "expected a fresh tensor and a list of tensors");
    return NULL;
  }
  m->below = calloc((size_t)count + 1, sizeof *m->below);
  if (!m->below) return PyErr_NoMemory();
  for (i = 0; i < count; ++i) {
    m->below[i] = ((tensor_object *)PyList_GetItem(list, i))->memory;
    atomic_fetch_add(&m->below[i]->views, 1);
  }
  Py_RETURN_NONE;
}

/* Keep what `source` gives by __dlpack__; its capsule is used up. */
static memory *take(PyObject *source, DLManagedTensorVersioned *view) {
  PyObject *capsule;
  memory *m = calloc(1, sizeof *m);
  if (!m) {
    PyErr_NoMemory();
    return NULL;
  }
  atomic_init(&m->views, 1);
  capsule = kvcpy_ask_dlpack(source, "source");
  if (capsule && PyCapsule_IsValid(capsule, "dltensor_versioned")) {
    m->managed = PyCapsule_GetPointer(capsule, "dltensor_versioned");
    *view = *m->managed;
    PyCapsule_SetName(capsule, "used_dltensor_versioned");
  } else if (capsule && PyCapsule_IsValid(capsule, "dltensor")) {
    m->legacy = PyCapsule_GetPointer(capsule, "dltensor");
    memset(view, 0, sizeof *view);
    view->dl_tensor = m->legacy->dl_tensor;
    PyCapsule_SetName(capsule, "used_dltensor");
  } else {
    if (!PyErr_Occurred())
      kvcpy_refuse(KVCPY_TENSOR, "source: __dlpack__ gave %R, not an unused DLPack capsule",
                   capsule);
    free(m);
    m = NULL;
  }
  Py_XDECREF(capsule);
  return m;
}

static int sound(const DLManagedTensorVersioned *view, const memory *m) {
  const DLTensor *t = &view->dl_tensor;
  int i;
  if (m->managed && view->version.major != DLPACK_MAJOR_VERSION) return 0;
  if (t->ndim < 0 || t->ndim > 64 || (t->ndim && !t->shape) ||
      (!t->strides && t->ndim > KVCPY_MAX_DIMS))
    return 0;
  for (i = 0; i < t->ndim; ++i)
    if (t->shape[i] < 0) return 0;
  return 1;
}

static PyObject *tensor_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
  static char *names[] = {"source", "dtype", NULL};
  DLManagedTensorVersioned view;
  PyObject *source, *dtype = Py_None;
  memory *m;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O", names, &source, &dtype)) return NULL;
  if (kvcpy_export_tensor(source)) { /* a view of a view shares the memory */
    tensor_object *from = (tensor_object *)source;
    m = from->memory;
    atomic_fetch_add(&m->views, 1);
    view = from->view;
    /* They go with `from` */
    if (view.dl_tensor.strides == from->compact) view.dl_tensor.strides = NULL;
  } else {
    m = take(source, &view);
    if (!m) return NULL;
    if (!sound(&view, m)) {
      let_go(m);
      kvcpy_refuse(
          KVCPY_TENSOR,
          "source: the producer's description makes no sense (version, rank, shape or strides)");
      return NULL;
    }
  }
  if (dtype != Py_None) {
    int code, bits, lanes;
    DLDataType *t = &view.dl_tensor.dtype;
    if (!PyTuple_Check(dtype) || !PyArg_ParseTuple(dtype, "iii", &code, &bits, &lanes)) {
      let_go(m);
      return NULL;
    }
    if (bits * lanes != t->bits * t->lanes) {
      kvcpy_fail(KVC_E_INVALID_ARGUMENT, "dtype: %d bits cannot stand for the source's %d",
                 bits * lanes, t->bits * t->lanes);
      let_go(m);
      return NULL;
    }
    t->code = (uint8_t)code;
    t->bits = (uint8_t)bits;
    t->lanes = (uint16_t)lanes;
  }
  return over(type, m, &view);
}

static void tensor_dealloc(PyObject *object) {
  PyTypeObject *type = Py_TYPE(object);
  freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
  let_go(((tensor_object *)object)->memory);
  release(object);
  Py_DECREF((PyObject *)type);
}

const DLManagedTensorVersioned *kvcpy_export_tensor(PyObject *object) {
  if (Py_TYPE(object) != tensor_type && !PyType_IsSubtype(Py_TYPE(object), tensor_type))
    return NULL;
  return &((tensor_object *)object)->view;
}

static PyMethodDef tensor_methods[] = {
    {"__dlpack__", (PyCFunction)(void (*)(void))tensor_dlpack, METH_VARARGS | METH_KEYWORDS,
     "A DLPack capsule over the same memory."},
    {"__dlpack_device__", tensor_device, METH_NOARGS, "(device_type, device_id)."},
    {NULL, NULL, 0, NULL}};
static PyGetSetDef tensor_attributes[] = {
    {"shape", get_shape, NULL, "Elements in each dimension.", NULL},
    {"strides", get_strides, NULL, "Elements from one entry to the next, in each dimension.", NULL},
    {"dtype_code", get_type, NULL, "DLPack's (code, bits, lanes).", NULL},
    {"readonly", get_readonly, NULL, "Whether nobody may write to it.", NULL},
    {"data_address", get_address, NULL, "Address of the first element.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};
static PyType_Slot tensor_slots[] = {
    {Py_tp_new, tensor_new},
    {Py_tp_dealloc, tensor_dealloc},
    {Py_tp_methods, tensor_methods},
    {Py_tp_getset, tensor_attributes},
    {Py_tp_doc, "Memory that any package can take by __dlpack__, without a copy."},
    {0, NULL}};
static PyType_Spec tensor_spec = {"kvcache._capi.TensorBase", sizeof(tensor_object), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, tensor_slots};

int kvcpy_export_ready(PyObject *module) {
  PyObject *type = PyType_FromSpec(&tensor_spec);
  if (!type) return -1;
  tensor_type = (PyTypeObject *)type;
  return PyModule_AddObject(module, "TensorBase", type); /* the type lives as long as the process */
}
