// Package cudatest is the little of the CUDA runtime that a test of a cache on a GPU needs, opened at run time.
package cudatest

/*
#cgo linux LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

static void *cuda;

static int cuda_open(const char *file) { return (cuda = dlopen(file, RTLD_NOW)) != NULL; }
static void *cuda_find(const char *name) { return dlsym(cuda, name); }

static int cuda_malloc(void **out, size_t bytes) {
  return ((int (*)(void **, size_t))cuda_find("cudaMalloc"))(out, bytes);
}
static int cuda_copy(void *to, const void *from, size_t bytes) {
  return ((int (*)(void *, const void *, size_t, int))cuda_find("cudaMemcpy"))(to, from, bytes, 4);
}
static int cuda_synchronize(void) { return ((int (*)(void))cuda_find("cudaDeviceSynchronize"))(); }
static int cuda_stream(uintptr_t *out) {
  return ((int (*)(void **, unsigned))cuda_find("cudaStreamCreateWithFlags"))((void **)out, 1);
}
static int cuda_begin(uintptr_t stream) {
  return ((int (*)(void *, int))cuda_find("cudaStreamBeginCapture"))((void *)stream, 2);
}
static int cuda_end(uintptr_t stream, uintptr_t *out) {
  void *graph = NULL;
  const int failed =
      ((int (*)(void *, void **))cuda_find("cudaStreamEndCapture"))((void *)stream, &graph);
  return failed ? failed
                : ((int (*)(void **, void *, uint64_t))cuda_find("cudaGraphInstantiate"))((void **)out, graph, 0);
}
static int cuda_launch(uintptr_t graph, uintptr_t stream) {
  return ((int (*)(void *, void *))cuda_find("cudaGraphLaunch"))((void *)graph, (void *)stream);
}
*/
import "C"

import (
	"os"
	"testing"
	"unsafe"
)

// Need opens the runtime that KVC_CUDA_RUNTIME names, and skips the test where it names none.
func Need(t *testing.T) {
	t.Helper()
	file := os.Getenv("KVC_CUDA_RUNTIME")
	if file == "" {
		t.Skip("KVC_CUDA_RUNTIME names no CUDA runtime")
	}
	name := C.CString(file)
	defer C.free(unsafe.Pointer(name))
	if C.cuda_open(name) == 0 {
		t.Fatalf("%s cannot be opened", file)
	}
}

func check(t *testing.T, what string, failed C.int) {
	t.Helper()
	if failed != 0 {
		t.Fatalf("%s: CUDA error %d", what, int(failed))
	}
}

// Floats is memory on the device, kept as long as the process.
type Floats struct {
	P unsafe.Pointer
	n int
}

// Put makes memory of the values.
func Put(t *testing.T, values []float32) Floats {
	t.Helper()
	f := Floats{n: len(values)}
	check(t, "malloc", C.cuda_malloc(&f.P, C.size_t(4*f.n)))
	f.Set(t, values)
	return f
}

// Set replaces the values.
func (f Floats) Set(t *testing.T, values []float32) {
	t.Helper()
	check(t, "copy", C.cuda_copy(f.P, unsafe.Pointer(&values[0]), C.size_t(4*f.n)))
}

// Get waits for the device.
func (f Floats) Get(t *testing.T) []float32 {
	t.Helper()
	values := make([]float32, f.n)
	check(t, "synchronize", C.cuda_synchronize())
	check(t, "copy", C.cuda_copy(unsafe.Pointer(&values[0]), f.P, C.size_t(4*f.n)))
	return values
}

// NewStream is a stream that does not wait for the legacy default stream.
func NewStream(t *testing.T) uintptr {
	t.Helper()
	var stream C.uintptr_t
	check(t, "stream", C.cuda_stream(&stream))
	return uintptr(stream)
}

// Capture is the executable graph of what `enqueue` gives the stream.
func Capture(t *testing.T, stream uintptr, enqueue func()) uintptr {
	t.Helper()
	check(t, "begin of a capture", C.cuda_begin(C.uintptr_t(stream)))
	enqueue()
	var graph C.uintptr_t
	check(t, "end of a capture", C.cuda_end(C.uintptr_t(stream), &graph))
	return uintptr(graph)
}

// Launch enqueues a graph.
func Launch(t *testing.T, graph, stream uintptr) {
	t.Helper()
	check(t, "launch", C.cuda_launch(C.uintptr_t(graph), C.uintptr_t(stream)))
}
