package conformance

import (
	"context"
	"encoding/hex"
	"time"

	kvcache "github.com/libkvcache/libkvcache/bindings/go"
	"github.com/libkvcache/libkvcache/bindings/go/prefixhash"
)

// handlers perform steps. Results that are no tensor and no number are compared inside them.
var handlers map[string]func(c *call) error

func init() {
	handlers = map[string]func(c *call) error{
		// The plan, the cache, its sequences.
		"plan":       (*call).askPlan,
		"add":        func(c *call) error { return c.cache.AddSeq(c.seq()) },
		"remove":     func(c *call) error { return c.cache.RemoveSeq(c.seq()) },
		"checkpoint": func(c *call) error { return c.cache.CheckpointState(c.seq()) },
		"release":    func(c *call) error { return c.cache.ReleaseCheckpoint(c.seq(), c.step.i64("pos")) },
		"fork": func(c *call) error {
			return c.cache.Fork(c.step.i64("parent"), c.step.i64("child"), c.step.i64("pos"))
		},
		"pop": func(c *call) error { return c.cache.Pop(c.seq(), c.step.i64("n")) },
		"shift": func(c *call) error {
			return c.cache.Shift(c.seq(), c.step.i64("begin"), c.step.i64("end"), c.step.i64("delta"))
		},
		"set_window": func(c *call) error {
			return c.cache.SetWindow(c.seq(), c.step.i64("window"), c.step.i64("sink"))
		},
		"clear":    func(c *call) error { return c.cache.Clear() },
		"resize":   func(c *call) error { return c.cache.Resize(c.step.i64("num_pages")) },
		"commit":   func(c *call) error { return c.cache.CommitTree(c.step.ints("seqs"), c.step.ints32("leaves")) },
		"save":     (*call).save,
		"load":     (*call).load,
		"transfer": (*call).send,
		"arrive":   (*call).arrive,
		"can_append": func(c *call) error {
			missing, err := c.cache.CanAppend(c.step.ints("seqs"), c.step.ints("lengths"))
			return c.answer("missing", missing, err)
		},
		"can": func(c *call) error {
			nearest, err := c.cache.Can(c.seq(), kvcache.SeqOp(c.step.num("what")), c.step.i64("pos"))
			return c.answer("nearest", nearest, err)
		},
		"around": func(c *call) error {
			below, above, err := c.cache.Positions(c.seq(), kvcache.SeqOp(c.step.num("what")), c.step.i64("pos"))
			if err := c.answer("below", below, err); err != nil {
				return err
			}
			return c.answer("above", above, nil)
		},
		"export_pool": (*call).exportPool,
		"stored": func(c *call) error {
			return c.cache.DebugGetLayer(c.seq(), c.layer(), c.step.i64("begin"), c.step.i64("end"), c.out("k"),
				c.out("v"))
		},
		"stored_kv": func(c *call) error {
			return c.cache.DebugGetKV(c.seq(), c.step.i64("begin"), c.step.i64("end"), c.out("k"), c.out("v"))
		},
		"stored_mla": func(c *call) error {
			return c.cache.DebugGetMLA(c.seq(), c.step.i64("begin"), c.step.i64("end"), c.out("k"))
		},
		"stored_state": func(c *call) error {
			return c.cache.DebugGetState(c.seq(), c.layer(), c.state(), c.out("out"))
		},
		"store": func(c *call) error {
			return c.cache.DebugSetLayer(c.seq(), c.layer(), c.step.i64("begin"), c.in("k"), c.in("v"))
		},
		"store_kv": func(c *call) error {
			return c.cache.DebugSetKV(c.seq(), c.step.i64("begin"), c.in("k"), c.in("v"))
		},
		"store_mla": func(c *call) error { return c.cache.DebugSetMLA(c.seq(), c.step.i64("begin"), c.in("k")) },
		"store_state": func(c *call) error {
			return c.cache.DebugSetState(c.seq(), c.layer(), c.state(), c.in("given"))
		},

		// The forward.
		"begin":     (*call).begin,
		"end":       func(c *call) error { return c.close(c.fwd.End()) },
		"abort":     (*call).abort,
		"positions": func(c *call) error { return c.fwd.Positions(c.out("out")) },
		"tables":    (*call).tables,
		"attn": func(c *call) error {
			return c.fwd.Attn(c.layer(), c.in("q"), c.in("k"), c.in("v"), c.out("out"), c.opt())
		},
		"fused": func(c *call) error {
			return c.fwd.AttnFusedQKV(c.layer(), c.in("qkv"), c.out("out"), c.opt())
		},
		"self": func(c *call) error {
			return c.fwd.AttnSelf(c.layer(), c.in("q"), c.in("k"), c.in("v"), c.out("out"), c.opt())
		},
		"cached": func(c *call) error {
			return c.fwd.AttnCached(c.layer(), c.in("q"), c.out("out"), c.opt())
		},
		"cross": func(c *call) error {
			return c.fwd.AttnCross(c.layer(), c.in("q"), c.in("k"), c.in("v"), c.out("out"), c.opt())
		},
		"shared_kv": func(c *call) error {
			return c.fwd.AttnSharedKV(c.step.num("source"), c.in("q"), c.out("out"), c.opt())
		},
		"merge": func(c *call) error {
			into, other := c.partials[c.step.text("into")], c.partials[c.step.text("other")]
			c.results = into
			return c.fwd.AttnMerge(into["out"].arg(), into["lse"].arg(), other["out"].arg(), other["lse"].arg())
		},
		"append":     func(c *call) error { return c.fwd.KVAppend(c.layer(), c.in("k"), c.in("v")) },
		"mla_append": func(c *call) error { return c.fwd.MLAAppend(c.layer(), c.in("latent")) },
		"gather":     func(c *call) error { return c.fwd.KVGather(c.layer(), c.seq(), c.out("k"), c.out("v")) },
		"state_get":  func(c *call) error { return c.fwd.StateGet(c.layer(), c.state(), c.out("out")) },
		"state_set":  func(c *call) error { return c.fwd.StateSet(c.layer(), c.state(), c.in("given")) },
		"linear": func(c *call) error {
			return c.fwd.AttnLinear(c.layer(), c.in("q"), c.in("k"), c.in("v"), c.in("decay"), c.in("beta"),
				c.out("out"), c.linear())
		},
		"conv": func(c *call) error {
			return c.fwd.StateConv(c.layer(), c.state(), c.in("x"), c.in("weight"), c.in("bias"),
				kvcache.Activation(c.step.num("activation")), c.out("out"))
		},

		// The prefix cache.
		"prefix_hash": (*call).prefixHash,
		"match":       func(c *call) error { return c.withQuery(c.cache.PrefixMatch) },
		"pin":         func(c *call) error { return c.withQuery(c.cache.PrefixPin) },
		"unpin":       func(c *call) error { return c.withQuery(c.cache.PrefixUnpin) },
		"attach": func(c *call) error {
			return c.withQuery(func(q *kvcache.PrefixQuery) (int64, error) { return c.cache.PrefixAttach(c.seq(), q) })
		},
		"insert": func(c *call) error {
			return c.withQuery(func(q *kvcache.PrefixQuery) (int64, error) { return c.cache.PrefixInsert(c.seq(), q) })
		},
		"evict": func(c *call) error {
			freed, err := c.cache.PrefixEvict(c.step.i64("pages"))
			return c.answer("freed", freed, err)
		},
		"prefix_reset": func(c *call) error { return c.cache.PrefixReset() },
		"quota": func(c *call) error {
			info, err := c.plan.Info()
			c.ok(err)
			bytes := info.PageBytes * uint64(c.step.i64("pages"))
			return c.cache.SetPrefixQuota([]byte(c.step.text("salt")), bytes)
		},
		"events": (*call).events,

		// Operators over pools of the case.
		"op_pool": func(c *call) error {
			layout := kvcache.OpLayout(c.step.num("layout"))
			c.pools[c.step.text("pool")] = &kvcache.OpPool{K: c.in("k"), V: c.in("v"), Layout: layout,
				Quant: c.quant(), KScale: c.scale("k_scale"), VScale: c.scale("v_scale"),
				KScales: c.in("k_scales"), VScales: c.in("v_scales")}
			return nil
		},
		"op_append": func(c *call) error {
			return c.lib.OpAppend(c.pool(), c.in("slots"), c.in("k"), c.in("v"), c.opOptions())
		},
		"op_attention": func(c *call) error {
			return c.lib.OpAttentionPaged(c.pool(), c.table(), c.in("q"), c.out("out"), c.opOptions())
		},
		"op_mla": func(c *call) error {
			return c.lib.OpMLAPaged(c.pool(), c.table(), c.step.num("latent_rank"), c.in("q"), c.out("out"),
				c.opOptions())
		},
		"op_ragged": func(c *call) error {
			return c.lib.OpAttentionRagged(c.in("qo_indptr"), c.in("kv_indptr"), c.in("q"), c.in("k"), c.in("v"),
				c.out("out"), c.opOptions())
		},
		"op_merge": func(c *call) error {
			out, lse := c.inPlace("out", "want_out"), c.inPlace("lse", "want_lse")
			return c.lib.OpMerge(out, lse, c.in("other_out"), c.in("other_lse"), &kvcache.OpOptions{CPUISA: c.isa})
		},
		"op_gather": func(c *call) error {
			return c.lib.OpGather(c.pool(), c.table(), c.out("k"), c.out("v"), c.opOptions())
		},
		"op_copy_pages": func(c *call) error {
			pairs := [][2]int64{}
			for _, pair := range c.step.list("pairs") {
				pairs = append(pairs, [2]int64{toInt(pair.([]any)[0]), toInt(pair.([]any)[1])})
			}
			return c.lib.OpCopyPages(c.pool(), pairs, c.opOptions())
		},
		"op_rotate": func(c *call) error {
			if c.step.flag("in_place") {
				x := c.inPlace("x", "out")
				return c.lib.OpRotate(x, x, c.opOptions())
			}
			return c.lib.OpRotate(c.in("x"), c.out("out"), c.opOptions())
		},
		"op_quantize": func(c *call) error {
			scales := c.in("scales")
			if scales == nil {
				scales = c.out("out_scales")
			}
			saturated, err := c.lib.OpQuantize(c.quant(), c.in("x"), c.out("out"), scales, c.opOptions())
			return c.answer("saturated", int64(saturated), err)
		},
		"op_dequantize": func(c *call) error {
			return c.lib.OpDequantize(c.quant(), c.in("x"), c.in("scales"), c.out("out"), c.opOptions())
		},
		"op_linear": func(c *call) error {
			return c.lib.OpLinearStep(c.linear(), c.in("qo_indptr"), c.inPlace("states", "want_states"), c.in("q"),
				c.in("k"), c.in("v"), c.in("decay"), c.in("beta"), c.out("out"), c.opOptions())
		},
	}
}

