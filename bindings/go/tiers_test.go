package kvcache_test

import (
	"context"
	"errors"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	kvcache "github.com/libkvcache/libkvcache/bindings/go"
	"github.com/libkvcache/libkvcache/bindings/go/prefixhash"
)

func TestSequencesGoToTheHostAndComeBack(t *testing.T) {
	config := small()
	config.HostByteBudget = 1 << 16
	cache := newCache(t, config)
	ok(t, cache.AddSeq(1))
	grow(t, cache, 1, 6, 7)
	fence, err := cache.SwapOut(1)
	ok(t, err)
	ok(t, fence.Wait(context.Background()))
	done, err := fence.Done()
	ok(t, err)
	ok(t, fence.WaitOnStream(0))
	ok(t, fence.Close())
	ok(t, fence.Close())
	is(t, fence.Wait(context.Background()), kvcache.ErrClosed)
	_, err = fence.Done()
	is(t, err, kvcache.ErrClosed)
	is(t, fence.WaitOnStream(0), kvcache.ErrClosed)
	info, err := cache.SeqInfo(1)
	ok(t, err)
	if !done || !info.IsSwapped || cache.AvailablePages() != 16 {
		t.Errorf("done %v, %+v, %d free pages", done, info, cache.AvailablePages())
	}
	_, err = cache.SwapOut(1)
	is(t, err, kvcache.ErrInvalidState)
	fence, err = cache.SwapIn(1)
	ok(t, err)
	defer fence.Close()
	v := make([]float32, 4*6)
	ok(t, cache.DebugGetLayer(1, 1, 0, 6, nil, kvcache.Of(v, 6, 1, 4)))
	if v[0] != 7 || v[23] != 7 {
		t.Errorf("%v", v)
	}
}

func TestPagesAreCopiedById(t *testing.T) {
	config := small()
	config.HostByteBudget = 1 << 16
	cache := newCache(t, config)
	ok(t, cache.AddSeq(1))
	grow(t, cache, 1, 4, 7)
	ok(t, cache.AddSeq(2))
	grow(t, cache, 2, 4, 1)
	from, err := cache.SeqPages(1, 0)
	ok(t, err)
	to, err := cache.SeqPages(2, 0)
	ok(t, err)
	for _, call := range []func() (*kvcache.Fence, error){
		func() (*kvcache.Fence, error) { return cache.CopyPages([][2]int64{{int64(from[0]), int64(to[0])}}) },
		func() (*kvcache.Fence, error) { return cache.SwapPages([][2]int64{{int64(to[0]), 3}}, kvcache.SwapOut) },
		func() (*kvcache.Fence, error) { return cache.SwapPages([][2]int64{{3, 15}}, kvcache.SwapIn) },
	} {
		fence, err := call()
		ok(t, err)
		ok(t, fence.Close())
	}
	v := make([]float32, 16)
	ok(t, cache.DebugGetLayer(2, 0, 0, 4, nil, kvcache.Of(v, 4, 1, 4)))
	if v[15] != 7 {
		t.Errorf("%v", v)
	}
	_, err = cache.SwapPages(nil, 9)
	is(t, err, kvcache.ErrUnsupported)
}

func TestWaitingForPagesEndsWithTheContext(t *testing.T) {
	cache := newCache(t, small())
	ok(t, cache.AddSeq(1))
	grow(t, cache, 1, 60, 0)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if err := cache.WaitForPages(ctx, 5); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	go func() {
		time.Sleep(5 * time.Millisecond)
		cache.RemoveSeq(1)
	}()
	ok(t, cache.WaitForPages(context.Background(), 16))
	ok(t, cache.Close())
	is(t, cache.WaitForPages(context.Background(), 1), kvcache.ErrClosed)
}

