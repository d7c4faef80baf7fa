package kvcache_test

import (
	"testing"
	"unsafe"

	kvcache "github.com/libkvcache/libkvcache/bindings/go"
)

func TestBadBatchesAreNamed(t *testing.T) {
	cache := newCache(t, small())
	ok(t, cache.AddSeq(1))
	for wanted, batch := range map[string]*kvcache.Batch{
		"batch: nil":                         nil,
		"Lengths: 1 entries for 2 sequences": {Seqs: []int64{1, 2}, Lengths: []int64{1}},
		"Lengths[0]: 0 tokens, at least 1 and no overflow of their sum": {Seqs: []int64{1}, Lengths: []int64{0}},
		"Lengths[1]: 9223372036854775807 tokens, at least 1 and no overflow of their sum": {Seqs: []int64{1, 2},
			Lengths: []int64{1, 1<<63 - 1}},
		"Tokens: 2 ids for 3 tokens": {Seqs: []int64{1}, Lengths: []int64{3}, Tokens: []int32{1, 2}},
		"TreeParents: 1 entries for 3 tokens": {Seqs: []int64{1}, Lengths: []int64{3},
			TreeParents: []int32{-1}},
		"CrossLengths: 0 entries for 1 sequences": {Seqs: []int64{1}, Lengths: []int64{3}, CrossLengths: []int64{}},
	} {
		_, err := cache.Begin(batch)
		says(t, err, kvcache.ErrInvalidArgument, wanted)
	}
	_, err := cache.Begin(&kvcache.Batch{})
	is(t, err, kvcache.ErrInvalidArgument)
	_, err = cache.Begin(&kvcache.Batch{Seqs: []int64{7}, Lengths: []int64{1}})
	is(t, err, kvcache.ErrNotFound)
	_, err = cache.Begin(&kvcache.Batch{Seqs: []int64{1}, Lengths: []int64{65}})
	is(t, err, kvcache.ErrNeverFits)
	if cache.AvailablePages() != 16 {
		t.Errorf("%d free pages", cache.AvailablePages())
	}
}

func TestAFullCacheSaysHowManyPagesAreMissing(t *testing.T) {
	cache := newCache(t, small())
	ok(t, cache.AddSeq(1))
	ok(t, cache.AddSeq(2))
	grow(t, cache, 1, 60, 0)
	_, err := cache.Begin(&kvcache.Batch{Seqs: []int64{2}, Lengths: []int64{9}})
	is(t, err, kvcache.ErrNoPages)
	if failed := err.(*kvcache.Error); failed.Detail != 2 {
		t.Errorf("%d pages are missing", failed.Detail)
	}
	missing, err := cache.CanAppend([]int64{2}, []int64{9})
	ok(t, err)
	if missing != 2 {
		t.Errorf("%d pages are missing", missing)
	}
}

