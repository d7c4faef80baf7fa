package kvcache_test

import (
	"runtime"
	"strings"
	"testing"
	"time"

	kvcache "github.com/libkvcache/libkvcache/bindings/go"
)

// collected waits for leaks, collecting garbage.
func collected(t *testing.T, leaks <-chan kvcache.Leak, count int) map[string]kvcache.Leak {
	t.Helper()
	found := map[string]kvcache.Leak{}
	deadline := time.After(2 * time.Minute)
	for len(found) < count {
		runtime.GC()
		select {
		case leak := <-leaks:
			found[leak.What] = leak
		case <-time.After(5 * time.Millisecond):
		case <-deadline:
			t.Fatalf("only %d leaks of %d were reported", len(found), count)
		}
	}
	return found
}

func report(t *testing.T) <-chan kvcache.Leak {
	leaks := make(chan kvcache.Leak, 100)
	kvcache.ReportLeaks(func(leak kvcache.Leak) { leaks <- leak })
	t.Cleanup(func() { kvcache.ReportLeaks(nil) })
	return leaks
}

func loseACache(t *testing.T) {
	cache, err := load(t).NewCache(small())
	ok(t, err)
	ok(t, cache.AddSeq(1))
	begin(t, cache, 1, 2)
}

func losePlan(t *testing.T) {
	_, err := load(t).NewPlan(small())
	ok(t, err)
}

func losePlanFenceAndExport(t *testing.T) {
	lib := load(t)
	_, err := lib.NewPlan(small())
	ok(t, err)
	cache := newCache(t, small())
	_, err = cache.CopyPages(nil)
	ok(t, err)
	_, err = cache.ExportPool(0, kvcache.PoolK)
	ok(t, err)
}

func loseTransportAndTransfer(t *testing.T) {
	cache := newCache(t, small())
	transport, err := load(t).NewTransport(kvcache.TransportOptions{})
	ok(t, err)
	_, err = cache.Receive(transport, kvcache.ReceiveOptions{Seq: 1, NumTokens: 1})
	ok(t, err)
}

func TestLostHandlesAreReportedWithTheirStack(t *testing.T) {
	leaks := report(t)
	loseACache(t)
	found := collected(t, leaks, 2)
	for _, what := range []string{"Cache", "Forward"} {
		if leak, reported := found[what]; !reported || !strings.Contains(leak.Stack, "loseACache") {
			t.Errorf("%s: %+v", what, leak)
		}
	}
	losePlanFenceAndExport(t)
	found = collected(t, leaks, 3)
	for _, what := range []string{"Plan", "Fence", "Export"} {
		if leak, reported := found[what]; !reported || !strings.Contains(leak.Stack, "losePlanFenceAndExport") {
			t.Errorf("%s: %+v", what, leak)
		}
	}
	loseTransportAndTransfer(t)
	found = collected(t, leaks, 2)
	for _, what := range []string{"Transport", "Transfer"} {
		if leak, reported := found[what]; !reported || !strings.Contains(leak.Stack, "loseTransportAndTransfer") {
			t.Errorf("%s: %+v", what, leak)
		}
	}
}

func TestClosedHandlesAreNotReported(t *testing.T) {
	leaks := report(t)
	func() {
		cache, err := load(t).NewCache(small())
		ok(t, err)
		ok(t, cache.AddSeq(1))
		ended := begin(t, cache, 1, 2)
		write(t, ended, 2, 1)
		ok(t, ended.End())
		ok(t, begin(t, cache, 1, 2).Abort())
		transport, err := load(t).NewTransport(kvcache.TransportOptions{})
		ok(t, err)
		transfer, err := cache.Receive(transport, kvcache.ReceiveOptions{Seq: 2, NumTokens: 1})
		ok(t, err)
		ok(t, transfer.Close())
		ok(t, transport.Close(time.Minute))
		dropped := begin(t, cache, 1, 2)
		export, err := cache.ExportPool(0, kvcache.PoolK)
		ok(t, err)
		ok(t, export.Close())
		fence, err := cache.CopyPages(nil)
		ok(t, err)
		ok(t, fence.Close())
		ok(t, cache.Close())
		ok(t, dropped.Abort()) // after the cache
	}()
	// Plans that are lost after them: when these are reported, the others would have been.
	for i := 0; i < 2; i++ {
		losePlan(t)
		for what, leak := range collected(t, leaks, 1) {
			if what != "Plan" || !strings.Contains(leak.Stack, "losePlan") {
				t.Errorf("%+v", leak)
			}
		}
	}
}
