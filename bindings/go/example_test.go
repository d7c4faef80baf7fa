package kvcache_test

import (
	"errors"
	"fmt"
	"log"

	kvcache "github.com/libkvcache/libkvcache/bindings/go"
)

// check ends a program that cannot go on.
func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func Example() {
	lib, err := kvcache.Load("") // KVCACHE_LIB, else what the loader finds
	check(err)
	// K and V are stored as bfloat16: to compare with a float32 reference say KDType: kvcache.F32.
	layer := kvcache.Layer{NumQHeads: 8, NumKVHeads: 2, KDim: 64}
	cache, err := lib.NewCache(&kvcache.Config{Layers: []kvcache.Layer{layer}, ByteBudget: 1 << 20})
	check(err)
	defer cache.Close()

	q, out := make([]float32, 3*8*64), make([]float32, 3*8*64) // 3 new tokens
	k, v := make([]float32, 3*2*64), make([]float32, 3*2*64)
	check(cache.AddSeq(1))
	fwd, err := cache.Begin(&kvcache.Batch{Seqs: []int64{1}, Lengths: []int64{3}})
	check(err)
	defer fwd.Abort() // does nothing once End has succeeded
	check(fwd.Attn(0, kvcache.Of(q, 3, 8, 64), kvcache.Of(k, 3, 2, 64), kvcache.Of(v, 3, 2, 64),
		kvcache.Of(out, 3, 8, 64), nil)) // appends k and v, then attends: once per layer
	check(fwd.End())
	check(cache.Fork(1, 2, -1)) // shares the pages; nothing is copied until a branch writes

	fmt.Println(cache.AvailablePages(), "pages available,", cache.TotalLength(), "tokens in two sequences")
	// Output: 127 pages available, 6 tokens in two sequences
}

func ExampleCache_Fork() {
	lib, _ := kvcache.Load("")
	cache, _ := lib.NewCache(&kvcache.Config{Layers: []kvcache.Layer{{NumKVHeads: 2, KDim: 64}}, NumPages: 64,
		Storage: kvcache.StorageNone})
	defer cache.Close()
	cache.AddSeq(1)
	fwd, _ := cache.Begin(&kvcache.Batch{Seqs: []int64{1}, Lengths: []int64{160}})
	fwd.End()
	cache.Fork(1, 2, -1)
	stats, _ := cache.Stats()
	fmt.Println(stats.NumSeqs, "sequences of", stats.TotalLength, "tokens in", stats.PagesUsed, "pages,",
		stats.PagesShared, "of them shared")
	// Output: 2 sequences of 320 tokens in 10 pages, 10 of them shared
}

func ExampleCache_PrefixAttach() {
	lib, _ := kvcache.Load("")
	cache, _ := lib.NewCache(&kvcache.Config{Layers: []kvcache.Layer{{NumKVHeads: 2, KDim: 64}}, NumPages: 64,
		Storage: kvcache.StorageNone})
	defer cache.Close()
	for seq := int64(1); seq <= 2; seq++ {
		prompt := make([]int32, 100)
		prompt[99] = int32(seq) // all but the last token are the same
		hit, _ := cache.PrefixAttach(seq, &kvcache.PrefixQuery{Tokens: prompt, Salt: []byte("tenant")})
		fwd, err := cache.Begin(&kvcache.Batch{Seqs: []int64{seq}, Lengths: []int64{100 - hit},
			Tokens: prompt[hit:]})
		if errors.Is(err, kvcache.ErrNoPages) {
			continue // full now: try again when a sequence has left
		}
		fwd.End()
		fmt.Println("sequence", seq, "found", hit, "tokens")
	}
	// Output:
	// sequence 1 found 0 tokens
	// sequence 2 found 96 tokens
}
