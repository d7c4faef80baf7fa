package conformance

import (
	"fmt"
	"math"
	"sync"
	"unsafe"

	kvcache "github.com/libkvcache/libkvcache/bindings/go"
)

type stateView struct {
	shape []int
	init  int64 // id of the initial value; -1: zeros
}

// layerView is what the checks need to know of a layer.
type layerView struct {
	kind                        kvcache.LayerKind
	qHeads, kvHeads, kDim, vDim int // MLA: of the absorbed form
	vIsK                        bool
	source, latentRank          int
	rope                        rotation
	turnedOnAppend              bool
	states                      []stateView
}

func (v *layerView) keepsTokens() bool {
	return v.kind == kvcache.LayerAttention || v.kind == kvcache.LayerMLA
}

// model is a scenario's configuration, and what the checks need of it.
type model struct {
	config kvcache.Config
	views  []layerView
}

var layerKinds = map[string]kvcache.LayerKind{"ATTENTION": kvcache.LayerAttention, "MLA": kvcache.LayerMLA,
	"CROSS": kvcache.LayerCross,
	"STATE": kvcache.LayerState, "SHARED": kvcache.LayerShared, "NONE": kvcache.LayerNone}
var ropeModes = map[string]kvcache.RopeMode{"NONE": kvcache.RopeNone, "ON_APPEND": kvcache.RopeOnAppend,
	"ON_READ": kvcache.RopeOnRead}
var ropeStyles = map[string]kvcache.RopeStyle{"HALF": kvcache.RopeHalf, "INTERLEAVED": kvcache.RopeInterleaved}
var ropeScalings = map[string]kvcache.RopeScaling{"NONE": kvcache.RopeScalingNone,
	"LLAMA3": kvcache.RopeScalingLlama3,
	"YARN":   kvcache.RopeScalingYarn, "LONGROPE": kvcache.RopeScalingLongRope}
var sectionLayouts = map[string]kvcache.SectionLayout{"CONTIGUOUS": kvcache.SectionsContiguous,
	"INTERLEAVED": kvcache.SectionsInterleaved}
var storages = map[string]kvcache.Storage{"OWNED": kvcache.StorageOwned, "BORROWED": kvcache.StorageBorrowed,
	"NONE": kvcache.StorageNone}
var poolLayouts = map[string]kvcache.PoolLayout{"LAYER_FIRST": kvcache.PoolLayerFirst,
	"PAGE_FIRST": kvcache.PoolPageFirst}

// named is a number of the library's by its name without prefix.
func named[T any](table map[string]T, name string) T {
	found, ok := table[name]
	if !ok {
		panic("'" + name + "' is none of the library's names")
	}
	return found
}

func narrow(list []any) []float32 {
	var out []float32
	for _, x := range list {
		out = append(out, float32(toFloat(x)))
	}
	return out
}

