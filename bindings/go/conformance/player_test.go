package conformance

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unsafe"

	kvcache "github.com/libkvcache/libkvcache/bindings/go"
)

// side is one cache of a case.
type side struct {
	plan  *kvcache.Plan
	cache *kvcache.Cache
	fwd   *kvcache.Forward // the last one, also when it has ended
	open  bool
}

// player plays one case.
type player struct {
	*testing.T
	*side     // the one that the step is about
	sides     map[string]*side
	transfer  *transfer // the one that waits to arrive
	lib       *kvcache.Library
	isa       kvcache.ISA
	tolerance float64
	checks    int
	partials  map[string]map[string]*host // results of attention that a later step merges
	pools     map[string]*kvcache.OpPool
	files     map[string][]byte // state files
}

// call is one step: its arguments as the binding takes them, and its results, which are compared when it succeeds.
type call struct {
	*player
	step    *fields
	results map[string]*host
}

// ok ends the test when a call failed that had to succeed.
func (p *player) ok(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

func (p *player) equal(what string, actual, expected any) {
	p.Helper()
	p.checks++
	if !reflect.DeepEqual(actual, expected) {
		p.Fatalf("%s: %v instead of %v", what, actual, expected)
	}
}

func number(text string) int64 {
	value, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		panic(err)
	}
	return value
}

func readRope(from *fields) *kvcache.Rope {
	if !from.has("rope") {
		return nil
	}
	rope := &kvcache.Rope{}
	fill(rope, from.object("rope"))
	return rope
}

func configOf(from *fields, isa kvcache.ISA) *kvcache.Config {
	config := &kvcache.Config{CPUISA: isa}
	fill(config, from, "layers")
	for _, entry := range from.list("layers") {
		json := entry.(*fields)
		layer := kvcache.Layer{Rope: readRope(json)}
		fill(&layer, json, "rope", "states", "k_dtype", "v_dtype")
		if json.has("k_dtype") {
			layer.KDType = dtypeOf(json.text("k_dtype"))
		}
		if json.has("v_dtype") {
			layer.VDType = dtypeOf(json.text("v_dtype"))
		}
		for _, state := range json.list("states") {
			state := state.(*fields)
			one := kvcache.State{Shape: state.sizes("shape"), DType: dtypeOf(state.text("dtype"))}
			if state.has("init") {
				one.Init = tensorOf(state.object("init")).arg()
			}
			layer.States = append(layer.States, one)
		}
		config.Layers = append(config.Layers, layer)
	}
	if config.Storage == kvcache.StorageOwned {
		config.Allocator = &poisoned{blocks: map[unsafe.Pointer]*kvcache.Block{}}
	}
	return config
}

func play(t *testing.T, lib *kvcache.Library, from *fields, isa kvcache.ISA) {
	p := &player{T: t, sides: map[string]*side{}, lib: lib, isa: isa, partials: map[string]map[string]*host{},
		pools: map[string]*kvcache.OpPool{}, files: map[string][]byte{}}
	step := &fields{members: map[string]any{"op": "before the first step"}, read: map[string]bool{}}
	defer func() {
		if wrong := recover(); wrong != nil {
			t.Errorf("%v", wrong)
		}
		if t.Failed() {
			t.Logf("step %v", step.members)
		}
	}()
	p.tolerance = toFloat(from.at("tolerance"))
	defer p.close()
	p.add("", from.object("config"))
	for _, name := range from.object("caches").keys() {
		p.add(name, from.object("caches").object(name))
	}
	for _, one := range from.list("steps") {
		step = one.(*fields)
		p.run(step)
	}
	if p.transfer != nil {
		p.Fatal("a transfer that nobody waits for")
	}
	for _, p.side = range p.sides {
		p.finish()
	}
	refuseUnread(from, "case")
	if p.checks == 0 {
		p.Fatal("the case checks nothing")
	}
}

// add makes the cache of a name.
func (p *player) add(name string, config *fields) {
	plan, err := p.lib.NewPlan(configOf(config, p.isa))
	p.ok(err)
	p.sides[name] = &side{plan: plan}
	p.sides[name].cache, err = plan.NewCache()
	p.ok(err)
}

