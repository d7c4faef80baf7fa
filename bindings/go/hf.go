package kvcache

/*
#include "shim_plan.h"
*/
import "C"

import "unsafe"

// ConfigFromHF reads a Hugging Face config.json: Layers, MaxSeqLen and, for encoder-decoders, MaxCrossLen are
// filled in, the rest is for the caller. A layer of the model that has two parts becomes two entries, so ids
// count entries.
func (l *Library) ConfigFromHF(json []byte) (*Config, error) {
	return l.ConfigFromHFWith(json, HFOptions{})
}

// HFOptions says how a config.json is read.
type HFOptions struct {
	Assume    string // The family whose rules read a model_type that is not known: "llama" for a plain decoder.
	MTPLayers int    // Layers of multi-token prediction that are appended, at most those of the model.
}

// ConfigFromHFWith is ConfigFromHF, read as options say.
func (l *Library) ConfigFromHFWith(json []byte, options HFOptions) (*Config, error) {
	text, err := cText("json", string(json))
	if err != nil {
		return nil, err
	}
	defer C.free(unsafe.Pointer(text))
	var assume *C.char
	if options.Assume != "" {
		if assume, err = cText("Assume", options.Assume); err != nil {
			return nil, err
		}
		defer C.free(unsafe.Pointer(assume))
	}
	var b builder
	defer b.close()
	config := (*C.kvc_config)(b.alloc(1, C.sizeof_kvc_config))
	var count C.size_t
	if err := failure(C.shim_config_from_hf(l.api, text, assume, C.int32_t(options.MTPLayers), config, nil, &count)); err != nil {
		return nil, err
	}
	layers := (*C.kvc_layer)(b.alloc(int(count), C.sizeof_kvc_layer))
	if err := failure(C.shim_config_from_hf(l.api, text, assume, C.int32_t(options.MTPLayers), config, layers, &count)); err != nil {
		return nil, err
	}
	out := &Config{
		Layers:      make([]Layer, config.num_layers),
		MaxSeqLen:   int64(config.max_seq_len),
		MaxCrossLen: int64(config.max_cross_len),
	}
	for i, layer := range unsafe.Slice(layers, int(config.num_layers)) {
		out.Layers[i] = goLayer(&layer)
	}
	return out, nil
}

func goLayer(c *C.kvc_layer) Layer {
	layer := Layer{
		Kind:          LayerKind(c.kind),
		NumQHeads:     int(c.num_q_heads),
		NumKVHeads:    int(c.num_kv_heads),
		KDim:          int(c.k_dim),
		VDim:          int(c.v_dim),
		Quant:         Quant(c.quant),
		KDType:        goDType(c.k_dtype),
		VDType:        goDType(c.v_dtype),
		Window:        int64(c.window),
		Chunk:         int64(c.chunk),
		SourceLayer:   int(c.source_layer),
		LatentRank:    int(c.latent_rank),
		LatentRopeDim: int(c.latent_rope_dim),
		VIsK:          c.flags&C.KVC_LAYER_V_IS_K != 0,
		KScale:        float32(c.k_scale),
		VScale:        float32(c.v_scale),
		VQuant:        Quant(c.v_quant),
		KeepTokens:    int(c.keep_tokens),
	}
	if c.rope != nil {
		layer.Rope = goRope(c.rope)
	}
	for i := 0; i < int(c.num_states); i++ {
		// The first element's struct_size is the stride of all.
		spec := (*C.kvc_state_spec)(unsafe.Add(unsafe.Pointer(c.states), uintptr(i)*uintptr(c.states.struct_size)))
		state := State{DType: goDType(spec.dtype)}
		for _, extent := range unsafe.Slice(spec.shape, int(spec.ndim)) {
			state.Shape = append(state.Shape, int(extent))
		}
		if spec.init != nil {
			state.Init = goValues(spec.init)
		}
		layer.States = append(layer.States, state)
	}
	return layer
}

func goRope(c *C.kvc_rope) *Rope {
	rope := &Rope{
		Mode:            RopeMode(c.mode),
		Style:           RopeStyle(c.style),
		RotaryDim:       int(c.rotary_dim),
		Theta:           float64(c.theta),
		Scale:           float64(c.scale),
		FreqFactors:     goFloats(c.freq_factors, c.num_freq_factors),
		LongFreqFactors: goFloats(c.long_freq_factors, c.num_freq_factors),
		Scaling:         RopeScaling(c.scaling),
		SectionLayout:   SectionLayout(c.section_layout),
		Factor:          float64(c.factor),
		LowFreqFactor:   float64(c.low_freq_factor),
		HighFreqFactor:  float64(c.high_freq_factor),
		BetaFast:        float64(c.beta_fast),
		BetaSlow:        float64(c.beta_slow),
		AttentionFactor: float64(c.attention_factor),
		OriginalContext: int64(c.original_context),
	}
	for i := 0; i < int(c.num_sections); i++ {
		rope.Sections = append(rope.Sections, int(c.sections[i]))
	}
	return rope
}

func goFloats(p *C.float, count C.int32_t) []float32 {
	if p == nil {
		return nil
	}
	return append([]float32(nil), unsafe.Slice((*float32)(p), int(count))...)
}

// goValues copies a compact tensor of the host.
func goValues(c *C.DLTensor) *Tensor {
	shape, elements := make([]int, int(c.ndim)), int64(1)
	for i, extent := range unsafe.Slice(c.shape, int(c.ndim)) {
		shape[i] = int(extent)
		elements *= int64(extent)
	}
	dtype := goDType(c.dtype)
	data := unsafe.Add(c.data, uintptr(c.byte_offset))
	return OfBytes(append([]byte(nil), unsafe.Slice((*byte)(data), int(dtype.bytes(elements)))...), dtype, shape...)
}
