package kvcache

/*
#include "internal/headers/kvcache.h"
*/
import "C"

import (
	"sync"
	"unsafe"
)

// callbacks holds the Go values that C calls back, by number: C never sees their addresses.
var callbacks registry

type registry struct {
	mu     sync.RWMutex
	last   uintptr
	values map[uintptr]any
}

func (r *registry) add(value any) uintptr {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.values == nil {
		r.values = make(map[uintptr]any)
	}
	r.last++
	r.values[r.last] = value
	return r.last
}

func (r *registry) remove(id uintptr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.values, id)
}

func (r *registry) get(id uintptr) any {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.values[id]
}

//export kvcacheGoLog
func kvcacheGoLog(id C.uintptr_t, level C.int32_t, message *C.char) {
	if log, ok := callbacks.get(uintptr(id)).(func(LogLevel, string)); ok {
		log(LogLevel(level), C.GoString(message))
	}
}

//export kvcacheGoDone
func kvcacheGoDone(id C.uintptr_t, status C.int32_t) {
	onDone, ok := callbacks.get(uintptr(id)).(func(Status))
	callbacks.remove(uintptr(id)) // It runs once.
	if ok {
		onDone(Status(status))
	}
}

// An Allocator gives the memory of a pool. Alloc returns a block of at least bytes, aligned to alignment,
// outside of Go's heap, or nil; its content need not be zero. Free may run on any thread, also after the
// cache is closed (when an Export is closed last). Neither may call the library or panic.
type Allocator interface {
	Alloc(bytes, alignment uint64) unsafe.Pointer
	Free(p unsafe.Pointer, bytes uint64)
}

// hostAllocator is an Allocator in use: it is forgotten when its cache is closed and its last block freed.
type hostAllocator struct {
	Allocator
	mu     sync.Mutex
	id     uintptr
	users  int
	blocks int
}

func (a *hostAllocator) count(users, blocks int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.users += users
	a.blocks += blocks
	if a.users == 0 && a.blocks == 0 {
		callbacks.remove(a.id)
	}
}

//export kvcacheGoAlloc
func kvcacheGoAlloc(id C.uintptr_t, bytes, alignment C.uint64_t) unsafe.Pointer {
	allocator, ok := callbacks.get(uintptr(id)).(*hostAllocator)
	if !ok {
		return nil
	}
	p := allocator.Alloc(uint64(bytes), uint64(alignment))
	if p != nil {
		allocator.count(0, 1)
	}
	return p
}

//export kvcacheGoFree
func kvcacheGoFree(id C.uintptr_t, p unsafe.Pointer, bytes C.uint64_t) {
	if allocator, ok := callbacks.get(uintptr(id)).(*hostAllocator); ok {
		allocator.Free(p, uint64(bytes))
		allocator.count(0, -1)
	}
}
