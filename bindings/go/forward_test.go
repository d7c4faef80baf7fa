package kvcache_test

import (
	"errors"
	"strings"
	"testing"

	kvcache "github.com/libkvcache/libkvcache/bindings/go"
)

func TestAttentionSeesWhatWasAppended(t *testing.T) {
	cache := newCache(t, small())
	ok(t, cache.AddSeq(1))
	grow(t, cache, 1, 3, 1)
	fwd := begin(t, cache, 1, 1)
	out, lse := make([]float32, 4), make([]float32, 1)
	ok(t, fwd.Attn(0, tokens(1, 0), tokens(1, 5), tokens(1, 5), kvcache.Of(out, 1, 1, 4),
		&kvcache.AttnOptions{LSE: kvcache.Of(lse, 1, 1)}))
	if out[0] != 2 || lse[0] < 1.386 || lse[0] > 1.387 {
		t.Errorf("out %v, LSE %v instead of 2 and ln 4", out, lse)
	}
	ok(t, fwd.Attn(1, tokens(1, 0), tokens(1, 5), tokens(1, 5), tokens(1, 0), nil))
	ok(t, fwd.End())
	if length, err := cache.Len(1); err != nil || length != 4 {
		t.Errorf("length %d, %v", length, err)
	}
}

func TestADeferredAbortUndoesTheForwardOfAPanic(t *testing.T) {
	cache := newCache(t, small())
	ok(t, cache.AddSeq(1))
	grow(t, cache, 1, 3, 1)
	free := cache.AvailablePages()
	func() {
		defer func() {
			if recover() != "the model broke" {
				t.Error("another panic")
			}
		}()
		fwd, err := cache.Begin(&kvcache.Batch{Seqs: []int64{1}, Lengths: []int64{9}})
		ok(t, err)
		defer fwd.Abort()
		ok(t, fwd.Attn(0, tokens(9, 0), tokens(9, 1), tokens(9, 1), tokens(9, 0), nil))
		panic("the model broke")
	}()
	if length, _ := cache.Len(1); length != 3 || cache.AvailablePages() != free {
		t.Errorf("length %d, %d free pages instead of 3 and %d", length, cache.AvailablePages(), free)
	}
	ok(t, cache.Check())
	grow(t, cache, 1, 1, 2) // the cache goes on
}

func TestAbortAfterEndDoesNothing(t *testing.T) {
	cache := newCache(t, small())
	ok(t, cache.AddSeq(1))
	fwd := begin(t, cache, 1, 2)
	write(t, fwd, 2, 1)
	ok(t, fwd.End())
	ok(t, fwd.Abort())
	ok(t, fwd.Abort())
	if length, _ := cache.Len(1); length != 2 {
		t.Errorf("length %d", length)
	}
	var none *kvcache.Forward
	ok(t, none.Abort())
}

func TestAForwardThatIsOverIsAnError(t *testing.T) {
	finishes := map[string]func(*kvcache.Forward) error{
		"end":   (*kvcache.Forward).End,
		"abort": (*kvcache.Forward).Abort,
	}
	for name, finish := range finishes {
		cache := newCache(t, small())
		ok(t, cache.AddSeq(1))
		fwd := begin(t, cache, 1, 2)
		write(t, fwd, 2, 1)
		ok(t, finish(fwd))
		is(t, fwd.Attn(0, tokens(2, 0), tokens(2, 0), tokens(2, 0), tokens(2, 0), nil), kvcache.ErrClosed)
		says(t, fwd.KVAppend(0, tokens(2, 0), tokens(2, 0)), kvcache.ErrInvalidState, "the forward is closed")
		_, err := fwd.ExportPageTable(0, kvcache.TableIndptr)
		is(t, err, kvcache.ErrClosed)
		is(t, fwd.End(), kvcache.ErrClosed)
		if fwd.NumTokens() != -1 {
			t.Errorf("after %s: %d tokens", name, fwd.NumTokens())
		}
		// Another forward does not revive it.
		next := begin(t, cache, 1, 1)
		is(t, fwd.Attn(0, tokens(2, 0), tokens(2, 0), tokens(2, 0), tokens(2, 0), nil), kvcache.ErrClosed)
		write(t, next, 1, 1)
		ok(t, next.End())
	}
}

