package conformance

import (
	kvcache "github.com/libkvcache/libkvcache/bindings/go"
)

// Steps on the stateless operators, over pools that the scenario makes. The formulas take layer number 0.
var operatorSteps = map[string]handler{
	"op_pool":       opPoolStep,
	"op_append":     opAppendStep,
	"op_attention":  func(s *session, step object) error { return opPagedStep(s, step, false) },
	"op_mla":        func(s *session, step object) error { return opPagedStep(s, step, true) },
	"op_ragged":     opRaggedStep,
	"op_merge":      opMergeStep,
	"op_gather":     opGatherStep,
	"op_copy_pages": opCopyPagesStep,
	"op_rotate":     opRotateStep,
	"op_linear":     opLinearStep,
}

// hostPool is a pool of a host program.
type hostPool struct {
	k, v              *host
	layout            kvcache.OpLayout
	heads, kDim, vDim int
}

func (p *hostPool) call() *kvcache.OpPool {
	return &kvcache.OpPool{K: p.k.arg(), V: p.v.arg(), Layout: p.layout}
}

var opLayouts = map[string]kvcache.OpLayout{"HND": kvcache.LayoutHND, "NHD": kvcache.LayoutNHD,
	"MLA": kvcache.LayoutMLA}

func opPoolStep(s *session, step object) error {
	pool := &hostPool{layout: named(opLayouts, step.text("layout")), heads: step.intOr("heads", 1),
		kDim: step.intOr("k_dim", 4)}
	pool.vDim = step.intOr("v_dim", pool.kDim)
	pages, pageSize, dtype := step.num("num_pages"), step.num("page_size"), dtypeOf(step.textOr("dtype", "f32"))
	switch pool.layout {
	case kvcache.LayoutHND:
		pool.k, pool.v = newHost(dtype, pages, pool.heads, pageSize, pool.kDim), newHost(dtype, pages,
			pool.heads, pageSize, pool.vDim)
	case kvcache.LayoutNHD:
		pool.k, pool.v = newHost(dtype, pages, pageSize, pool.heads, pool.kDim), newHost(dtype, pages,
			pageSize, pool.heads, pool.vDim)
	default:
		pool.heads, pool.vDim = 1, 0
		pool.k = newHost(dtype, pages, pageSize, pool.kDim)
	}
	s.pools[step.text("pool")] = pool
	return nil
}

// opOptions are the options of an operator, and the rope of the reference.
func (s *session) opOptions(step object, positionsKey string, o *options, headDim int) (*kvcache.OpOptions,
	rotation) {
	call := &kvcache.OpOptions{CPUISA: s.isa, Full: step.boolOr("full", false)}
	if o != nil {
		call.AttnOptions = o.call
	}
	if step.has(positionsKey) {
		call.Positions = integers(step.list(positionsKey), kvcache.I32).arg()
	}
	var turned rotation
	if step.has("rope") {
		call.Rope, turned = readRope(step.object("rope"), headDim, 0)
	}
	return call, turned
}

func opTable(json object) *kvcache.OpTable {
	take := func(key string) *kvcache.Tensor {
		if !json.has(key) {
			return nil
		}
		return integers(json.list(key), kvcache.I32).arg()
	}
	return &kvcache.OpTable{SeqLens: take("seq_lens"), QOIndptr: take("qo_indptr"), PageIndptr: take("page_indptr"),
		PageIndices: take("page_indices"), BlockTable: take("block_table")}
}

func opAppendStep(s *session, step object) error {
	pool := s.pools[step.text("pool")]
	ids := parseIDs(step.text("ids"), nil)
	call, _ := s.opOptions(step, "positions", nil, pool.kDim)
	var v *host
	if pool.vDim > 0 {
		v = tokenTensor(ofValue, 0, ids, pool.heads, pool.vDim)
	}
	k := tokenTensor(ofKey, 0, ids, pool.heads, pool.kDim)
	return s.lib.OpAppend(pool.call(), integers(step.list("slots"), kvcache.I64).arg(), k.arg(), v.arg(), call)
}

