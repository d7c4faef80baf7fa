package conformance

import (
	"strconv"

	kvcache "github.com/libkvcache/libkvcache/bindings/go"
)

// Steps that open, look at and close a forward.
var forwardSteps = map[string]handler{
	"begin":     beginStep,
	"end":       func(s *session, step object) error { return s.close(s.fwd.End()) },
	"abort":     func(s *session, step object) error { return s.abort() },
	"forward":   forwardStep,
	"positions": positionsStep,
	"tables":    tablesStep,
}

// close notes that the forward is over.
func (s *session) close(err error) error {
	if err == nil {
		s.open = false
	}
	return err
}

// abort of a forward that is over is no error in Go, so that it can be deferred: here it has to change
// nothing. The refusal of C is that of End.
func (s *session) abort() error {
	if !s.open {
		before := s.snapshot()
		s.ok(s.fwd.Abort())
		s.equal("an abort after the end changed the cache", s.snapshot(), before)
		return s.fwd.End()
	}
	return s.close(s.fwd.Abort())
}

// treeParents reads a list, or {"star": n}, {"chain": n}, {"binary": n}.
func treeParents(json any) []int32 {
	if list, ok := json.([]any); ok {
		return ints32(list)
	}
	out := []int32{}
	for shape, count := range json.(object) {
		for i := int32(0); i < int32(toInt(count)); i++ {
			parent := map[string]int32{"star": 0, "chain": i - 1, "binary": (i - 1) / 2}[shape]
			if i == 0 {
				parent = -1
			}
			out = append(out, parent)
		}
	}
	return out
}

// tokenIDs are numbers of the tokens: from the step's start of each entry, else on from the largest one so
// far.
func (s *session) tokenIDs(step object, lengths []int64) []int64 {
	ids, next := []int64{}, s.nextID
	for entry, length := range lengths {
		if step.has("ids") {
			next = toInt(step.list("ids")[entry])
		}
		for i := int64(0); i < length; i++ {
			ids = append(ids, next)
			next++
		}
	}
	return ids
}

func (s *session) rememberPositions(list []any) {
	for t, id := range s.batch.ids {
		position := []float64{}
		if isFlat(list) {
			position = append(position, toFloat(list[t]))
		} else {
			for _, row := range list {
				position = append(position, toFloat(row.([]any)[t]))
			}
		}
		s.given[id] = position
	}
}

func beginStep(s *session, step object) error {
	b := batch{seqs: ints(step.list("seqs")), lengths: ints(step.list("lengths"))}
	b.ids = s.tokenIDs(step, b.lengths)
	call := kvcache.Batch{Seqs: b.seqs, Lengths: b.lengths}
	if step.has("tree_parents") {
		call.TreeParents = treeParents(step["tree_parents"])
	}
	if step.boolOr("publish", false) {
		for _, id := range b.ids {
			call.Tokens = append(call.Tokens, int32(id))
		}
	}
	call.Partial = step.boolOr("partial", false)
	if step.has("positions") {
		call.Positions = integers(step.list("positions"), kvcache.I32).arg()
	}
	if step.has("cross_lengths") {
		call.CrossLengths = ints(step.list("cross_lengths"))
		for entry, length := range call.CrossLengths {
			for i := int64(0); i < length; i++ {
				b.crossIDs = append(b.crossIDs, toInt(step.list("cross_ids")[entry])+i)
			}
		}
	}
	opened, err := s.cache.Begin(&call)
	if err != nil {
		return err
	}
	s.equal("tokens of the forward", opened.NumTokens(), int64(len(b.ids)))
	s.fwd, s.open, s.batch = opened, true, b
	for _, id := range b.ids {
		if id >= s.nextID {
			s.nextID = id + 1
		}
	}
	if step.has("positions") {
		s.rememberPositions(step.list("positions"))
	}
	return nil
}

// runLayer makes the call that a layer of this kind gets in a plain forward.
func (s *session) runLayer(step object, layer int) {
	view := &s.model.views[layer]
	call := func(op string, arguments object) { s.ok(handlers[op](s, arguments)) }
	arguments := object{"layer": jsonNumber(layer)}
	for _, key := range []string{"q", "at", "q_at", "long_from", "opt", "sees"} {
		if step.has(key) {
			arguments[key] = step[key]
		}
	}
	if sees := step.object("layer_sees"); sees.has(strconv.Itoa(layer)) {
		arguments["sees"] = sees[strconv.Itoa(layer)]
	}
	switch {
	case view.keepsTokens() || view.kind == kvcache.LayerShared:
		arguments["append"] = view.kind != kvcache.LayerShared
		call("attn", arguments)
	case view.kind == kvcache.LayerCross:
		cross := object{"layer": jsonNumber(layer), "give": len(s.batch.crossIDs) > 0}
		if step.has("q") {
			cross["q"] = step["q"]
		}
		if step.has("cross_sees") {
			cross["sees"] = step["cross_sees"]
		}
		call("cross", cross)
	case view.kind == kvcache.LayerState:
		for state := range view.states {
			for _, what := range []string{"get", "set"} {
				if step.has(what) {
					call("state_"+what, object{"layer": jsonNumber(layer), "state": jsonNumber(state),
						"values": step[what]})
				}
			}
		}
	}
}

