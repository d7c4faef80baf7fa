package kvcache_test

import (
	"reflect"
	"sync"
	"testing"
	"unsafe"

	kvcache "github.com/libkvcache/libkvcache/bindings/go"
	"github.com/libkvcache/libkvcache/bindings/go/internal/cloop"
)

func TestABorrowedPoolIsTheCallersMemory(t *testing.T) {
	config := small()
	var blocks []*kvcache.Block
	config.Storage, config.NumPages = kvcache.StorageBorrowed, 0
	for range config.Layers {
		block, err := kvcache.Alloc(16 * 2 * 4 * 4 * 4)
		ok(t, err)
		defer block.Close()
		blocks = append(blocks, block)
		config.PoolTensors = append(config.PoolTensors, block.Tensor(kvcache.F32, 16, 2*4*4))
	}
	cache := newCache(t, config)
	ok(t, cache.AddSeq(1))
	grow(t, cache, 1, 2, 7)
	pages, err := cache.SeqPages(1, 0)
	ok(t, err)
	pool := unsafe.Slice((*float32)(unsafe.Pointer(&blocks[0].Bytes()[0])), 16*32)
	if pool[pages[0]*32] != 7 || pool[pages[0]*32+8] == 7 {
		t.Errorf("%v", pool[pages[0]*32:pages[0]*32+16])
	}
	ok(t, cache.Close())
}

// counting is an allocator that knows what is out.
type counting struct {
	mu     sync.Mutex
	blocks map[unsafe.Pointer]*kvcache.Block
}

func (c *counting) Alloc(bytes, alignment uint64) unsafe.Pointer {
	block, err := kvcache.Alloc(int(bytes + alignment))
	if err != nil {
		return nil
	}
	p := unsafe.Pointer(&block.Bytes()[0])
	if past := uint64(uintptr(p)) % alignment; past != 0 {
		p = unsafe.Add(p, int(alignment-past))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.blocks[p] = block
	return p
}

func (c *counting) Free(p unsafe.Pointer, _ uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.blocks[p].Close()
	delete(c.blocks, p)
}

func (c *counting) out() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.blocks)
}

func TestAnAllocatorIsUsedUntilTheLastExportIsClosed(t *testing.T) {
	before := kvcache.Callbacks()
	config, allocator := small(), &counting{blocks: map[unsafe.Pointer]*kvcache.Block{}}
	config.Allocator = allocator
	cache := newCache(t, config)
	ok(t, cache.AddSeq(1))
	grow(t, cache, 1, 2, 7)
	if allocator.out() == 0 {
		t.Fatal("the allocator was not asked")
	}
	export, err := cache.ExportPool(0, kvcache.PoolK)
	ok(t, err)
	ok(t, cache.Close())
	if allocator.out() == 0 || kvcache.Callbacks() != before+1 {
		t.Error("the pool went before its export")
	}
	if export.Shape()[0] != 16 || export.Tensor().DType() != kvcache.F32 {
		t.Errorf("%v", export.Shape())
	}
	ok(t, export.Close())
	if allocator.out() != 0 || kvcache.Callbacks() != before {
		t.Errorf("%d blocks and %d callbacks are left", allocator.out(), kvcache.Callbacks()-before)
	}
}

func TestAnAllocatorOfARefusedPlanIsForgotten(t *testing.T) {
	before := kvcache.Callbacks()
	config := small()
	config.Allocator, config.PageSize = &counting{}, -1
	if _, err := load(t).NewPlan(config); err == nil {
		t.Fatal("a page of -1 tokens")
	}
	if kvcache.Callbacks() != before {
		t.Error("the allocator is still known")
	}
}

func TestAnExportIsATensorForOperators(t *testing.T) {
	lib, cache := load(t), newCache(t, small())
	ok(t, cache.AddSeq(1))
	grow(t, cache, 1, 3, 7)
	k, err := cache.ExportPool(0, kvcache.PoolK)
	ok(t, err)
	v, err := cache.ExportPool(0, kvcache.PoolV)
	ok(t, err)
	defer v.Close()
	pages, err := cache.SeqPages(1, 0)
	ok(t, err)
	got := make([]float32, 12)
	pool := &kvcache.OpPool{K: k.Tensor(), V: v.Tensor(), Layout: kvcache.LayoutHND}
	table := &kvcache.OpTable{SeqLens: kvcache.Of([]int32{3}, 1), BlockTable: kvcache.Of(pages, 1, len(pages))}
	ok(t, lib.OpGather(pool, table, kvcache.Of(got, 3, 1, 4), nil, nil))
	if got[0] != 7 || got[11] != 7 {
		t.Errorf("%v", got)
	}
	ok(t, k.Close())
	says(t, lib.OpGather(pool, table, kvcache.Of(got, 3, 1, 4), nil, nil), kvcache.ErrClosed,
		"pool.K: the export is closed")
}