func TestALayerThatIsForgottenIsNamedUnlessTheForwardIsPartial(t *testing.T) {
	cache := newCache(t, small())
	ok(t, cache.AddSeq(1))
	prompt := []int32{1, 2, 3, 4}
	batch := kvcache.Batch{Seqs: []int64{1}, Lengths: []int64{4}, Tokens: prompt}
	fwd, err := cache.Begin(&batch)
	ok(t, err)
	ok(t, fwd.KVAppend(0, tokens(4, 1), tokens(4, 1)))
	err = fwd.End()
	is(t, err, kvcache.ErrInvalidState)
	if !strings.Contains(err.Error(), "layer 1") {
		t.Error(err)
	}
	write(t, fwd, 4, 1) // it is still open
	ok(t, fwd.End())
	matches := func(want int64) {
		t.Helper()
		query := &kvcache.PrefixQuery{Tokens: append(prompt[:len(prompt):len(prompt)], 5)}
		if hit, err := cache.PrefixMatch(query); err != nil || hit != want {
			t.Errorf("%d tokens hit, %v", hit, err)
		}
	}
	matches(4)
	prompt = []int32{9, 9, 9, 9}
	ok(t, cache.AddSeq(2))
	fwd, err = cache.Begin(&kvcache.Batch{Seqs: []int64{2}, Lengths: []int64{4}, Tokens: prompt, Partial: true})
	ok(t, err)
	ok(t, fwd.KVAppend(0, tokens(4, 1), tokens(4, 1)))
	ok(t, fwd.End())
	matches(0)
}

func TestClearedPagesShowNothingOfWhoHadThemBefore(t *testing.T) {
	// The library clears what it alone writes. A caller that has the pool's memory writes rows itself.
	for _, of := range []struct{ clears, isExported bool }{{false, true}, {false, false}, {true, true}} {
		config := small()
		config.ClearPages = of.clears
		cache := newCache(t, config)
		if of.isExported {
			_, err := cache.ExportPool(1, kvcache.PoolK)
			ok(t, err)
		}
		ok(t, cache.AddSeq(1))
		grow(t, cache, 1, 60, 7)
		ok(t, cache.RemoveSeq(1))
		ok(t, cache.AddSeq(2))
		fwd, err := cache.Begin(&kvcache.Batch{Seqs: []int64{2}, Lengths: []int64{60}, Partial: true})
		ok(t, err)
		ok(t, fwd.End())
		k := make([]float32, 4)
		ok(t, cache.DebugGetLayer(2, 1, 5, 6, kvcache.Of(k, 1, 1, 4), nil))
		expected := float32(7)
		if of.clears || !of.isExported {
			expected = 0
		}
		if k[3] != expected {
			t.Errorf("%+v: %v", of, k)
		}
	}
}

func TestHugePagesHaveASwitch(t *testing.T) {
	config := small()
	config.NoHugePages = true
	cache := newCache(t, config)
	ok(t, cache.AddSeq(1))
	grow(t, cache, 1, 4, 7)
	config.Storage = kvcache.StorageNone
	if _, err := load(t).NewCache(config); !errors.Is(err, kvcache.ErrUnsupported) ||
		!strings.Contains(err.Error(), "NO_HUGE_PAGES") {
		t.Errorf("%v", err)
	}
}

func TestATrimGivesFreePagesBack(t *testing.T) {
	config := small()
	config.NumPages = 1 << 16
	cache := newCache(t, config)
	for seq := int64(1); seq <= 2; seq++ {
		ok(t, cache.AddSeq(seq))
		grow(t, cache, seq, 4000, 7)
	}
	ok(t, cache.RemoveSeq(1))
	released, err := cache.Trim()
	ok(t, err)
	if released < 100_000 {
		t.Errorf("%d bytes went back", released)
	}
	k := make([]float32, 4)
	ok(t, cache.DebugGetLayer(2, 1, 3999, 4000, kvcache.Of(k, 1, 1, 4), nil))
	if k[3] != 7 {
		t.Errorf("%v: what a sequence holds has changed", k)
	}
	fwd, err := cache.Begin(&kvcache.Batch{Seqs: []int64{2}, Lengths: []int64{1}})
	ok(t, err)
	if _, err = cache.Trim(); !errors.Is(err, kvcache.ErrBusy) {
		t.Errorf("%v", err)
	}
	ok(t, fwd.Abort())
}

func TestAForwardOfAClosedCacheIsAnError(t *testing.T) {
	cache := newCache(t, small())
	ok(t, cache.AddSeq(1))
	fwd := begin(t, cache, 1, 2)
	ok(t, cache.Close())
	is(t, fwd.Attn(0, tokens(2, 0), tokens(2, 0), tokens(2, 0), tokens(2, 0), nil), kvcache.ErrClosed)
	is(t, fwd.End(), kvcache.ErrClosed)
	ok(t, fwd.Abort())
}

