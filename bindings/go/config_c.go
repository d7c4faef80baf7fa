package kvcache

/*
#include "shim_plan.h"
*/
import "C"

import (
	"fmt"
	"math"
	"unsafe"
)

// builder puts a configuration together in memory of C, which close frees. The first mistake stays in err.
type builder struct {
	blocks []unsafe.Pointer
	err    error
}

func (b *builder) close() {
	for _, block := range b.blocks {
		C.free(block)
	}
}

func (b *builder) fail(err error) {
	if b.err == nil {
		b.err = err
	}
}

// alloc gives zeroed memory, at least one byte.
func (b *builder) alloc(count int, size uintptr) unsafe.Pointer {
	if count < 1 {
		count = 1
	}
	p := C.calloc(C.size_t(count), C.size_t(size))
	if p == nil {
		panic("kvcache: no memory for a configuration")
	}
	b.blocks = append(b.blocks, p)
	return p
}

// i32 narrows a number that C keeps in 32 bits.
func (b *builder) i32(name string, value int) C.int32_t {
	if value < math.MinInt32 || value > math.MaxInt32 {
		b.fail(&Error{Status: ErrOutOfRange, Detail: int64(value),
			Msg: fmt.Sprintf("%s: %d is out of range: %d..%d", name, value, math.MinInt32, math.MaxInt32)})
		return 0
	}
	return C.int32_t(value)
}

func (b *builder) floats(values []float32) *C.float {
	if len(values) == 0 {
		return nil
	}
	p := (*C.float)(b.alloc(len(values), C.sizeof_float))
	copy(unsafe.Slice((*float32)(p), len(values)), values)
	return p
}

// tensor is a DLTensor in C. With `data` the numbers are copied as well, for they may be Go's.
func (b *builder) tensor(name string, t *Tensor, data bool) *C.DLTensor {
	if err := firstBad(named{name, t}); err != nil {
		b.fail(err)
		return nil
	}
	out := (*C.DLTensor)(b.alloc(1, C.sizeof_DLTensor))
	shape := unsafe.Slice((*C.int64_t)(b.alloc(2*C.SHIM_MAX_DIMS, C.sizeof_int64_t)), 2*C.SHIM_MAX_DIMS)
	copy(shape[:C.SHIM_MAX_DIMS], t.desc.shape[:])
	copy(shape[C.SHIM_MAX_DIMS:], t.desc.strides[:])
	out.device, out.dtype, out.ndim, out.byte_offset = t.desc.device, t.desc.dtype, t.desc.ndim, t.desc.byte_offset
	out.shape = &shape[0]
	if t.desc.has_strides != 0 {
		out.strides = &shape[C.SHIM_MAX_DIMS]
	}
	switch {
	case data && out.strides != nil:
		b.fail(&Error{Status: ErrShape, Msg: name + ": strided values are not accepted"})
	case data:
		elements := int64(1)
		for _, extent := range t.Shape() {
			elements *= int64(extent)
		}
		bytes := int(t.DType().bytes(elements))
		out.data = b.alloc(bytes, 1)
		if bytes > 0 {
			copy(unsafe.Slice((*byte)(out.data), bytes), unsafe.Slice((*byte)(unsafe.Pointer(t.data)), bytes))
		}
	case t.heap:
		b.fail(invalid("%s: memory of a Go slice, which the library would keep; it has to lie outside of Go's heap"+
			" (FromPointer, Alloc)", name))
	default:
		out.data = unsafe.Pointer(t.data)
	}
	return out
}

