package kvcache_test

import (
	"errors"
	"os"
	"testing"

	kvcache "github.com/libkvcache/libkvcache/bindings/go"
	"github.com/libkvcache/libkvcache/bindings/go/internal/testlib"
)

func TestMain(m *testing.M) {
	os.Exit(testlib.Main(m))
}

func load(t testing.TB) *kvcache.Library {
	t.Helper()
	return testlib.Load(t)
}

// small is a cache of two layers with one head of 4, pages of 4 tokens.
func small() *kvcache.Config {
	layer := kvcache.Layer{NumKVHeads: 1, KDim: 4, KDType: kvcache.F32}
	return &kvcache.Config{Layers: []kvcache.Layer{layer, layer}, PageSize: 4, NumPages: 16, NumThreads: 1}
}

func newCache(t testing.TB, config *kvcache.Config) *kvcache.Cache {
	t.Helper()
	cache, err := load(t).NewCache(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cache.Close() })
	return cache
}

// tokens is a tensor [n, 1, 4] of one number.
func tokens(n int, x float32) *kvcache.Tensor {
	data := make([]float32, 4*n)
	for i := range data {
		data[i] = x
	}
	return kvcache.Of(data, n, 1, 4)
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// is compares an error with a status, and looks that it says why.
func is(t testing.TB, err, status error) {
	t.Helper()
	var failed *kvcache.Error
	if !errors.Is(err, status) || !errors.As(err, &failed) || failed.Msg == "" {
		t.Fatalf("%v instead of %v", err, status)
	}
}

// says compares an error with a status and its message.
func says(t testing.TB, err, status error, message string) {
	t.Helper()
	is(t, err, status)
	var failed *kvcache.Error
	if errors.As(err, &failed); failed.Msg != message {
		t.Fatalf("says %q instead of %q", failed.Msg, message)
	}
}

// begin opens a forward of one sequence.
func begin(t testing.TB, cache *kvcache.Cache, seq, length int64) *kvcache.Forward {
	t.Helper()
	fwd, err := cache.Begin(&kvcache.Batch{Seqs: []int64{seq}, Lengths: []int64{length}})
	ok(t, err)
	return fwd
}

// write appends tokens of one number to both layers of small.
func write(t testing.TB, fwd *kvcache.Forward, length int, x float32) {
	t.Helper()
	for layer := 0; layer < 2; layer++ {
		ok(t, fwd.KVAppend(layer, tokens(length, x), tokens(length, x)))
	}
}

// grow appends tokens of one number to a sequence, all layers.
func grow(t testing.TB, cache *kvcache.Cache, seq int64, length int, x float32) {
	t.Helper()
	fwd := begin(t, cache, seq, int64(length))
	for layer := 0; layer < 2; layer++ {
		ok(t, fwd.Attn(layer, tokens(length, 0), tokens(length, x), tokens(length, x), tokens(length, 0), nil))
	}
	ok(t, fwd.End())
}