func TestClosedHandlesAreErrors(t *testing.T) {
	lib := load(t)
	plan, err := lib.NewPlan(small())
	ok(t, err)
	cache, err := plan.NewCache()
	ok(t, err)
	ok(t, plan.Close())
	ok(t, plan.Close())
	ok(t, cache.AddSeq(1)) // caches made from a plan stay valid
	ok(t, cache.Close())
	ok(t, cache.Close())
	calls := map[string]func() error{
		"Plan.Info":     func() error { _, err := plan.Info(); return err },
		"Plan.NewCache": func() error { _, err := plan.NewCache(); return err },
		"Plan.JSON":     func() error { _, err := plan.JSON(); return err },
		"MinPages":      func() error { _, err := lib.MinPages(plan); return err },
		"AddSeq":        func() error { return cache.AddSeq(2) },
		"Fork":          func() error { return cache.Fork(1, 2, -1) },
		"Clear":         cache.Clear,
		"Check":         cache.Check,
		"Stats":         func() error { _, err := cache.Stats(); return err },
		"Len":           func() error { _, err := cache.Len(1); return err },
		"Seqs":          func() error { _, err := cache.Seqs(); return err },
		"Begin": func() error {
			_, err := cache.Begin(&kvcache.Batch{Seqs: []int64{1},
				Lengths: []int64{1}})
			return err
		},
		"PrefixMatch": func() error {
			_,
				err := cache.PrefixMatch(&kvcache.PrefixQuery{Tokens: []int32{1}})
			return err
		},
		"PollEvents":      func() error { _, err := cache.PollEvents(1); return err },
		"EventsSnapshot":  func() error { _, _, err := cache.EventsSnapshot(); return err },
		"SwapOut":         func() error { _, err := cache.SwapOut(1); return err },
		"ExportPool":      func() error { _, err := cache.ExportPool(0, kvcache.PoolK); return err },
		"SeqPages":        func() error { _, err := cache.SeqPages(1, 0); return err },
		"DebugGetLayer":   func() error { return cache.DebugGetLayer(1, 0, 0, 0, tokens(1, 0), nil) },
		"DebugSetState":   func() error { return cache.DebugSetState(1, 0, 0, tokens(1, 0)) },
		"SetPrefixQuota":  func() error { return cache.SetPrefixQuota(nil, 1) },
		"CommitTree":      func() error { return cache.CommitTree(nil, nil) },
		"CanAppend":       func() error { _, err := cache.CanAppend(nil, nil); return err },
		"CheckpointState": func() error { return cache.CheckpointState(1) },
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			err := call()
			is(t, err, kvcache.ErrClosed)
			is(t, err, kvcache.ErrInvalidState)
		})
	}
	if cache.AvailablePages() != -1 || cache.TotalLength() != -1 || cache.IsEmpty() {
		t.Error("a closed cache has pages")
	}
}

func TestPageTablesAreExported(t *testing.T) {
	cache := newCache(t, small())
	ok(t, cache.AddSeq(1))
	ok(t, cache.AddSeq(2))
	fwd, err := cache.Begin(&kvcache.Batch{Seqs: []int64{1, 2}, Lengths: []int64{5, 2}})
	ok(t, err)
	defer fwd.Abort()
	indptr, err := fwd.ExportPageTable(0, kvcache.TableIndptr)
	ok(t, err)
	if got := indptr.Int32s(); len(got) != 3 || got[1] != 2 || got[2] != 3 {
		t.Errorf("%v", got)
	}
	slots, err := fwd.ExportPageTable(0, kvcache.TableSlotMapping)
	ok(t, err)
	if len(slots.Int64s()) != 7 || slots.Int32s() != nil || slots.Shape()[0] != 7 {
		t.Errorf("%v %v", slots.Int64s(), slots.Shape())
	}
	positions := make([]int32, 7)
	ok(t, fwd.Positions(kvcache.Of(positions, 7)))
	if positions[4] != 4 || positions[5] != 0 {
		t.Errorf("%v", positions)
	}
	write(t, fwd, 7, 1)
	ok(t, fwd.End())
	pages, err := cache.SeqPages(1, 0)
	ok(t, err)
	ok(t, cache.Close())
	if len(indptr.Int32s()) != 3 || len(pages) != 2 {
		t.Error("an export lives longer than its cache")
	}
	ok(t, indptr.Close())
	ok(t, indptr.Close())
	ok(t, slots.Close())
	if indptr.Int32s() != nil {
		t.Error("an export that is closed shows memory")
	}
}