// fillRope checks what a Go slice can get wrong; the plan checks the rest.
func (b *builder) fillRope(name string, rope *Rope, out *C.kvc_rope) {
	out.struct_size = C.sizeof_kvc_rope
	out.mode = C.kvc_rope_mode(rope.Mode)
	out.style = C.kvc_rope_style(rope.Style)
	out.rotary_dim = b.i32(name+".RotaryDim", rope.RotaryDim)
	out.theta, out.scale = C.double(rope.Theta), C.double(rope.Scale)
	factors := len(rope.FreqFactors)
	if long := len(rope.LongFreqFactors); long > 0 {
		if factors > 0 && factors != long {
			b.fail(invalid("%s.LongFreqFactors: %d numbers, FreqFactors has %d", name, long, factors))
		}
		factors = long
	}
	out.num_freq_factors = b.i32(name+".FreqFactors", factors)
	out.freq_factors = b.floats(rope.FreqFactors)
	out.long_freq_factors = b.floats(rope.LongFreqFactors)
	out.scaling = C.kvc_rope_scaling(rope.Scaling)
	if len(rope.Sections) > len(out.sections) {
		b.fail(&Error{Status: ErrOutOfRange, Msg: fmt.Sprintf("%s.Sections: %d sections, at most %d", name,
			len(rope.Sections), len(out.sections))})
		return
	}
	out.num_sections = C.int32_t(len(rope.Sections))
	for i, pairs := range rope.Sections {
		out.sections[i] = b.i32(name+".Sections", pairs)
	}
	out.section_layout = C.kvc_rope_section_layout(rope.SectionLayout)
	out.factor = C.double(rope.Factor)
	out.low_freq_factor, out.high_freq_factor = C.double(rope.LowFreqFactor), C.double(rope.HighFreqFactor)
	out.beta_fast, out.beta_slow = C.double(rope.BetaFast), C.double(rope.BetaSlow)
	out.attention_factor = C.double(rope.AttentionFactor)
	out.original_context = C.int64_t(rope.OriginalContext)
}

func (b *builder) fillStates(name string, states []State, out *C.kvc_layer) {
	if len(states) == 0 {
		return
	}
	specs := unsafe.Slice((*C.kvc_state_spec)(b.alloc(len(states), C.sizeof_kvc_state_spec)), len(states))
	for i, state := range states {
		spec := &specs[i]
		spec.struct_size = C.sizeof_kvc_state_spec
		spec.ndim = C.int32_t(len(state.Shape))
		spec.dtype = state.DType.c()
		spec.shape = (*C.int64_t)(b.alloc(len(state.Shape), C.sizeof_int64_t))
		shape := unsafe.Slice(spec.shape, len(state.Shape))
		for j, extent := range state.Shape {
			shape[j] = C.int64_t(extent)
		}
		if state.Init != nil {
			spec.init = b.tensor(fmt.Sprintf("%s.States[%d].Init", name, i), state.Init, true)
		}
	}
	out.states = &specs[0]
	out.num_states = b.i32(name+".States", len(states))
}

func (b *builder) fillLayer(name string, layer *Layer, out *C.kvc_layer) {
	out.struct_size = C.sizeof_kvc_layer
	out.kind = C.kvc_layer_kind(layer.Kind)
	out.num_q_heads = b.i32(name+".NumQHeads", layer.NumQHeads)
	out.num_kv_heads = b.i32(name+".NumKVHeads", layer.NumKVHeads)
	out.k_dim = b.i32(name+".KDim", layer.KDim)
	out.v_dim = b.i32(name+".VDim", layer.VDim)
	out.quant = C.kvc_quant(layer.Quant)
	out.k_dtype, out.v_dtype = layer.KDType.c(), layer.VDType.c()
	if layer.Rope != nil {
		rope := (*C.kvc_rope)(b.alloc(1, C.sizeof_kvc_rope))
		b.fillRope(name+".Rope", layer.Rope, rope)
		out.rope = rope
	}
	out.window, out.chunk = C.int64_t(layer.Window), C.int64_t(layer.Chunk)
	out.source_layer = b.i32(name+".SourceLayer", layer.SourceLayer)
	out.latent_rank = b.i32(name+".LatentRank", layer.LatentRank)
	out.latent_rope_dim = b.i32(name+".LatentRopeDim", layer.LatentRopeDim)
	if layer.VIsK {
		out.flags = C.KVC_LAYER_V_IS_K
	}
	b.fillStates(name, layer.States, out)
	out.v_quant = C.kvc_quant(layer.VQuant)
	out.keep_tokens = b.i32(name+".KeepTokens", layer.KeepTokens)
	out.k_scale, out.v_scale = C.float(layer.KScale), C.float(layer.VScale)
}

