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
	if !load(t).HasFeature("cuda") {
		t.Fatal("KVC_CUDA_MODULES names no directory with a back end")
	}
	ok(t, load(t).SetModulePath(os.Getenv("KVC_CUDA_MODULES")))
	is(t, load(t).SetModulePath("/elsewhere"), kvcache.ErrInvalidState)
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

// float8 holds 448 at most: K = 640, 1280 and V = 40960 are only right when each is divided by its own scale.
func TestScalesOfQuantisedStorageOnAGPU(t *testing.T) {
	cudatest.Need(t)
	attended := func(kScale, vScale float32) float32 {
		layer := kvcache.Layer{NumKVHeads: 1, KDim: 4, KDType: kvcache.F8E4M3, Quant: kvcache.QuantPerTensor}
		layer.KScale, layer.VScale = kScale, vScale
		cache := newCache(t, &kvcache.Config{
			Layers: []kvcache.Layer{layer, layer}, PageSize: 4, NumPages: 4, Device: gpu,
			MaxSeqs: 1, MaxSeqLen: 16, MaxTokensPerForward: 8,
		})
		ok(t, cache.AddSeq(1))
		in := newInputs(t, 0, 40960)
		in.q.Set(t, fill(8, 0.001))
		in.k.Set(t, append(fill(4, 640), fill(4, 1280)...))
		fwd, err := cache.Begin(&kvcache.Batch{Seqs: []int64{1}, Lengths: []int64{2}})
		ok(t, err)
		ok(t, in.attend(fwd))
		ok(t, fwd.End())
		return in.out.Get(t)[4]
	}
	far := func(x float32) float64 { // from the mean with scores 1.28 and 2.56
		return math.Abs(float64(x)*(1+math.Exp(-1.28))/40960 - 1)
	}
	if x := attended(64, 128); far(x) > 1e-3 {
		t.Errorf("%v", x)
	}
	for _, scales := range [][2]float32{{128, 64}, {0, 128}, {64, 0}} {
		if x := attended(scales[0], scales[1]); far(x) < 0.05 {
			t.Errorf("%v: %v", scales, x)
		}
	}
}

func TestTheCPULooksAtNoStream(t *testing.T) {
	cache := newCache(t, small())
	ok(t, cache.AddSeq(1))
	fwd, err := cache.Begin(&kvcache.Batch{Seqs: []int64{1}, Lengths: []int64{1}, Stream: 12345})
	ok(t, err)
	write(t, fwd, 1, 1)
	ok(t, fwd.End())
	_, err = cache.Begin(&kvcache.Batch{Seqs: []int64{1}, Lengths: []int64{1}, Replay: true})
	is(t, err, kvcache.ErrUnsupported)
}
