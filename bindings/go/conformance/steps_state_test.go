package conformance

import (
	"math"

	kvcache "github.com/libkvcache/libkvcache/bindings/go"
)

// Steps on recurrent state: read, set, linear attention, convolution, and what is stored.
var stateSteps = map[string]handler{
	"state_get":    stateGetStep,
	"state_set":    stateSetStep,
	"linear":       linearStep,
	"conv":         convStep,
	"stored_state": storedStateStep,
	"store_state": func(s *session, step object) error {
		h := f32(s.stateView(step).shape...)
		for i := 0; i < h.size; i++ {
			h.set(i, s.stateValue(step, step.i64("value"), i))
		}
		return s.cache.DebugSetState(step.i64("seq"), step.num("layer"), step.intOr("state", 0), h.arg())
	},
}

// stateView of a state that the scenario has not got is a shape of its own.
func (s *session) stateView(step object) stateView {
	layer, state := step.num("layer"), step.intOr("state", 0)
	if layer >= 0 && layer < len(s.model.views) && state >= 0 && state < len(s.model.views[layer].states) {
		return s.model.views[layer].states[state]
	}
	return stateView{[]int{2}, -1}
}

// stateValue is an element of the value that id names: -1 is the initial one.
func (s *session) stateValue(step object, id int64, element int) float64 {
	if id < 0 {
		id = s.stateView(step).init
	}
	if id < 0 {
		return 0
	}
	return value(ofState, step.num("layer"), id, step.intOr("state", 0), element)
}

func product(shape []int) int {
	count := 1
	for _, extent := range shape {
		count *= extent
	}
	return count
}

// batchTensor has one row more than the batch.
func (s *session) batchTensor(step object) *host {
	return f32(append([]int{len(s.batch.seqs) + 1}, s.stateView(step).shape...)...)
}

func stateGetStep(s *session, step object) error {
	out, size := s.batchTensor(step), product(s.stateView(step).shape)
	if err := s.fwd.StateGet(step.num("layer"), step.intOr("state", 0), out.arg()); err != nil {
		return err
	}
	for entry, id := range step.list("values") {
		for i := 0; i < size; i++ {
			s.equal("state of an entry", out.get(entry*size+i), s.stateValue(step, toInt(id), i))
		}
	}
	return nil
}

func stateSetStep(s *session, step object) error {
	in, size := s.batchTensor(step), product(s.stateView(step).shape)
	for entry, id := range step.list("values") {
		for i := 0; i < size; i++ {
			in.set(entry*size+i, s.stateValue(step, toInt(id), i))
		}
	}
	return s.fwd.StateSet(step.num("layer"), step.intOr("state", 0), in.arg())
}

func (s *session) linear(step, json object) *linear {
	shape := s.stateView(step).shape
	if len(shape) != 3 {
		shape = []int{1, 2, 2}
	}
	return newLinear(json, step.num("layer"), shape[0], shape[1], shape[2])
}

func (s *session) compare(what string, got *host, at *int, wanted []float64) {
	for _, x := range wanted {
		if !s.near(got.get(*at), x) {
			s.Fatalf("%s element %d: %v instead of %v", what, *at, got.get(*at), x)
		}
		*at++
	}
}

// history are the ids of an entry before this forward.
func history(step object, entry int) []int64 {
	return parseIDs(step.list("history")[entry].(string), nil)
}

func linearStep(s *session, step object) error {
	l, ids := s.linear(step, step), s.batch.ids
	out := f32(len(ids), l.heads, l.vDim)
	err := s.fwd.AttnLinear(step.num("layer"), l.q(ids).arg(), l.k(ids).arg(), l.v(ids).arg(),
		l.decayTensor(ids).arg(), l.betaTensor(ids).arg(), out.arg(), l.options(step.intOr("state", 0)))
	if err != nil || !step.has("history") {
		return err
	}
	row, at := int64(0), 0
	for entry, length := range s.batch.lengths {
		wanted, _ := l.run(history(step, entry), ids[row:row+length])
		for t := int64(0); t < length; t++ {
			for head := range wanted {
				s.compare("linear attention", out, &at, wanted[head][t])
			}
		}
		row += length
	}
	return nil
}

// convInput is an input of the convolution: zero before the first token.
func convInput(layer int, all []int64, at, channel int) float64 {
	if at < 0 {
		return 0
	}
	return value(ofInput, layer, all[at], 0, channel)
}

func convStep(s *session, step object) error {
	shape, layer, ids := s.stateView(step).shape, step.num("layer"), s.batch.ids
	channels, width := shape[0], 2
	if len(shape) == 2 {
		width = shape[1] + 1
	}
	x, w, bias, out := f32(len(ids), channels), f32(channels, width), f32(channels), f32(len(ids), channels)
	for c := 0; c < channels; c++ {
		for t := range ids {
			x.set(t*channels+c, convInput(layer, ids, t, c))
		}
		for j := 0; j < width; j++ {
			w.set(c*width+j, value(ofWeight, layer, 0, c, j))
		}
		bias.set(c, value(ofWeight, layer, 1, c, 0))
	}
	if !step.boolOr("bias", false) {
		bias = nil
	}
	activation := named(map[string]kvcache.Activation{"NONE": kvcache.ActivationNone,
		"SILU": kvcache.ActivationSiLU},
		step.textOr("activation", "NONE"))
	err := s.fwd.StateConv(layer, step.intOr("state", 0), x.arg(), w.arg(), bias.arg(), activation, out.arg())
	if err != nil || !step.has("history") {
		return err
	}
	row, at := 0, 0
	for entry, length := range s.batch.lengths {
		all := history(step, entry)
		for t := int64(0); t < length; t++ {
			all = append(all, ids[row])
			row++
			for c := 0; c < channels; c++ {
				sum := 0.0
				if bias != nil {
					sum = value(ofWeight, layer, 1, c, 0)
				}
				for j := 0; j < width; j++ {
					sum += value(ofWeight, layer, 0, c, j) * convInput(layer, all, len(all)-width+j, c)
				}
				if activation == kvcache.ActivationSiLU {
					sum /= 1 + math.Exp(-sum)
				}
				s.compare("convolution", out, &at, []float64{sum})
			}
		}
	}
	return nil
}

// storedValues is what a stored state must hold: a formula's value, the last inputs of a convolution, or what
// a recurrence leaves.
func (s *session) storedValues(step object, view stateView) []float64 {
	out := []float64{}
	switch {
	case step.has("conv_inputs"):
		all := parseIDs(step.text("conv_inputs"), nil)
		for c := 0; c < view.shape[0]; c++ {
			for j := 0; j < view.shape[1]; j++ {
				out = append(out, convInput(step.num("layer"), all, len(all)-view.shape[1]+j, c))
			}
		}
	case step.has("linear"):
		json := step.object("linear")
		_, states := s.linear(step, json).run(parseIDs(json.text("history"), nil), nil)
		for _, head := range states {
			for _, row := range head {
				out = append(out, row...)
			}
		}
	default:
		for i := 0; i < product(view.shape); i++ {
			out = append(out, s.stateValue(step, step.i64("value"), i))
		}
	}
	return out
}

func storedStateStep(s *session, step object) error {
	view, at := s.stateView(step), 0
	out := f32(view.shape...)
	if err := s.cache.DebugGetState(step.i64("seq"), step.num("layer"), step.intOr("state", 0),
		out.arg()); err != nil {
		return err
	}
	s.compare("stored state", out, &at, s.storedValues(step, view))
	return nil
}