// readRope gives the rope for the call and what the checks need of it.
func readRope(json object, headDim, offset int) (*kvcache.Rope, rotation) {
	rope := &kvcache.Rope{
		Mode:            named(ropeModes, json.textOr("mode", "ON_APPEND")),
		Style:           named(ropeStyles, json.textOr("style", "HALF")),
		RotaryDim:       json.intOr("rotary_dim", 0),
		Theta:           json.f64Or("theta", 0),
		Scale:           json.f64Or("scale", 0),
		FreqFactors:     narrow(json.listOr("freq_factors")),
		LongFreqFactors: narrow(json.listOr("long_freq_factors")),
		Scaling:         named(ropeScalings, json.textOr("scaling", "NONE")),
		SectionLayout:   named(sectionLayouts, json.textOr("section_layout", "CONTIGUOUS")),
		Factor:          json.f64Or("factor", 0),
		LowFreqFactor:   json.f64Or("low_freq_factor", 0),
		HighFreqFactor:  json.f64Or("high_freq_factor", 0),
		BetaFast:        json.f64Or("beta_fast", 0),
		BetaSlow:        json.f64Or("beta_slow", 0),
		AttentionFactor: json.f64Or("attention_factor", 0),
		OriginalContext: json.i64Or("original_context", 0),
	}
	for _, pairs := range json.listOr("sections") {
		rope.Sections = append(rope.Sections, int(toInt(pairs)))
	}
	or := func(x, other float64) float64 {
		if x == 0 {
			return other
		}
		return x
	}
	r := rotation{
		on: rope.Mode != kvcache.RopeNone, interleaved: rope.Style == kvcache.RopeInterleaved, offset: offset, rotaryDim: rope.RotaryDim,
		scale: or(rope.Scale, 1), magnitude: json.f64Or("magnitude", or(rope.AttentionFactor,
			1)), sections: rope.Sections,
		sectionsInterleaved: rope.SectionLayout == kvcache.SectionsInterleaved,
	}
	if r.rotaryDim == 0 {
		r.rotaryDim = headDim
	}
	frequencies := func(key string) []float64 {
		divisors := floats(json.listOr(key))
		out := []float64{}
		for i := 0; i < r.rotaryDim/2; i++ {
			plain := math.Pow(or(rope.Theta, 10000), -2*float64(i)/float64(r.rotaryDim))
			if i < len(divisors) { // a plan with too few factors is to be refused
				plain /= divisors[i]
			}
			out = append(out, plain)
		}
		return out
	}
	if json.has("frequencies") {
		r.frequencies = floats(json.list("frequencies"))
	} else {
		r.frequencies = frequencies("freq_factors")
	}
	if json.has("long_freq_factors") {
		r.longFrequencies = frequencies("long_freq_factors")
	}
	return rope, r
}

func (m *model) readStates(list []any, layer *kvcache.Layer, view *layerView) {
	for number, entry := range list {
		json := entry.(object)
		shape := []int{}
		for _, extent := range json.list("shape") {
			shape = append(shape, int(toInt(extent)))
		}
		dtype := dtypeOf(json.textOr("dtype", "f32"))
		one := kvcache.State{Shape: shape, DType: dtype}
		view.states = append(view.states, stateView{shape, json.i64Or("init", -1)})
		if id := view.states[number].init; id >= 0 {
			init := newHost(dtype, shape...)
			for i := 0; i < init.size; i++ {
				init.set(i, value(ofState, len(m.views), id, number, i))
			}
			one.Init = init.arg()
		}
		layer.States = append(layer.States, one)
	}
}

func (m *model) readLayer(json object) {
	kind := named(layerKinds, json.textOr("kind", "ATTENTION"))
	pages, mla := kind == kvcache.LayerAttention || kind == kvcache.LayerCross, kind == kvcache.LayerMLA
	when := func(condition bool, x int) int {
		if condition {
			return x
		}
		return 0
	}
	layer := kvcache.Layer{
		Kind:          kind,
		NumKVHeads:    json.intOr("heads", when(pages, 1)),
		NumQHeads:     json.intOr("q_heads", when(mla, 1)),
		KDim:          json.intOr("k_dim", when(pages, 4)),
		VDim:          json.intOr("v_dim", 0),
		Window:        json.i64Or("window", 0),
		Chunk:         json.i64Or("chunk", 0),
		SourceLayer:   json.intOr("source", 0),
		LatentRank:    json.intOr("latent_rank", 0),
		LatentRopeDim: json.intOr("latent_rope_dim", 0),
		VIsK:          json.boolOr("v_is_k", false),
	}
	if pages || mla || json.has("dtype") {
		layer.KDType = dtypeOf(json.textOr("dtype", "f32"))
	}
	if json.has("v_dtype") {
		layer.VDType = dtypeOf(json.text("v_dtype"))
	}
	view := layerView{kind: kind, qHeads: layer.NumQHeads, kvHeads: layer.NumKVHeads, kDim: layer.KDim,
		vDim: layer.VDim, vIsK: layer.VIsK, source: -1, latentRank: layer.LatentRank}
	if view.qHeads == 0 {
		view.qHeads = layer.NumKVHeads
	}
	if view.vDim == 0 {
		view.vDim = layer.KDim
	}
	ropeDim, ropeOffset := layer.KDim, 0
	if mla {
		view.kvHeads, view.kDim, view.vDim = 1, layer.LatentRank+layer.LatentRopeDim, layer.LatentRank
		ropeDim, ropeOffset = layer.LatentRopeDim, layer.LatentRank
	}
	if json.has("rope") {
		layer.Rope, view.rope = readRope(json.object("rope"), ropeDim, ropeOffset)
		view.turnedOnAppend = layer.Rope.Mode == kvcache.RopeOnAppend
	}
	if kind == kvcache.LayerShared {
		view.source = layer.SourceLayer
		if view.source >= 0 && view.source < len(m.views) {
			source := m.views[view.source]
			view.kvHeads, view.kDim, view.vDim, view.vIsK = source.kvHeads, source.kDim, source.vDim, source.vIsK
			view.latentRank, view.rope, view.turnedOnAppend = source.latentRank, source.rope, source.turnedOnAppend
			if view.qHeads = layer.NumQHeads; view.qHeads == 0 {
				view.qHeads = source.kvHeads
			}
		}
	}
	m.readStates(json.listOr("states"), &layer, &view)
	m.config.Layers = append(m.config.Layers, layer)
	m.views = append(m.views, view)
}

