package kvcache

/*
#include "shim_op.h"
#include "shim_plan.h"
*/
import "C"

// OpLayout is the layout of a host's pool.
type OpLayout int32

// The layouts of pools.
const (
	LayoutHND OpLayout = C.KVC_OP_HND // [pages, heads, page tokens, dim]: the library's own
	LayoutNHD OpLayout = C.KVC_OP_NHD // [pages, page tokens, heads, dim]: FlashInfer, vLLM
	LayoutMLA OpLayout = C.KVC_OP_MLA // [pages, page tokens, rank + rope dim]
)

// OpPool is one layer's pool of a host program. With a Quant, on the CPU, K and V are of I8, F8E4M3 or F8E5M2, and
// scales are float32.
type OpPool struct {
	K      *Tensor
	V      *Tensor // nil: MLA, or V is K
	Layout OpLayout

	Quant   Quant   // QuantNone, QuantPerTensor or QuantPerTokenHead
	KScale  float32 // QuantPerTensor: value = element * KScale; 0: 1. Others: 0
	VScale  float32 // the same of V; 0 where V is nil
	KScales *Tensor // QuantPerTokenHead, written by appends: HND [pages, heads, page tokens], NHD [pages, page tokens, heads], MLA [pages, page tokens]
	VScales *Tensor // the same of V; nil where V is
}

// OpTable is the page tables of B sequences: either CSR (PageIndptr, PageIndices) or padded (BlockTable);
// int32.
type OpTable struct {
	SeqLens     *Tensor // [B]: keys of each sequence, the new ones included
	QOIndptr    *Tensor // [B+1]: rows of q of each sequence; nil: one each
	PageIndptr  *Tensor // [B+1]
	PageIndices *Tensor // [PageIndptr[B]]
	BlockTable  *Tensor // [B, most pages]
}

// OpOptions are the options of an operator; nil or zero: all defaults.
type OpOptions struct {
	AttnOptions           // attention: Scale, SoftCap, Window, SinkLogits, ALiBiSlopes, Bias, Flags, and LSE as output
	Executor    *Executor // nil: the caller's thread only
	CPUISA      ISA
	Full        bool    // attention: every row sees all keys; without it causal
	Positions   *Tensor // append, rotate: int32 [T]; attention with a rope: [T] of the queries
	Rope        *Rope   // append: K is rotated; attention: q is rotated
	Stream      uintptr // of all work, where the tensors lie on a GPU: the address of a CUDA stream
}

var noOpOptions OpOptions

// opCall is what an operator needs besides its tensors. build and close frame the call.
type opCall struct {
	c         C.shim_op_opt
	positions *Tensor
	attn      AttnOptions
	builder   builder
}

// givesLSE tells whether the operator has that output; the others refuse it.
func (call *opCall) build(givesLSE bool, options *OpOptions, tensors ...named) error {
	o := options
	if o == nil {
		o = &noOpOptions
	}
	call.positions, call.attn = o.Positions, o.AttnOptions
	if o.LSE != nil && !givesLSE {
		return &Error{Status: ErrUnsupported, Msg: "LSE: this operator gives none"}
	}
	if err := firstBad(tensors...); err != nil {
		return err
	}
	if err := o.AttnOptions.check(); err != nil {
		return err
	}
	if err := firstBad(named{"Positions", o.Positions}); err != nil {
		return err
	}
	call.c = C.shim_op_opt{
		flags:    C.uint64_t(o.Flags),
		window:   C.int64_t(o.Window),
		scale:    C.float(o.Scale),
		soft_cap: C.float(o.SoftCap),
		isa:      C.int32_t(o.CPUISA),
		stream:   C.uintptr_t(o.Stream),
	}
	if o.Full {
		call.c.full = 1
	}
	scores := o.AttnOptions
	scores.LSE = nil
	if scores != (AttnOptions{}) {
		call.c.has_attn = 1
	}
	b := &call.builder
	if o.Rope != nil {
		rope := b.alloc(1, C.sizeof_kvc_rope)
		b.fillRope("Rope", o.Rope, (*C.kvc_rope)(rope))
		call.c.rope = C.uintptr_t(uintptr(rope))
	}
	if e := o.Executor; e != nil {
		executor := b.alloc(1, C.sizeof_kvc_executor)
		C.shim_set_executor((*C.kvc_executor)(executor), e.User, e.Concurrency, e.ParallelFor)
		call.c.executor = C.uintptr_t(uintptr(executor))
	}
	return b.err
}

