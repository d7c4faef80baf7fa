package main

import (
	"sort"

	kvcache "github.com/libkvcache/libkvcache/bindings/go"
)

// Setup is the same for both policies.
type Setup struct {
	Workers int
	Pages   int64   // of each worker
	Block   int     // tokens of a page and a block
	Rate    float64 // prompt tokens that a worker computes per second
	Events  int64   // that a worker keeps for the router
}

// Result is what a policy came to.
type Result struct {
	Policy   string
	Requests int
	Refused  int // larger than a worker's pool
	Prompt   int64
	Found    int64
	Wait     []float64 // seconds to the first token, sorted
	Early    int
	Resyncs  int
}

// HitRate is the share of prompt tokens that need not be computed.
func (r *Result) HitRate() float64 { return float64(r.Found) / float64(r.Prompt) }

// Quantile of the time to the first token.
func (r *Result) Quantile(q float64) float64 {
	if len(r.Wait) == 0 {
		return 0
	}
	return r.Wait[int(q*float64(len(r.Wait)-1))]
}

// A Policy picks a worker for a request.
type Policy func(number int, r *Request, now float64, workers []*Worker, index *Index) int

// RoundRobin takes turns.
func RoundRobin(number int, _ *Request, _ float64, workers []*Worker, _ *Index) int {
	return number % len(workers)
}

// PrefixAware takes the worker where the most leading tokens are, less those that wait there.
func PrefixAware(_ int, r *Request, now float64, workers []*Worker, index *Index) int {
	best, score := 0, 0.0
	for i, matched := range index.Match(r.Blocks) {
		if s := float64(int64(matched)*workers[i].block) - workers[i].Queue(now); i == 0 || s > score {
			best, score = i, s
		}
	}
	return best
}

// Run sends a trace through fresh workers.
func Run(lib *kvcache.Library, setup Setup, name string, policy Policy, trace []*Request) (*Result, error) {
	workers := make([]*Worker, setup.Workers)
	for i := range workers {
		worker, err := NewWorker(lib, setup.Pages, setup.Block, setup.Rate, setup.Events)
		if err != nil {
			return nil, err
		}
		defer worker.Close()
		workers[i] = worker
	}
	index, out := NewIndex(setup.Workers), &Result{Policy: name}
	for number, request := range trace {
		for i, worker := range workers { // in service they come as messages
			if err := index.Follow(i, worker.cache); err != nil {
				return nil, err
			}
		}
		worker := workers[policy(number, request, request.Arrival, workers, index)]
		found, first, err := worker.Serve(request, request.Arrival)
		if err != nil {
			return nil, err
		}
		if found < 0 {
			out.Refused++
			continue
		}
		out.Requests++
		out.Prompt += request.Tokens
		out.Found += found
		out.Wait = append(out.Wait, first-request.Arrival)
	}
	for _, worker := range workers {
		out.Early += worker.early
	}
	sort.Float64s(out.Wait)
	out.Resyncs = index.resyncs
	return out, nil
}
