package main

import (
	kvcache "github.com/libkvcache/libkvcache/bindings/go"
)

// maxWorkers is what a holder set has room for.
const maxWorkers = 64

// Index is what a router knows of its workers: which blocks each of them holds. It follows their events and
// asks no worker anything else.
type Index struct {
	holders map[kvcache.Hash]uint64 // bit w: worker w holds the block
	last    []uint64                // number of the last event applied, by worker
	resyncs int                     // snapshots taken because events were lost
}

// NewIndex knows of workers that hold nothing.
func NewIndex(workers int) *Index {
	return &Index{holders: make(map[kvcache.Hash]uint64), last: make([]uint64, workers)}
}

// Follow applies what has happened in a worker since the last call. Where events were lost, it starts again
// from a snapshot.
func (x *Index) Follow(worker int, cache *kvcache.Cache) error {
	for {
		events, err := cache.PollEvents(256)
		if err != nil || len(events) == 0 {
			return err
		}
		for _, event := range events {
			if event.Number <= x.last[worker] { // part of a snapshot
				continue
			}
			if event.Number != x.last[worker]+1 {
				if err := x.resync(worker, cache); err != nil {
					return err
				}
				break
			}
			x.apply(worker, &event)
		}
	}
}

func (x *Index) resync(worker int, cache *kvcache.Cache) error {
	events, number, err := cache.EventsSnapshot()
	if err != nil {
		return err
	}
	x.resyncs++
	x.forget(worker)
	for i := range events {
		x.apply(worker, &events[i])
	}
	x.last[worker] = number
	return nil
}

func (x *Index) apply(worker int, event *kvcache.Event) {
	bit := uint64(1) << uint(worker)
	switch event.Type {
	case kvcache.EventStored, kvcache.EventMoved:
		x.holders[event.Hash] |= bit
	case kvcache.EventRemoved:
		x.drop(event.Hash, bit)
	case kvcache.EventCleared:
		x.forget(worker)
	}
	x.last[worker] = event.Number
}

func (x *Index) drop(hash kvcache.Hash, bit uint64) {
	if left := x.holders[hash] &^ bit; left != 0 {
		x.holders[hash] = left
	} else {
		delete(x.holders, hash)
	}
}

func (x *Index) forget(worker int) {
	bit := uint64(1) << uint(worker)
	for hash, holders := range x.holders {
		if holders&bit != 0 {
			x.drop(hash, bit)
		}
	}
}

// Match counts, for each worker, the leading blocks that it holds.
func (x *Index) Match(blocks []kvcache.Hash) []int {
	matched := make([]int, len(x.last))
	left := uint64(1)<<uint(len(x.last)) - 1
	if len(x.last) == maxWorkers {
		left = ^uint64(0)
	}
	for i, hash := range blocks {
		left &= x.holders[hash]
		if left == 0 {
			break
		}
		for worker := range matched {
			if left>>uint(worker)&1 == 1 {
				matched[worker] = i + 1
			}
		}
	}
	return matched
}