// quant is how rows of the step are stored.
func (c *call) quant() kvcache.Quant { return kvcache.Quant(c.step.i64Or("quant", 0)) }

func (c *call) scale(key string) float32 {
	if !c.step.has(key) {
		return 0
	}
	return float32(toFloat(c.step.at(key)))
}

// ---- The plan and the cache

// askPlan plans the step's own configuration, or asks about the plan of the case.
func (c *call) askPlan() error {
	plan := c.plan
	if c.step.has("config") {
		own, err := c.lib.NewPlan(configOf(c.step.object("config"), c.isa))
		if err != nil {
			return err
		}
		defer own.Close()
		plan = own
	}
	info, err := plan.Info()
	c.ok(err)
	if err := c.answer("groups", int64(info.NumGroups), nil); err != nil {
		return err
	}
	layers := c.step.object("layers")
	for _, layer := range layers.keys() {
		info, err := plan.Layer(int(number(layer)))
		c.ok(err)
		c.checkFields(*info, layers.object(layer), "layer "+layer)
	}
	// Equal numbers: the layers share a page table; different ones: they do not; -1: the layer has none.
	groups := c.step.object("layer_groups")
	stated, found := map[int64]int64{-1: -1}, map[int64]int64{-1: -1}
	for _, layer := range groups.keys() {
		info, err := plan.Layer(int(number(layer)))
		c.ok(err)
		wanted, group := groups.i64(layer), int64(info.Group)
		if _, known := stated[wanted]; !known {
			stated[wanted] = group
		}
		if _, known := found[group]; !known {
			found[group] = wanted
		}
		c.equal("page table of layer "+layer, group, stated[wanted])
		c.equal("stated page table of layer "+layer, wanted, found[group])
	}
	requests := c.step.object("request_pages")
	for _, tokens := range requests.keys() {
		pages, err := plan.RequestPages(number(tokens))
		c.ok(err)
		c.equal("pages of a request of "+tokens+" tokens", pages, requests.i64(tokens))
	}
	return nil
}