// forwardStep is begin, every layer once, end.
func forwardStep(s *session, step object) error {
	if err := beginStep(s, step); err != nil {
		return err
	}
	if s.model.config.Storage != kvcache.StorageNone {
		for layer := s.model.begin(); layer < s.model.end(); layer++ {
			s.runLayer(step, layer)
		}
	}
	return s.close(s.fwd.End())
}

func positionsStep(s *session, step object) error {
	rows := step.listOr("values")
	out := newHost(kvcache.I32, len(s.batch.ids))
	wanted := []int64{}
	if isFlat(rows) {
		wanted = ints(rows)
	} else {
		out = newHost(kvcache.I32, len(rows), len(s.batch.ids))
		for _, row := range rows {
			wanted = append(wanted, ints(row.([]any))...)
		}
	}
	if err := s.fwd.Positions(out.arg()); err != nil {
		return err
	}
	got := []int64{}
	for i := 0; i < out.size; i++ {
		got = append(got, int64(out.get(i)))
	}
	s.equal("positions of the new tokens", got, wanted)
	return nil
}

var statedTables = map[string]kvcache.TableKind{"indptr": kvcache.TableIndptr,
	"last_page_len": kvcache.TableLastPageLen,
	"seq_lens":      kvcache.TableSeqLens, "qo_indptr": kvcache.TableQOIndptr,
	"page_position": kvcache.TablePagePosition}

func (s *session) takeTable(group int, kind kvcache.TableKind) ([]int64, error) {
	export, err := s.fwd.ExportPageTable(group, kind)
	if err != nil {
		return nil, err
	}
	defer export.Close()
	out := append([]int64{}, export.Int64s()...)
	for _, x := range export.Int32s() {
		out = append(out, int64(x))
	}
	return out, nil
}

func tablesStep(s *session, step object) error {
	layer := step.num("layer")
	group := s.groupOf(layer)
	if step.has("kind") {
		_, err := s.takeTable(group, kvcache.TableKind(step.num("kind")))
		return err
	}
	tables := map[kvcache.TableKind][]int64{}
	for kind := kvcache.TableIndptr; kind <= kvcache.TablePagePosition; kind++ {
		table, err := s.takeTable(group, kind)
		if err != nil {
			return err
		}
		tables[kind] = table
	}
	for key, kind := range statedTables {
		if step.has(key) {
			s.equal(key, tables[kind], ints(step.list(key)))
		}
	}
	s.checkForms(tables, s.model.views[layer].kind == kvcache.LayerCross)
	return nil
}

// checkForms: every form of the table says the same.
func (s *session) checkForms(tables map[kvcache.TableKind][]int64, isCross bool) {
	indptr, blocks := tables[kvcache.TableIndptr], tables[kvcache.TableBlockTable]
	pageSize := int64(s.model.config.PageSize)
	entries := len(s.batch.seqs)
	s.equal("entries of INDPTR", len(indptr), entries+1)
	width, token := len(blocks)/entries, 0
	for entry := 0; entry < entries; entry++ {
		row := blocks[entry*width : (entry+1)*width]
		pages, positions := []int64{}, []int64{}
		for column, page := range row {
			if page >= 0 {
				pages, positions = append(pages, page), append(positions, int64(column)*pageSize)
			}
		}
		begin, end := indptr[entry], indptr[entry+1]
		s.equal("INDICES against BLOCK_TABLE", append([]int64{}, tables[kvcache.TableIndices][begin:end]...), pages)
		s.equal("PAGE_POSITION against BLOCK_TABLE", append([]int64{},
			tables[kvcache.TablePagePosition][begin:end]...), positions)
		for i := int64(0); i < s.batch.lengths[entry] && !isCross; i++ {
			at := tables[kvcache.TableSeqLens][entry] - s.batch.lengths[entry] + i
			s.equal("SLOT_MAPPING of a new token", tables[kvcache.TableSlotMapping][token],
				row[at/pageSize]*pageSize+at%pageSize)
			token++
		}
	}
}