// exactRows has no padding row: outputs of operators have exactly T rows.
func (r *rows) exactRows(step object) (q *host, result partial) {
	padded := r.q(step)
	q = f32(len(r.ids), r.qHeads, r.kDim)
	copy(q.bytes, padded.bytes)
	return q, partial{f32(len(r.ids), r.qHeads, r.vDim), f32(len(r.ids), r.qHeads)}
}

func opPagedStep(s *session, step object, mla bool) error {
	pool := s.pools[step.text("pool")]
	r := rows{kvHeads: pool.heads, qHeads: step.intOr("q_heads", pool.heads), kDim: pool.kDim, vDim: pool.vDim,
		ids: parseIDs(step.text("q_ids"), nil)}
	if pool.vDim == 0 {
		r.vIsK, r.vDim = true, step.intOr("latent_rank", pool.kDim)
	}
	o := readOptions(step, r.qHeads)
	call, turned := s.opOptions(step, "q_at", o, r.kDim)
	r.rope = turned
	q, result := r.exactRows(step)
	call.LSE = result.lse.arg()
	var err error
	if mla {
		err = s.lib.OpMLAPaged(pool.call(), opTable(step.object("table")), step.num("latent_rank"), q.arg(),
			result.out.arg(), call)
	} else {
		err = s.lib.OpAttentionPaged(pool.call(), opTable(step.object("table")), q.arg(), result.out.arg(), call)
	}
	if err == nil {
		s.checkRows(step, &r, o, result)
	}
	return err
}

func opRaggedStep(s *session, step object) error {
	r := rows{kvHeads: step.intOr("heads", 1), kDim: step.intOr("dim", 4), vDim: step.intOr("dim", 4),
		ids: parseIDs(step.text("q_ids"), nil)}
	r.qHeads = step.intOr("q_heads", r.kvHeads)
	keys := parseIDs(step.text("k_ids"), nil)
	o := readOptions(step, r.qHeads)
	call, _ := s.opOptions(step, "q_at", o, r.kDim)
	q, result := r.exactRows(step)
	call.LSE = result.lse.arg()
	var kvIndptr *kvcache.Tensor
	if step.has("kv_indptr") {
		kvIndptr = integers(step.list("kv_indptr"), kvcache.I32).arg()
	}
	err := s.lib.OpAttentionRagged(integers(step.list("qo_indptr"), kvcache.I32).arg(), kvIndptr, q.arg(),
		exact(ofKey, 0, keys, r.kvHeads, r.kDim).arg(), exact(ofValue, 0, keys, r.kvHeads,
			r.vDim).arg(), result.out.arg(), call)
	if err == nil {
		s.checkRows(step, &r, o, result)
	}
	return err
}

// opMergeStep: for each row two lists of keys; the formula's query attends to each, and the merge is to equal
// attending to both.
func opMergeStep(s *session, step object) error {
	heads, dim, parts := step.intOr("heads", 1), step.intOr("dim", 4), step.list("parts")
	result := []partial{{f32(len(parts), heads, dim), f32(len(parts), heads)}, {f32(len(parts), heads, dim),
		f32(len(parts), heads)}, {f32(len(parts), heads, dim), f32(len(parts), heads)}}
	for row, part := range parts {
		first, second := parseIDs(part.([]any)[0].(string), nil), parseIDs(part.([]any)[1].(string), nil)
		for head := 0; head < heads; head++ {
			q := values(ofQuery, 0, int64(row), head, dim)
			for i, ids := range [][]int64{first, second, append(append([]int64{}, first...), second...)} {
				keys := []seen{}
				for _, id := range ids {
					keys = append(keys, seen{values(ofKey, 0, id, head, dim), values(ofValue, 0, id, head, dim), 0})
				}
				out, lse := attend(softmax{scale: 1}, q, keys, dim)
				result[i].lse.set(row*heads+head, lse)
				for d, x := range out {
					result[i].out.set((row*heads+head)*dim+d, x)
				}
			}
		}
	}
	call, _ := s.opOptions(step, "", nil, dim)
	if err := s.lib.OpMerge(result[0].out.arg(), result[0].lse.arg(), result[1].out.arg(),
		result[1].lse.arg(), call); err != nil {
		return err
	}
	for i := 0; i < result[0].lse.size; i++ {
		at := i
		s.compare("LSE of the merge", result[0].lse, &at, []float64{result[2].lse.get(i)})
	}
	for i := 0; i < result[0].out.size; i++ {
		at := i
		s.compare("merge", result[0].out, &at, []float64{result[2].out.get(i)})
	}
	return nil
}