// config puts all but the allocator into C.
func (b *builder) config(config *Config) *C.kvc_config {
	out := (*C.kvc_config)(b.alloc(1, C.sizeof_kvc_config))
	out.struct_size = C.sizeof_kvc_config
	if config.PadPages {
		out.flags |= C.KVC_CONFIG_PAD_PAGES
	}
	if config.ClearPages {
		out.flags |= C.KVC_CONFIG_CLEAR_PAGES
	}
	if config.NoHugePages {
		out.flags |= C.KVC_CONFIG_NO_HUGE_PAGES
	}
	if config.Device != (Device{}) {
		out.device = config.Device.c()
	}
	out.page_size = b.i32("PageSize", config.PageSize)
	out.num_layers = b.i32("Layers", len(config.Layers))
	out.layers = (*C.kvc_layer)(b.alloc(len(config.Layers), C.sizeof_kvc_layer))
	layers := unsafe.Slice(out.layers, len(config.Layers))
	for i := range config.Layers {
		b.fillLayer(fmt.Sprintf("Layers[%d]", i), &config.Layers[i], &layers[i])
	}
	out.layer_begin = b.i32("LayerBegin", config.LayerBegin)
	out.layer_end = b.i32("LayerEnd", config.LayerEnd)
	out.max_seqs = b.i32("MaxSeqs", config.MaxSeqs)
	out.forwards_in_flight = b.i32("ForwardsInFlight", config.ForwardsInFlight)
	out.max_tokens_per_forward = C.int64_t(config.MaxTokensPerForward)
	out.max_seq_len = C.int64_t(config.MaxSeqLen)
	out.num_pages = C.int64_t(config.NumPages)
	out.byte_budget = C.uint64_t(config.ByteBudget)
	out.host_byte_budget = C.uint64_t(config.HostByteBudget)
	out.storage = C.kvc_storage(config.Storage)
	out.pool_layout = C.kvc_pool_layout(config.PoolLayout)
	b.fillPool(config.PoolTensors, out)
	out.num_threads = b.i32("NumThreads", config.NumThreads)
	out.cpu_isa = C.kvc_cpu_isa(config.CPUISA)
	if e := config.Executor; e != nil {
		executor := (*C.kvc_executor)(b.alloc(1, C.sizeof_kvc_executor))
		C.shim_set_executor(executor, e.User, e.Concurrency, e.ParallelFor)
		out.executor = executor
	}
	out.max_cross_len = C.int64_t(config.MaxCrossLen)
	out.state_stride = C.int64_t(config.StateStride)
	out.num_state_slots = C.int64_t(config.NumStateSlots)
	out.event_capacity = C.int64_t(config.EventCapacity)
	out.cp_size = C.int32_t(config.CPSize)
	return out
}

func (b *builder) fillPool(tensors []*Tensor, out *C.kvc_config) {
	if len(tensors) == 0 {
		return
	}
	pool := unsafe.Slice((**C.DLTensor)(b.alloc(len(tensors), unsafe.Sizeof(uintptr(0)))), len(tensors))
	for i, tensor := range tensors {
		name := fmt.Sprintf("PoolTensors[%d]", i)
		if tensor == nil {
			b.fail(invalid("%s: nil", name))
			return
		}
		pool[i] = b.tensor(name, tensor, false)
	}
	out.pool_tensors = &pool[0]
	out.num_pool_tensors = b.i32("PoolTensors", len(tensors))
}
