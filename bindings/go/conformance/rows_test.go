package conformance

import (
	"fmt"
	"math"
	"strconv"

	kvcache "github.com/libkvcache/libkvcache/bindings/go"
)

// rows is one attention call, as the formulas take it.
type rows struct {
	qLayer, keyLayer            int // layers whose formulas make q, and K and V
	qHeads, kvHeads, kDim, vDim int
	vIsK                        bool // V is the first vDim elements of K
	rope                        rotation
	ids                         []int64
}

func (s *session) rowsOfLayer(layer int) rows {
	view := &s.model.views[layer]
	return rows{qLayer: layer, keyLayer: s.model.keysOf(layer), qHeads: view.qHeads, kvHeads: view.kvHeads,
		kDim: view.kDim, vDim: view.vDim, vIsK: view.vIsK || view.latentRank > 0, rope: view.rope,
		ids: s.batch.ids}
}

// rowsOrAny asks for a layer that is not there with the first one's shapes, and gives layers without heads
// one: the call is to be refused for its layer.
func (s *session) rowsOrAny(layer int) rows {
	known := layer
	if layer < 0 || layer >= len(s.model.views) {
		known = 0
	}
	r := s.rowsOfLayer(known)
	if r.qHeads < 1 {
		r.qHeads, r.kvHeads = 1, 1
	}
	if r.kDim < 1 {
		r.kDim, r.vDim = 4, 4
	}
	return r
}

var attnFlags = map[string]kvcache.AttnFlags{"DETERMINISTIC": kvcache.Deterministic,
	"BATCH_INVARIANT": kvcache.BatchInvariant,
	"NO_CASCADE":      kvcache.NoCascade}

// options are the options of a step for the call, and for the reference.
type options struct {
	call         kvcache.AttnOptions
	sinks, alibi []float64
	biasRows     [][]float64
}

func readOptions(step object, qHeads int) *options {
	o := &options{}
	opt := step.object("opt")
	o.call.Scale = float32(opt.f64Or("scale", 0))
	o.call.SoftCap = float32(opt.f64Or("soft_cap", 0))
	o.call.Window = opt.i64Or("window", 0)
	for _, flag := range opt.listOr("flags") {
		o.call.Flags |= named(attnFlags, flag.(string))
	}
	if opt.has("sink_logits") {
		o.sinks = floats(opt.list("sink_logits"))
		o.call.SinkLogits = floatTensor(o.sinks, qHeads).arg()
	}
	if opt.has("alibi") {
		o.alibi = floats(opt.list("alibi"))
		o.call.ALiBiSlopes = floatTensor(o.alibi, qHeads).arg()
	}
	if opt.has("spans") {
		spans := newHost(kvcache.I32, len(opt.list("spans")), 3)
		for i, span := range opt.list("spans") {
			for j, x := range span.([]any) {
				spans.set(3*i+j, toFloat(x))
			}
		}
		o.call.Spans = spans.arg()
	}
	if opt.has("bias") {
		flat := []float64{}
		for _, row := range opt.list("bias") {
			numbers := []float64{}
			for _, x := range row.([]any) {
				if x == nil {
					numbers = append(numbers, math.Inf(-1))
				} else {
					numbers = append(numbers, toFloat(x))
				}
			}
			o.biasRows = append(o.biasRows, numbers)
			flat = append(flat, numbers...)
		}
		o.call.Bias = floatTensor(flat, len(o.biasRows), len(o.biasRows[0])).arg()
	}
	return o
}

// with are the options of the call, its LSE going to lse.
func (o *options) with(lse *host) *kvcache.AttnOptions {
	call := o.call
	call.LSE = lse.arg()
	return &call
}

func (o *options) softmax(head, kDim int) softmax {
	how := softmax{scale: float64(o.call.Scale), softCap: float64(o.call.SoftCap)}
	if how.scale == 0 {
		how.scale = 1 / math.Sqrt(float64(kDim))
	}
	if o.sinks != nil {
		how.sink = &o.sinks[head]
	}
	return how
}

// bias is what is added to the score of a key.
func (o *options) bias(head, row int, queryPosition, keyPosition float64) float64 {
	sum := 0.0
	if o.alibi != nil {
		sum = -o.alibi[head] * (queryPosition - keyPosition)
	}
	if o.biasRows != nil {
		sum += o.biasRows[row][int(keyPosition)]
	}
	return sum
}

// tokenTensor has one row more than there are tokens: padding, which no call may touch.
func tokenTensor(what kind, layer int, ids []int64, heads, dim int) *host {
	h := f32(len(ids)+1, heads, dim)
	fillTokens(h, what, layer, ids, heads, dim)
	return h
}

func fillTokens(h *host, what kind, layer int, ids []int64, heads, dim int) {
	at := 0
	for _, id := range ids {
		for head := 0; head < heads; head++ {
			for d := 0; d < dim; d++ {
				h.set(at, value(what, layer, id, head, d))
				at++
			}
		}
	}
}

