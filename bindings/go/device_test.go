package kvcache_test

import (
	"context"
	"math"
	"os"
	"testing"

	kvcache "github.com/libkvcache/libkvcache/bindings/go"
	"github.com/libkvcache/libkvcache/bindings/go/internal/cudatest"
)

var gpu = kvcache.Device{Type: kvcache.CUDA}

func fill(n int, x float32) []float32 {
	values := make([]float32, n)
	for i := range values {
		values[i] = x
	}
	return values
}

// inputs of one sequence: q = 0, so that each output is the mean of the values that its token sees.
type inputs struct {
	q, k, v, out cudatest.Floats
	tokens       int
}

func newInputs(t *testing.T, values ...float32) *inputs {
	n := len(values)
	var v []float32
	for _, x := range values {
		v = append(v, fill(4, x)...)
	}
	return &inputs{
		q: cudatest.Put(t, fill(4*n, 0)), k: cudatest.Put(t, fill(4*n, 0)), v: cudatest.Put(t, v),
		out: cudatest.Put(t, fill(4*n, float32(math.NaN()))), tokens: n,
	}
}

func (in *inputs) attend(fwd *kvcache.Forward) error {
	tensor := func(f cudatest.Floats) *kvcache.Tensor {
		return kvcache.FromPointer(f.P, kvcache.F32, in.tokens, 1, 4).On(gpu)
	}
	for layer := 0; layer < 2; layer++ {
		if err := fwd.Attn(layer, tensor(in.q), tensor(in.k), tensor(in.v), tensor(in.out), nil); err != nil {
			return err
		}
	}
	return nil
}

func (in *inputs) equals(t *testing.T, means ...float32) {
	t.Helper()
	out := in.out.Get(t)
	for i, mean := range means {
		if out[4*i] != mean {
			t.Fatalf("token %d: %v, want %v", i, out[4*i], mean)
		}
	}
}

func TestStepsOnAStreamOfAGPUCopiesWithFencesAndAGraph(t *testing.T) {
	cudatest.Need(t)
	ok(t, load(t).SetModulePath(os.Getenv("KVC_CUDA_MODULES")))
	config := small()
	config.NumThreads = 0
	config.Device = gpu
	config.MaxSeqs, config.MaxSeqLen, config.MaxTokensPerForward, config.HostByteBudget = 2, 64, 8, 1<<16
	cache := newCache(t, config)
	ok(t, cache.AddSeq(1))
	stream := cudatest.NewStream(t)

	prompt := newInputs(t, 1, 3, 5)
	fwd, err := cache.Begin(&kvcache.Batch{Seqs: []int64{1}, Lengths: []int64{3}, Stream: stream})
	ok(t, err)
	is(t, fwd.Attn(0, tokens(3, 0), tokens(3, 0), tokens(3, 0), tokens(3, 0), nil), kvcache.ErrDeviceMismatch)
	ok(t, prompt.attend(fwd))
	ok(t, fwd.End())
	prompt.equals(t, 1, 2, 3)

	fence, err := cache.SwapOutOn(stream, 1)
	ok(t, err)
	ok(t, fence.WaitOnStream(stream))
	ok(t, fence.Close())
	fence, err = cache.SwapInOn(stream, 1)
	ok(t, err)
	ok(t, fence.Wait(context.Background()))
	ok(t, fence.Close())

	// A decode step, captured, then replayed with other values.
	decode := newInputs(t, 7)
	batch := kvcache.Batch{Seqs: []int64{1}, Lengths: []int64{1}, Stream: stream}
	graph := cudatest.Capture(t, stream, func() {
		fwd, err := cache.Begin(&batch)
		ok(t, err)
		ok(t, decode.attend(fwd))
		ok(t, fwd.End())
	})
	cudatest.Launch(t, graph, stream)
	decode.equals(t, 4)
	batch.Replay = true
	for _, next := range [][2]float32{{9, 5}, {11, 6}} {
		decode.v.Set(t, fill(4, next[0]))
		fwd, err := cache.Begin(&batch)
		ok(t, err)
		is(t, decode.attend(fwd), kvcache.ErrInvalidState)
		cudatest.Launch(t, graph, stream)
		ok(t, fwd.End())
		decode.equals(t, next[1])
	}
	ok(t, cache.Check())
}

func TestTheCPULooksAtNoStream(t *testing.T) {
	cache := newCache(t, small())
	ok(t, cache.AddSeq(1))
	fwd, err := cache.Begin(&kvcache.Batch{Seqs: []int64{1}, Lengths: []int64{1}, Stream: 12345})
	ok(t, err)
	ok(t, fwd.End())
	_, err = cache.Begin(&kvcache.Batch{Seqs: []int64{1}, Lengths: []int64{1}, Replay: true})
	is(t, err, kvcache.ErrUnsupported)
}
