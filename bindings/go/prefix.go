package kvcache

/*
#include "shim_prefix.h"
*/
import "C"

import (
	"unsafe"

	"github.com/libkvcache/libkvcache/bindings/go/prefixhash"
)

// HashBytes is the size of a block's key.
const HashBytes = C.KVC_HASH_BYTES

// Hash is the key of a block of the prefix cache. Package prefixhash makes the same ones in pure Go.
type Hash = prefixhash.Hash

// PrefixKeyType says what an extra key is.
type PrefixKeyType uint32

// The types of extra keys.
const (
	PrefixKeyAdapter PrefixKeyType = C.KVC_PREFIX_KEY_ADAPTER // LoRA or other adapter, offset 0
	PrefixKeyMedia   PrefixKeyType = C.KVC_PREFIX_KEY_MEDIA   // digest of an image, at its first token
	PrefixKeyUser    PrefixKeyType = C.KVC_PREFIX_KEY_USER    // this and all above: the host's own
)

// PrefixKey is more than tokens that K and V depend on.
type PrefixKey struct {
	Type   PrefixKeyType
	Offset int64 // token where it begins to matter
	Data   []byte
}

// PrefixFlags are bits of PrefixQuery.Flags.
type PrefixFlags uint64

// The flags of queries.
const (
	AllTokens   PrefixFlags = C.KVC_PREFIX_ALL_TOKENS   // without it the last token is left to be computed
	WholeBlocks PrefixFlags = C.KVC_PREFIX_WHOLE_BLOCKS // no hit inside a block
)

// PrefixQuery names the beginning of a prompt.
type PrefixQuery struct {
	Tokens []int32 // may be nil when Hashes are given: then NumTokens says how many
	// NumTokens is needed without Tokens; otherwise 0 means all of them, and a smaller number the first ones.
	NumTokens int64
	Hashes    []Hash // keys of the leading full blocks, so that they are not computed again; trusted
	Salt      []byte // namespace: a tenant; nothing is shared across
	Keys      []PrefixKey
	Flags     PrefixFlags
	Priority  int // 0..100, higher stays longer
}

// extraKeys are keys in the form that shims take.
func extraKeys(keys []PrefixKey) (fields []C.shim_key, data []byte) {
	if len(keys) == 0 {
		return nil, nil
	}
	fields = make([]C.shim_key, len(keys))
	for i, key := range keys {
		fields[i] = C.shim_key{offset: C.int64_t(key.Offset), size: C.uint64_t(len(key.Data)),
			_type: C.uint32_t(key.Type)}
		data = append(data, key.Data...)
	}
	return fields, data
}

func u8s(s []byte) *C.uint8_t {
	if len(s) == 0 {
		return nil
	}
	return (*C.uint8_t)(&s[0])
}

func hashes(s []Hash) *C.uint8_t {
	if len(s) == 0 {
		return nil
	}
	return (*C.uint8_t)(&s[0][0])
}

func keyFields(s []C.shim_key) *C.shim_key {
	if len(s) == 0 {
		return nil
	}
	return &s[0]
}

// PrefixHash gives the keys of the full blocks of tokens: the same in every process and language.
func (l *Library) PrefixHash(tokens []int32, blockTokens int, salt []byte, keys ...PrefixKey) ([]Hash, error) {
	block, err := index("blockTokens", blockTokens)
	if err != nil {
		return nil, err
	}
	fields, data := extraKeys(keys)
	call := func(out *C.uint8_t, count *C.size_t) error {
		return failure(C.shim_prefix_hash(l.api, i32s(tokens), C.size_t(len(tokens)), block, u8s(salt),
			C.size_t(len(salt)), keyFields(fields), C.size_t(len(fields)), u8s(data), out, count))
	}
	var count C.size_t
	if err := call(nil, &count); err != nil || count == 0 {
		return nil, err
	}
	out := make([]Hash, count)
	return out, call(hashes(out), &count)
}

