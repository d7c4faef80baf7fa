package kvcache

/*
#include "shim_forward.h"
*/
import "C"

import "sync"

// Batch says which sequences grow in a forward, by how many tokens.
type Batch struct {
	Seqs    []int64 // distinct
	Lengths []int64 // new tokens of each, >= 1
	// TreeParents has, for each new token, its parent's index inside the sequence's whole uncommitted tree:
	// -1 for a root, TreeNone for a token that is part of no tree. nil: no trees.
	TreeParents []int32
	// Tokens are the ids of the new tokens: full blocks are published to the prefix index when the forward
	// ends. nil: none.
	Tokens []int32
	// Positions given by the caller, int32 [T] or [sections, T]; nil: those of the tokens.
	Positions *Tensor
	// CrossLengths are the encoder tokens that this forward writes for each sequence. Those of a sequence without
	// tokens replace the ones of before, which an abort does not bring back. nil: none.
	CrossLengths []int64
	// Stream is the address of the CUDA stream of all work until the end; 0: the legacy default stream. The CPU
	// looks at none.
	Stream uintptr
	// Replay: the step is computed by launching the CUDA graph that a step of the same shape was captured in.
	// Nothing is enqueued, and calls on layers are refused.
	Replay bool
	// Partial: the forward may end without K and V in every layer, and publishes nothing. Without it End
	// refuses that where the library alone writes the pool.
	Partial bool
	// WholeSpans: spans that end behind the tokens of their sequence are refused, not cut there.
	WholeSpans bool
}

const (
	// TreeNone in Batch.TreeParents: not part of a tree.
	TreeNone int32 = C.KVC_TREE_NONE
	// MaxTreeNodes is the limit of one sequence's uncommitted tree.
	MaxTreeNodes = C.KVC_MAX_TREE_NODES
)

// check compares the lengths of the slices; what they hold is for the library to judge.
func (b *Batch) check() error {
	if len(b.Lengths) != len(b.Seqs) {
		return invalid("Lengths: %d entries for %d sequences", len(b.Lengths), len(b.Seqs))
	}
	if b.CrossLengths != nil && len(b.CrossLengths) != len(b.Seqs) {
		return invalid("CrossLengths: %d entries for %d sequences", len(b.CrossLengths), len(b.Seqs))
	}
	total := int64(0)
	for i, length := range b.Lengths {
		if length < 1 || total+length < total {
			return invalid("Lengths[%d]: %d tokens, at least 1 and no overflow of their sum", i, length)
		}
		total += length
	}
	if b.TreeParents != nil && int64(len(b.TreeParents)) != total {
		return invalid("TreeParents: %d entries for %d tokens", len(b.TreeParents), total)
	}
	if b.Tokens != nil && int64(len(b.Tokens)) != total {
		return invalid("Tokens: %d ids for %d tokens", len(b.Tokens), total)
	}
	return firstBad(named{"Positions", b.Positions})
}

// Forward is one open step over a batch. Its calls follow one another; it ends with End, or with Abort, which
// may be deferred right after Begin.
type Forward struct {
	cache *Cache
	mu    sync.Mutex  // one call at a time
	h     C.uintptr_t // 0: over; changed under cache.mu
	rows  int64
	leak  *leakWatch
}

// Begin opens a step: checks everything, reserves pages, makes private what the new tokens share. One forward
// is open at a time.
func (c *Cache) Begin(batch *Batch) (*Forward, error) {
	if batch == nil {
		return nil, invalid("batch: nil")
	}
	if err := batch.check(); err != nil {
		return nil, err
	}
	if err := c.enter(); err != nil {
		return nil, err
	}
	defer c.mu.Unlock()
	f := &Forward{cache: c}
	flags := C.uint64_t(0)
	if batch.Replay {
		flags = C.KVC_FORWARD_REPLAY
	}
	if batch.Partial {
		flags |= C.KVC_FORWARD_PARTIAL
	}
	if batch.WholeSpans {
		flags |= C.KVC_FORWARD_WHOLE_SPANS
	}
	failed := C.shim_forward_begin(c.lib.api, c.h, C.size_t(len(batch.Seqs)), i64s(batch.Seqs), i64s(batch.Lengths),
		i32s(batch.TreeParents), i32s(batch.Tokens), batch.Positions.d(), batch.Positions.p(),
		i64s(batch.CrossLengths), C.uintptr_t(batch.Stream), flags, &f.h)
	if failed != nil {
		return nil, takeError(failed)
	}
	f.rows = int64(C.shim_forward_num_tokens(c.lib.api, f.h))
	f.leak = watch(f, "Forward")
	return f, nil
}

// NumTokens counts the new tokens of the whole batch (T); -1 when the forward is over.
func (f *Forward) NumTokens() int64 {
	if f.enter() != nil {
		return -1
	}
	defer f.leave()
	return f.rows
}

// End makes the new tokens part of their sequences. The forward is over when it succeeds.
func (f *Forward) End() error {
	return f.finish(func() *C.kvc_error { return C.shim_forward_end(f.cache.lib.api, f.h) }, true)
}

// Abort undoes the begin: lengths, pages, tables, trees, windows and states as before. When the forward is
// over already it does nothing, so that it can be deferred.
func (f *Forward) Abort() error {
	if f == nil {
		return nil
	}
	return f.finish(func() *C.kvc_error { return C.shim_forward_abort(f.cache.lib.api, f.h) }, false)
}

func (f *Forward) finish(call func() *C.kvc_error, mustBeOpen bool) error {
	f.cache.mu.Lock()
	defer f.cache.mu.Unlock()
	if f.h == 0 || f.cache.h == 0 {
		f.leak.done()
		if mustBeOpen {
			return f.over()
		}
		return nil
	}
	if failed := call(); failed != nil {
		return takeError(failed)
	}
	f.h = 0
	f.leak.done()
	return nil
}

func (f *Forward) over() error {
	if f.cache.h == 0 {
		return closedError("the cache")
	}
	return closedError("the forward")
}

// enter starts a call inside the forward: beside methods that look at the cache, after other calls of this
// forward.
func (f *Forward) enter() error {
	f.cache.mu.RLock()
	if f.h == 0 || f.cache.h == 0 {
		err := f.over()
		f.cache.mu.RUnlock()
		return err
	}
	f.mu.Lock()
	return nil
}

func (f *Forward) leave() {
	f.mu.Unlock()
	f.cache.mu.RUnlock()
}

// Positions writes the position of each new token, as RoPE takes it, into out: int32 [>= T], or [S, >= T].
func (f *Forward) Positions(out *Tensor) error {
	if out.bad() {
		return firstBad(named{"out", out})
	}
	if err := f.enter(); err != nil {
		return err
	}
	defer f.leave()
	return failure(C.shim_forward_positions(f.cache.lib.api, f.h, out.d(), out.p()))
}
