package kvcache

/*
#include "shim_forward.h"
*/
import "C"

// AttnFlags are bits of AttnOptions.Flags.
type AttnFlags uint64

// The flags of attention.
const (
	Deterministic  AttnFlags = C.KVC_ATTN_DETERMINISTIC   // the same call gives the same bits; always so on the CPU
	BatchInvariant AttnFlags = C.KVC_ATTN_BATCH_INVARIANT // a token's output does not depend on the rest of the batch
	NoCascade      AttnFlags = C.KVC_ATTN_NO_CASCADE      // read shared prefixes once per sequence
)

// AttnOptions are the options of one attention call; kvc_attn_opt has the formulas. nil or zero: all
// defaults.
type AttnOptions struct {
	LSE         *Tensor // output, float32 [>= T, NumQHeads]: ln of the sum of exp(scores); nil: not wanted
	Flags       AttnFlags
	Scale       float32 // 0: 1/sqrt(KDim)
	SoftCap     float32 // 0: off
	Window      int64   // 0: the layer's
	SinkLogits  *Tensor // float32 [NumQHeads]: one more term of out's denominator
	ALiBiSlopes *Tensor // float32 [NumQHeads]
	Bias        *Tensor // float32 [>= T, J] or [NumQHeads, >= T, J], added to the scores
	Spans       *Tensor // int32 [n, 3]: (entry of the batch, begin, end), seen to their end
}

func (f *Forward) attend(which C.int32_t, layer int, q, k, v, out *Tensor, opt *AttnOptions) error {
	if q.bad() || k.bad() || v.bad() || out.bad() {
		return firstBad(named{"q", q}, named{"k", k}, named{"v", v}, named{"out", out})
	}
	number, err := index("layer", layer)
	if err != nil {
		return err
	}
	if opt != nil {
		return f.attendWith(which, number, q, k, v, out, opt)
	}
	if err := f.enter(); err != nil {
		return err
	}
	failed := C.shim_attn(f.cache.lib.api, which, f.h, number, q.d(), q.p(), k.d(), k.p(), v.d(), v.p(),
		out.d(), out.p())
	f.leave()
	if failed != nil {
		return takeError(failed)
	}
	return nil
}

func (f *Forward) attendWith(which, layer C.int32_t, q, k, v, out *Tensor, opt *AttnOptions) error {
	if err := opt.check(); err != nil {
		return err
	}
	if err := f.enter(); err != nil {
		return err
	}
	failed := C.shim_attn_opt(f.cache.lib.api, which, f.h, layer, q.d(), q.p(), k.d(), k.p(), v.d(), v.p(),
		out.d(), out.p(), opt.LSE.d(), opt.LSE.p(), C.uint64_t(opt.Flags), C.float(opt.Scale),
		C.float(opt.SoftCap), C.int64_t(opt.Window), opt.SinkLogits.d(), opt.SinkLogits.p(),
		opt.ALiBiSlopes.d(), opt.ALiBiSlopes.p(), opt.Bias.d(), opt.Bias.p(), opt.Spans.d(), opt.Spans.p())
	f.leave()
	if failed != nil {
		return takeError(failed)
	}
	return nil
}

func (o *AttnOptions) check() error {
	if o == nil {
		return nil
	}
	return firstBad(named{"LSE", o.LSE}, named{"SinkLogits", o.SinkLogits}, named{"ALiBiSlopes", o.ALiBiSlopes},
		named{"Bias", o.Bias}, named{"Spans", o.Spans})
}

// Attn appends k and v (when given), then attends: new token i of a sequence sees every token up to and
// including itself, tree nodes their ancestors, all within the windows of layer and sequence. q [>= T,
// NumQHeads, KDim], k [>= T, NumKVHeads, KDim], v [>= T, NumKVHeads, VDim], out [>= T, NumQHeads, VDim]. MLA
// layers: q and latents as k, v nil. SHARED layers: k and v nil.
func (f *Forward) Attn(layer int, q, k, v, out *Tensor, opt *AttnOptions) error {
	return f.attend(C.SHIM_ATTN, layer, q, k, v, out, opt)
}

