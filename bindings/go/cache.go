package kvcache

/*
#include "shim_abi.h"
*/
import "C"

import (
	"context"
	"sync"
	"time"
)

// Cache is pages and sequences. All methods may be called from any goroutine: those that only look run beside
// each other and beside attention, those that change the cache run alone.
type Cache struct {
	lib      *Library
	mu       sync.RWMutex
	h        C.uintptr_t // 0: closed
	plan     *Plan
	ownsPlan bool
	// allocator gave the pool; counted until the cache is closed.
	allocator *hostAllocator
	leak      *leakWatch
}

// NewCache makes an empty cache of a configuration; its plan is closed with it.
func (l *Library) NewCache(config *Config) (*Cache, error) {
	plan, err := l.NewPlan(config)
	if err != nil {
		return nil, err
	}
	cache, err := plan.NewCache()
	if err != nil {
		plan.Close()
		return nil, err
	}
	cache.ownsPlan = true
	plan.leak.done() // lost together with the cache, and reported once
	return cache, nil
}

// NewCache makes an empty cache. The plan may be closed before it.
func (p *Plan) NewCache() (*Cache, error) {
	cache := &Cache{lib: p.lib, plan: p}
	if err := p.use(func(h C.uintptr_t) *C.kvc_error {
		return C.shim_cache_create(p.lib.api, h,
			&cache.h)
	}); err != nil {
		return nil, err
	}
	if p.allocator != nil {
		cache.allocator = p.allocator
		cache.allocator.count(1, 0)
	}
	cache.leak = watch(cache, "Cache")
	return cache, nil
}

// Close frees the cache. An open forward is dropped; exports stay valid until they are closed.
func (c *Cache) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.h == 0 {
		return nil
	}
	C.shim_cache_destroy(c.lib.api, c.h)
	c.h = 0
	if c.allocator != nil {
		c.allocator.count(-1, 0)
	}
	if c.ownsPlan {
		c.plan.Close()
	}
	c.leak.done()
	return nil
}

// Plan is the plan that the cache was made from.
func (c *Cache) Plan() *Plan { return c.plan }

// enter starts a method that changes the cache; leave with c.mu.Unlock.
func (c *Cache) enter() error {
	c.mu.Lock()
	if c.h == 0 {
		c.mu.Unlock()
		return closedError("the cache")
	}
	return nil
}

// look starts a method that only looks; leave with c.mu.RUnlock.
func (c *Cache) look() error {
	c.mu.RLock()
	if c.h == 0 {
		c.mu.RUnlock()
		return closedError("the cache")
	}
	return nil
}

// Clear forgets all sequences, the prefix index and what is on the host, and gives memory back as
// Trim does.
func (c *Cache) Clear() error {
	if err := c.enter(); err != nil {
		return err
	}
	defer c.mu.Unlock()
	return failure(C.shim_cache_clear(c.lib.api, c.h))
}

// Resize grows the pool, or shrinks it when the pages above are free.
func (c *Cache) Resize(numPages int64) error {
	if err := c.enter(); err != nil {
		return err
	}
	defer c.mu.Unlock()
	return failure(C.shim_cache_resize(c.lib.api, c.h, C.int64_t(numPages)))
}

// Trim gives the memory of free pages back to the system, and returns its bytes.
func (c *Cache) Trim() (released uint64, err error) {
	if err := c.enter(); err != nil {
		return 0, err
	}
	defer c.mu.Unlock()
	var out C.uint64_t
	err = failure(C.shim_cache_trim(c.lib.api, c.h, &out))
	return uint64(out), err
}

// Stats is what the cache holds and has done.
func (c *Cache) Stats() (*Stats, error) {
	if err := c.look(); err != nil {
		return nil, err
	}
	defer c.mu.RUnlock()
	var out C.kvc_stats
	if err := failure(C.shim_cache_stats_get(c.lib.api, c.h, &out)); err != nil {
		return nil, err
	}
	return goStats(&out), nil
}

// AvailablePages counts the pages not held by any sequence, forward or pin; -1 when the cache is closed.
func (c *Cache) AvailablePages() int64 {
	if c.look() != nil {
		return -1
	}
	defer c.mu.RUnlock()
	return int64(C.shim_cache_available_pages(c.lib.api, c.h))
}

// TotalLength counts the tokens over all sequences; -1 when the cache is closed.
func (c *Cache) TotalLength() int64 {
	if c.look() != nil {
		return -1
	}
	defer c.mu.RUnlock()
	return int64(C.shim_cache_total_length(c.lib.api, c.h))
}

// IsEmpty tells whether no sequence exists and every page is free; false when the cache is closed.
func (c *Cache) IsEmpty() bool {
	if c.look() != nil {
		return false
	}
	defer c.mu.RUnlock()
	return C.shim_cache_is_empty(c.lib.api, c.h) != 0
}

// Check recounts everything and compares; ErrCorrupt names the page or the sequence.
func (c *Cache) Check() error {
	if err := c.look(); err != nil {
		return err
	}
	defer c.mu.RUnlock()
	return failure(C.shim_cache_check(c.lib.api, c.h))
}

// WaitForPages returns when at least so many pages are free, looking every few milliseconds, or with the
// context's error.
func (c *Cache) WaitForPages(ctx context.Context, pages int64) error {
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	for {
		free := c.AvailablePages()
		switch {
		case free < 0:
			return closedError("the cache")
		case free >= pages:
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}