func TestPromptsShareTheirPrefix(t *testing.T) {
	cache := newCache(t, small())
	prompt := []int32{1, 2, 3, 4, 5, 6, 7, 8, 9}
	query := &kvcache.PrefixQuery{Tokens: prompt, Salt: []byte("tenant")}
	hit, err := cache.PrefixAttach(1, query)
	ok(t, err)
	fwd, err := cache.Begin(&kvcache.Batch{Seqs: []int64{1}, Lengths: []int64{9}, Tokens: prompt})
	ok(t, err)
	write(t, fwd, 9, 1)
	ok(t, fwd.End())
	matched, err := cache.PrefixMatch(query)
	ok(t, err)
	other, err := cache.PrefixMatch(&kvcache.PrefixQuery{Tokens: prompt, Salt: []byte("another")})
	ok(t, err)
	if hit != 0 || matched != 8 || other != 0 {
		t.Errorf("hit %d, then %d, of another tenant %d", hit, matched, other)
	}
	keys, err := prefixhash.Hashes(prompt, 4, []byte("tenant"))
	ok(t, err)
	byHash, err := cache.PrefixMatch(&kvcache.PrefixQuery{Hashes: keys, NumTokens: 9, Salt: []byte("tenant")})
	ok(t, err)
	pinned, err := cache.PrefixPin(query)
	ok(t, err)
	ok(t, cache.RemoveSeq(1))
	freed, err := cache.PrefixEvict(10)
	ok(t, err)
	unpinned, err := cache.PrefixUnpin(query)
	ok(t, err)
	if byHash != 8 || pinned != 8 || freed != 0 || unpinned != 8 {
		t.Errorf("by hashes %d, pinned %d, freed %d, unpinned %d", byHash, pinned, freed, unpinned)
	}
	freed, err = cache.PrefixEvict(10)
	ok(t, err)
	if freed != 2 {
		t.Errorf("freed %d", freed)
	}
	ok(t, cache.SetPrefixQuota([]byte("tenant"), 1<<20))
	ok(t, cache.PrefixReset())
	empty, err := cache.PrefixMatch(&kvcache.PrefixQuery{Tokens: []int32{}})
	ok(t, err)
	if empty != 0 {
		t.Errorf("%d tokens of none", empty)
	}
}

func TestEventsAreTheKeysOfBlocks(t *testing.T) {
	config := small()
	config.EventCapacity = 4000
	cache := newCache(t, config)
	prompt := make([]int32, 4*12)
	for i := range prompt {
		prompt[i] = int32(3 * i)
	}
	_, err := cache.PrefixAttach(1, &kvcache.PrefixQuery{Tokens: prompt})
	ok(t, err)
	fwd, err := cache.Begin(&kvcache.Batch{Seqs: []int64{1}, Lengths: []int64{48}, Tokens: prompt})
	ok(t, err)
	write(t, fwd, 48, 1)
	ok(t, fwd.End())
	snapshot, number, err := cache.EventsSnapshot()
	ok(t, err)
	events, err := cache.PollEvents(10)
	ok(t, err)
	more, err := cache.PollEvents(5000)
	ok(t, err)
	events = append(events, more...)
	keys, err := prefixhash.Hashes(prompt, 4, nil)
	ok(t, err)
	if len(events) != 12 || len(snapshot) != 12 || number != 12 {
		t.Fatalf("%d events, %d in the snapshot, the last is %d", len(events), len(snapshot), number)
	}
	for i, event := range events {
		parent := prefixhash.Root(nil)
		if i > 0 {
			parent = keys[i-1]
		}
		if event.Type != kvcache.EventStored || event.Hash != keys[i] || event.Parent != parent ||
			event.Number != uint64(i+1) || event.NumTokens != 4 || len(event.Tokens) != 4 ||
			event.Tokens[1] != int32(3*(4*i+1)) || snapshot[i].Hash != keys[i] {
			t.Errorf("event %d: %+v", i, event)
		}
	}
	ok(t, cache.Clear())
	events, err = cache.PollEvents(1)
	ok(t, err)
	if len(events) != 1 || events[0].Type != kvcache.EventCleared {
		t.Errorf("%+v", events)
	}
	snapshot, _, err = cache.EventsSnapshot()
	ok(t, err)
	if len(snapshot) != 0 {
		t.Errorf("%+v", snapshot)
	}
}

func TestBookkeepingNeedsNoMemory(t *testing.T) {
	config := small()
	config.Storage, config.NumPages = kvcache.StorageNone, 1<<20
	cache := newCache(t, config)
	ok(t, cache.AddSeq(1))
	fwd := begin(t, cache, 1, 100000)
	is(t, fwd.Attn(0, tokens(1, 0), tokens(1, 0), tokens(1, 0), tokens(1, 0), nil), kvcache.ErrUnsupported)
	ok(t, fwd.End())
	pages, err := cache.SeqPages(1, 0)
	ok(t, err)
	if len(pages) != 25000 {
		t.Errorf("%d pages", len(pages))
	}
	ok(t, cache.Resize(1<<21))
	stats, err := cache.Stats()
	ok(t, err)
	if stats.PagesTotal != 1<<21 || stats.TotalLength != 100000 {
		t.Errorf("%d pages, %d tokens", stats.PagesTotal, stats.TotalLength)
	}
}