func TestATensorOfAClosedBlockIsAnError(t *testing.T) {
	cache := newCache(t, small())
	ok(t, cache.AddSeq(1))
	block, err := kvcache.Alloc(100)
	ok(t, err)
	view := block.Tensor(kvcache.F32, 1, 1, 4)
	says(t, cache.DebugGetLayer(1, 0, 0, 1, block.Tensor(kvcache.F32, 26), nil), kvcache.ErrShape,
		"k: shape [26] needs 26 elements, the slice has 25")
	ok(t, block.Close())
	is(t, cache.DebugGetLayer(1, 0, 0, 1, view, nil), kvcache.ErrClosed)
}

func TestStridedSlicesAreTaken(t *testing.T) {
	cache := newCache(t, small())
	ok(t, cache.AddSeq(1))
	fwd := begin(t, cache, 1, 2)
	packed := make([]float32, 2*3*4) // q, k, v of a token beside each other
	for i := range packed {
		packed[i] = float32(i / 4)
	}
	part := func(i int) *kvcache.Tensor { return kvcache.Of(packed[4*i:], 2, 1, 4).Strided(12, 4, 1) }
	ok(t, fwd.KVAppend(0, part(1), part(2)))
	ok(t, fwd.KVAppend(1, part(1), part(2)))
	ok(t, fwd.End())
	k, v := make([]float32, 8), make([]float32, 8)
	ok(t, cache.DebugGetLayer(1, 0, 0, 2, kvcache.Of(k, 2, 1, 4), kvcache.Of(v, 2, 1, 4)))
	if k[0] != 1 || k[4] != 4 || v[0] != 2 || v[7] != 5 {
		t.Errorf("%v %v", k, v)
	}
}

func TestAnExportMayBeHandedOver(t *testing.T) {
	cache := newCache(t, small())
	export, err := cache.ExportPool(0, kvcache.PoolBytes)
	ok(t, err)
	if len(export.Bytes()) != 16*2*4*4*4 {
		t.Errorf("%d bytes", len(export.Bytes()))
	}
	taken := export.Release()
	if taken == 0 || export.Release() != 0 || export.Bytes() != nil {
		t.Error("handed over twice")
	}
	ok(t, export.Close())
	cloop.Delete(taken)
}

func TestAnExecutorOfTheHostDoesTheWork(t *testing.T) {
	block, err := kvcache.Alloc(8)
	ok(t, err)
	defer block.Close()
	executor := &kvcache.Executor{User: unsafe.Pointer(&block.Bytes()[0])}
	executor.Concurrency, executor.ParallelFor = cloop.Executor()
	tasks := (*int64)(executor.User)

	layer := kvcache.Layer{NumQHeads: 8, NumKVHeads: 8, KDim: 64}
	cache := newCache(t, &kvcache.Config{Layers: []kvcache.Layer{layer}, NumPages: 200, Executor: executor})
	ok(t, cache.AddSeq(1))
	const n = 2000
	data, out := make([]float32, n*8*64), make([]float32, n*8*64)
	for i := range data {
		data[i] = 1
	}
	x := kvcache.Of(data, n, 8, 64)
	fwd := begin(t, cache, 1, n)
	ok(t, fwd.Attn(0, x, x, x, kvcache.Of(out, n, 8, 64), nil))
	ok(t, fwd.End())
	if *tasks == 0 || out[len(out)-1] != 1 {
		t.Errorf("%d tasks, %v", *tasks, out[len(out)-1])
	}
	*tasks = 0
	cuts := kvcache.Of([]int32{0, n}, 2)
	ok(t, load(t).OpAttentionRagged(cuts, nil, x, x, x, kvcache.Of(out, n, 8, 64),
		&kvcache.OpOptions{Executor: executor}))
	if *tasks == 0 {
		t.Error("the operator computed without the executor")
	}
	is(t, func() error {
		_, err := load(t).NewCache(&kvcache.Config{Layers: []kvcache.Layer{layer}, NumPages: 2,
			Executor: &kvcache.Executor{}})
		return err
	}(), kvcache.ErrInvalidArgument)
}

