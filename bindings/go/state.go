package kvcache

/*
#include "shim_forward.h"
*/
import "C"

// Decay says what the decay of a linear attention belongs to.
type Decay int32

// The decays: ln(decay), float32.
const (
	DecayNone    Decay = C.KVC_DECAY_NONE
	DecayHead    Decay = C.KVC_DECAY_HEAD    // [H]
	DecayToken   Decay = C.KVC_DECAY_TOKEN   // [>= T, H]
	DecayChannel Decay = C.KVC_DECAY_CHANNEL // [>= T, H, Dk]
)

// Activation follows a convolution.
type Activation int32

// The activations.
const (
	ActivationNone Activation = C.KVC_ACTIVATION_NONE
	ActivationSiLU Activation = C.KVC_ACTIVATION_SILU
)

// LinearOptions are the options of one linear attention; kvc_decay in kvcache.h has the recurrence. nil or
// zero: all defaults.
type LinearOptions struct {
	Delta bool // the delta rule
	Decay Decay
	State int     // index of S in the layer's states
	Scale float32 // 0: 1/sqrt(Dk)
	Skip  *Tensor // float32 [H]; nil: 0
}

func (o *LinearOptions) flags() C.uint64_t {
	if o.Delta {
		return C.KVC_LINEAR_DELTA
	}
	return 0
}

// StateGet reads state `state` of every sequence of the batch, as it was before the forward: out [>= B,
// shape...].
func (f *Forward) StateGet(layer, state int, out *Tensor) error {
	return f.state(0, layer, state, named{"out", out})
}

// StateSet sets state `state` of every sequence of the batch: value [>= B, shape...]. What is not set is
// carried on.
func (f *Forward) StateSet(layer, state int, value *Tensor) error {
	return f.state(1, layer, state, named{"value", value})
}

func (f *Forward) state(set C.int32_t, layer, state int, value named) error {
	if err := firstBad(value); err != nil {
		return err
	}
	layerNumber, stateNumber, err := stateIndex(layer, state)
	if err != nil {
		return err
	}
	if err := f.enter(); err != nil {
		return err
	}
	defer f.leave()
	return failure(C.shim_state(f.cache.lib.api, set, f.h, layerNumber, stateNumber, value.tensor.d(),
		value.tensor.p()))
}

// AttnLinear is linear attention over the new tokens: reads and sets the layer's state [H, Dk, Dv]. q, k [>=
// T, Hk, Dk], v, out [>= T, H, Dv]; decay as opt.Decay says, nil for DecayNone; beta [>= T, H] or nil (1).
func (f *Forward) AttnLinear(layer int, q, k, v, decay, beta, out *Tensor, opt *LinearOptions) error {
	if opt == nil {
		opt = &LinearOptions{}
	}
	if err := firstBad(named{"q", q}, named{"k", k}, named{"v", v}, named{"decay", decay},
		named{"beta", beta}, named{"out", out}, named{"Skip", opt.Skip}); err != nil {
		return err
	}
	layerNumber, err := index("layer", layer)
	if err != nil {
		return err
	}
	stateNumber, err := index("State", opt.State)
	if err != nil {
		return err
	}
	if err := f.enter(); err != nil {
		return err
	}
	defer f.leave()
	return failure(C.shim_attn_linear(f.cache.lib.api, f.h, layerNumber, opt.flags(), C.int32_t(opt.Decay),
		stateNumber, C.float(opt.Scale), opt.Skip.d(), opt.Skip.p(), q.d(), q.p(), k.d(), k.p(), v.d(), v.p(),
		decay.d(), decay.p(), beta.d(), beta.p(), out.d(), out.p()))
}

// StateConv is a causal depthwise convolution over the new tokens, with its last inputs kept as state [C,
// W-1]. x, out [>= T, C]; weight float32 [C, W]; bias float32 [C] or nil. It sets the state.
func (f *Forward) StateConv(layer, state int, x, weight, bias *Tensor, activation Activation, out *Tensor) error {
	if err := firstBad(named{"x", x}, named{"weight", weight}, named{"bias", bias}, named{"out", out}); err != nil {
		return err
	}
	layerNumber, stateNumber, err := stateIndex(layer, state)
	if err != nil {
		return err
	}
	if err := f.enter(); err != nil {
		return err
	}
	defer f.leave()
	return failure(C.shim_state_conv(f.cache.lib.api, f.h, layerNumber, stateNumber, x.d(), x.p(),
		weight.d(), weight.p(), bias.d(), bias.p(), C.int32_t(activation), out.d(), out.p()))
}

func stateIndex(layer, state int) (C.int32_t, C.int32_t, error) {
	layerNumber, err := index("layer", layer)
	if err != nil {
		return 0, 0, err
	}
	stateNumber, err := index("state", state)
	return layerNumber, stateNumber, err
}