// share lets one cache publish a prompt and another one find it.
func share(t *testing.T, tier kvcache.Tier, attach func(*kvcache.Cache) error) {
	t.Helper()
	prompt := []int32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
	query := &kvcache.PrefixQuery{Tokens: prompt, Flags: kvcache.AllTokens}
	first := newCache(t, small())
	ok(t, attach(first))
	is(t, attach(first), kvcache.ErrAlreadyExists)
	ok(t, first.AddSeq(1))
	fwd, err := first.Begin(&kvcache.Batch{Seqs: []int64{1}, Lengths: []int64{12}, Tokens: prompt})
	ok(t, err)
	for layer := 0; layer < 2; layer++ {
		ok(t, fwd.Attn(layer, tokens(12, 0), tokens(12, 3), tokens(12, 7), tokens(12, 0), nil))
	}
	ok(t, fwd.End())
	ok(t, first.FlushTiers(-1))
	stats, err := first.TierStats(tier)
	ok(t, err)
	if stats.BlocksPut != 3 || stats.BytesPut == 0 {
		t.Errorf("%+v", stats)
	}
	ok(t, first.Close())

	second := newCache(t, small())
	ok(t, attach(second))
	hit, err := second.PrefixAttach(5, query)
	ok(t, err)
	stats, err = second.TierStats(tier)
	ok(t, err)
	if hit != 12 || stats.BlocksGot != 3 {
		t.Errorf("%d tokens, %+v", hit, stats)
	}
	v := make([]float32, 4*12)
	ok(t, second.DebugGetLayer(5, 1, 0, 12, nil, kvcache.Of(v, 12, 1, 4)))
	if v[0] != 7 || v[47] != 7 {
		t.Errorf("%v", v)
	}
	ok(t, second.DetachTier(tier))
	_, err = second.TierStats(tier)
	is(t, err, kvcache.ErrNotFound)
}

func TestCachesSharePrefixesThroughFiles(t *testing.T) {
	if !load(t).HasFeature("tier.file") {
		t.Skip("the library was built without libkvcache_tier_rocksdb.so")
	}
	folder := t.TempDir()
	share(t, kvcache.TierFile, func(cache *kvcache.Cache) error {
		return cache.AttachFileTier(folder, 64<<20, kvcache.TierOptions{ModelID: "m", GetTimeout: 20 * time.Second})
	})
}

// serve starts a redis-server that ends with the test. One whose port is taken ends, and the next one tries
// another; its log says when it serves.
func serve(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip("there is no redis-server here")
	}
	folder := t.TempDir()
	random := rand.New(rand.NewSource(time.Now().UnixNano() ^ int64(os.Getpid())))
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); {
		port := strconv.Itoa(10001 + random.Intn(22000))
		server := exec.Command("redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", folder,
			"--logfile", "log")
		ok(t, server.Start())
		ended := make(chan struct{})
		go func() {
			_ = server.Wait()
			close(ended)
		}()
		for waits := true; waits && time.Now().Before(deadline); {
			log, _ := os.ReadFile(filepath.Join(folder, "log"))
			if strings.Contains(string(log), "Ready to accept") {
				t.Cleanup(func() {
					_ = server.Process.Kill()
					<-ended
				})
				return "127.0.0.1:" + port
			}
			select {
			case <-ended:
				waits = false
			case <-time.After(10 * time.Millisecond):
			}
		}
		_ = server.Process.Kill()
		<-ended
	}
	t.Fatal("redis-server does not start")
	return ""
}

func TestCachesSharePrefixesThroughAServer(t *testing.T) {
	if !load(t).HasFeature("tier.redis") {
		t.Skip("the library was built without libkvcache_tier_redis.so")
	}
	address := serve(t)
	options := kvcache.RedisTierOptions{
		TierOptions:    kvcache.TierOptions{ModelID: "m", GetTimeout: 20 * time.Second},
		PutTimeout:     20 * time.Second,
		ConnectTimeout: 20 * time.Second,
		TTL:            10 * time.Minute,
	}
	share(t, kvcache.TierRedis, func(cache *kvcache.Cache) error { return cache.AttachRedisTier(address, options) })
}

func TestSettingsOfTiersAreChecked(t *testing.T) {
	cache := newCache(t, small())
	is(t, cache.AttachFileTier("/nowhere", 0, kvcache.TierOptions{}), kvcache.ErrInvalidArgument)
	is(t, cache.AttachFileTier("", 1<<30, kvcache.TierOptions{}), kvcache.ErrInvalidArgument)
	is(t, cache.AttachFileTier("/nowhere", 1<<30, kvcache.TierOptions{Shard: -1}), kvcache.ErrOutOfRange)
	is(t, cache.AttachRedisTier("", kvcache.RedisTierOptions{}), kvcache.ErrInvalidArgument)
	is(t, cache.DetachTier(kvcache.TierHost), kvcache.ErrInvalidArgument)
	ok(t, cache.FlushTiers(5*time.Millisecond))
	ok(t, cache.Close())
	is(t, cache.AttachFileTier("/nowhere", 1<<30, kvcache.TierOptions{}), kvcache.ErrClosed)
	is(t, cache.DetachTier(kvcache.TierFile), kvcache.ErrClosed)
	is(t, cache.FlushTiers(0), kvcache.ErrClosed)
	_, err := cache.TierStats(kvcache.TierFile)
	is(t, err, kvcache.ErrClosed)
}
