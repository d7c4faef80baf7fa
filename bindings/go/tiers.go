package kvcache

/*
#include <stdlib.h>
#include "shim_tiers.h"
*/
import "C"

import (
	"math"
	"time"
	"unsafe"
)

// TierOptions are what all tiers have in common. The zero value is right for one model on one machine.
type TierOptions struct {
	ModelID    string        // the model and its weights: the layout of a cache says nothing of weights
	Shard      int           // the tensor-parallel rank, where ranks have pages of the same layout
	QueueBytes uint64        // memory for blocks that wait to be written; 0: 64 MiB
	GetTimeout time.Duration // how long a call waits for the tier, beside 8 ms per MiB; 0: a second
}

// RedisTierOptions are those of a tier on servers of the Redis protocol.
type RedisTierOptions struct {
	TierOptions
	Username       string        // for AUTH; "": none
	Password       string        // for AUTH; "": none
	PutTimeout     time.Duration // how long a write may take; 0: a second
	ConnectTimeout time.Duration // how long a connection may take; 0: a second
	TTL            time.Duration // how long a block is kept, in whole seconds; 0: until the server evicts it
}

// TierStats are counters of a tier since it was attached.
type TierStats struct {
	BlocksPut       uint64 // written
	BlocksDropped   uint64 // not written: the queue was full, or the tier left alone
	BlocksPutFailed uint64 // whose write failed
	BytesPut        uint64
	Lookups         uint64 // questions which blocks are there
	BlocksFound     uint64 // that were there
	BlocksGot       uint64 // read
	BlocksMissed    uint64 // gone when they were read
	BlocksCorrupt   uint64 // whose bytes were damaged
	BlocksTimedOut  uint64 // lookups and blocks that took too long
	BlocksFailed    uint64 // lookups and blocks that failed otherwise
	BytesGot        uint64
	WaitingBytes    uint64 // that wait to be written now
	StoredBytes     uint64 // that the tier holds now, as far as it knows; 0 for servers
}

// millis is a time in milliseconds, as C takes it.
func millis(d time.Duration) C.int32_t {
	ms := d.Milliseconds()
	if ms > math.MaxInt32 {
		ms = math.MaxInt32
	}
	return C.int32_t(ms)
}

// AttachFileTier keeps published blocks in files of a folder, at most byteLimit bytes. PrefixAttach brings back what
// the cache itself no longer has. One cache at a time uses a folder. A tier is a cache: whatever fails there is a
// miss, counted by TierStats.
func (c *Cache) AttachFileTier(folder string, byteLimit uint64, options TierOptions) error {
	desc := C.kvc_tier_desc{tier: C.KVC_TIER_FILE, byte_limit: C.uint64_t(byteLimit)}
	return c.attachTier(&desc, folder, options)
}

// AttachRedisTier keeps published blocks on servers of the Redis protocol: "host:port", several separated by commas.
// A cluster is followed where its slots go.
func (c *Cache) AttachRedisTier(address string, options RedisTierOptions) error {
	username, err := optionalText("options.Username", options.Username)
	if err != nil {
		return err
	}
	defer C.free(unsafe.Pointer(username))
	password, err := optionalText("options.Password", options.Password)
	if err != nil {
		return err
	}
	defer C.free(unsafe.Pointer(password))
	desc := C.kvc_tier_desc{
		tier:       C.KVC_TIER_REDIS,
		put_ms:     millis(options.PutTimeout),
		connect_ms: millis(options.ConnectTimeout),
		ttl_s:      C.int64_t(options.TTL / time.Second),
		username:   username,
		password:   password,
	}
	return c.attachTier(&desc, address, options.TierOptions)
}

func (c *Cache) attachTier(desc *C.kvc_tier_desc, address string, options TierOptions) error {
	place, err := cText("address", address)
	if err != nil {
		return err
	}
	defer C.free(unsafe.Pointer(place))
	model, err := optionalText("options.ModelID", options.ModelID)
	if err != nil {
		return err
	}
	defer C.free(unsafe.Pointer(model))
	if err := c.enter(); err != nil {
		return err
	}
	defer c.mu.Unlock()
	desc.address, desc.model_id = place, model
	desc.shard = C.int32_t(options.Shard)
	desc.queue_bytes = C.uint64_t(options.QueueBytes)
	desc.get_ms = millis(options.GetTimeout)
	return failure(C.shim_tier_attach(c.lib.api, c.h, desc))
}

// DetachTier writes what waits, and closes the tier.
func (c *Cache) DetachTier(tier Tier) error {
	if err := c.enter(); err != nil {
		return err
	}
	defer c.mu.Unlock()
	return failure(C.shim_tier_detach(c.lib.api, c.h, C.int32_t(tier)))
}

// FlushTiers waits until the blocks that were published so far are written or dropped; a negative timeout: as long as
// it takes.
func (c *Cache) FlushTiers(timeout time.Duration) error {
	if err := c.look(); err != nil {
		return err
	}
	defer c.mu.RUnlock()
	ms := C.int64_t(timeout.Milliseconds())
	if timeout < 0 {
		ms = -1 // also of less than a millisecond
	}
	return failure(C.shim_tier_flush(c.lib.api, c.h, ms))
}

// TierStats are the counters of an attached tier.
func (c *Cache) TierStats(tier Tier) (*TierStats, error) {
	if err := c.look(); err != nil {
		return nil, err
	}
	defer c.mu.RUnlock()
	var out C.kvc_tier_stats
	if err := failure(C.shim_tier_stats_get(c.lib.api, c.h, C.int32_t(tier), &out)); err != nil {
		return nil, err
	}
	return &TierStats{
		BlocksPut:       uint64(out.blocks_put),
		BlocksDropped:   uint64(out.blocks_dropped),
		BlocksPutFailed: uint64(out.blocks_put_failed),
		BytesPut:        uint64(out.bytes_put),
		Lookups:         uint64(out.lookups),
		BlocksFound:     uint64(out.blocks_found),
		BlocksGot:       uint64(out.blocks_got),
		BlocksMissed:    uint64(out.blocks_missed),
		BlocksCorrupt:   uint64(out.blocks_corrupt),
		BlocksTimedOut:  uint64(out.blocks_timed_out),
		BlocksFailed:    uint64(out.blocks_failed),
		BytesGot:        uint64(out.bytes_got),
		WaitingBytes:    uint64(out.waiting_bytes),
		StoredBytes:     uint64(out.stored_bytes),
	}, nil
}
