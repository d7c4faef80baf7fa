/* NumPy arrays read by their C layout, which every NumPy keeps for the extensions compiled against
 * an older one: an array costs a few nanoseconds instead of a capsule. The Python layer compares
 * what is read here with __array_interface__ before it turns this on. */
#include <string.h>

#include "binding.h"

typedef struct {
  PyObject head;
  char *data;
  int ndim;
  Py_ssize_t *shape;
  Py_ssize_t *strides; /* bytes */
  PyObject *base;
  PyObject *dtype;
  int flags;
} array_layout;

typedef struct {
  PyObject head;
  PyTypeObject *scalar;
  char kind, letter, byteorder, unused;
  int number;
} dtype_layout;

enum { WRITEABLE = 0x400, FIRST_USER_TYPE = 256, MAX_USER_TYPES = 8 };
static PyTypeObject *array_type;

/* Types that packages add to NumPy (ml_dtypes) have numbers of their own in every process. */
static struct {
  int number;
  DLDataType type;
} user_types[MAX_USER_TYPES];
static int num_user_types;

static DLDataType named(PyTypeObject *scalar) {
  static const struct {
    const char *name;
    uint8_t code, bits;
  } names[] = {{"bfloat16", kDLBfloat, 16},
               {"float8_e4m3fn", kDLFloat8_e4m3fn, 8},
               {"float8_e5m2", kDLFloat8_e5m2, 8}};
  DLDataType type = {0, 0, 0};
  PyObject *module = PyObject_GetAttrString((PyObject *)scalar, "__module__");
  PyObject *name = PyObject_GetAttrString((PyObject *)scalar, "__name__");
  size_t i;
  if (module && name && PyUnicode_Check(module) && PyUnicode_Check(name) &&
      PyUnicode_CompareWithASCIIString(module, "ml_dtypes") == 0)
    for (i = 0; i < sizeof names / sizeof *names; ++i)
      if (PyUnicode_CompareWithASCIIString(name, names[i].name) == 0) {
        type.code = names[i].code;
        type.bits = names[i].bits;
        type.lanes = 1;
      }
  Py_XDECREF(module);
  Py_XDECREF(name);
  PyErr_Clear();
  return type;
}

static DLDataType user_type(const dtype_layout *dtype) {
  DLDataType type;
  int i;
  for (i = 0; i < num_user_types; ++i)
    if (user_types[i].number == dtype->number) return user_types[i].type;
  type = named(dtype->scalar);
  if (type.bits && num_user_types < MAX_USER_TYPES) {
    user_types[num_user_types].number = dtype->number;
    user_types[num_user_types++].type = type;
  }
  return type;
}

static DLDataType type_of(const dtype_layout *dtype) {
  static const struct {
    uint8_t code, bits;
  } numbers[] = {{kDLBool, 8},
                 {kDLInt, 8},
                 {kDLUInt, 8},
                 {kDLInt, 16},
                 {kDLUInt, 16},
                 {kDLInt, 32},
                 {kDLUInt, 32},
                 {kDLInt, 8 * sizeof(long)},
                 {kDLUInt, 8 * sizeof(long)},
                 {kDLInt, 64},
                 {kDLUInt, 64},
                 {kDLFloat, 32},
                 {kDLFloat, 64}};
  enum { HALF = 23 };
  DLDataType type = {0, 0, 1};
  if (dtype->number >= 0 && dtype->number < (int)(sizeof numbers / sizeof *numbers)) {
    type.code = numbers[dtype->number].code;
    type.bits = numbers[dtype->number].bits;
  } else if (dtype->number == HALF) {
    type.code = kDLFloat;
    type.bits = 16;
  } else if (dtype->number >= FIRST_USER_TYPE) {
    return user_type(dtype);
  }
  return type;
}

int kvcpy_numpy_in(PyObject *object, kvcpy_tensor *x, int writable, const char *name) {
  const array_layout *array = (const array_layout *)object;
  const dtype_layout *dtype;
  DLTensor *t = &x->tensor;
  int i, bytes;
  if (Py_TYPE(object) != array_type || !array_type) return 0;
  dtype = (const dtype_layout *)array->dtype;
  t->dtype = type_of(dtype);
  if (!t->dtype.bits || dtype->byteorder == '>' || array->ndim > KVCPY_MAX_DIMS) return 0;
  if (writable && !(array->flags & WRITEABLE))
    return kvcpy_refuse(KVCPY_TENSOR, "%s: is read-only, and written by this call", name);
  bytes = t->dtype.bits / 8;
  for (i = 0; i < array->ndim; ++i) {
    if (array->strides[i] % bytes && array->shape[i] > 1)
      return kvcpy_refuse(KVCPY_TENSOR,
                          "%s: stride %d is %zd bytes, no multiple of the element's %d", name, i,
                          array->strides[i], bytes);
    x->shape[i] = array->shape[i];
    x->strides[i] = array->strides[i] / bytes;
  }
  t->data = array->data;
  t->device.device_type = kDLCPU;
  t->device.device_id = 0;
  t->ndim = array->ndim;
  t->shape = x->shape;
  t->strides = x->strides;
  t->byte_offset = 0;
  return 1;
}

PyObject *kvcpy_numpy_enable(PyObject *ndarray) {
  PyTypeObject *before = array_type;
  if (ndarray != Py_None && !PyType_Check(ndarray)) {
    PyErr_SetString(PyExc_TypeError, "expected numpy.ndarray or None");
    return NULL;
  }
  array_type = ndarray == Py_None ? NULL : (PyTypeObject *)ndarray;
  Py_XINCREF((PyObject *)array_type);
  Py_XDECREF((PyObject *)before);
  Py_RETURN_NONE;
}

PyObject *kvcpy_numpy_probe(PyObject *object) {
  const array_layout *array = (const array_layout *)object;
  const dtype_layout *dtype = (const dtype_layout *)array->dtype;
  PyObject *shape, *strides;
  int i;
  if (array->ndim < 0 || array->ndim > KVCPY_MAX_DIMS) Py_RETURN_NONE;
  shape = PyTuple_New(array->ndim);
  strides = PyTuple_New(array->ndim);
  for (i = 0; shape && strides && i < array->ndim; ++i) {
    PyTuple_SetItem(shape, i, PyLong_FromSsize_t(array->shape[i]));
    PyTuple_SetItem(strides, i, PyLong_FromSsize_t(array->strides[i]));
  }
  if (!shape || !strides) {
    Py_XDECREF(shape);
    Py_XDECREF(strides);
    return NULL;
  }
  return Py_BuildValue("(KNNiCi)", (unsigned long long)(uintptr_t)array->data, shape, strides,
                       dtype->number, (int)dtype->kind, array->flags & WRITEABLE ? 1 : 0);
}