func newModel(json object, isa kvcache.ISA) *model {
	m := &model{}
	for _, layer := range json.list("layers") {
		m.readLayer(layer.(object))
	}
	c := &m.config
	c.PageSize = json.intOr("page_size", 4)
	c.NumPages = 64
	if json.has("byte_budget") {
		c.NumPages = 0
	}
	c.NumPages = json.i64Or("num_pages", c.NumPages)
	c.ByteBudget = uint64(json.i64Or("byte_budget", 0))
	c.LayerBegin, c.LayerEnd = json.intOr("layer_begin", 0), json.intOr("layer_end", 0)
	c.MaxSeqs = json.intOr("max_seqs", 0)
	c.MaxTokensPerForward = json.i64Or("max_tokens_per_forward", 0)
	c.MaxSeqLen = json.i64Or("max_seq_len", 0)
	c.Storage = named(storages, json.textOr("storage", "OWNED"))
	c.PoolLayout = named(poolLayouts, json.textOr("pool_layout", "LAYER_FIRST"))
	c.MaxCrossLen = json.i64Or("max_cross_len", 0)
	c.StateStride = json.i64Or("state_stride", 0)
	c.NumStateSlots = json.i64Or("num_state_slots", 0)
	c.EventCapacity = json.i64Or("event_capacity", 0)
	c.NumThreads = json.intOr("num_threads", 2)
	c.PadPages = json.boolOr("pad_pages", false)
	c.CPUISA = isa
	if c.Storage == kvcache.StorageOwned {
		c.Allocator = &poisoned{blocks: map[unsafe.Pointer]*kvcache.Block{}}
	}
	return m
}

func (m *model) begin() int {
	if m.config.LayerEnd == 0 {
		return 0
	}
	return m.config.LayerBegin
}

func (m *model) end() int {
	if m.config.LayerEnd == 0 {
		return len(m.views)
	}
	return m.config.LayerEnd
}

// keysOf is the layer whose keys a layer reads.
func (m *model) keysOf(layer int) int {
	if m.views[layer].kind == kvcache.LayerShared {
		return m.views[layer].source
	}
	return layer
}

// poisoned gives memory full of NaN, so that a slot that nobody wrote spoils every result it enters.
type poisoned struct {
	mu     sync.Mutex
	blocks map[unsafe.Pointer]*kvcache.Block
}

func (p *poisoned) Alloc(bytes, alignment uint64) unsafe.Pointer {
	block, err := kvcache.Alloc(int(bytes + alignment))
	if err != nil {
		return nil
	}
	all := block.Bytes()
	for i := range all {
		all[i] = 0xFF
	}
	begin := unsafe.Pointer(&all[0])
	if past := uint64(uintptr(begin)) % alignment; past != 0 {
		begin = unsafe.Add(begin, int(alignment-past))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.blocks[begin] = block
	return begin
}

func (p *poisoned) Free(ptr unsafe.Pointer, _ uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.blocks[ptr] == nil {
		panic(fmt.Sprintf("freed at %p, where nothing was allocated", ptr))
	}
	p.blocks[ptr].Close()
	delete(p.blocks, ptr)
}