func (p *OpPool) tensors() []named {
	if p == nil {
		return nil
	}
	return []named{{"pool.K", p.K}, {"pool.V", p.V}, {"pool.KScales", p.KScales}, {"pool.VScales", p.VScales}}
}

func (t *OpTable) tensors() []named {
	if t == nil {
		return nil
	}
	return []named{{"table.SeqLens", t.SeqLens}, {"table.QOIndptr", t.QOIndptr}, {"table.PageIndptr", t.PageIndptr},
		{"table.PageIndices", t.PageIndices}, {"table.BlockTable", t.BlockTable}}
}

func missing(pool *OpPool, table *OpTable, needsTable bool) error {
	if pool == nil {
		return invalid("pool: nil")
	}
	if needsTable && table == nil {
		return invalid("table: nil")
	}
	return nil
}

// OpAppend writes k [>= T, heads, KDim] and v [>= T, heads, VDim] to slots int64 [T] = page * page tokens +
// offset; below 0: skip.
func (l *Library) OpAppend(pool *OpPool, slots, k, v *Tensor, options *OpOptions) error {
	if err := missing(pool, nil, false); err != nil {
		return err
	}
	var call opCall
	defer call.builder.close()
	tensors := append(pool.tensors(), named{"slots", slots}, named{"k", k}, named{"v", v})
	if err := call.build(false, options, tensors...); err != nil {
		return err
	}
	return failure(C.shim_op_append(l.api,
		pool.K.d(), pool.K.p(), pool.V.d(), pool.V.p(), pool.KScales.d(), pool.KScales.p(), pool.VScales.d(), pool.VScales.p(),
		C.int32_t(pool.Layout), C.int32_t(pool.Quant), C.float(pool.KScale), C.float(pool.VScale),
		&call.c, call.positions.d(), call.positions.p(),
		slots.d(), slots.p(), k.d(), k.p(), v.d(), v.p()))
}

// OpAttentionPaged is attention of q [T, heads, KDim] over pages; out [T, heads, VDim].
func (l *Library) OpAttentionPaged(pool *OpPool, table *OpTable, q, out *Tensor, options *OpOptions) error {
	return l.opPaged(pool, table, 0, 0, q, out, options)
}

// OpMLAPaged is absorbed MLA over a pool of LayoutMLA: q [T, heads, rank + rope dim], out [T, heads,
// latentRank]; Scale must be given.
func (l *Library) OpMLAPaged(pool *OpPool, table *OpTable, latentRank int, q, out *Tensor, options *OpOptions) error {
	rank, err := index("latentRank", latentRank)
	if err != nil {
		return err
	}
	return l.opPaged(pool, table, 1, rank, q, out, options)
}

func (l *Library) opPaged(pool *OpPool, t *OpTable, mla, rank C.int32_t, q, out *Tensor, options *OpOptions) error {
	if err := missing(pool, t, true); err != nil {
		return err
	}
	var call opCall
	defer call.builder.close()
	tensors := append(append(pool.tensors(), t.tensors()...), named{"q", q}, named{"out", out})
	if err := call.build(true, options, tensors...); err != nil {
		return err
	}
	a := &call.attn
	return failure(C.shim_op_attention_paged(l.api,
		pool.K.d(), pool.K.p(), pool.V.d(), pool.V.p(), pool.KScales.d(), pool.KScales.p(), pool.VScales.d(), pool.VScales.p(),
		C.int32_t(pool.Layout), C.int32_t(pool.Quant), C.float(pool.KScale), C.float(pool.VScale),
		t.SeqLens.d(), t.SeqLens.p(), t.QOIndptr.d(), t.QOIndptr.p(), t.PageIndptr.d(), t.PageIndptr.p(),
		t.PageIndices.d(), t.PageIndices.p(), t.BlockTable.d(), t.BlockTable.p(),
		&call.c, call.positions.d(), call.positions.p(),
		a.SinkLogits.d(), a.SinkLogits.p(), a.ALiBiSlopes.d(), a.ALiBiSlopes.p(), a.Bias.d(), a.Bias.p(), a.Spans.d(), a.Spans.p(),
		mla, rank, q.d(), q.p(), out.d(), out.p(), a.LSE.d(), a.LSE.p()))
}