func (p *player) finish() {
	if p.open {
		p.ok(p.fwd.Abort())
	}
	seqs, err := p.cache.Seqs()
	p.ok(err)
	for _, seq := range seqs {
		p.ok(p.cache.RemoveSeq(seq))
	}
	if !p.cache.IsEmpty() {
		p.Fatal("pages leak: all sequences are gone")
	}
	p.ok(p.cache.Check())
}

func (p *player) close() {
	if p.transfer != nil {
		p.transfer.close()
	}
	for _, side := range p.sides {
		if side.cache != nil {
			side.cache.Close()
		}
		side.plan.Close()
	}
}

func (p *player) run(step *fields) {
	p.side = p.sides[step.text("cache")]
	allowed, before := []string{"KVC_OK"}, ""
	if step.has("status") {
		allowed, before = step.texts("status"), p.snapshot()
	}
	c := &call{p, step, map[string]*host{}}
	handle, found := handlers[step.text("op")]
	if step.has("from"); !found {
		p.Fatalf("unknown op '%s'", step.text("op"))
	}
	err := handle(c)
	status, failed := "KVC_OK", &kvcache.Error{}
	if err != nil {
		if !errors.As(err, &failed) {
			p.Fatalf("not an *Error: %v", err)
		}
		status = failed.Status.String()
	}
	if !contains(allowed, status) {
		p.Fatalf("answered %s '%s', expected %v", status, failed.Msg, allowed)
	}
	if err != nil {
		if failed.Msg == "" {
			p.Fatal("a refusal says why")
		}
		p.equal("a refused call changed the cache", p.snapshot(), before)
	} else {
		c.compareAll()
	}
	if step.has("detail") {
		p.equal("detail of '"+failed.Msg+"'", failed.Detail, step.i64("detail"))
	}
	p.checkExpectations(step.object("expect"))
	p.ok(p.cache.Check())
}

// ---- Arguments and results

func (c *call) layer() int { return c.step.num("layer") }
func (c *call) state() int { return c.step.num("state") }
func (c *call) seq() int64 { return c.step.i64("seq") }

// in is the tensor under a key; nil where the step has none.
func (c *call) in(key string) *kvcache.Tensor {
	if !c.step.has(key) {
		return nil
	}
	return tensorOf(c.step.object(key)).arg()
}

// out is a new tensor for a result, compared with what the step has under the key.
func (c *call) out(key string) *kvcache.Tensor {
	if !c.step.has(key) {
		return nil
	}
	spec := c.step.object(key)
	c.results[key] = newHost(dtypeOf(spec.text("dtype")), spec.sizes("shape")...)
	return c.results[key].arg()
}

// inPlace is a tensor that the call changes, compared with what the step has under another key.
func (c *call) inPlace(key, want string) *kvcache.Tensor {
	c.results[want] = tensorOf(c.step.object(key))
	return c.results[want].arg()
}

// answer compares a number with the step's where it has one and the call has succeeded.
func (c *call) answer(key string, actual int64, err error) error {
	if err == nil && c.step.has(key) {
		c.equal(key, actual, c.step.i64(key))
	}
	return err
}

func (c *call) compareAll() {
	for key, got := range c.results {
		c.compare(key, c.step.object(key), got)
	}
	if c.step.has("into") {
		c.partials[c.step.text("into")] = c.results
	}
}

func (p *player) compare(what string, want *fields, got *host) {
	p.equal("shape of "+what, got.shape, want.sizes("shape"))
	want.text("dtype")
	tolerance, count := p.tolerance, 1
	if want.has("tolerance") {
		tolerance = toFloat(want.at("tolerance"))
	}
	if want.flag("exact") {
		tolerance = 0
	}
	if len(got.shape) > 0 {
		count = got.shape[0]
	}
	row := 1
	if count > 0 {
		row = got.size / count
	}
	rows := want.sizes("rows")
	for i, wanted := range elementsOf(want) {
		at := i
		if want.has("rows") {
			at = rows[i/row]*row + i%row
		}
		actual := got.get(at)
		near := math.Abs(actual-wanted) <= tolerance*math.Max(1, math.Abs(wanted))
		if actual != wanted && (math.IsInf(wanted, 0) || !near) {
			p.Fatalf("%s has %v instead of %v in row %d, element %d", what, actual, wanted, at/row, at%row)
		}
		p.checks++
	}
	for i := int(want.i64Or("untouched", int64(count))) * row; i < got.size; i++ {
		if !math.IsNaN(got.get(i)) {
			p.Fatalf("padding rows of %s were written", what)
		}
	}
}