func TestBadTensorsAreNamed(t *testing.T) {
	cache := newCache(t, small())
	ok(t, cache.AddSeq(1))
	fwd := begin(t, cache, 1, 2)
	defer fwd.Abort()
	good, data := func() *kvcache.Tensor { return tokens(2, 0) }, make([]float32, 8)
	for wanted, k := range map[string]*kvcache.Tensor{
		"k: shape [2 1 5] needs 10 elements, the slice has 8": kvcache.Of(data, 2, 1, 5),
		"k: shape [-2 1 4] has a negative extent":             kvcache.Of(data, -2, 1, 4),
		"k: shape [1 1 1 1 1 1 1 1 1 1] has 10 dimensions, at most 9 are possible": kvcache.Of(data, 1, 1, 1,
			1, 1, 1, 1, 1, 1, 1),
		"k: 2 strides for 3 dimensions": kvcache.Of(data, 2, 1,
			4).Strided(4, 1),
		"k: strides [8 4 1] reach element 11, the slice has 8": kvcache.Of(data, 2, 1,
			4).Strided(8, 4, 1),
		"k: stride -4 of dimension 0 leads out of the slice of 8 elements": kvcache.Of(data, 2, 1,
			4).Strided(-4, 4, 1),
		"k: shape [4611686018427387904 4] has more elements than an int64 counts": kvcache.Of(data, 1<<62, 4),
	} {
		says(t, fwd.Attn(0, good(), k, good(), good(), nil), kvcache.ErrShape, wanted)
		if k.Err() == nil {
			t.Error("the tensor does not know")
		}
	}
	is(t, fwd.Attn(0, good(), good(), good(), nil, nil), kvcache.ErrInvalidArgument)
	is(t, fwd.Attn(0, good(), good(), good(), tokens(1, 0), nil), kvcache.ErrShape)
	is(t, fwd.Attn(0, kvcache.Of(make([]int32, 8), 2, 1, 4), good(), good(), good(), nil), kvcache.ErrDType)
	is(t, fwd.Attn(0, good().On(kvcache.Device{Type: kvcache.CUDA}), good(), good(), good(), nil),
		kvcache.ErrDeviceMismatch)
	is(t, fwd.Attn(2, good(), good(), good(), good(), nil), kvcache.ErrOutOfRange)
	is(t, fwd.Attn(1<<40, good(), good(), good(), good(), nil), kvcache.ErrOutOfRange)
	is(t, fwd.Attn(0, good(), good(), good(), good(), &kvcache.AttnOptions{SoftCap: -1}), kvcache.ErrOutOfRange)
	says(t, fwd.Attn(0, good(), good(), good(), good(), &kvcache.AttnOptions{SinkLogits: kvcache.Of(data, 9)}),
		kvcache.ErrShape,
		"SinkLogits: shape [9] needs 9 elements, the slice has 8")
	is(t, fwd.AttnFusedQKV(0, good(), good(), &kvcache.AttnOptions{LSE: good()}), kvcache.ErrUnsupported)
}

func TestBadConfigurationsAreNamed(t *testing.T) {
	lib := load(t)
	with := func(change func(*kvcache.Config)) error {
		config := small()
		change(config)
		_, err := lib.NewCache(config)
		return err
	}
	says(t, with(func(c *kvcache.Config) { c.Layers[1].KDim = 1 << 40 }), kvcache.ErrOutOfRange,
		"Layers[1].KDim: 1099511627776 is out of range: -2147483648..2147483647")
	says(t, with(func(c *kvcache.Config) { c.Layers[0].Rope = &kvcache.Rope{Sections: make([]int, 5)} }),
		kvcache.ErrOutOfRange,
		"Layers[0].Rope.Sections: 5 sections, at most 4")
	says(t, with(func(c *kvcache.Config) {
		c.Layers[0].Rope = &kvcache.Rope{FreqFactors: make([]float32, 2), LongFreqFactors: make([]float32, 3)}
	}), kvcache.ErrInvalidArgument, "Layers[0].Rope.LongFreqFactors: 3 numbers, FreqFactors has 2")
	says(t, with(func(c *kvcache.Config) {
		c.Storage, c.PoolTensors = kvcache.StorageBorrowed, []*kvcache.Tensor{tokens(1, 0)}
	}),
		kvcache.ErrInvalidArgument,
		"PoolTensors[0]: memory of a Go slice, which the library would keep; it has to lie outside of Go's heap"+
			" (FromPointer, Alloc)")
	says(t, with(func(c *kvcache.Config) { c.PoolTensors = []*kvcache.Tensor{nil} }),
		kvcache.ErrInvalidArgument, "PoolTensors[0]: nil")
	is(t, with(func(c *kvcache.Config) { c.Layers = nil }), kvcache.ErrOutOfRange)
	says(t, with(func(c *kvcache.Config) { c.Layers[1].KScale = 2 }), kvcache.ErrInvalidArgument,
		"config.layers[1].k_scale = 2 with quant = NONE (0): only PER_TENSOR (1) has one")
	says(t, with(func(c *kvcache.Config) {
		c.Layers[0].Quant, c.Layers[0].KDType, c.Layers[0].VScale = kvcache.QuantPerTensor, kvcache.I8, -0.5
	}), kvcache.ErrOutOfRange, "config.layers[0].v_scale = -0.5, expected a finite number > 0, or 0")
	says(t, with(func(c *kvcache.Config) {
		c.Layers[0].Quant, c.Layers[0].KDType = kvcache.QuantPerTokenHead, kvcache.I4
	}), kvcache.ErrUnsupported, "config.layers[0].k_dtype = int4 with quant = PER_TOKEN_HEAD (2) is not supported in "+
		"OWNED (0) storage on the CPU, whose kernels read types of 8 bits: store one of these, or choose "+
		"config.storage = BORROWED (1) or NONE (2), where the host's own kernels attend")
	says(t, with(func(c *kvcache.Config) { c.Layers[0].KeepTokens = 4 }), kvcache.ErrInvalidArgument,
		"config.layers[0].keep_tokens = 4 with quant = NONE (0) and v_quant = NONE (0): no row is quantised, so none is kept apart; "+
			"expected 0")
	says(t, with(func(c *kvcache.Config) { c.Layers[0].VQuant = kvcache.QuantPerTensor }), kvcache.ErrInvalidArgument,
		"config.layers[0].v_dtype is not set with v_quant = PER_TENSOR (1) and quant = NONE (0), which K alone has: "+
			"expected float8_e4m3fn, float8_e5m2 or int8")
	is(t, with(func(c *kvcache.Config) { c.Device = kvcache.Device{Type: kvcache.CUDA} }), kvcache.ErrUnsupported)
	is(t, with(func(c *kvcache.Config) { c.NumPages, c.MaxSeqLen = 2, 100 }), kvcache.ErrNeverFits)
	_, err := lib.NewPlan(nil)
	is(t, err, kvcache.ErrInvalidArgument)
}