// OpAttentionRagged is attention of packed q [T, heads, KDim] over packed k, v; qoIndptr, kvIndptr int32
// [B+1] cut them into sequences; kvIndptr nil: qoIndptr.
func (l *Library) OpAttentionRagged(qoIndptr, kvIndptr, q, k, v, out *Tensor, options *OpOptions) error {
	var call opCall
	defer call.builder.close()
	if err := call.build(true, options, named{"qoIndptr", qoIndptr}, named{"kvIndptr", kvIndptr},
		named{"q", q}, named{"k", k}, named{"v", v}, named{"out", out}); err != nil {
		return err
	}
	a := &call.attn
	return failure(C.shim_op_attention_ragged(l.api,
		qoIndptr.d(), qoIndptr.p(), kvIndptr.d(), kvIndptr.p(),
		&call.c, call.positions.d(), call.positions.p(),
		a.SinkLogits.d(), a.SinkLogits.p(), a.ALiBiSlopes.d(), a.ALiBiSlopes.p(), a.Bias.d(), a.Bias.p(), a.Spans.d(), a.Spans.p(),
		q.d(), q.p(), k.d(), k.p(), v.d(), v.p(), out.d(), out.p(), a.LSE.d(), a.LSE.p()))
}

// OpMerge is Forward.AttnMerge without a forward.
func (l *Library) OpMerge(out, lse, otherOut, otherLSE *Tensor, options *OpOptions) error {
	var call opCall
	defer call.builder.close()
	if err := call.build(false, options, named{"out", out}, named{"lse", lse}, named{"otherOut", otherOut},
		named{"otherLSE", otherLSE}); err != nil {
		return err
	}
	return failure(C.shim_op_merge(l.api,
		&call.c, call.positions.d(), call.positions.p(),
		out.d(), out.p(), lse.d(), lse.p(), otherOut.d(), otherOut.p(), otherLSE.d(), otherLSE.p()))
}

// OpGather copies all keys of the table's sequences, packed in their order, quantised ones as their values; k or v
// may be nil.
func (l *Library) OpGather(pool *OpPool, t *OpTable, k, v *Tensor, options *OpOptions) error {
	if err := missing(pool, t, true); err != nil {
		return err
	}
	var call opCall
	defer call.builder.close()
	tensors := append(append(pool.tensors(), t.tensors()...), named{"k", k}, named{"v", v})
	if err := call.build(false, options, tensors...); err != nil {
		return err
	}
	return failure(C.shim_op_gather(l.api,
		pool.K.d(), pool.K.p(), pool.V.d(), pool.V.p(), pool.KScales.d(), pool.KScales.p(), pool.VScales.d(), pool.VScales.p(),
		C.int32_t(pool.Layout), C.int32_t(pool.Quant), C.float(pool.KScale), C.float(pool.VScale),
		t.SeqLens.d(), t.SeqLens.p(), t.QOIndptr.d(), t.QOIndptr.p(), t.PageIndptr.d(), t.PageIndptr.p(),
		t.PageIndices.d(), t.PageIndices.p(), t.BlockTable.d(), t.BlockTable.p(),
		&call.c, call.positions.d(), call.positions.p(),
		k.d(), k.p(), v.d(), v.p()))
}

