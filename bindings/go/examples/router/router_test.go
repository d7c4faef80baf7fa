package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	kvcache "github.com/libkvcache/libkvcache/bindings/go"
	"github.com/libkvcache/libkvcache/bindings/go/internal/testlib"
)

func TestMain(m *testing.M) {
	os.Exit(testlib.Main(m))
}

func load(t *testing.T) *kvcache.Library {
	t.Helper()
	return testlib.Load(t)
}

func generate(t *testing.T) []*Request {
	trace, err := Generate(testlib.Random(t), 4, 60, 6, 16)
	if err != nil {
		t.Fatal(err)
	}
	return trace
}

var setup = Setup{Workers: 8, Pages: 300, Block: 16, Rate: 5000, Events: 1 << 12}

func TestPrefixAwareRoutingFindsMoreThanTakingTurns(t *testing.T) {
	lib, trace := load(t), generate(t)
	turns, err := Run(lib, setup, "round robin", RoundRobin, trace)
	if err != nil {
		t.Fatal(err)
	}
	aware, err := Run(lib, setup, "prefix aware", PrefixAware, trace)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%.3f in turns, %.3f aware of prefixes", turns.HitRate(), aware.HitRate())
	if aware.HitRate() < turns.HitRate()+0.04 {
		t.Errorf("hit rate %.3f against %.3f in turns", aware.HitRate(), turns.HitRate())
	}
	if turns.Requests+turns.Refused != len(trace) || aware.Requests+aware.Refused != len(trace) {
		t.Error("requests got lost")
	}
}

func TestTheIndexKnowsWhatTheWorkersHold(t *testing.T) {
	lib := load(t)
	for _, events := range []int64{1 << 12, 16} { // 16: events are lost, and snapshots taken
		trace, small := generate(t), setup
		small.Events, small.Pages = events, 60 // blocks are evicted
		looked := 0
		policy := func(number int, r *Request, now float64, workers []*Worker, index *Index) int {
			for i, matched := range index.Match(r.Blocks) {
				held, err := workers[i].cache.PrefixMatch(&kvcache.PrefixQuery{Hashes: r.Blocks,
					NumTokens: r.Tokens, Flags: kvcache.WholeBlocks | kvcache.AllTokens})
				if err != nil {
					t.Fatal(err)
				}
				if held != int64(matched*small.Block) {
					t.Fatalf("request %d: worker %d holds %d tokens, the index says %d blocks", number, i,
						held, matched)
				}
				looked++
			}
			return PrefixAware(number, r, now, workers, index)
		}
		result, err := Run(lib, small, "", policy, trace)
		if err != nil {
			t.Fatal(err)
		}
		if looked == 0 || (result.Resyncs > 0) != (events == 16) {
			t.Errorf("%d comparisons, %d snapshots with room for %d events", looked, result.Resyncs, events)
		}
	}
}

func TestRequestsThatNeverFitAreRefused(t *testing.T) {
	tiny := setup
	tiny.Pages = 5
	result, err := Run(load(t), tiny, "", PrefixAware, generate(t))
	if err != nil {
		t.Fatal(err)
	}
	if result.Refused == 0 || result.Requests != 0 {
		t.Errorf("%+v", result)
	}
}

func TestALineThatIsNoRequestIsNamed(t *testing.T) {
	for text, wanted := range map[string]string{
		`{"input_length": 40, "hash_ids": [1]}`: "request 1: input_length 40, but 1 hash_ids of 16 tokens",
		`{"input_length": 0}`:                   "request 1: input_length 0, but 0 hash_ids of 16 tokens",
	} {
		if _, err := ReadTrace(strings.NewReader(text), 16); err == nil || err.Error() != wanted {
			t.Errorf("%v instead of %s", err, wanted)
		}
	}
	if _, err := ReadTrace(strings.NewReader("{"), 16); err == nil {
		t.Error("half an object was read")
	}
}

func TestTheCommandPrintsBothHitRates(t *testing.T) {
	load(t)
	var out bytes.Buffer
	if err := run([]string{"-block", "16", "-pages", "500"}, &out); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"round robin", "prefix aware", "hit rate", "1200 requests"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("no %q in %s", part, out.String())
		}
	}
	if err := run([]string{"-workers", "65"}, &out); err == nil {
		t.Error("65 workers were accepted")
	}
}
