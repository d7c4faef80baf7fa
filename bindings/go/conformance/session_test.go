package conformance

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	kvcache "github.com/libkvcache/libkvcache/bindings/go"
)

// batch is the sequences of the forward that was begun last.
type batch struct {
	seqs, lengths []int64
	ids           []int64 // of the new tokens, packed
	crossIDs      []int64 // of the encoder tokens that this forward writes
}

// partial is a result of an attention call that a later step merges.
type partial struct{ out, lse *host }

// session is one run of a scenario.
type session struct {
	*testing.T
	lib       *kvcache.Library
	isa       kvcache.ISA
	tolerance float64
	model     *model
	plan      *kvcache.Plan
	cache     *kvcache.Cache
	fwd       *kvcache.Forward // the last one, also when it has ended
	open      bool
	batch     batch
	nextID    int64
	given     map[int64][]float64 // positions that the caller gave with a forward
	partials  map[string]partial
	pools     map[string]*hostPool
}

// handler performs a step and checks its results when it succeeded. It returns the error of the step's call.
type handler func(s *session, step object) error

var handlers map[string]handler

func init() {
	handlers = map[string]handler{}
	for _, part := range []map[string]handler{sequenceSteps, forwardSteps, attentionSteps, stateSteps,
		storedSteps, operatorSteps, prefixSteps} {
		for name, handle := range part {
			handlers[name] = handle
		}
	}
}

// call makes an error of the binding what a scenario compares.
func statusOf(s *session, err error) (string, *kvcache.Error) {
	if err == nil {
		return "KVC_OK", &kvcache.Error{}
	}
	var failed *kvcache.Error
	if !errors.As(err, &failed) {
		s.Fatalf("not an *Error: %v", err)
	}
	return failed.Status.String(), failed
}

// ok ends the test when a call failed that had to succeed.
func (s *session) ok(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *session) near(actual, expected float64) bool {
	if math.IsInf(expected, 0) {
		return actual == expected
	}
	return math.Abs(actual-expected) <= s.tolerance*math.Max(1, math.Abs(expected))
}

func (s *session) equal(what string, actual, expected any) {
	s.Helper()
	if !reflect.DeepEqual(actual, expected) {
		s.Fatalf("%s: %v instead of %v", what, actual, expected)
	}
}

// positionOf is the rotary position of a token: its id, or what the caller gave.
func (s *session) positionOf(id int64) []float64 {
	if given, found := s.given[id]; found {
		return given
	}
	return []float64{float64(id)}
}

func (s *session) groupOf(layer int) int {
	info, err := s.plan.Layer(layer)
	s.ok(err)
	return int(info.Group)
}

func runScenario(t *testing.T, lib *kvcache.Library, scenario object, isa kvcache.ISA) {
	s := &session{T: t, lib: lib, isa: isa, tolerance: scenario.f64Or("tolerance", 1e-5),
		given: map[int64][]float64{}, partials: map[string]partial{}, pools: map[string]*hostPool{}}
	s.model = newModel(scenario.object("config"), isa)
	var err error
	s.plan, err = lib.NewPlan(&s.model.config)
	s.ok(err)
	defer s.plan.Close()
	s.cache, err = s.plan.NewCache()
	s.ok(err)
	defer s.cache.Close()
	number, step := 0, object{}
	defer func() {
		if wrong := recover(); wrong != nil {
			t.Fatalf("step %d %v: %v", number, step, wrong)
		}
		if t.Failed() {
			t.Logf("step %d %v", number, step)
		}
	}()
	for i, one := range scenario.list("steps") {
		number, step = i, one.(object)
		s.runStep(step)
	}
	step = object{"op": "after the last step"}
	s.finish()
}

