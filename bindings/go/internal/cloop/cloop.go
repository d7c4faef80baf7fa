// Package cloop is what tests need of C: kvc_attn in a loop, which the call cost of the binding is compared
// with, threads for an executor, and the deleter of an export.
package cloop

/*
#cgo CFLAGS: -I${SRCDIR}/../headers
#include <kvcache_api.h>

static int32_t loop(uintptr_t api, uintptr_t fwd, int64_t heads, int64_t dim, float *q, float *k, float *v, float *out,
                    int64_t n) {
  int64_t shape[3] = {1, heads, dim};
  DLTensor q_dl = {q, {kDLCPU, 0}, 3, {kDLFloat, 32, 1}, shape, NULL, 0};
  DLTensor k_dl = q_dl, v_dl = q_dl, out_dl = q_dl;
  k_dl.data = k, v_dl.data = v, out_dl.data = out;
  kvc_error err;
  err.struct_size = sizeof err;
  for (int64_t i = 0; i < n; ++i) {
    const kvc_status status =
        ((const kvc_api *)api)->attn((kvc_forward *)fwd, 0, NULL, &q_dl, &k_dl, &v_dl, &out_dl, NULL, &err);
    if (status != KVC_OK) return status;
  }
  return KVC_OK;
}

// An executor that has two workers and uses one, and counts its tasks in *user.
static int32_t concurrency(void *user) {
  (void)user;
  return 2;
}
static void parallel_for(void *user, int64_t num_tasks, void (*fn)(void *arg, int64_t task, int32_t worker),
                         void *arg) {
  for (int64_t task = 0; task < num_tasks; ++task) fn(arg, task, 0);
  *(int64_t *)user += num_tasks;
}
static void *concurrency_address(void) { return (void *)concurrency; }
static void *parallel_for_address(void) { return (void *)parallel_for; }

static void delete_exported(uintptr_t exported) {
  DLManagedTensorVersioned *tensor = (DLManagedTensorVersioned *)exported;
  tensor->deleter(tensor);
}
*/
import "C"

import "unsafe"

// Attend makes n calls on layer 0 for one token, and gives the status of the last.
func Attend(api, fwd uintptr, heads, dim int, q, k, v, out []float32, n int) int32 {
	return int32(C.loop(C.uintptr_t(api), C.uintptr_t(fwd), C.int64_t(heads), C.int64_t(dim),
		(*C.float)(&q[0]), (*C.float)(&k[0]), (*C.float)(&v[0]), (*C.float)(&out[0]), C.int64_t(n)))
}

// Executor is the two functions of an executor, whose user is the address of an int64 that counts tasks.
func Executor() (concurrency, parallelFor unsafe.Pointer) {
	return C.concurrency_address(), C.parallel_for_address()
}

// Delete calls the deleter of an exported tensor.
func Delete(exported uintptr) { C.delete_exported(C.uintptr_t(exported)) }