func (r *rows) q(step object) *host {
	how := step.textOr("q", "zero")
	if how == "formula" {
		return tokenTensor(ofQuery, r.qLayer, r.ids, r.qHeads, r.kDim)
	}
	if how != "zero" {
		panic("'q' is \"zero\" or \"formula\"")
	}
	q := f32(len(r.ids)+1, r.qHeads, r.kDim)
	for i := 0; i < q.size-r.qHeads*r.kDim; i++ {
		q.set(i, 0)
	}
	return q
}

func (r *rows) k() *host { return tokenTensor(ofKey, r.keyLayer, r.ids, r.kvHeads, r.kDim) }
func (r *rows) v() *host { return tokenTensor(ofValue, r.keyLayer, r.ids, r.kvHeads, r.vDim) }

func (r *rows) outputs() partial {
	return partial{f32(len(r.ids)+1, r.qHeads, r.vDim), f32(len(r.ids)+1, r.qHeads)}
}

// key is K of a token as a layer stores it, or the latent of an MLA layer.
func (r *rows) key(id int64, head int, position []float64, long bool) []float64 {
	k := values(ofKey, r.keyLayer, id, head, r.kDim)
	r.rope.turn(position, long, k)
	return k
}

// textOfRow is what a scenario states for a row, if anything.
func textOfRow(json any, row, count int) (string, bool) {
	switch stated := json.(type) {
	case string:
		return stated, true
	case []any:
		if len(stated) != count {
			panic("a list has not one entry for each new token")
		}
		return stated[row].(string), true
	}
	text, found := json.(object)[strconv.Itoa(row)]
	if !found {
		return "", false
	}
	return text.(string), true
}

// keyPositions are rotary positions of the keys that a row sees.
func (s *session) keyPositions(step object, row, count int, own int64, ids []int64) [][]float64 {
	out := [][]float64{}
	if !step.has("at") {
		for _, id := range ids {
			out = append(out, s.positionOf(id))
		}
		return out
	}
	text, found := textOfRow(step["at"], row, count)
	if !found {
		panic("'at' does not state a row that 'sees' states")
	}
	for _, position := range parseIDs(text, &own) {
		out = append(out, []float64{float64(position)})
	}
	if len(out) != len(ids) {
		panic("'at' and 'sees' differ in length")
	}
	return out
}

func (s *session) checkRow(step object, r *rows, o *options, row int, ids []int64, positions [][]float64,
	result partial) {
	own, longFrom := r.ids[row], step.i64Or("long_from", math.MaxInt64)
	position := s.positionOf(own)
	if step.has("q_at") {
		position = []float64{toFloat(step.list("q_at")[row])}
	}
	for head := 0; head < r.qHeads; head++ {
		kvHead := head / (r.qHeads / r.kvHeads)
		q := make([]float64, r.kDim)
		if step.textOr("q", "zero") == "formula" {
			q = values(ofQuery, r.qLayer, own, head, r.kDim)
		}
		r.rope.turn(position, own >= longFrom, q)
		keys := make([]seen, len(ids))
		for j, id := range ids {
			k := r.key(id, kvHead, positions[j], id >= longFrom)
			v := k
			if !r.vIsK {
				v = values(ofValue, r.keyLayer, id, kvHead, r.vDim)
			}
			keys[j] = seen{k, v, o.bias(head, row, position[0], positions[j][0])}
		}
		out, lse := attend(o.softmax(head, r.kDim), q, keys, r.vDim)
		at := row*r.qHeads + head
		where := fmt.Sprintf("of row %d head %d, which sees %v", row, head, ids)
		if result.lse != nil && !s.near(result.lse.get(at), lse) {
			s.Fatalf("LSE %s: %v instead of %v (ln of the number of keys when q is zero)", where,
				result.lse.get(at), lse)
		}
		for d, wanted := range out {
			if got := result.out.get(at*r.vDim + d); !s.near(got, wanted) {
				s.Fatalf("out %s element %d: %v instead of %v", where, d, got, wanted)
			}
		}
	}
}

// checkRows compares the rows that a step states, when it does, and looks that padding rows are untouched.
func (s *session) checkRows(step object, r *rows, o *options, result partial) {
	if !step.has("sees") {
		return
	}
	for row := range r.ids {
		text, found := textOfRow(step["sees"], row, len(r.ids))
		if !found {
			continue
		}
		ids := parseIDs(text, &r.ids[row])
		s.checkRow(step, r, o, row, ids, s.keyPositions(step, row, len(r.ids), r.ids[row], ids), result)
	}
	written := len(r.ids) * r.qHeads
	for i := written * r.vDim; i < result.out.size; i++ {
		if !math.IsNaN(result.out.get(i)) {
			s.Fatal("padding rows of out were written")
		}
	}
	for i := written; result.lse != nil && i < result.lse.size; i++ {
		if !math.IsNaN(result.lse.get(i)) {
			s.Fatal("padding rows of lse were written")
		}
	}
}