func (c *call) save() error {
	name := c.step.text("file")
	file, err := c.cache.Save("", c.step.ints("seqs")...)
	if err == nil {
		c.files[name] = file
	}
	return err
}

func (c *call) load() error {
	file := append([]byte{}, c.files[c.step.text("file")]...)
	if c.step.has("flip") {
		file[c.step.num("flip")%len(file)] ^= 1
	}
	return c.cache.Load(file, kvcache.LoadOptions{}, c.step.ints("seqs")...)
}

// transfer is one from each of some senders to one receiver.
type transfer struct {
	transport *kvcache.Transport
	receiving *kvcache.Transfer
	sending   []*kvcache.Transfer
}

func (t *transfer) close() {
	for _, one := range append(t.sending, t.receiving) {
		if one != nil {
			one.Close()
		}
	}
	t.transport.Close(0)
}

// wait waits for the senders, then for the receiver, who is canceled where a sender has failed.
func (t *transfer) wait(err error) error {
	defer t.close()
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	for i := 0; i < len(t.sending) && err == nil; i++ {
		err = t.sending[i].Wait(ctx)
	}
	if err == nil {
		return t.receiving.Wait(ctx)
	}
	if canceled := t.receiving.Cancel(); canceled != nil {
		return canceled
	}
	_ = t.receiving.Wait(ctx)
	return err
}

