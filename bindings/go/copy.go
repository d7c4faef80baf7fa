package kvcache

/*
#include "shim_copy.h"
*/
import "C"

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Fence is the completion of copies, or of a transfer. It may outlive its cache.
type Fence struct {
	lib  *Library
	mu   sync.RWMutex
	h    C.uintptr_t // 0: closed
	leak *leakWatch
}

func newFence(lib *Library, h C.uintptr_t) *Fence {
	f := &Fence{lib: lib, h: h}
	f.leak = watch(f, "Fence")
	return f
}

// waitSlice bounds how late Wait sees that its context is done.
const waitSlice = 5 * time.Millisecond

// Wait returns when the copies are complete, or with the context's error.
func (f *Fence) Wait(ctx context.Context) error {
	err := f.wait(0)
	for errors.Is(err, ErrTimeout) {
		if err := ctx.Err(); err != nil {
			return err
		}
		err = f.wait(waitSlice)
	}
	return err
}

func (f *Fence) wait(timeout time.Duration) error {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.h == 0 {
		return closedError("the fence")
	}
	return failure(C.shim_fence_wait(f.lib.api, f.h, C.int64_t(timeout.Nanoseconds())))
}

// Done tells whether the copies are complete.
func (f *Fence) Done() (bool, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.h == 0 {
		return false, closedError("the fence")
	}
	var done C.int32_t
	err := failure(C.shim_fence_query(f.lib.api, f.h, &done))
	return done != 0, err
}

// WaitOnStream lets what is enqueued on a device stream from now on wait for the copies. On the CPU it waits
// here.
func (f *Fence) WaitOnStream(stream uintptr) error {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.h == 0 {
		return closedError("the fence")
	}
	return failure(C.shim_fence_wait_on_stream(f.lib.api, f.h, C.uintptr_t(stream)))
}

// Close frees the fence; the copies go on.
func (f *Fence) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.h != 0 {
		C.shim_fence_destroy(f.lib.api, f.h)
		f.h = 0
		f.leak.done()
	}
	return nil
}

// SwapOut moves sequences to the host: their pages, states and checkpoints. What several of them share stays
// shared.
func (c *Cache) SwapOut(seqs ...int64) (*Fence, error) { return c.SwapOutOn(0, seqs...) }

// SwapOutOn is SwapOut with its copies on a CUDA stream.
func (c *Cache) SwapOutOn(stream uintptr, seqs ...int64) (*Fence, error) {
	return c.fenced(func(h *C.uintptr_t) *C.kvc_error {
		return C.shim_swap(c.lib.api, 0, c.h, C.size_t(len(seqs)), i64s(seqs), C.uintptr_t(stream), h)
	})
}

// SwapIn brings them back. What sequences of one SwapOut shared is shared again when they come back in one
// call.
func (c *Cache) SwapIn(seqs ...int64) (*Fence, error) { return c.SwapInOn(0, seqs...) }

// SwapInOn is SwapIn with its copies on a CUDA stream.
func (c *Cache) SwapInOn(stream uintptr, seqs ...int64) (*Fence, error) {
	return c.fenced(func(h *C.uintptr_t) *C.kvc_error {
		return C.shim_swap(c.lib.api, 1, c.h, C.size_t(len(seqs)), i64s(seqs), C.uintptr_t(stream), h)
	})
}

// SwapDirection is a direction of SwapPages.
type SwapDirection int32

// The directions.
const (
	SwapOut SwapDirection = C.KVC_SWAP_OUT // device to host
	SwapIn  SwapDirection = C.KVC_SWAP_IN  // host to device
)

// SwapPages copies whole pages between the pools, each pair (from, to), by page ids that the caller keeps
// account of.
func (c *Cache) SwapPages(pairs [][2]int64, direction SwapDirection) (*Fence, error) {
	return c.SwapPagesOn(0, pairs, direction)
}

// SwapPagesOn is SwapPages with its copies on a CUDA stream.
func (c *Cache) SwapPagesOn(stream uintptr, pairs [][2]int64, direction SwapDirection) (*Fence, error) {
	if direction < 0 {
		return nil, &Error{Status: ErrUnsupported, Msg: "direction: unknown"}
	}
	return c.fenced(func(h *C.uintptr_t) *C.kvc_error {
		return C.shim_pages(c.lib.api, c.h, pairsOf(pairs), C.int64_t(len(pairs)), C.int32_t(direction),
			C.uintptr_t(stream), h)
	})
}

// CopyPages copies whole pages inside the device pool, each pair (from, to).
func (c *Cache) CopyPages(pairs [][2]int64) (*Fence, error) { return c.CopyPagesOn(0, pairs) }

// CopyPagesOn is CopyPages with its copies on a CUDA stream.
func (c *Cache) CopyPagesOn(stream uintptr, pairs [][2]int64) (*Fence, error) {
	return c.fenced(func(h *C.uintptr_t) *C.kvc_error {
		return C.shim_pages(c.lib.api, c.h, pairsOf(pairs), C.int64_t(len(pairs)), -1, C.uintptr_t(stream), h)
	})
}

// ExportPages copies a layer's parts of pages as they are stored, PageBytes of Plan.Layer each, one behind the
// other.
func (c *Cache) ExportPages(layer int, ids []int64) ([]byte, error) {
	info, err := c.plan.Layer(layer)
	if err != nil {
		return nil, err
	}
	bytes := make([]byte, len(ids)*int(info.PageBytes))
	if err := c.look(); err != nil {
		return nil, err
	}
	defer c.mu.RUnlock()
	return bytes, c.pageBytes(0, layer, ids, bytes, info.PageBytes)
}

// ImportPages is the way back: bytes of ExportPages, of this cache or one whose plan has an equal Fingerprint.
func (c *Cache) ImportPages(layer int, ids []int64, bytes []byte) error {
	info, err := c.plan.Layer(layer)
	if err != nil {
		return err
	}
	if len(bytes) != len(ids)*int(info.PageBytes) {
		return &Error{Status: ErrShape, Msg: fmt.Sprintf("bytes: %d, expected %d pages of %d", len(bytes), len(ids),
			info.PageBytes)}
	}
	if err := c.enter(); err != nil {
		return err
	}
	defer c.mu.Unlock()
	return c.pageBytes(1, layer, ids, bytes, info.PageBytes)
}

func (c *Cache) pageBytes(in C.int32_t, layer int, ids []int64, bytes []byte, pageBytes uint64) error {
	data, _ := memory(nil, bytes)
	return failure(C.shim_page_bytes(c.lib.api, in, c.h, C.int32_t(layer), i64s(ids), C.int64_t(len(ids)), data,
		C.int64_t(pageBytes)))
}

func pairsOf(pairs [][2]int64) *C.int64_t {
	if len(pairs) == 0 {
		return nil
	}
	return (*C.int64_t)(&pairs[0][0])
}

func (c *Cache) fenced(call func(h *C.uintptr_t) *C.kvc_error) (*Fence, error) {
	if err := c.enter(); err != nil {
		return nil, err
	}
	defer c.mu.Unlock()
	var h C.uintptr_t
	if err := failure(call(&h)); err != nil {
		return nil, err
	}
	return newFence(c.lib, h), nil
}
