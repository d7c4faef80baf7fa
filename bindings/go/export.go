package kvcache

/*
#include "shim_debug.h"
*/
import "C"

import (
	"sync"
	"unsafe"
)

// PoolKind is a view of a layer's pool.
type PoolKind int32

// The views of a pool.
const (
	PoolK     PoolKind = C.KVC_POOL_K     // [pages, NumKVHeads, page tokens, KDim]
	PoolV     PoolKind = C.KVC_POOL_V     // [pages, NumKVHeads, page tokens, VDim]
	PoolKV    PoolKind = C.KVC_POOL_KV    // [pages, 2, NumKVHeads, page tokens, dim]
	PoolBytes PoolKind = C.KVC_POOL_BYTES // uint8 [pages, bytes of the layer's part of a page]
)

// TableKind is a form of the page tables of a batch.
type TableKind int32

// The forms of page tables.
const (
	TableIndptr       TableKind = C.KVC_TABLE_INDPTR        // int32 [B+1]: CSR row pointer into TableIndices
	TableIndices      TableKind = C.KVC_TABLE_INDICES       // int32: page ids, sequence after sequence
	TableLastPageLen  TableKind = C.KVC_TABLE_LAST_PAGE_LEN // int32 [B]: tokens in the last page
	TableBlockTable   TableKind = C.KVC_TABLE_BLOCK_TABLE   // int32 [B, most pages], padded with -1
	TableSlotMapping  TableKind = C.KVC_TABLE_SLOT_MAPPING  // int64 [T]: page * page tokens + offset of each new token
	TableSeqLens      TableKind = C.KVC_TABLE_SEQ_LENS      // int32 [B]: length with the new tokens
	TableQOIndptr     TableKind = C.KVC_TABLE_QO_INDPTR     // int32 [B+1]: CSR row pointer into the packed tokens
	TablePagePosition TableKind = C.KVC_TABLE_PAGE_POSITION // int32: first token of each page of TableIndices
)

// Export is memory of the library, shared without a copy. It stays valid until Close, also after its cache is
// closed.
type Export struct {
	mu     sync.Mutex
	h      C.uintptr_t // DLManagedTensorVersioned *; 0: closed or handed over
	tensor *Tensor
	leak   *leakWatch
}

func newExport(h C.uintptr_t) *Export {
	view := C.shim_exported(h).dl_tensor
	n := int(view.ndim)
	t := &Tensor{data: C.shim_exported_data(h), size: -1}
	t.desc.device, t.desc.dtype, t.desc.ndim = view.device, view.dtype, view.ndim
	copy(t.desc.shape[:], unsafe.Slice(view.shape, n))
	if view.strides != nil {
		copy(t.desc.strides[:], unsafe.Slice(view.strides, n))
		t.desc.has_strides = 1
	}
	e := &Export{h: h, tensor: t}
	e.leak = watch(e, "Export")
	return e
}

// Tensor is a view of the memory, valid until Close; given to a call afterwards it is an error.
func (e *Export) Tensor() *Tensor { return e.tensor }

// Shape returns a copy of the extents.
func (e *Export) Shape() []int { return e.tensor.Shape() }

// Int32s is the content of a compact int32 tensor without a copy, valid until Close; nil for other element
// types and after Close.
func (e *Export) Int32s() []int32 { return exportedSlice[int32](e, I32) }

// Int64s is Int32s for int64.
func (e *Export) Int64s() []int64 { return exportedSlice[int64](e, I64) }

// Bytes is the content of a compact uint8 tensor (PoolBytes) without a copy, valid until Close.
func (e *Export) Bytes() []byte { return exportedSlice[byte](e, U8) }

func exportedSlice[T any](e *Export, dtype DType) []T {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.h == 0 || e.tensor.DType() != dtype || !e.tensor.compact() {
		return nil
	}
	count := 1
	for _, extent := range e.tensor.Shape() {
		count *= extent
	}
	return unsafe.Slice((*T)(unsafe.Pointer(e.tensor.data)), count)
}

// compact tells whether elements lie row-major without gaps.
func (t *Tensor) compact() bool {
	if t.desc.has_strides == 0 {
		return true
	}
	next := C.int64_t(1)
	for i := int(t.desc.ndim) - 1; i >= 0; i-- {
		if t.desc.shape[i] != 1 && t.desc.strides[i] != next {
			return false
		}
		next *= t.desc.shape[i]
	}
	return true
}

// Close gives the memory back.
func (e *Export) Close() error {
	if h := e.take(); h != 0 {
		C.shim_exported_delete(h)
	}
	return nil
}

// Release hands the DLManagedTensorVersioned over to the caller, who calls its deleter: for passing it on to
// another library. 0 after Close.
func (e *Export) Release() uintptr { return uintptr(e.take()) }

func (e *Export) take() C.uintptr_t {
	e.mu.Lock()
	defer e.mu.Unlock()
	h := e.h
	if h != 0 {
		e.h = 0
		e.tensor.invalidate("the export")
		e.leak.done()
	}
	return h
}

// ExportPool shares the pool memory of one layer, writable.
func (c *Cache) ExportPool(layer int, kind PoolKind) (*Export, error) {
	number, err := index("layer", layer)
	if err != nil {
		return nil, err
	}
	if err := c.enter(); err != nil {
		return nil, err
	}
	defer c.mu.Unlock()
	var h C.uintptr_t
	if err := failure(C.shim_export_pool(c.lib.api, c.h, number, C.int32_t(kind), &h)); err != nil {
		return nil, err
	}
	return newExport(h), nil
}

// ExportPageTable is the page tables of the forward's sequences as they are with the new tokens: a read-only
// snapshot.
func (f *Forward) ExportPageTable(group int, kind TableKind) (*Export, error) {
	number, err := index("group", group)
	if err != nil {
		return nil, err
	}
	if err := f.enter(); err != nil {
		return nil, err
	}
	defer f.leave()
	var h C.uintptr_t
	if err := failure(C.shim_export_page_table(f.cache.lib.api, f.h, number, C.int32_t(kind), &h)); err != nil {
		return nil, err
	}
	return newExport(h), nil
}

// SeqPages are the ids of the kept pages of a sequence's committed tokens, ascending positions.
func (c *Cache) SeqPages(seq int64, group int) ([]int32, error) {
	number, err := index("group", group)
	if err != nil {
		return nil, err
	}
	if err := c.look(); err != nil {
		return nil, err
	}
	defer c.mu.RUnlock()
	var h C.uintptr_t
	if err := failure(C.shim_export_seq_pages(c.lib.api, c.h, C.int64_t(seq), number, &h)); err != nil {
		return nil, err
	}
	export := newExport(h)
	defer export.Close()
	return append([]int32{}, export.Int32s()...), nil
}