func TestBadQueriesAndCopiesAreNamed(t *testing.T) {
	lib := load(t)
	cache := newCache(t, small())
	ok(t, cache.AddSeq(1))
	_, err := cache.PrefixMatch(nil)
	is(t, err, kvcache.ErrInvalidArgument)
	_, err = cache.PrefixMatch(&kvcache.PrefixQuery{Tokens: []int32{1}, NumTokens: 2})
	says(t, err, kvcache.ErrInvalidArgument, "NumTokens: 2, but Tokens has 1")
	_, err = cache.PollEvents(0)
	is(t, err, kvcache.ErrInvalidArgument)
	_, err = cache.PollEvents(5)
	is(t, err, kvcache.ErrUnsupported)
	is(t, cache.CommitTree([]int64{1}, nil), kvcache.ErrInvalidArgument)
	_, err = cache.CanAppend([]int64{1}, nil)
	is(t, err, kvcache.ErrInvalidArgument)
	_, err = cache.SwapOut(1)
	is(t, err, kvcache.ErrUnsupported)
	_, err = cache.CopyPages([][2]int64{{0, 99}})
	is(t, err, kvcache.ErrOutOfRange)
	_, err = lib.PrefixHash([]int32{1}, 0, nil)
	is(t, err, kvcache.ErrInvalidArgument)
	_, err = lib.PrefixHash([]int32{1}, 1, nil, kvcache.PrefixKey{Type: kvcache.PrefixKeyUser,
		Data: make([]byte, 5000)})
	is(t, err, kvcache.ErrOutOfRange)
	is(t, lib.OpAppend(nil, nil, nil, nil, nil), kvcache.ErrInvalidArgument)
	is(t, lib.OpAttentionPaged(&kvcache.OpPool{}, nil, nil, nil, nil), kvcache.ErrInvalidArgument)
	withLSE := &kvcache.OpOptions{AttnOptions: kvcache.AttnOptions{LSE: tokens(1, 0)}}
	is(t, lib.OpMerge(nil, nil, nil, nil, withLSE), kvcache.ErrUnsupported)
	is(t, lib.OpLinearStep(&kvcache.LinearOptions{State: 1}, nil, nil, nil, nil, nil, nil, nil, nil, nil),
		kvcache.ErrInvalidArgument)
	is(t, lib.OpRotate(tokens(1, 0), tokens(1, 0),
		&kvcache.OpOptions{Rope: &kvcache.Rope{Sections: make([]int, 9)}}), kvcache.ErrOutOfRange)
	_, err = kvcache.Alloc(-1)
	is(t, err, kvcache.ErrInvalidArgument)
	is(t, lib.OpRotate(kvcache.FromPointer(unsafe.Pointer(nil), kvcache.F32, 1, 1, 4), tokens(1, 0),
		&kvcache.OpOptions{Rope: &kvcache.Rope{Mode: kvcache.RopeOnAppend}, Positions: kvcache.Of([]int32{0},
			1)}), kvcache.ErrInvalidArgument)
}