func TestRowsOfEightBitsComeBack(t *testing.T) {
	lib := load(t)
	x := kvcache.Of([]float32{1, -4, 0.5, 8, 300, 0.25}, 3, 1, 2)
	codes, one := make([]int8, 6), kvcache.Of([]float32{1}, 1)
	clipped, err := lib.OpQuantize(kvcache.QuantPerTensor, x, kvcache.Of(codes, 3, 1, 2), one, nil)
	ok(t, err)
	if want := []int8{1, -4, 0, 8, 127, 0}; clipped != 1 || !reflect.DeepEqual(codes, want) {
		t.Errorf("%v with %d clipped, expected %v with 1", codes, clipped, want)
	}

	bytes, scales, back := make([]byte, 6), make([]float32, 3), make([]float32, 6)
	rows, own := kvcache.OfBytes(bytes, kvcache.F8E5M2, 3, 1, 2), kvcache.Of(scales, 3, 1)
	clipped, err = lib.OpQuantize(kvcache.QuantPerTokenHead, x, rows, own, nil)
	ok(t, err)
	if want := []float32{4.0 / 57344, 8.0 / 57344, 300.0 / 57344}; clipped != 0 || !reflect.DeepEqual(scales, want) {
		t.Errorf("scales %v with %d clipped, expected %v with none", scales, clipped, want)
	}
	ok(t, lib.OpDequantize(kvcache.QuantPerTokenHead, rows, own, kvcache.Of(back, 3, 1, 2), nil))
	if want := []float32{1, -4, 0.5, 8}; !reflect.DeepEqual(back[:4], want) {
		t.Errorf("%v, expected %v", back[:4], want)
	}

	_, err = lib.OpQuantize(kvcache.QuantNone, x, rows, own, nil)
	is(t, err, kvcache.ErrInvalidArgument)
	is(t, lib.OpDequantize(kvcache.QuantBlock16, rows, own, x, nil), kvcache.ErrUnsupported)
	_, err = lib.OpQuantize(kvcache.QuantPerTensor, x, rows, kvcache.Of([]float32{-0.5}, 1), nil)
	says(t, err, kvcache.ErrOutOfRange, "scales[0] = -0.5, expected a finite number above 0")
}

func TestAHostsPoolMayHaveEightBits(t *testing.T) {
	lib := load(t)
	k, v := make([]int8, 16), make([]byte, 16)
	kScales, vScales := make([]float32, 4), make([]float32, 4)
	pool := &kvcache.OpPool{K: kvcache.Of(k, 2, 1, 2, 4), V: kvcache.OfBytes(v, kvcache.F8E4M3, 2, 1, 2, 4),
		Quant: kvcache.QuantPerTokenHead, KScales: kvcache.Of(kScales, 2, 1, 2), VScales: kvcache.Of(vScales, 2, 1, 2)}
	newK, newV := kvcache.Of([]float32{12.7, -6.4, 1.27, 0}, 1, 1, 4), kvcache.Of([]float32{448, -1, 0, 2}, 1, 1, 4)
	ok(t, lib.OpAppend(pool, kvcache.Of([]int64{1}, 1), newK, newV, nil))
	ok(t, lib.OpCopyPages(pool, [][2]int64{{0, 1}}, nil))
	if want := []int8{127, -64, 13, 0}; !reflect.DeepEqual(k[12:], want) || kScales[3] != kScales[1] {
		t.Errorf("%v and %v, expected %v", k, kScales, want)
	}
	got := make([]float32, 8)
	table := &kvcache.OpTable{SeqLens: kvcache.Of([]int32{2}, 1), BlockTable: kvcache.Of([]int32{1}, 1, 1)}
	ok(t, lib.OpGather(pool, table, nil, kvcache.Of(got, 2, 1, 4), nil))
	if want := []float32{448, -1, 0, 2}; !reflect.DeepEqual(got[4:], want) {
		t.Errorf("%v, expected %v", got[4:], want)
	}
	out := make([]float32, 4)
	ok(t, lib.OpAttentionPaged(pool, &kvcache.OpTable{SeqLens: kvcache.Of([]int32{2}, 1),
		BlockTable: kvcache.Of([]int32{1}, 1, 1)}, kvcache.Of(make([]float32, 4), 1, 1, 4), kvcache.Of(out, 1, 1, 4), nil))
	if want := []float32{224, -0.5, 0, 1}; !reflect.DeepEqual(out, want) {
		t.Errorf("%v, expected the mean %v", out, want)
	}
	pool.VScales = nil
	says(t, lib.OpGather(pool, table, nil, kvcache.Of(got, 2, 1, 4), nil), kvcache.ErrInvalidArgument,
		"pool.v_scales is NULL")
	pool.KScales, pool.Quant, pool.KScale = nil, kvcache.QuantPerTensor, -2
	says(t, lib.OpGather(pool, table, nil, kvcache.Of(got, 2, 1, 4), nil), kvcache.ErrOutOfRange,
		"pool.k_scale = -2, expected a finite number above 0")
}
