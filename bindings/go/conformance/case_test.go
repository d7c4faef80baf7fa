package conformance

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"reflect"
	"sort"
	"strings"
	"unsafe"

	kvcache "github.com/libkvcache/libkvcache/bindings/go"
)

// fields is a JSON object. A key that nobody reads is one that this runner does not know. Its getters panic where
// a case is not what README.md says; the runner makes failures of these panics.
type fields struct {
	members map[string]any
	read    map[string]bool
}

func wrap(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for key, child := range value {
			value[key] = wrap(child)
		}
		return &fields{value, map[string]bool{}}
	case []any:
		for i, child := range value {
			value[i] = wrap(child)
		}
	}
	return value
}

func readCase(path string) (*fields, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, err
	}
	return wrap(value).(*fields), nil
}

func refuseUnread(value any, where string) {
	switch value := value.(type) {
	case *fields:
		for key, child := range value.members {
			if !value.read[key] {
				panic(fmt.Sprintf("%s: unknown key '%s'", where, key))
			}
			refuseUnread(child, where+"."+key)
		}
	case []any:
		for _, child := range value {
			refuseUnread(child, where)
		}
	}
}

func (f *fields) has(key string) bool {
	_, found := f.members[key]
	f.read[key] = true
	return found
}

func (f *fields) at(key string) any {
	if !f.has(key) {
		panic(fmt.Sprintf("'%s' is missing", key))
	}
	return f.members[key]
}

// keys are all, which count as read.
func (f *fields) keys() []string {
	all := []string{}
	for key := range f.members {
		f.read[key] = true
		all = append(all, key)
	}
	sort.Strings(all)
	return all
}

// object is an empty one where the key is missing; so are lists, texts, and false.
func (f *fields) object(key string) *fields {
	if !f.has(key) {
		return &fields{read: map[string]bool{}}
	}
	return f.at(key).(*fields)
}

func (f *fields) list(key string) []any {
	if !f.has(key) {
		return nil
	}
	return f.at(key).([]any)
}

func (f *fields) text(key string) string {
	if !f.has(key) {
		return ""
	}
	return f.at(key).(string)
}

func (f *fields) flag(key string) bool { return f.has(key) && f.at(key).(bool) }
func (f *fields) i64(key string) int64 { return toInt(f.at(key)) }
func (f *fields) num(key string) int   { return int(f.i64(key)) }

func (f *fields) i64Or(key string, absent int64) int64 {
	if !f.has(key) {
		return absent
	}
	return f.i64(key)
}

func toInt(value any) int64 {
	number, err := value.(json.Number).Int64()
	if err != nil {
		panic(err)
	}
	return number
}

func toFloat(value any) float64 {
	if value == nil {
		return math.Inf(-1)
	}
	number, err := value.(json.Number).Float64()
	if err != nil {
		panic(err)
	}
	return number
}

// listOf converts every element of a list.
func listOf[T any](list []any, convert func(any) T) []T {
	out := make([]T, len(list))
	for i, value := range list {
		out[i] = convert(value)
	}
	return out
}

func (f *fields) ints(key string) []int64 { return listOf(f.list(key), toInt) }
func (f *fields) ints32(key string) []int32 {
	return listOf(f.list(key), func(x any) int32 { return int32(toInt(x)) })
}
func (f *fields) sizes(key string) []int {
	return listOf(f.list(key), func(x any) int { return int(toInt(x)) })
}
func (f *fields) texts(key string) []string {
	return listOf(f.list(key), func(x any) string { return x.(string) })
}

// goName is the Go field of a field in C: num_kv_heads is NumKVHeads.
func goName(name string) string {
	parts := strings.Split(name, "_")
	for i, part := range parts {
		switch part {
		case "kv":
			parts[i] = "KV"
		case "alibi":
			parts[i] = "ALiBiSlopes"
		default:
			parts[i] = strings.ToUpper(part[:1]) + part[1:]
		}
	}
	return strings.Join(parts, "")
}

// fill sets the fields of a struct whose C names a case gives, but for those that it handles itself.
func fill(into any, from *fields, but ...string) {
	target := reflect.ValueOf(into).Elem()
	for _, key := range from.keys() {
		if contains(but, key) {
			continue
		}
		field := target.FieldByName(goName(key))
		if !field.IsValid() {
			panic(fmt.Sprintf("%s has no field '%s'", target.Type(), key))
		}
		set(field, from.at(key))
	}
}