// AttnFusedQKV is Attn on one packed tensor [>= T, NumQHeads + 2*NumKVHeads, KDim]. It gives no LSE.
func (f *Forward) AttnFusedQKV(layer int, qkv, out *Tensor, opt *AttnOptions) error {
	if opt != nil && opt.LSE != nil {
		return &Error{Status: ErrUnsupported, Msg: "LSE: AttnFusedQKV gives none"}
	}
	return f.attend(C.SHIM_ATTN_FUSED_QKV, layer, qkv, nil, nil, out, opt)
}

// AttnSelf is attention among the new tokens only; nothing is appended and no page is read.
func (f *Forward) AttnSelf(layer int, q, k, v, out *Tensor, opt *AttnOptions) error {
	return f.attend(C.SHIM_ATTN_SELF, layer, q, k, v, out, opt)
}

// AttnCached attends to the tokens that were cached before this forward. Nothing is appended.
func (f *Forward) AttnCached(layer int, q, out *Tensor, opt *AttnOptions) error {
	return f.attend(C.SHIM_ATTN_CACHED, layer, q, nil, nil, out, opt)
}

// AttnCross attends to the encoder tokens: k and v are given in the forward that announced them, nil
// otherwise.
func (f *Forward) AttnCross(layer int, q, k, v, out *Tensor, opt *AttnOptions) error {
	return f.attend(C.SHIM_ATTN_CROSS, layer, q, k, v, out, opt)
}

// AttnSharedKV reads another layer's K and V, which that layer has appended in this forward.
func (f *Forward) AttnSharedKV(sourceLayer int, q, out *Tensor, opt *AttnOptions) error {
	return f.attend(C.SHIM_ATTN_SHARED_KV, sourceLayer, q, nil, nil, out, opt)
}

// AttnMerge merges two partial attentions over disjoint keys, in place into (out, lse).
func (f *Forward) AttnMerge(out, lse, otherOut, otherLSE *Tensor) error {
	if err := firstBad(named{"out", out}, named{"lse", lse}, named{"otherOut", otherOut},
		named{"otherLSE", otherLSE}); err != nil {
		return err
	}
	if err := f.enter(); err != nil {
		return err
	}
	defer f.leave()
	return failure(C.shim_attn_merge(f.cache.lib.api, f.h, out.d(), out.p(), lse.d(), lse.p(),
		otherOut.d(), otherOut.p(), otherLSE.d(), otherLSE.p()))
}

// KVAppend writes k and v into the slots of this forward, rotated when the layer rotates on append.
func (f *Forward) KVAppend(layer int, k, v *Tensor) error {
	if err := firstBad(named{"k", k}, named{"v", v}); err != nil {
		return err
	}
	number, err := index("layer", layer)
	if err != nil {
		return err
	}
	if err := f.enter(); err != nil {
		return err
	}
	defer f.leave()
	return failure(C.shim_kv_append(f.cache.lib.api, f.h, number, k.d(), k.p(), v.d(), v.p()))
}

// MLAAppend writes latents [>= T, LatentRank + LatentRopeDim] into the slots of this forward of an MLA layer.
func (f *Forward) MLAAppend(layer int, latent *Tensor) error {
	if err := firstBad(named{"latent", latent}); err != nil {
		return err
	}
	number, err := index("layer", layer)
	if err != nil {
		return err
	}
	if err := f.enter(); err != nil {
		return err
	}
	defer f.leave()
	return failure(C.shim_mla_append(f.cache.lib.api, f.h, number, latent.d(), latent.p()))
}

// KVGather copies a sequence's K and V of one layer, as stored, with its new tokens. Either output may be
// nil, not both.
func (f *Forward) KVGather(layer int, seq int64, k, v *Tensor) error {
	if err := firstBad(named{"k", k}, named{"v", v}); err != nil {
		return err
	}
	number, err := index("layer", layer)
	if err != nil {
		return err
	}
	if err := f.enter(); err != nil {
		return err
	}
	defer f.leave()
	return failure(C.shim_kv_gather(f.cache.lib.api, f.h, number, C.int64_t(seq), k.d(), k.p(), v.d(), v.p()))
}