func (c *Cache) query(which C.int32_t, seq int64, q *PrefixQuery) (int64, error) {
	if q == nil {
		return 0, invalid("query: nil")
	}
	tokens, count := q.Tokens, q.NumTokens
	switch {
	case tokens != nil && count == 0:
		count = int64(len(tokens))
	case tokens != nil && count > int64(len(tokens)):
		return 0, invalid("NumTokens: %d, but Tokens has %d", count, len(tokens))
	}
	if tokens != nil && len(tokens) == 0 {
		tokens = noTokens[:]
	}
	priority, err := index("Priority", q.Priority)
	if err != nil {
		return 0, err
	}
	fields, data := extraKeys(q.Keys)
	var out C.int64_t
	err = failure(C.shim_prefix(c.lib.api, which, c.h, C.int64_t(seq), C.uint64_t(q.Flags), C.int64_t(count),
		i32s(tokens), hashes(q.Hashes), C.size_t(len(q.Hashes)), u8s(q.Salt), C.size_t(len(q.Salt)),
		keyFields(fields), C.size_t(len(fields)), u8s(data), priority, &out))
	return int64(out), err
}

// noTokens tells an empty prompt from one that is known by its hashes only.
var noTokens [1]int32

// PrefixMatch counts the leading tokens that PrefixAttach would find now.
func (c *Cache) PrefixMatch(query *PrefixQuery) (tokens int64, err error) {
	if err := c.look(); err != nil {
		return 0, err
	}
	defer c.mu.RUnlock()
	return c.query(C.SHIM_MATCH, 0, query)
}

// PrefixAttach adds seq with the longest hit, whose length it gives, in the query's namespace.
func (c *Cache) PrefixAttach(seq int64, query *PrefixQuery) (tokens int64, err error) {
	if err := c.enter(); err != nil {
		return 0, err
	}
	defer c.mu.Unlock()
	return c.query(C.SHIM_ATTACH, seq, query)
}

// PrefixInsert says what the first tokens of seq are, and publishes their full blocks. It gives the tokens
// that are in the index now.
func (c *Cache) PrefixInsert(seq int64, query *PrefixQuery) (tokens int64, err error) {
	if err := c.enter(); err != nil {
		return 0, err
	}
	defer c.mu.Unlock()
	return c.query(C.SHIM_INSERT, seq, query)
}

// PrefixPin keeps the full blocks of the query that are in the index from being evicted; it counts. It gives
// the tokens pinned.
func (c *Cache) PrefixPin(query *PrefixQuery) (tokens int64, err error) {
	if err := c.enter(); err != nil {
		return 0, err
	}
	defer c.mu.Unlock()
	return c.query(C.SHIM_PIN, 0, query)
}

// PrefixUnpin undoes one PrefixPin of the same query.
func (c *Cache) PrefixUnpin(query *PrefixQuery) (tokens int64, err error) {
	if err := c.enter(); err != nil {
		return 0, err
	}
	defer c.mu.Unlock()
	return c.query(C.SHIM_UNPIN, 0, query)
}

// PrefixEvict evicts until at least so many pages have left the index, or nothing evictable is left. It gives
// how many did.
func (c *Cache) PrefixEvict(pages int64) (freed int64, err error) {
	if err := c.enter(); err != nil {
		return 0, err
	}
	defer c.mu.Unlock()
	var out C.int64_t
	err = failure(C.shim_prefix_evict(c.lib.api, c.h, C.int64_t(pages), &out))
	return int64(out), err
}

// PrefixReset forgets the whole index, pins and host copies too.
func (c *Cache) PrefixReset() error {
	if err := c.enter(); err != nil {
		return err
	}
	defer c.mu.Unlock()
	return failure(C.shim_prefix_reset(c.lib.api, c.h))
}

// SetPrefixQuota gives the namespace a quota in bytes; 0: none.
func (c *Cache) SetPrefixQuota(salt []byte, maxBytes uint64) error {
	if err := c.enter(); err != nil {
		return err
	}
	defer c.mu.Unlock()
	return failure(C.shim_prefix_quota_set(c.lib.api, c.h, u8s(salt), C.size_t(len(salt)), C.uint64_t(maxBytes)))
}

// sizeOfEvent is the stride of arrays of kvc_event.
const sizeOfEvent = unsafe.Sizeof(C.kvc_event{})
