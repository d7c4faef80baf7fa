package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"math/rand"

	kvcache "github.com/libkvcache/libkvcache/bindings/go"
	"github.com/libkvcache/libkvcache/bindings/go/prefixhash"
)

// Request is a prompt as a router needs it.
type Request struct {
	Arrival float64 // seconds
	Tokens  int64
	Blocks  []kvcache.Hash // keys of its full blocks
}

// line is a request of Mooncake's traces: one id per block, equal ids mean equal tokens up to and with the
// block.
type line struct {
	Timestamp   float64 `json:"timestamp"` // ms
	InputLength int64   `json:"input_length"`
	HashIDs     []int64 `json:"hash_ids"`
}

// blockTokens are tokens that stand for a block of the trace.
func blockTokens(id int64, block int) []int32 {
	tokens := make([]int32, block)
	x := uint64(id)*0x9E3779B97F4A7C15 + 1
	for i := range tokens {
		x ^= x >> 12
		x ^= x << 25
		x ^= x >> 27
		tokens[i] = int32(x * 0x2545F4914F6CDD1D >> 40)
	}
	return tokens
}

// ReadTrace reads JSON lines, plain or gzip. Keys are made as any client of the cache makes them: from
// tokens, by prefixhash.
func ReadTrace(in io.Reader, block int) ([]*Request, error) {
	buffered := bufio.NewReader(in)
	if head, _ := buffered.Peek(2); bytes.Equal(head, []byte{0x1f, 0x8b}) {
		unzipped, err := gzip.NewReader(buffered)
		if err != nil {
			return nil, err
		}
		buffered = bufio.NewReader(unzipped)
	}
	var out []*Request
	decoder := json.NewDecoder(buffered)
	for number := 1; ; number++ {
		var one line
		err := decoder.Decode(&one)
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("request %d: %w", number, err)
		}
		full := one.InputLength / int64(block)
		if one.InputLength < 1 || full > int64(len(one.HashIDs)) {
			return nil, fmt.Errorf("request %d: input_length %d, but %d hash_ids of %d tokens", number,
				one.InputLength, len(one.HashIDs), block)
		}
		chain, err := prefixhash.NewChain(block, nil)
		if err != nil {
			return nil, err
		}
		request := &Request{Arrival: one.Timestamp / 1000, Tokens: one.InputLength}
		for _, id := range one.HashIDs[:full] {
			request.Blocks = append(request.Blocks, chain.Add(blockTokens(id, block)...)...)
		}
		out = append(out, request)
	}
}

// Generate makes a trace of conversations: some system prompts, each with conversations of some turns that
// follow one another.
func Generate(random *rand.Rand, systems, conversations, turns, block int) ([]*Request, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	next := int64(systems * 8)
	all := make([]struct{ ids []int64 }, conversations)
	for i := range all {
		system := int64(random.Intn(systems)) * 8
		for b := int64(0); b < 8; b++ {
			all[i].ids = append(all[i].ids, system+b)
		}
	}
	for turn := 0; turn < turns; turn++ {
		for nth, i := range random.Perm(conversations) {
			for b := 0; b < 1+random.Intn(4); b++ {
				all[i].ids = append(all[i].ids, next)
				next++
			}
			one := line{Timestamp: float64(turn*conversations+nth) * 20,
				InputLength: int64(len(all[i].ids)*block + random.Intn(block)),
				HashIDs:     all[i].ids}
			if err := encoder.Encode(one); err != nil {
				return nil, err
			}
		}
	}
	return ReadTrace(&text, block)
}
