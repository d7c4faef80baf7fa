package kvcache_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

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

func ExampleCache_Receive() {
	ctx := context.Background()
	lib, err := kvcache.Load("")
	check(err)
	config := &kvcache.Config{Layers: []kvcache.Layer{{NumKVHeads: 2, KDim: 64}}, NumPages: 64}
	prefill, err := lib.NewCache(config)
	check(err)
	defer prefill.Close()
	decode, err := lib.NewCache(config)
	check(err)
	defer decode.Close()
	check(prefill.AddSeq(7))
	fwd, err := prefill.Begin(&kvcache.Batch{Seqs: []int64{7}, Lengths: []int64{20}})
	check(err)
	rows := kvcache.Of(make([]float32, 20*2*64), 20, 2, 64)
	check(fwd.KVAppend(0, rows, rows))
	check(fwd.End())

	transport, err := lib.NewTransport(kvcache.TransportOptions{}) // between caches of one process
	check(err)
	defer transport.Close(time.Second)
	arriving, err := decode.Receive(transport, kvcache.ReceiveOptions{Seq: 7, NumTokens: 20})
	check(err)
	defer arriving.Close()
	ticket, err := arriving.Ticket() // the program brings it to the sender
	check(err)
	leaving, err := prefill.Send(transport, 7, ticket, kvcache.SendOptions{})
	check(err)
	defer leaving.Close()
	check(leaving.Wait(ctx))
	check(arriving.Wait(ctx)) // sequence 7 goes on in both

	fmt.Println(decode.TotalLength(), "tokens arrived in", 64-decode.AvailablePages(), "pages")
	// Output: 20 tokens arrived in 2 pages
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
