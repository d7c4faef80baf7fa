package main

import (
	"errors"

	kvcache "github.com/libkvcache/libkvcache/bindings/go"
)

// Worker is a serving process as a router sees it: its cache keeps accounts without memory, and computing
// takes time but is not done.
type Worker struct {
	cache    *kvcache.Cache
	block    int64
	rate     float64 // tokens of prompts per second
	free     float64 // second when all that waits is computed
	running  []running
	next     int64
	computed int64
	early    int // requests that had to give up their pages before their time
}

type running struct {
	seq int64
	end float64
}

// NewWorker makes a worker with a pool of so many pages, whose prefix blocks are pages of `block` tokens.
func NewWorker(lib *kvcache.Library, pages int64, block int, rate float64, events int64) (*Worker, error) {
	cache, err := lib.NewCache(&kvcache.Config{
		Layers:        []kvcache.Layer{{NumKVHeads: 8, KDim: 128}},
		PageSize:      block,
		NumPages:      pages,
		Storage:       kvcache.StorageNone,
		EventCapacity: events,
	})
	if err != nil {
		return nil, err
	}
	return &Worker{cache: cache, block: int64(block), rate: rate}, nil
}

// Close frees the worker's cache.
func (w *Worker) Close() error { return w.cache.Close() }

// Queue is the tokens that a request arriving now has to wait for.
func (w *Worker) Queue(now float64) float64 {
	if w.free <= now {
		return 0
	}
	return (w.free - now) * w.rate
}

// Serve takes a request and tells how many tokens of it were found and when its first token is there. found
// is -1 for a request that never fits.
func (w *Worker) Serve(r *Request, now float64) (found int64, first float64, err error) {
	w.leave(now)
	query := &kvcache.PrefixQuery{Hashes: r.Blocks, NumTokens: r.Tokens, Flags: kvcache.WholeBlocks}
	seq := w.next
	w.next++
	found, err = w.cache.PrefixAttach(seq, query)
	if err != nil {
		return 0, 0, err
	}
	if err := w.append(seq, r.Tokens-found); err != nil {
		if removed := w.cache.RemoveSeq(seq); removed != nil {
			return 0, 0, removed
		}
		if errors.Is(err, kvcache.ErrNeverFits) {
			return -1, now, nil
		}
		return 0, 0, err
	}
	if _, err := w.cache.PrefixInsert(seq, query); err != nil {
		return 0, 0, err
	}
	if w.free < now {
		w.free = now
	}
	w.free += float64(r.Tokens-found) / w.rate
	w.computed += r.Tokens - found
	w.running = append(w.running, running{seq, w.free})
	return found, w.free, nil
}

// append takes the pages of new tokens; what runs longest leaves early when there are none.
func (w *Worker) append(seq, tokens int64) error {
	for {
		fwd, err := w.cache.Begin(&kvcache.Batch{Seqs: []int64{seq}, Lengths: []int64{tokens}})
		if err == nil {
			return fwd.End()
		}
		if !errors.Is(err, kvcache.ErrNoPages) || len(w.running) == 0 {
			return err
		}
		w.early++
		if err := w.removeFirst(); err != nil {
			return err
		}
	}
}

func (w *Worker) removeFirst() error {
	seq := w.running[0].seq
	w.running = w.running[1:]
	return w.cache.RemoveSeq(seq)
}

// leave removes the requests that have ended.
func (w *Worker) leave(now float64) {
	for len(w.running) > 0 && w.running[0].end <= now {
		if w.removeFirst() != nil {
			return
		}
	}
}