// ---- Questions about the cache

func (p *player) groupOf(layer int) int {
	info, err := p.plan.Layer(layer)
	p.ok(err)
	return int(info.Group)
}

// snapshot is what a refused step must leave as it was.
func (p *player) snapshot() string {
	var text strings.Builder
	fmt.Fprintf(&text, "free %d total %d", p.cache.AvailablePages(), p.cache.TotalLength())
	info, err := p.plan.Info()
	p.ok(err)
	seqs, err := p.cache.Seqs()
	p.ok(err)
	for _, seq := range seqs {
		one, err := p.cache.SeqInfo(seq)
		p.ok(err)
		fmt.Fprintf(&text, "\nsequence %d %+v", seq, *one)
		for group := 0; group < int(info.NumGroups); group++ {
			pages, err := p.cache.SeqPages(seq, group)
			p.ok(err)
			fmt.Fprintf(&text, " pages %v", pages)
		}
	}
	return text.String()
}

func (p *player) checkExpectations(expect *fields) {
	lengths := expect.object("lengths")
	for _, seq := range lengths.keys() {
		length, err := p.cache.Len(number(seq))
		p.ok(err)
		p.equal("length of sequence "+seq, length, lengths.i64(seq))
	}
	if expect.has("available_pages") {
		p.equal("free pages", p.cache.AvailablePages(), expect.i64("available_pages"))
	}
	if expect.has("empty") {
		p.equal("empty", p.cache.IsEmpty(), expect.i64("empty") != 0)
	}
	if expect.has("total_length") {
		p.equal("total length", p.cache.TotalLength(), expect.i64("total_length"))
	}
	if expect.has("seqs") {
		seqs, err := p.cache.Seqs()
		p.ok(err)
		p.equal("sequences", seqs, expect.ints("seqs"))
	}
	infos := expect.object("info")
	for _, seq := range infos.keys() {
		info, err := p.cache.SeqInfo(number(seq))
		p.ok(err)
		p.checkFields(*info, infos.object(seq), "sequence "+seq)
	}
	pages := expect.object("pages")
	for _, seq := range pages.keys() {
		for _, layer := range pages.object(seq).keys() {
			kept, err := p.cache.SeqPages(number(seq), p.groupOf(int(number(layer))))
			p.ok(err)
			what := "pages of sequence " + seq + " for layer " + layer
			p.equal(what, int64(len(kept)), pages.object(seq).i64(layer))
		}
	}
	if expect.has("stats") {
		stats, err := p.cache.Stats()
		p.ok(err)
		p.checkFields(*stats, expect.object("stats"), "the cache's statistics")
	}
}

// checkFields compares fields of a struct, by their names in C, with the numbers stated.
func (p *player) checkFields(actual any, expected *fields, what string) {
	for _, name := range expected.keys() {
		field := reflect.ValueOf(actual).FieldByName(goName(name))
		if !field.IsValid() {
			p.Fatalf("%s has no field '%s'", what, name)
		}
		var got int64
		switch {
		case field.Kind() == reflect.Bool && field.Bool():
			got = 1
		case field.CanInt():
			got = field.Int()
		case field.CanUint():
			got = int64(field.Uint())
		}
		p.equal(name+" of "+what, got, expected.i64(name))
	}
}

// poisoned gives memory full of NaN, so that a slot that nobody wrote spoils every result it enters.
type poisoned struct {
	mu     sync.Mutex
	blocks map[unsafe.Pointer]*kvcache.Block
}

func (p *poisoned) Alloc(bytes, alignment uint64) unsafe.Pointer {
	block, err := kvcache.Alloc(int(bytes + alignment))
	if err != nil {
		return nil
	}
	all := block.Bytes()
	for i := range all {
		all[i] = 0xFF
	}
	begin := unsafe.Pointer(&all[0])
	if past := uint64(uintptr(begin)) % alignment; past != 0 {
		begin = unsafe.Add(begin, int(alignment-past))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.blocks[begin] = block
	return begin
}

func (p *poisoned) Free(ptr unsafe.Pointer, _ uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.blocks[ptr] == nil {
		panic(fmt.Sprintf("freed at %p, where nothing was allocated", ptr))
	}
	p.blocks[ptr].Close()
	delete(p.blocks, ptr)
}