// send opens a transfer. With num_tokens the senders have not computed all of them yet, and both sides stay open.
func (c *call) send() error {
	seq, begin, asComputed := c.seq(), c.step.i64Or("begin", 0), c.step.has("num_tokens")
	senders := []*kvcache.Cache{}
	for _, name := range c.step.texts("senders") {
		senders = append(senders, c.sides[name].cache)
	}
	if len(senders) == 0 {
		senders = append(senders, c.cache)
	}
	options := kvcache.ReceiveOptions{Seq: c.step.i64("to"), Begin: begin, Publish: c.step.flag("publish"),
		SenderTPSize: len(senders)}
	info, err := senders[0].SeqInfo(seq)
	if err != nil {
		return err
	}
	options.NumTokens = c.step.i64Or("num_tokens", info.Length-begin)
	if begin == 0 {
		options.CrossLength = info.CrossLength
	}
	all := &transfer{}
	all.transport, err = c.lib.NewTransport(kvcache.TransportOptions{})
	c.ok(err)
	all.receiving, err = c.cache.Receive(all.transport, options)
	if err != nil {
		all.close()
		return err
	}
	ticket, err := all.receiving.Ticket()
	c.ok(err)
	for rank := 0; rank < len(senders) && err == nil; rank++ {
		var one *kvcache.Transfer
		one, err = senders[rank].Send(all.transport, seq, ticket, kvcache.SendOptions{Begin: begin,
			AsComputed: asComputed, TPRank: rank, TPSize: len(senders)})
		all.sending = append(all.sending, one)
	}
	if err != nil || !asComputed {
		return all.wait(err)
	}
	c.player.transfer = all
	return nil
}

func (c *call) arrive() error {
	all := c.player.transfer
	c.player.transfer = nil
	return all.wait(nil)
}

func (c *call) exportPool() error {
	export, err := c.cache.ExportPool(c.layer(), kvcache.PoolKind(c.step.num("kind")))
	if err != nil {
		return err
	}
	defer export.Close()
	if c.step.has("shape") {
		c.equal("shape of the pool", append([]int{}, export.Shape()...), c.step.sizes("shape"))
	}
	return nil
}

