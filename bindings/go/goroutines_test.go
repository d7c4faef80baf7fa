package kvcache_test

import (
	"errors"
	"math/rand"
	"sync"
	"testing"
	"time"

	kvcache "github.com/libkvcache/libkvcache/bindings/go"
	"github.com/libkvcache/libkvcache/bindings/go/internal/testlib"
)

// expected are answers that calls on one cache may get from each other.
func expected(err error) bool {
	for _, status := range []error{kvcache.ErrBusy, kvcache.ErrNotFound, kvcache.ErrAlreadyExists,
		kvcache.ErrNoPages, kvcache.ErrNeverFits, kvcache.ErrOutOfRange} {
		if errors.Is(err, status) {
			return true
		}
	}
	return err == nil
}

func TestAllMethodsMayRunAtOnce(t *testing.T) {
	random := testlib.Random(t)
	config := small()
	config.EventCapacity, config.NumPages, config.HostByteBudget = 64, 64, 1<<16
	cache := newCache(t, config)
	for seq := int64(0); seq < 8; seq++ {
		ok(t, cache.AddSeq(seq))
	}
	ids := []int32{1, 2, 3, 4, 5, 6, 7, 8, 9}
	calls := map[string]func(*rand.Rand) error{
		"forward": func(r *rand.Rand) error {
			fwd, err := cache.Begin(&kvcache.Batch{Seqs: []int64{r.Int63n(8)}, Lengths: []int64{4},
				Tokens: ids[:4]})
			if err != nil {
				return err
			}
			defer fwd.Abort()
			var group sync.WaitGroup
			failed := make([]error, 2)
			for layer := 0; layer < 2; layer++ {
				group.Add(1)
				go func(layer int) { // calls of one forward follow one another
					defer group.Done()
					failed[layer] = fwd.Attn(layer, tokens(4, 0), tokens(4, 1), tokens(4, 1), tokens(4, 0), nil)
				}(layer)
			}
			group.Wait()
			if failed[0] != nil || failed[1] != nil {
				return errors.New("attention failed")
			}
			return fwd.End()
		},
		"fork and remove": func(r *rand.Rand) error {
			child := 100 + r.Int63n(50)
			if err := cache.Fork(r.Int63n(8), child, -1); err != nil {
				return err
			}
			return cache.RemoveSeq(child)
		},
		"renew": func(r *rand.Rand) error {
			seq := r.Int63n(8)
			if err := cache.RemoveSeq(seq); err != nil {
				return err
			}
			_, err := cache.PrefixAttach(seq, &kvcache.PrefixQuery{Tokens: ids})
			return err
		},
		"look": func(r *rand.Rand) error {
			if _, err := cache.Stats(); err != nil {
				return err
			}
			if _, err := cache.SeqInfo(r.Int63n(8)); err != nil {
				return err
			}
			if _, err := cache.SeqPages(r.Int63n(8), 0); err != nil {
				return err
			}
			_, err := cache.Seqs()
			return err
		},
		"audit": func(*rand.Rand) error { return cache.Check() },
		"match": func(*rand.Rand) error {
			_,
				err := cache.PrefixMatch(&kvcache.PrefixQuery{Tokens: ids})
			return err
		},
		"poll":     func(*rand.Rand) error { _, err := cache.PollEvents(10); return err },
		"snapshot": func(*rand.Rand) error { _, _, err := cache.EventsSnapshot(); return err },
		"debug": func(r *rand.Rand) error {
			return cache.DebugGetLayer(r.Int63n(8), 0, 0, 1, tokens(1, 0), tokens(1, 0))
		},
		"plan":  func(*rand.Rand) error { _, err := cache.Plan().Info(); return err },
		"evict": func(*rand.Rand) error { _, err := cache.PrefixEvict(1); return err },
	}
	var group sync.WaitGroup
	for name, call := range calls {
		for worker := 0; worker < 2; worker++ {
			group.Add(1)
			go func(name string, call func(*rand.Rand) error, random *rand.Rand) {
				defer group.Done()
				for i := 0; i < 200; i++ {
					if err := call(random); !expected(err) {
						t.Errorf("%s: %v", name, err)
						return
					}
				}
			}(name, call, rand.New(rand.NewSource(random.Int63())))
		}
	}
	group.Wait()
	ok(t, cache.Check())
}

func TestClosingWhileOthersCallIsAnErrorForThem(t *testing.T) {
	cache := newCache(t, small())
	ok(t, cache.AddSeq(1))
	fwd := begin(t, cache, 1, 1)
	var group sync.WaitGroup
	for worker := 0; worker < 4; worker++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for {
				err := fwd.Attn(0, tokens(1, 0), tokens(1, 1), tokens(1, 1), tokens(1, 0), nil)
				if _, other := cache.Stats(); other != nil && !errors.Is(other, kvcache.ErrClosed) {
					t.Error(other)
				}
				if err != nil {
					if !errors.Is(err, kvcache.ErrClosed) {
						t.Error(err)
					}
					return
				}
			}
		}()
	}
	time.Sleep(5 * time.Millisecond)
	ok(t, cache.Close())
	group.Wait()
}
