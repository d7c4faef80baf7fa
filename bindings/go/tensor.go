package kvcache

/*
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"math"
	"unsafe"
)

// DType is an element type of DLPack.
type DType struct {
	Code  uint8
	Bits  uint8
	Lanes uint16
}

// The element types of activations and storage. The zero DType means the default of the field that holds it.
var (
	F32    = DType{C.kDLFloat, 32, 1}
	F16    = DType{C.kDLFloat, 16, 1}
	BF16   = DType{C.kDLBfloat, 16, 1}
	I8     = DType{C.kDLInt, 8, 1}
	I32    = DType{C.kDLInt, 32, 1}
	I64    = DType{C.kDLInt, 64, 1}
	U8     = DType{C.kDLUInt, 8, 1}
	I4     = DType{C.kDLInt, 4, 1}
	F8E4M3 = DType{C.kDLFloat8_e4m3fn, 8, 1}
	F8E5M2 = DType{C.kDLFloat8_e5m2, 8, 1}
	F4E2M1 = DType{C.kDLFloat4_e2m1fn, 4, 1}
)

func (d DType) c() C.DLDataType {
	return C.DLDataType{code: C.uint8_t(d.Code), bits: C.uint8_t(d.Bits), lanes: C.uint16_t(d.Lanes)}
}

func goDType(d C.DLDataType) DType { return DType{uint8(d.code), uint8(d.bits), uint16(d.lanes)} }

func (d DType) String() string {
	switch d.Code {
	case C.kDLInt:
		return fmt.Sprintf("int%d", d.Bits)
	case C.kDLUInt:
		return fmt.Sprintf("uint%d", d.Bits)
	case C.kDLFloat:
		return fmt.Sprintf("float%d", d.Bits)
	case C.kDLBfloat:
		return fmt.Sprintf("bfloat%d", d.Bits)
	}
	return fmt.Sprintf("dtype %d of %d bits", d.Code, d.Bits)
}

// bytes of n elements.
func (d DType) bytes(n int64) int64 { return (n*int64(d.Bits)*int64(d.Lanes) + 7) / 8 }

// Device is a device of DLPack; the zero Device is the CPU.
type Device struct {
	Type int32
	ID   int32
}

// Types of devices.
const (
	CPU  int32 = C.kDLCPU
	CUDA int32 = C.kDLCUDA
)

func (d Device) c() C.DLDevice {
	if d == (Device{}) {
		d.Type = CPU
	}
	return C.DLDevice{device_type: C.int32_t(d.Type), device_id: C.int32_t(d.ID)}
}

// Element is a Go type with an element type of DLPack.
type Element interface {
	float32 | int8 | int32 | int64 | uint8 | Float16 | BFloat16
}

func dtypeOf[T Element]() DType {
	var zero T
	switch any(zero).(type) {
	case int8:
		return I8
	case int32:
		return I32
	case int64:
		return I64
	case uint8:
		return U8
	case Float16:
		return F16
	case BFloat16:
		return BF16
	}
	return F32
}

// Tensor says where numbers are and how they are laid out. It may be used for any number of calls, by one
// goroutine at a time where it is an output. A nil *Tensor is an argument that is not given. What is wrong
// with a Tensor is the error of the first call that it is given to.
type Tensor struct {
	desc C.shim_tensor
	data *C.uint8_t
	size int64 // elements that data holds; -1: unknown
	heap bool  // data is Go memory
	err  error
}

// Of is the tensor of a slice: compact, row-major, its memory lent for the duration of each call. Rows behind
// the tokens of a batch are padding, so one tensor serves batches of any size up to its own.
func Of[T Element](data []T, shape ...int) *Tensor {
	var p unsafe.Pointer
	if len(data) > 0 {
		p = unsafe.Pointer(&data[0])
	}
	return newTensor(p, int64(len(data)), true, dtypeOf[T](), shape)
}

// OfBytes is Of for an element type that Go has no type for.
func OfBytes(data []byte, dtype DType, shape ...int) *Tensor {
	var p unsafe.Pointer
	if len(data) > 0 {
		p = unsafe.Pointer(&data[0])
	}
	elements := int64(-1)
	if bits := int64(dtype.Bits) * int64(dtype.Lanes); bits > 0 {
		elements = int64(len(data)) * 8 / bits
	}
	return newTensor(p, elements, true, dtype, shape)
}

// FromPointer is the tensor of memory outside of Go's heap: of another library, a mapping, or a device (see
// On). The caller keeps it valid for as long as the library may use it: the call, or what the function says.
func FromPointer(p unsafe.Pointer, dtype DType, shape ...int) *Tensor {
	return newTensor(p, -1, false, dtype, shape)
}

func newTensor(p unsafe.Pointer, size int64, heap bool, dtype DType, shape []int) *Tensor {
	t := &Tensor{data: (*C.uint8_t)(p), size: size, heap: heap}
	t.desc.device = Device{}.c()
	t.desc.dtype = dtype.c()
	if len(shape) > C.SHIM_MAX_DIMS {
		t.fail(ErrShape, "shape %v has %d dimensions, at most %d are possible", shape, len(shape),
			int(C.SHIM_MAX_DIMS))
		return t
	}
	t.desc.ndim = C.int32_t(len(shape))
	count := int64(1)
	for i, extent := range shape {
		t.desc.shape[i] = C.int64_t(extent)
		switch {
		case extent < 0:
			t.fail(ErrShape, "shape %v has a negative extent", shape)
			return t
		case extent > 0 && count > math.MaxInt64/int64(extent):
			t.fail(ErrShape, "shape %v has more elements than an int64 counts", shape)
			return t
		}
		count *= int64(extent)
	}
	if size >= 0 && count > size {
		t.fail(ErrShape, "shape %v needs %d elements, the slice has %d", shape, count, size)
	}
	return t
}

func (t *Tensor) fail(status Status, format string, args ...any) {
	if t.err == nil {
		t.err = &Error{Status: status, Msg: fmt.Sprintf(format, args...)}
	}
}

// invalidate makes the next use an error: the memory is gone.
func (t *Tensor) invalidate(owner string) {
	t.err = &Error{Status: ErrInvalidState, Msg: owner + " is closed", closed: true}
	t.data = nil
}

// On says that the memory is that of a device, and returns t.
func (t *Tensor) On(device Device) *Tensor {
	t.desc.device = device.c()
	return t
}

// Strided gives t strides, in elements, one for each dimension, and returns t. The last one has to be 1.
func (t *Tensor) Strided(strides ...int) *Tensor {
	if len(strides) != int(t.desc.ndim) {
		t.fail(ErrShape, "%d strides for %d dimensions", len(strides), int(t.desc.ndim))
		return t
	}
	last := int64(0)
	empty := false
	for i, stride := range strides {
		t.desc.strides[i] = C.int64_t(stride)
		extent := int64(t.desc.shape[i])
		empty = empty || extent == 0
		if t.size < 0 || extent < 2 {
			continue
		}
		if stride < 0 || int64(stride) > (math.MaxInt64-last)/(extent-1) {
			t.fail(ErrShape, "stride %d of dimension %d leads out of the slice of %d elements", stride, i, t.size)
			return t
		}
		last += int64(stride) * (extent - 1)
	}
	if t.size >= 0 && !empty && last >= t.size {
		t.fail(ErrShape, "strides %v reach element %d, the slice has %d", strides, last, t.size)
	}
	t.desc.has_strides = 1
	return t
}

// Shape returns a copy of the extents.
func (t *Tensor) Shape() []int {
	shape := make([]int, t.desc.ndim)
	for i := range shape {
		shape[i] = int(t.desc.shape[i])
	}
	return shape
}

// DType is the element type.
func (t *Tensor) DType() DType { return goDType(t.desc.dtype) }

// Err is what is wrong with the tensor, or nil.
func (t *Tensor) Err() error {
	if t == nil {
		return nil
	}
	return t.err
}

// d and p are the two arguments that a shim takes for a tensor.
func (t *Tensor) d() *C.shim_tensor {
	if t == nil {
		return nil
	}
	return &t.desc
}

func (t *Tensor) p() *C.uint8_t {
	if t == nil {
		return nil
	}
	return t.data
}

func (t *Tensor) bad() bool { return t != nil && t.err != nil }

// named is an argument of a call.
type named struct {
	name   string
	tensor *Tensor
}

// firstBad is the error of the first tensor that has one.
func firstBad(arguments ...named) error {
	for _, argument := range arguments {
		if !argument.tensor.bad() {
			continue
		}
		err := *argument.tensor.err.(*Error)
		err.Msg = argument.name + ": " + err.Msg
		return &err
	}
	return nil
}

// A Block is memory outside of Go's heap, zeroed, for what the library keeps between calls. It is freed by
// Close and nothing else.
type Block struct {
	p     unsafe.Pointer
	bytes int
	views []*Tensor
}

// Alloc makes a Block, aligned to 64 bytes.
func Alloc(bytes int) (*Block, error) {
	if bytes < 0 {
		return nil, invalid("bytes: %d is negative", bytes)
	}
	var p unsafe.Pointer
	rounded := C.size_t((uint64(bytes) + 127) / 64 * 64)
	if C.posix_memalign(&p, 64, rounded) != 0 {
		return nil, &Error{Status: ErrNoMemory, Detail: int64(bytes),
			Msg: fmt.Sprintf("%d bytes could not be allocated", bytes)}
	}
	C.memset(p, 0, rounded)
	return &Block{p: p, bytes: bytes}, nil
}

// Bytes is the memory, valid until Close.
func (b *Block) Bytes() []byte { return unsafe.Slice((*byte)(b.p), b.bytes) }

// Tensor is a view of the block's beginning.
func (b *Block) Tensor(dtype DType, shape ...int) *Tensor {
	elements := int64(0)
	if bits := int64(dtype.Bits) * int64(dtype.Lanes); bits > 0 {
		elements = int64(b.bytes) * 8 / bits
	}
	view := newTensor(b.p, elements, false, dtype, shape)
	b.views = append(b.views, view)
	return view
}

// Close frees the memory, which must not be in use any more. The block's tensors given to a call afterwards
// are an error.
func (b *Block) Close() error {
	for _, view := range b.views {
		view.invalidate("the block")
	}
	C.free(b.p)
	b.p, b.bytes, b.views = nil, 0, nil
	return nil
}
