// Package kvcache is libkvcache for Go: the KV cache of LLM serving. Layer specs in, bytes and pages planned;
// tokens in, pages shared; Q, K, V in, attention out.
//
//	lib, err := kvcache.Load("")                   // KVCACHE_LIB, else what the loader finds
//	cache, err := lib.NewCache(&kvcache.Config{Layers: layers, ByteBudget: 1 << 30})
//	err = cache.AddSeq(1)
//	fwd, err := cache.Begin(&kvcache.Batch{Seqs: []int64{1}, Lengths: []int64{5}})
//	defer fwd.Abort()                               // nothing, once End has succeeded
//	err = fwd.Attn(0, q, k, v, out, nil)
//	err = fwd.End()
//
// The manual is the C header, kvcache.h: every method here is named after a function there and keeps its
// rules. What follows is what Go adds.
//
// # Loading
//
// Load opens the shared library at run time, so a program builds without it. With the build tag kvcache_link
// it is linked instead, as pkg-config says, and Load takes no path.
//
// # Handles
//
// Plan, Cache, Forward, Fence and Export own memory of the library and are closed explicitly. A method of a
// closed handle answers ErrClosed; closing twice is no error. Nothing is freed by the garbage collector;
// ReportLeaks tells which handles were lost.
//
// # Memory
//
// Tensors made of slices (Of) lend their memory for the duration of one call. The library never keeps the
// address of Go memory: what it keeps between calls (the tensors of a borrowed pool) has to lie outside of
// Go's heap, see Alloc.
//
// # Goroutines
//
// All methods may be called from any goroutine. A Cache has a lock: methods that only look run beside each
// other and beside attention, those that change the cache run alone, and calls within one Forward follow one
// another. Different caches are independent.
//
// # Errors
//
// Every failure of the library is an *Error, and errors.Is tells its status: errors.Is(err,
// kvcache.ErrNoPages). Any status but ErrDevice leaves the cache exactly as it was.
package kvcache