func set(field reflect.Value, value any) {
	switch {
	case field.Kind() == reflect.Slice:
		field.Set(reflect.MakeSlice(field.Type(), len(value.([]any)), len(value.([]any))))
		for i, element := range value.([]any) {
			set(field.Index(i), element)
		}
	case field.Type() == reflect.TypeOf((*kvcache.Tensor)(nil)):
		field.Set(reflect.ValueOf(tensorOf(value.(*fields)).arg()))
	case field.Kind() == reflect.Bool:
		field.SetBool(value.(bool))
	case field.CanInt():
		field.SetInt(toInt(value))
	case field.CanUint():
		field.SetUint(uint64(toInt(value)))
	default:
		field.SetFloat(toFloat(value))
	}
}

func contains(list []string, one string) bool {
	for _, other := range list {
		if other == one {
			return true
		}
	}
	return false
}

// value is the generator of README.md: a multiple of 1/64 in [-1, 1); kind 0 is zero.
func value(kind, layer, id, head, element int64) float64 {
	if kind == 0 {
		return 0
	}
	x := uint32(id)*0x9E3779B1 + uint32(layer)*0x85EBCA77 + uint32(head)*0xC2B2AE3D +
		uint32(element)*0x27D4EB2F + uint32(kind)*0x165667B1
	x ^= x >> 15
	x *= 0x2C1B3C6D
	x ^= x >> 12
	x *= 0x297A2D39
	x ^= x >> 15
	return (float64(x&127) - 64) / 64
}

// elementsOf are those that a tensor of a case gives, in their order.
func elementsOf(spec *fields) []float64 {
	if spec.has("values") || !spec.has("kind") {
		return listOf(spec.list("values"), toFloat)
	}
	shape, kind, layer := spec.ints("shape"), spec.i64("kind"), spec.i64("layer")
	heads, out := int64(1), []float64{}
	if len(shape) > 2 {
		heads = shape[1]
	}
	for _, run := range spec.list("ids") {
		first, count := toInt(run.([]any)[0]), toInt(run.([]any)[1])
		for id := first; id < first+count; id++ {
			for head := int64(0); head < heads; head++ {
				for d := int64(0); d < shape[len(shape)-1]; d++ {
					out = append(out, value(kind, layer, id, head, d))
				}
			}
		}
	}
	return out
}

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

var dtypes = map[string]kvcache.DType{"": kvcache.F32, "f32": kvcache.F32, "f16": kvcache.F16, "bf16": kvcache.BF16,
	"i8": kvcache.I8, "i32": kvcache.I32, "i64": kvcache.I64, "e4m3": kvcache.F8E4M3, "e5m2": kvcache.F8E5M2}

func dtypeOf(name string) kvcache.DType {
	dtype, found := dtypes[name]
	if !found {
		panic("'" + name + "' is no element type")
	}
	return dtype
}

// tensorOf is the tensor that a case describes; elements that it does not give stay NaN.
func tensorOf(spec *fields) *host {
	h := newHost(dtypeOf(spec.text("dtype")), spec.sizes("shape")...)
	for i, x := range elementsOf(spec) {
		h.set(i, x)
	}
	return h
}

// arg is the tensor as an argument; nil stays nil.
func (h *host) arg() *kvcache.Tensor {
	if h == nil {
		return nil
	}
	return kvcache.OfBytes(h.bytes, h.dtype, h.shape...)
}

func (h *host) set(i int, x float64) {
	switch h.dtype {
	case kvcache.I8, kvcache.F8E4M3, kvcache.F8E5M2: // float8 by its bits
		h.bytes[i] = byte(int(x))
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

// get reads float32, int32, int8 and the bits of float8: results have these types.
func (h *host) get(i int) float64 {
	switch h.dtype {
	case kvcache.I8:
		return float64(int8(h.bytes[i]))
	case kvcache.F8E4M3, kvcache.F8E5M2:
		return float64(h.bytes[i])
	}
	bits := binary.LittleEndian.Uint32(h.bytes[4*i:])
	if h.dtype == kvcache.I32 {
		return float64(int32(bits))
	}
	return float64(math.Float32frombits(bits))
}
