package kvcache

/*
#include "shim_plan.h"
*/
import "C"

import (
	"sync"
	"unsafe"
)

// Plan is the planned memory of a model: immutable, and freely shared between goroutines and caches.
type Plan struct {
	lib       *Library
	mu        sync.RWMutex // guards h against Close
	h         C.uintptr_t  // 0: closed
	pageBytes uint64
	allocator *hostAllocator
	leak      *leakWatch
}

// NewPlan checks a configuration and plans its memory. The configuration is copied.
func (l *Library) NewPlan(config *Config) (*Plan, error) {
	if config == nil {
		return nil, invalid("config: nil")
	}
	var b builder
	defer b.close()
	c := b.config(config)
	if b.err != nil {
		return nil, b.err
	}
	p := &Plan{lib: l}
	if config.Allocator != nil {
		p.allocator = &hostAllocator{Allocator: config.Allocator, users: 1}
		p.allocator.id = callbacks.add(p.allocator)
		c.allocator = (*C.kvc_allocator)(b.alloc(1, C.sizeof_kvc_allocator))
		C.shim_set_allocator(c.allocator, C.uintptr_t(p.allocator.id))
	}
	if err := failure(C.shim_plan_create(l.api, c, &p.h)); err != nil {
		if p.allocator != nil {
			p.allocator.count(-1, 0)
		}
		return nil, err
	}
	p.leak = watch(p, "Plan")
	return p, nil
}

// Close frees the plan; caches made from it stay valid.
func (p *Plan) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.h == 0 {
		return nil
	}
	C.shim_plan_destroy(p.lib.api, p.h)
	p.h = 0
	if p.allocator != nil {
		p.allocator.count(-1, 0)
	}
	p.leak.done()
	return nil
}

// use calls with the handle, which stays open meanwhile.
func (p *Plan) use(call func(h C.uintptr_t) *C.kvc_error) error {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.h == 0 {
		return closedError("the plan")
	}
	return failure(call(p.h))
}

// Info is the plan in numbers.
func (p *Plan) Info() (*PlanInfo, error) {
	var out C.kvc_plan_info
	if err := p.use(func(h C.uintptr_t) *C.kvc_error { return C.shim_plan_info_get(p.lib.api, h, &out) }); err != nil {
		return nil, err
	}
	return goPlanInfo(&out), nil
}

// Layer is a layer by its global id.
func (p *Plan) Layer(layer int) (*LayerInfo, error) {
	var out C.kvc_layer_info
	number, err := index("layer", layer)
	if err != nil {
		return nil, err
	}
	if err := p.use(func(h C.uintptr_t) *C.kvc_error {
		return C.shim_plan_layer_get(p.lib.api, h, number,
			&out)
	}); err != nil {
		return nil, err
	}
	return goLayerInfo(&out), nil
}

// Group is a page table by its index, 0..NumGroups-1.
func (p *Plan) Group(group int) (*GroupInfo, error) {
	var out C.kvc_group_info
	number, err := index("group", group)
	if err != nil {
		return nil, err
	}
	if err := p.use(func(h C.uintptr_t) *C.kvc_error {
		return C.shim_plan_group_get(p.lib.api, h, number,
			&out)
	}); err != nil {
		return nil, err
	}
	return goGroupInfo(&out), nil
}

// PagesFor is the number of pages that a byte budget holds (may be 0).
func (p *Plan) PagesFor(byteBudget uint64) (int64, error) {
	return p.number(func(h C.uintptr_t, out *C.int64_t) *C.kvc_error {
		return C.shim_plan_pages_for(p.lib.api, h, C.uint64_t(byteBudget), out)
	})
}

// MaxTokens is the longest single request that a byte budget holds (may be 0).
func (p *Plan) MaxTokens(byteBudget uint64) (int64, error) {
	return p.number(func(h C.uintptr_t, out *C.int64_t) *C.kvc_error {
		return C.shim_plan_max_tokens(p.lib.api, h, C.uint64_t(byteBudget), out)
	})
}

// RequestPages is what one request of so many tokens needs at most while it is computed, when it shares
// nothing.
func (p *Plan) RequestPages(tokens int64) (int64, error) {
	return p.number(func(h C.uintptr_t, out *C.int64_t) *C.kvc_error {
		return C.shim_plan_request_pages(p.lib.api, h, C.int64_t(tokens), out)
	})
}

func (p *Plan) number(call func(h C.uintptr_t, out *C.int64_t) *C.kvc_error) (int64, error) {
	var out C.int64_t
	err := p.use(func(h C.uintptr_t) *C.kvc_error { return call(h, &out) })
	return int64(out), err
}

// Describe is the plan as a table for people.
func (p *Plan) Describe() (string, error) { return p.text(0) }

// JSON is the plan as JSON, see kvc_plan_to_json.
func (p *Plan) JSON() (string, error) { return p.text(1) }

// Fingerprint is equal exactly where pages can move between two caches, and state files be loaded.
func (p *Plan) Fingerprint() (string, error) { return p.text(2) }

func (p *Plan) text(what C.int32_t) (string, error) {
	var text []byte
	err := p.use(func(h C.uintptr_t) *C.kvc_error {
		var size C.size_t
		if failed := C.shim_plan_text(p.lib.api, h, what, nil, &size); failed != nil {
			return failed
		}
		text = make([]byte, size)
		return C.shim_plan_text(p.lib.api, h, what, (*C.char)(unsafe.Pointer(&text[0])), &size)
	})
	if err != nil || len(text) == 0 {
		return "", err
	}
	return string(text[:len(text)-1]), nil
}

// MinPages is the number of pages that every rank of one model has: the least of the plans' NumPages. Give
// each rank's plan this number.
func (l *Library) MinPages(plans ...*Plan) (int64, error) {
	handles := make([]C.uintptr_t, len(plans)+1)
	locked := make(map[*Plan]bool)
	for i, p := range plans {
		if p == nil {
			return 0, invalid("plans[%d]: nil", i)
		}
		if !locked[p] {
			p.mu.RLock()
			defer p.mu.RUnlock()
			locked[p] = true
		}
		if p.h == 0 {
			return 0, closedError("the plan")
		}
		handles[i] = p.h
	}
	var out C.int64_t
	err := failure(C.shim_plan_min_pages(l.api, &handles[0], C.size_t(len(plans)), &out))
	return int64(out), err
}

// index narrows the number of a layer, group or state.
func index(name string, value int) (C.int32_t, error) {
	if int(C.int32_t(value)) != value {
		return 0, &Error{Status: ErrOutOfRange, Detail: int64(value), Msg: name + " does not fit into 32 bits"}
	}
	return C.int32_t(value), nil
}