func (s *session) runStep(step object) {
	before := s.snapshot()
	err := handlers[step.text("op")](s, step)
	status, failed := statusOf(s, err)
	allowed := []string{"KVC_OK"}
	switch wanted := step["status"].(type) {
	case string:
		allowed = []string{wanted}
	case []any:
		allowed = texts(wanted)
	}
	if !contains(allowed, status) {
		s.Fatalf("answered %s '%s', expected %v", status, failed.Msg, allowed)
	}
	if err != nil {
		if failed.Msg == "" {
			s.Fatal("a refusal says why")
		}
		s.equal("a refused call changed the cache", s.snapshot(), before)
	}
	if step.has("detail") {
		s.equal("detail of '"+failed.Msg+"'", failed.Detail, step.i64("detail"))
	}
	s.checkExpectations(step.object("expect"))
	s.ok(s.cache.Check())
}

func (s *session) finish() {
	if s.open {
		s.ok(s.fwd.Abort())
	}
	seqs, err := s.cache.Seqs()
	s.ok(err)
	for _, seq := range seqs {
		s.ok(s.cache.RemoveSeq(seq))
	}
	if !s.cache.IsEmpty() {
		s.Fatal("pages leak: all sequences are gone")
	}
	s.ok(s.cache.Check())
}

// snapshot is what a refused step must leave as it was.
func (s *session) snapshot() string {
	var text strings.Builder
	fmt.Fprintf(&text, "free %d total %d", s.cache.FreePages(), s.cache.TotalLength())
	info, err := s.plan.Info()
	s.ok(err)
	seqs, err := s.cache.Seqs()
	s.ok(err)
	for _, seq := range seqs {
		one, err := s.cache.SeqInfo(seq)
		s.ok(err)
		fmt.Fprintf(&text, "\nsequence %d %+v", seq, *one)
		for group := 0; group < int(info.NumGroups); group++ {
			pages, err := s.cache.SeqPages(seq, group)
			s.ok(err)
			fmt.Fprintf(&text, " pages %v", pages)
		}
	}
	return text.String()
}

func (s *session) checkExpectations(expect object) {
	for seq, wanted := range expect.object("lengths") {
		length, err := s.cache.Len(number(seq))
		s.ok(err)
		s.equal("length of sequence "+seq, length, toInt(wanted))
	}
	if expect.has("free_pages") {
		s.equal("free pages", s.cache.FreePages(), expect.i64("free_pages"))
	}
	if expect.has("empty") {
		s.equal("empty", s.cache.IsEmpty(), expect.i64("empty") != 0)
	}
	if expect.has("total_length") {
		s.equal("total length", s.cache.TotalLength(), expect.i64("total_length"))
	}
	if expect.has("seqs") {
		seqs, err := s.cache.Seqs()
		s.ok(err)
		s.equal("sequences", seqs, ints(expect.list("seqs")))
	}
	for seq, fields := range expect.object("info") {
		info, err := s.cache.SeqInfo(number(seq))
		s.ok(err)
		s.checkFields(*info, fields.(object), "sequence "+seq)
	}
	for seq, layers := range expect.object("pages") {
		for layer, wanted := range layers.(object) {
			pages, err := s.cache.SeqPages(number(seq), s.groupOf(int(number(layer))))
			s.ok(err)
			s.equal("pages of sequence "+seq+" for layer "+layer, int64(len(pages)), toInt(wanted))
		}
	}
	if expect.has("stats") {
		stats, err := s.cache.Stats()
		s.ok(err)
		s.checkFields(*stats, expect.object("stats"), "the cache's statistics")
	}
}

// checkFields compares fields of a struct, by their names in C, with the numbers stated.
func (s *session) checkFields(actual any, expected object, what string) {
	for name, wanted := range expected {
		field := reflect.ValueOf(actual).FieldByName(goName(name))
		if !field.IsValid() {
			s.Fatalf("%s has no field '%s'", what, name)
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
		s.equal(name+" of "+what, got, toInt(wanted))
	}
}

// goName is the Go field of a field in C: num_kv_heads is NumKVHeads.
func goName(name string) string {
	parts := strings.Split(name, "_")
	for i, part := range parts {
		if part == "kv" {
			parts[i] = "KV"
		} else {
			parts[i] = strings.ToUpper(part[:1]) + part[1:]
		}
	}
	return strings.Join(parts, "")
}

func contains(list []string, one string) bool {
	for _, other := range list {
		if other == one {
			return true
		}
	}
	return false
}
