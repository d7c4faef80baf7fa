package conformance

import (
	"encoding/binary"
	"math"
	"unsafe"

	kvcache "github.com/libkvcache/libkvcache/bindings/go"
)

// host is a tensor of the test: new ones hold NaN, integers -1.
type host struct {
	shape []int
	dtype kvcache.DType
	size  int
	bytes []byte // aligned to 8
}

func newHost(dtype kvcache.DType, shape ...int) *host {
	h := &host{shape: shape, dtype: dtype, size: 1}
	for _, extent := range shape {
		h.size *= extent
	}
	length := h.size * int(dtype.Bits) / 8
	words := make([]uint64, length/8+1)
	h.bytes = unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), length)
	for i := range h.bytes {
		h.bytes[i] = 0xFF
	}
	return h
}

func f32(shape ...int) *host { return newHost(kvcache.F32, shape...) }

// arg is the tensor as an argument; nil stays nil.
func (h *host) arg() *kvcache.Tensor {
	if h == nil {
		return nil
	}
	return kvcache.OfBytes(h.bytes, h.dtype, h.shape...)
}

func (h *host) set(i int, x float64) {
	switch h.dtype {
	case kvcache.I32:
		binary.LittleEndian.PutUint32(h.bytes[4*i:], uint32(int32(x)))
	case kvcache.I64:
		binary.LittleEndian.PutUint64(h.bytes[8*i:], uint64(int64(x)))
	case kvcache.F16:
		binary.LittleEndian.PutUint16(h.bytes[2*i:], uint16(kvcache.ToFloat16(float32(x))))
	case kvcache.BF16:
		binary.LittleEndian.PutUint16(h.bytes[2*i:], uint16(kvcache.ToBFloat16(float32(x))))
	default:
		binary.LittleEndian.PutUint32(h.bytes[4*i:], math.Float32bits(float32(x)))
	}
}

// get reads float32 and integers: outputs are asked for in these.
func (h *host) get(i int) float64 {
	switch h.dtype {
	case kvcache.I32:
		return float64(int32(binary.LittleEndian.Uint32(h.bytes[4*i:])))
	case kvcache.I64:
		return float64(int64(binary.LittleEndian.Uint64(h.bytes[8*i:])))
	}
	return float64(math.Float32frombits(binary.LittleEndian.Uint32(h.bytes[4*i:])))
}

// integers is a tensor of a list, or of a list of lists.
func integers(list []any, dtype kvcache.DType) *host {
	if isFlat(list) {
		h := newHost(dtype, len(list))
		for i, x := range list {
			h.set(i, toFloat(x))
		}
		return h
	}
	columns := len(list[0].([]any))
	h := newHost(dtype, len(list), columns)
	for i, row := range list {
		for j, x := range row.([]any) {
			h.set(i*columns+j, toFloat(x))
		}
	}
	return h
}

func floatTensor(numbers []float64, shape ...int) *host {
	h := f32(shape...)
	for i, x := range numbers {
		h.set(i, x)
	}
	return h
}

func dtypeOf(name string) kvcache.DType {
	switch name {
	case "f32":
		return kvcache.F32
	case "f16":
		return kvcache.F16
	case "bf16":
		return kvcache.BF16
	}
	panic("'" + name + "' is no element type")
}
