package kvcache_test

import (
	"testing"
	"time"

	kvcache "github.com/libkvcache/libkvcache/bindings/go"
	"github.com/libkvcache/libkvcache/bindings/go/internal/cloop"
)

// call is one attention call, as Go and as C make it: as little work as possible.
type call struct {
	lib              *kvcache.Library
	fwd              *kvcache.Forward
	q, k, v, out     []float32
	tq, tk, tv, tout *kvcache.Tensor
}

func newCall(t testing.TB) *call {
	c := &call{lib: load(t)}
	cache := newCache(t, small())
	ok(t, cache.AddSeq(1))
	c.fwd = begin(t, cache, 1, 1)
	c.q, c.k, c.v, c.out = make([]float32, 4), make([]float32, 4), make([]float32, 4), make([]float32, 4)
	c.tq, c.tk, c.tv, c.tout = kvcache.Of(c.q, 1, 1, 4), kvcache.Of(c.k, 1, 1, 4), kvcache.Of(c.v, 1, 1,
		4), kvcache.Of(c.out, 1, 1, 4)
	return c
}

func (c *call) inC(t testing.TB, n int) {
	if status := cloop.Attend(c.lib.API(), c.fwd.Handle(), 1, 4, c.q, c.k, c.v, c.out, n); status != 0 {
		t.Fatal(kvcache.Status(status))
	}
}

func (c *call) inGo(t testing.TB, n int) {
	for i := 0; i < n; i++ {
		if err := c.fwd.Attn(0, c.tq, c.tk, c.tv, c.tout, nil); err != nil {
			t.Fatal(err)
		}
	}
}

func BenchmarkAttn(b *testing.B) {
	c := newCall(b)
	b.ReportAllocs()
	b.ResetTimer()
	c.inGo(b, b.N)
}

func BenchmarkAttnInC(b *testing.B) {
	c := newCall(b)
	b.ResetTimer()
	c.inC(b, b.N)
}

func BenchmarkAttnWithNewTensors(b *testing.B) {
	c := newCall(b)
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i++ {
		err := c.fwd.Attn(0, kvcache.Of(c.q, 1, 1, 4), kvcache.Of(c.k, 1, 1, 4), kvcache.Of(c.v, 1, 1, 4),
			kvcache.Of(c.out, 1, 1, 4), nil)
		if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkAttnExtra reports what a call costs in Go beyond the same call in C, which is to be at most 150 ns.
// Rounds in C and in Go alternate, and the best of each are compared: what disturbs a round only makes it slower.
func BenchmarkAttnExtra(b *testing.B) {
	const rounds, calls = 40, 2000
	c := newCall(b)
	lower := func(least *time.Duration, run func(testing.TB, int)) {
		begin := time.Now()
		run(b, calls)
		if took := time.Since(begin); took < *least {
			*least = took
		}
	}
	inC, inGo := time.Hour, time.Hour
	b.ResetTimer()
	for i := 0; i < b.N*rounds; i++ {
		lower(&inC, c.inC)
		lower(&inGo, c.inGo)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(inC.Nanoseconds())/calls, "ns/call-in-C")
	b.ReportMetric(float64((inGo-inC).Nanoseconds())/calls, "ns/call-extra")
}

func TestACallAllocatesNothing(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector allocates")
	}
	c := newCall(t)
	if allocated := testing.AllocsPerRun(100, func() { c.inGo(t, 1) }); allocated != 0 {
		t.Errorf("%v allocations in a call", allocated)
	}
}