// ---- The forward

func (c *call) begin() error {
	batch := kvcache.Batch{Seqs: c.step.ints("seqs"), Lengths: c.step.ints("lengths"),
		Partial: c.step.flag("partial"), Positions: c.in("positions")}
	if c.step.has("tree_parents") {
		batch.TreeParents = c.step.ints32("tree_parents")
	}
	if c.step.has("tokens") {
		batch.Tokens = c.step.ints32("tokens")
	}
	if c.step.has("cross_lengths") {
		batch.CrossLengths = c.step.ints("cross_lengths")
	}
	opened, err := c.cache.Begin(&batch)
	if err != nil {
		return err
	}
	c.fwd, c.open = opened, true
	return c.answer("num_tokens", opened.NumTokens(), nil)
}

// close notes that the forward is over.
func (c *call) close(err error) error {
	if err == nil {
		c.open = false
	}
	return err
}

// abort of a forward that is over is no error in Go, so that it can be deferred: here it has to change nothing.
// The refusal of C is that of End.
func (c *call) abort() error {
	if !c.open {
		before := c.snapshot()
		c.ok(c.fwd.Abort())
		c.equal("an abort after the end changed the cache", c.snapshot(), before)
		return c.fwd.End()
	}
	return c.close(c.fwd.Abort())
}

func (c *call) tables() error {
	names := []string{"indptr", "indices", "last_page_len", "block_table", "slot_mapping", "seq_lens", "qo_indptr",
		"page_position"}
	group, tables := c.groupOf(c.layer()), map[string][]int64{}
	for kind, name := range names {
		if c.step.has("kind") {
			kind = c.step.num("kind")
		}
		export, err := c.fwd.ExportPageTable(group, kvcache.TableKind(kind))
		if err != nil {
			return err
		}
		tables[name] = append([]int64{}, export.Int64s()...)
		for _, x := range export.Int32s() {
			tables[name] = append(tables[name], int64(x))
		}
		export.Close()
		if c.step.has(name) {
			c.equal(name, tables[name], c.step.ints(name))
		}
	}
	if c.step.has("kind") {
		return nil
	}
	// Every form of the table says the same.
	indptr, blocks, lengths := tables["indptr"], tables["block_table"], tables["seq_lens"]
	pageSize, newTokens := c.step.i64("page_size"), c.step.ints("new_tokens")
	c.equal("entries of INDPTR", len(indptr), len(newTokens)+1)
	width, token := len(blocks)/len(newTokens), 0
	for entry, added := range newTokens {
		row := blocks[entry*width : (entry+1)*width]
		pages, positions := []int64{}, []int64{}
		for column, page := range row {
			if page >= 0 {
				pages, positions = append(pages, page), append(positions, int64(column)*pageSize)
			}
		}
		begin, end := indptr[entry], indptr[entry+1]
		c.equal("INDICES against BLOCK_TABLE", append([]int64{}, tables["indices"][begin:end]...), pages)
		found := append([]int64{}, tables["page_position"][begin:end]...)
		c.equal("PAGE_POSITION against BLOCK_TABLE", found, positions)
		for at := lengths[entry] - added; at < lengths[entry]; at++ {
			slot := row[at/pageSize]*pageSize + at%pageSize
			c.equal("SLOT_MAPPING of a new token", tables["slot_mapping"][token], slot)
			token++
		}
	}
	return nil
}

// opt are the options of an attention call, whose LSE is a result of the step where it has one.
func (c *call) opt() *kvcache.AttnOptions {
	if !c.step.has("opt") && !c.step.has("lse") {
		return nil
	}
	opt := &kvcache.AttnOptions{LSE: c.out("lse")}
	fill(opt, c.step.object("opt"))
	return opt
}

func (c *call) linear() *kvcache.LinearOptions {
	return &kvcache.LinearOptions{Delta: c.step.flag("delta"), Decay: kvcache.Decay(c.step.num("decay_kind")),
		State: c.state(), Scale: float32(toFloat(c.step.at("scale"))), Skip: c.in("skip")}
}

// ---- The prefix cache

