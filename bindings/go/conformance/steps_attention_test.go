package conformance

import (
	kvcache "github.com/libkvcache/libkvcache/bindings/go"
)

// Steps that append to layers and attend, inside an open forward (or on a dead handle, when none is open).
var attentionSteps = map[string]handler{
	"attn": func(s *session, step object) error {
		return s.attend(step, step.num("layer"), "", func(r *rows, o *options, result partial) error {
			var k, v *kvcache.Tensor
			if step.boolOr("append", true) {
				k = r.k().arg()
				if !r.vIsK {
					v = r.v().arg()
				}
			}
			return s.fwd.Attn(step.num("layer"), r.q(step).arg(), k, v, result.out.arg(), o.with(result.lse))
		})
	},
	"fused": fusedStep,
	"self": func(s *session, step object) error {
		return s.attend(step, step.num("layer"), step.textOr("into", ""), func(r *rows, o *options,
			result partial) error {
			k, v := r.ragged()
			return s.fwd.AttnSelf(step.num("layer"), r.q(step).arg(), k.arg(), v.arg(), result.out.arg(),
				o.with(result.lse))
		})
	},
	"cached": func(s *session, step object) error {
		return s.attend(step, step.num("layer"), step.textOr("into", ""), func(r *rows, o *options,
			result partial) error {
			return s.fwd.AttnCached(step.num("layer"), r.q(step).arg(), result.out.arg(), o.with(result.lse))
		})
	},
	"merge": mergeStep,
	"append": func(s *session, step object) error {
		r := s.rowsOrAny(step.num("layer"))
		var v *kvcache.Tensor
		if !r.vIsK {
			v = r.v().arg()
		}
		return s.fwd.KVAppend(step.num("layer"), r.k().arg(), v)
	},
	"mla_append": func(s *session, step object) error {
		r := s.rowsOrAny(step.num("layer"))
		return s.fwd.MLAAppend(step.num("layer"), tokenTensor(ofKey, r.keyLayer, r.ids, 1, r.kDim).arg())
	},
	"cross": func(s *session, step object) error {
		return s.attend(step, step.num("layer"), "", func(r *rows, o *options, result partial) error {
			var k, v *kvcache.Tensor
			if step.boolOr("give", false) {
				k = tokenTensor(ofKey, r.keyLayer, s.batch.crossIDs, r.kvHeads, r.kDim).arg()
				v = tokenTensor(ofValue, r.keyLayer, s.batch.crossIDs, r.kvHeads, r.vDim).arg()
			}
			return s.fwd.AttnCross(step.num("layer"), r.q(step).arg(), k, v, result.out.arg(), o.with(result.lse))
		})
	},
	"shared_kv": func(s *session, step object) error {
		return s.attend(step, step.num("source"), "", func(r *rows, o *options, result partial) error {
			return s.fwd.AttnSharedKV(step.num("source"), r.q(step).arg(), result.out.arg(), o.with(result.lse))
		})
	},
}

// attend makes a call with the rows of a layer and compares what it gave; into keeps it for a merge.
func (s *session) attend(step object, layer int, into string, call func(r *rows, o *options,
	result partial) error) error {
	r := s.rowsOrAny(layer)
	r.qHeads = step.intOr("q_heads", r.qHeads)
	o := readOptions(step, r.qHeads)
	result := r.outputs()
	if err := call(&r, o, result); err != nil {
		return err
	}
	s.checkRows(step, &r, o, result)
	if into != "" {
		s.partials[into] = result
	}
	return nil
}

// ragged is K and V for kvc_attn_self. MLA: every head gets the latent as K and its first elements as V.
func (r *rows) ragged() (k, v *host) {
	if !r.vIsK {
		return r.k(), r.v()
	}
	k, v = f32(len(r.ids)+1, r.qHeads, r.kDim), f32(len(r.ids)+1, r.qHeads, r.vDim)
	for i, id := range r.ids {
		for head := 0; head < r.qHeads; head++ {
			for d := 0; d < r.kDim; d++ {
				k.set((i*r.qHeads+head)*r.kDim+d, value(ofKey, r.keyLayer, id, 0, d))
			}
			for d := 0; d < r.vDim; d++ {
				v.set((i*r.qHeads+head)*r.vDim+d, value(ofKey, r.keyLayer, id, 0, d))
			}
		}
	}
	return k, v
}

func fusedStep(s *session, step object) error {
	layer := step.num("layer")
	r := s.rowsOrAny(layer)
	o := readOptions(step, r.qHeads)
	parts := []*host{r.q(step), r.k(), tokenTensor(ofValue, r.keyLayer, r.ids, r.kvHeads, r.kDim)}
	qkv, at := f32(len(r.ids)+1, r.qHeads+2*r.kvHeads, r.kDim), 0
	for t := range r.ids {
		for i, heads := range []int{r.qHeads, r.kvHeads, r.kvHeads} {
			for d := 0; d < heads*r.kDim; d++ {
				qkv.set(at, parts[i].get(t*heads*r.kDim+d))
				at++
			}
		}
	}
	result := partial{out: r.outputs().out}
	opt := &o.call
	if !step.has("opt") {
		opt = nil
	}
	if err := s.fwd.AttnFusedQKV(layer, qkv.arg(), result.out.arg(), opt); err != nil {
		return err
	}
	s.checkRows(step, &r, o, result)
	return nil
}

func mergeStep(s *session, step object) error {
	into, other := s.partials[step.text("into")], s.partials[step.text("other")]
	if err := s.fwd.AttnMerge(into.out.arg(), into.lse.arg(), other.out.arg(), other.lse.arg()); err != nil {
		return err
	}
	r := s.rowsOrAny(step.num("layer"))
	s.checkRows(step, &r, readOptions(step, r.qHeads), into)
	return nil
}
