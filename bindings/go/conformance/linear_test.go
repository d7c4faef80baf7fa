package conformance

import (
	"math"

	kvcache "github.com/libkvcache/libkvcache/bindings/go"
)

var decays = map[string]kvcache.Decay{"NONE": kvcache.DecayNone, "HEAD": kvcache.DecayHead,
	"TOKEN":   kvcache.DecayToken,
	"CHANNEL": kvcache.DecayChannel}

// linear is a linear attention as scenarios state it: its inputs by formula, its outputs by the recurrence
// over a sequence's whole history.
type linear struct {
	layer, heads, headsK, kDim, vDim int
	decay                            kvcache.Decay
	delta, beta, skip                bool
	scale                            float64 // as the call takes it: 0 is 1/sqrt(kDim)
}

func newLinear(json object, layer, heads, kDim, vDim int) *linear {
	return &linear{layer: layer, heads: heads, headsK: json.intOr("heads_k", heads), kDim: kDim, vDim: vDim,
		decay: named(decays, json.textOr("decay", "NONE")), delta: json.boolOr("delta",
			false), beta: json.boolOr("beta", false),
		skip: json.boolOr("skip", false), scale: json.f64Or("scale", 0)}
}

// lnDecay is ln(decay) of a row of the state.
func (l *linear) lnDecay(id int64, head, row int) float64 {
	x := -1.0
	switch l.decay {
	case kvcache.DecayHead:
		x = value(ofDecay, l.layer, 0, head, 0)
	case kvcache.DecayToken:
		x = value(ofDecay, l.layer, id, head, 0)
	case kvcache.DecayChannel:
		x = value(ofDecay, l.layer, id, head, row)
	}
	return -(x + 1) / 4
}

func (l *linear) betaOf(id int64, head int) float64 {
	if !l.beta {
		return 1
	}
	return (value(ofBeta, l.layer, id, head, 0) + 1) / 2
}

// step is one token of one head: the state changes, the output comes back.
func (l *linear) step(id int64, head int, state [][]float64) []float64 {
	headK := head / (l.heads / l.headsK)
	q, k := values(ofQuery, l.layer, id, headK, l.kDim), values(ofKey, l.layer, id, headK, l.kDim)
	v := values(ofValue, l.layer, id, head, l.vDim)
	for i := range state {
		factor := math.Exp(l.lnDecay(id, head, i))
		for j := range state[i] {
			state[i][j] *= factor
		}
	}
	u := append([]float64(nil), v...)
	for j := range u {
		for i := 0; l.delta && i < l.kDim; i++ {
			u[j] -= state[i][j] * k[i]
		}
		u[j] *= l.betaOf(id, head)
	}
	out := make([]float64, l.vDim)
	for i := range state {
		for j := range out {
			state[i][j] += k[i] * u[j]
			out[j] += state[i][j] * q[i]
		}
	}
	scale := l.scale
	if scale == 0 {
		scale = 1 / math.Sqrt(float64(l.kDim))
	}
	for j := range out {
		out[j] *= scale
		if l.skip {
			out[j] += value(ofWeight, l.layer, 0, head, 0) * v[j]
		}
	}
	return out
}

// run gives the outputs [head][token][vDim] of ids after history, and the state after them.
func (l *linear) run(history, ids []int64) (outputs, states [][][]float64) {
	for head := 0; head < l.heads; head++ {
		state := make([][]float64, l.kDim)
		for i := range state {
			state[i] = make([]float64, l.vDim)
		}
		for _, id := range history {
			l.step(id, head, state)
		}
		out := [][]float64{}
		for _, id := range ids {
			out = append(out, l.step(id, head, state))
		}
		outputs, states = append(outputs, out), append(states, state)
	}
	return outputs, states
}

// exact is [tokens][heads][dim] of one formula.
func exact(what kind, layer int, ids []int64, heads, dim int) *host {
	h := f32(len(ids), heads, dim)
	fillTokens(h, what, layer, ids, heads, dim)
	return h
}

func (l *linear) q(ids []int64) *host { return exact(ofQuery, l.layer, ids, l.headsK, l.kDim) }
func (l *linear) k(ids []int64) *host { return exact(ofKey, l.layer, ids, l.headsK, l.kDim) }
func (l *linear) v(ids []int64) *host { return exact(ofValue, l.layer, ids, l.heads, l.vDim) }

// decayTensor is nil without decay.
func (l *linear) decayTensor(ids []int64) *host {
	var h *host
	switch l.decay {
	case kvcache.DecayNone:
		return nil
	case kvcache.DecayHead:
		h, ids = f32(l.heads), []int64{0}
	case kvcache.DecayToken:
		h = f32(len(ids), l.heads)
	case kvcache.DecayChannel:
		h = f32(len(ids), l.heads, l.kDim)
	}
	rows, at := 1, 0
	if l.decay == kvcache.DecayChannel {
		rows = l.kDim
	}
	for _, id := range ids {
		for head := 0; head < l.heads; head++ {
			for i := 0; i < rows; i++ {
				h.set(at, l.lnDecay(id, head, i))
				at++
			}
		}
	}
	return h
}

// betaTensor is nil without beta.
func (l *linear) betaTensor(ids []int64) *host {
	if !l.beta {
		return nil
	}
	h := f32(len(ids), l.heads)
	for i, id := range ids {
		for head := 0; head < l.heads; head++ {
			h.set(i*l.heads+head, l.betaOf(id, head))
		}
	}
	return h
}

func (l *linear) options(state int) *kvcache.LinearOptions {
	opt := &kvcache.LinearOptions{Delta: l.delta, Decay: l.decay, State: state, Scale: float32(l.scale)}
	if l.skip {
		skip := f32(l.heads)
		for head := 0; head < l.heads; head++ {
			skip.set(head, value(ofWeight, l.layer, 0, head, 0))
		}
		opt.Skip = skip.arg()
	}
	return opt
}