func (c *call) query() *kvcache.PrefixQuery {
	q := &kvcache.PrefixQuery{Tokens: c.step.ints32("tokens"), Salt: []byte(c.step.text("salt")),
		Priority: int(c.step.i64Or("priority", 0)), Flags: kvcache.PrefixFlags(c.step.i64Or("flags", 0))}
	if c.step.has("num_tokens") {
		q.NumTokens = c.step.i64("num_tokens")
		if q.NumTokens == 0 {
			q.Tokens = q.Tokens[:0]
		}
	}
	for _, one := range c.step.list("keys") {
		json := one.(*fields)
		q.Keys = append(q.Keys, kvcache.PrefixKey{Type: kvcache.PrefixKeyType(json.i64("type")),
			Offset: json.i64("offset"), Data: []byte(json.text("data"))})
	}
	return q
}

// withQuery calls with the step's query; keys of blocks stand instead of, or beside, its tokens.
func (c *call) withQuery(call func(q *kvcache.PrefixQuery) (int64, error)) error {
	q := c.query()
	if c.step.has("hashes") {
		info, err := c.plan.Info()
		c.ok(err)
		hashes, err := c.lib.PrefixHash(q.Tokens, int(info.PrefixBlock), q.Salt, q.Keys...)
		if err != nil {
			return err
		}
		switch how := c.step.at("hashes"); how {
		case "all":
			q.Hashes = hashes
		case "only":
			q.Hashes, q.NumTokens, q.Tokens = hashes, int64(len(q.Tokens)), nil
		default: // more than there are is for the library to refuse
			q.Hashes = append(hashes, make([]kvcache.Hash, toInt(how))...)[:toInt(how)]
		}
	}
	tokens, err := call(q)
	return c.answer("hit", tokens, err)
}

func (c *call) prefixHash() error {
	q := c.query()
	hashes, err := c.lib.PrefixHash(q.Tokens, c.step.num("block"), q.Salt, q.Keys...)
	if err != nil {
		return err
	}
	keys := []prefixhash.Key{}
	for _, one := range q.Keys {
		keys = append(keys, prefixhash.Key{Type: uint32(one.Type), Offset: one.Offset, Data: one.Data})
	}
	pure, err := prefixhash.Hashes(q.Tokens, c.step.num("block"), q.Salt, keys...)
	c.ok(err)
	got, own := []string{}, []string{}
	for i := range hashes {
		got, own = append(got, hex.EncodeToString(hashes[i][:])), append(own, hex.EncodeToString(pure[i][:]))
	}
	c.equal("keys of the library", got, c.step.texts("values"))
	c.equal("keys in pure Go", own, c.step.texts("values"))
	return nil
}

// events polls everything that waits, two events at a time.
func (c *call) events() error {
	counts := map[kvcache.EventType]int64{}
	for {
		events, err := c.cache.PollEvents(2)
		if err != nil {
			return err
		}
		if len(events) == 0 {
			break
		}
		for _, event := range events {
			counts[event.Type]++
		}
	}
	for what, name := range []string{"STORED", "REMOVED", "MOVED", "CLEARED"} {
		c.equal("events "+name, counts[kvcache.EventType(what)], c.step.object("counts").i64Or(name, 0))
	}
	return nil
}

// ---- Operators

func (c *call) pool() *kvcache.OpPool { return c.pools[c.step.text("pool")] }

func (c *call) opOptions() *kvcache.OpOptions {
	options := &kvcache.OpOptions{CPUISA: c.isa, Full: c.step.flag("full"), Positions: c.in("positions"),
		Rope: readRope(c.step)}
	if opt := c.opt(); opt != nil {
		options.AttnOptions = *opt
	}
	return options
}

func (c *call) table() *kvcache.OpTable {
	json := c.step.object("table")
	take := func(key string) *kvcache.Tensor {
		if !json.has(key) {
			return nil
		}
		return tensorOf(json.object(key)).arg()
	}
	return &kvcache.OpTable{SeqLens: take("seq_lens"), QOIndptr: take("qo_indptr"), PageIndptr: take("page_indptr"),
		PageIndices: take("page_indices"), BlockTable: take("block_table")}
}