// OpCopyPages copies pages inside a pool, with their scales: pairs of (from, to), distinct destinations, none of which is a
// source.
func (l *Library) OpCopyPages(pool *OpPool, pairs [][2]int64, options *OpOptions) error {
	if err := missing(pool, nil, false); err != nil {
		return err
	}
	var call opCall
	defer call.builder.close()
	if err := call.build(false, options, pool.tensors()...); err != nil {
		return err
	}
	return failure(C.shim_op_copy_pages(l.api,
		pool.K.d(), pool.K.p(), pool.V.d(), pool.V.p(), pool.KScales.d(), pool.KScales.p(), pool.VScales.d(), pool.VScales.p(),
		C.int32_t(pool.Layout), C.int32_t(pool.Quant), C.float(pool.KScale), C.float(pool.VScale),
		&call.c, call.positions.d(), call.positions.p(),
		pairsOf(pairs), C.int64_t(len(pairs))))
}

// OpRotate turns x [T, heads, dim] into out (which may be x) by Rope at Positions.
func (l *Library) OpRotate(x, out *Tensor, options *OpOptions) error {
	var call opCall
	defer call.builder.close()
	if err := call.build(false, options, named{"x", x}, named{"out", out}); err != nil {
		return err
	}
	return failure(C.shim_op_rotate(l.api,
		&call.c, call.positions.d(), call.positions.p(),
		x.d(), x.p(), out.d(), out.p()))
}

// OpQuantize stores x [T, heads, dim] as a cache with this Quant stores it: out [T, heads, dim] of I8, F8E4M3
// or F8E5M2, and scales, float32. QuantPerTokenHead: [T, heads], written. QuantPerTensor: [1], read. It tells how
// many elements were clipped to the ends of the type's range, infinities among them; with QuantPerTokenHead none
// are. On the CPU.
func (l *Library) OpQuantize(quant Quant, x, out, scales *Tensor, options *OpOptions) (saturated uint64, err error) {
	var call opCall
	defer call.builder.close()
	if err := call.build(false, options, named{"x", x}, named{"out", out}, named{"scales", scales}); err != nil {
		return 0, err
	}
	var count C.uint64_t
	err = failure(C.shim_op_quantize(l.api,
		&call.c, call.positions.d(), call.positions.p(),
		C.int32_t(quant), x.d(), x.p(), out.d(), out.p(), scales.d(), scales.p(), &count))
	return uint64(count), err
}

// OpDequantize computes out = x * scale, of what OpQuantize made; out is of F32, F16 or BF16.
func (l *Library) OpDequantize(quant Quant, x, scales, out *Tensor, options *OpOptions) error {
	var call opCall
	defer call.builder.close()
	if err := call.build(false, options, named{"x", x}, named{"scales", scales}, named{"out", out}); err != nil {
		return err
	}
	return failure(C.shim_op_dequantize(l.api,
		&call.c, call.positions.d(), call.positions.p(),
		C.int32_t(quant), x.d(), x.p(), scales.d(), scales.p(), out.d(), out.p()))
}

// OpLinearStep is Forward.AttnLinear over the host's own states [B, H, Dk, Dv], updated in place; qoIndptr
// int32 [B+1] cuts the tokens into sequences, nil: one each.
func (l *Library) OpLinearStep(linear *LinearOptions, qoIndptr, states, q, k, v, decay, beta, out *Tensor,
	options *OpOptions) error {
	if linear == nil {
		linear = &LinearOptions{}
	}
	if linear.State != 0 {
		return invalid("State: %d, but the operator takes its states as an argument", linear.State)
	}
	var call opCall
	defer call.builder.close()
	if err := call.build(false, options, named{"Skip", linear.Skip}, named{"qoIndptr", qoIndptr},
		named{"states", states}, named{"q", q}, named{"k", k}, named{"v", v}, named{"decay", decay},
		named{"beta", beta}, named{"out", out}); err != nil {
		return err
	}
	return failure(C.shim_op_linear_step(l.api,
		linear.flags(), C.int32_t(linear.Decay), C.float(linear.Scale), linear.Skip.d(), linear.Skip.p(),
		&call.c, call.positions.d(), call.positions.p(),
		qoIndptr.d(), qoIndptr.p(), states.d(), states.p(), q.d(), q.p(), k.d(), k.p(), v.d(), v.p(),
		decay.d(), decay.p(), beta.d(), beta.p(), out.d(), out.p()))
}
