// Router sends the requests of a trace to several workers, twice: in turns, and to the worker that holds the
// longest prefix of the prompt. The router knows what the workers hold from the events of their caches alone,
// and names blocks by package prefixhash, without the library.
//
//	go run ./examples/router -trace conversation_trace.jsonl.gz
//
// The workers are caches without memory (StorageNone) in this process, whose computing takes time by a rate.
// Without a trace, conversations are made up.
package main

import (
	"flag"
	"fmt"
	"io"
	"math/rand"
	"os"

	kvcache "github.com/libkvcache/libkvcache/bindings/go"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "router:", err)
		os.Exit(1)
	}
}

func run(arguments []string, out io.Writer) error {
	flags := flag.NewFlagSet("router", flag.ContinueOnError)
	path := flags.String("trace", "",
		"JSON lines with timestamp, input_length and hash_ids, plain or gzip; none: made up")
	setup := Setup{}
	flags.IntVar(&setup.Workers, "workers", 4, "number of workers, at most 64")
	flags.Int64Var(&setup.Pages, "pages", 2000, "pages of each worker's pool")
	flags.IntVar(&setup.Block, "block", 512, "tokens of a page, and of a block of the trace")
	flags.Float64Var(&setup.Rate, "rate", 15000, "prompt tokens that a worker computes per second")
	flags.Int64Var(&setup.Events, "events", 1<<16, "events that a worker keeps for the router")
	seed := flags.Int64("seed", 1, "of the trace that is made up")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	if setup.Workers < 1 || setup.Workers > maxWorkers {
		return fmt.Errorf("-workers %d is not in 1..%d", setup.Workers, maxWorkers)
	}
	trace, err := read(*path, *seed, setup.Block)
	if err != nil {
		return err
	}
	lib, err := kvcache.Load("")
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d requests, %d workers of %d pages of %d tokens, %.0f prompt tokens per second each\n\n",
		len(trace), setup.Workers, setup.Pages, setup.Block, setup.Rate)
	fmt.Fprintf(out, "%-14s %9s %16s %12s %12s %8s\n", "policy", "hit rate", "computed tokens", "TTFT p50, s",
		"TTFT p95, s", "refused")
	for _, one := range []struct {
		name   string
		policy Policy
	}{{"round robin", RoundRobin}, {"prefix aware", PrefixAware}} {
		result, err := Run(lib, setup, one.name, one.policy, trace)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%-14s %8.2f%% %16d %12.2f %12.2f %8d\n", result.Policy, 100*result.HitRate(),
			result.Prompt-result.Found, result.Quantile(0.5), result.Quantile(0.95), result.Refused)
	}
	return nil
}

func read(path string, seed int64, block int) ([]*Request, error) {
	if path == "" {
		return Generate(rand.New(rand.NewSource(seed)), 4, 200, 6, block)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return ReadTrace(file, block)
}