func opGatherStep(s *session, step object) error {
	pool := s.pools[step.text("pool")]
	ids := parseIDs(step.text("ids"), nil)
	k := f32(len(ids), pool.heads, pool.kDim)
	var v *host
	if pool.vDim > 0 {
		v = f32(len(ids), pool.heads, pool.vDim)
	}
	call, _ := s.opOptions(step, "", nil, pool.kDim)
	if err := s.lib.OpGather(pool.call(), opTable(step.object("table")), k.arg(), v.arg(), call); err != nil {
		return err
	}
	s.equal("gathered K", k.bytes, exact(ofKey, 0, ids, pool.heads, pool.kDim).bytes)
	if v != nil {
		s.equal("gathered V", v.bytes, exact(ofValue, 0, ids, pool.heads, pool.vDim).bytes)
	}
	return nil
}

func opCopyPagesStep(s *session, step object) error {
	pairs := [][2]int64{}
	for _, pair := range step.list("pairs") {
		numbers := ints(pair.([]any))
		pairs = append(pairs, [2]int64{numbers[0], numbers[1]})
	}
	call, _ := s.opOptions(step, "", nil, 4)
	return s.lib.OpCopyPages(s.pools[step.text("pool")].call(), pairs, call)
}

func opRotateStep(s *session, step object) error {
	ids := parseIDs(step.text("ids"), nil)
	heads, dim := step.intOr("heads", 1), step.intOr("dim", 4)
	call, turned := s.opOptions(step, "positions", nil, dim)
	x := exact(ofKey, 0, ids, heads, dim)
	out := f32(len(ids), heads, dim)
	if step.boolOr("in_place", false) {
		out = x
	}
	if err := s.lib.OpRotate(x.arg(), out.arg(), call); err != nil {
		return err
	}
	at := 0
	for t, id := range ids {
		for head := 0; head < heads; head++ {
			wanted := values(ofKey, 0, id, head, dim)
			turned.turn([]float64{toFloat(step.list("positions")[t])}, false, wanted)
			s.compare("turned", out, &at, wanted)
		}
	}
	return nil
}

// opLinearStep starts from zero states, over sequences cut by qo_indptr.
func opLinearStep(s *session, step object) error {
	ids, cuts := parseIDs(step.text("ids"), nil), ints(step.list("qo_indptr"))
	l := newLinear(step, 0, step.num("heads"), step.num("k_dim"), step.num("v_dim"))
	out, states := f32(len(ids), l.heads, l.vDim), f32(len(cuts)-1, l.heads, l.kDim, l.vDim)
	for i := 0; i < states.size; i++ {
		states.set(i, 0)
	}
	call, _ := s.opOptions(step, "", nil, 4)
	if err := s.lib.OpLinearStep(l.options(0), integers(step.list("qo_indptr"), kvcache.I32).arg(),
		states.arg(), l.q(ids).arg(), l.k(ids).arg(), l.v(ids).arg(), l.decayTensor(ids).arg(),
		l.betaTensor(ids).arg(), out.arg(), call); err != nil {
		return err
	}
	at, stateAt := 0, 0
	for sequence := 0; sequence+1 < len(cuts); sequence++ {
		own := ids[cuts[sequence]:cuts[sequence+1]]
		wanted, after := l.run(nil, own)
		for t := range own {
			for head := range wanted {
				s.compare("out", out, &at, wanted[head][t])
			}
		}
		for _, head := range after {
			for _, row := range head {
				s.compare("state", states, &stateAt, row)
			}
		}
	}
	return nil
}
