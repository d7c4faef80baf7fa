// Package prefixhash makes the keys of prefix blocks in pure Go, for routers and other programs without the
// library. They are those of kvc_prefix_hash and of the events of a cache, byte for byte:
//
//	root     = SHA-256("kvcache-prefix-1" | u64 salt size | salt)
//	key of i = SHA-256(key of i-1, or root | u32 k | for each of the k extra keys of the block: u32 type |
//	           u32 offset - i * block | u64 size | data | int32 tokens of the block)
//
// all integers little endian; an extra key belongs to the block that holds the token at its offset; they are
// ordered by (offset, type, data).
package prefixhash

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"sort"
)

// Size is the size of a key.
const Size = sha256.Size

// maxBytes is the limit of a salt and of an extra key's data.
const maxBytes = 4096

// Hash is the key of a block.
type Hash [Size]byte

// Types of extra keys.
const (
	Adapter uint32 = 1   // LoRA or other adapter, offset 0
	Media   uint32 = 2   // digest of an image, audio or video, offset of its first token
	User    uint32 = 256 // this and all above: the host's own
)

// Key is more than tokens that K and V depend on.
type Key struct {
	Type   uint32
	Offset int64 // token where it begins to matter
	Data   []byte
}

// Root is the parent of the first block of a namespace.
func Root(salt []byte) Hash {
	h := sha256.New()
	h.Write([]byte("kvcache-prefix-1"))
	var size [8]byte
	binary.LittleEndian.PutUint64(size[:], uint64(len(salt)))
	h.Write(size[:])
	h.Write(salt)
	var root Hash
	h.Sum(root[:0])
	return root
}

// Hashes are the keys of the full blocks of tokens.
func Hashes(tokens []int32, block int, salt []byte, keys ...Key) ([]Hash, error) {
	chain, err := NewChain(block, salt, keys...)
	if err != nil {
		return nil, err
	}
	return chain.Add(tokens...), nil
}

// Chain makes keys of tokens that come bit by bit. It serves one goroutine at a time.
type Chain struct {
	block  int
	parent Hash
	blocks int64   // made so far
	rest   []int32 // tokens of the block that is not full yet
	keys   []Key   // of the blocks to come, sorted
	buffer []byte
}

// NewChain starts a chain. The keys are copied, their data is not.
func NewChain(block int, salt []byte, keys ...Key) (*Chain, error) {
	if block < 1 || block > 1<<31-1 {
		return nil, fmt.Errorf("prefixhash: block of %d tokens is not in 1..2147483647", block)
	}
	if len(salt) > maxBytes {
		return nil, fmt.Errorf("prefixhash: salt of %d bytes, at most %d", len(salt), maxBytes)
	}
	for i, key := range keys {
		switch {
		case key.Type == 0:
			return nil, fmt.Errorf("prefixhash: keys[%d]: type 0", i)
		case key.Offset < 0:
			return nil, fmt.Errorf("prefixhash: keys[%d]: offset %d is negative", i, key.Offset)
		case len(key.Data) > maxBytes:
			return nil, fmt.Errorf("prefixhash: keys[%d]: %d bytes, at most %d", i, len(key.Data), maxBytes)
		}
	}
	sorted := append([]Key(nil), keys...)
	sort.SliceStable(sorted, func(i, j int) bool {
		a, b := sorted[i], sorted[j]
		if a.Offset != b.Offset {
			return a.Offset < b.Offset
		}
		if a.Type != b.Type {
			return a.Type < b.Type
		}
		return bytes.Compare(a.Data, b.Data) < 0
	})
	return &Chain{block: block, parent: Root(salt), keys: sorted}, nil
}

// Add appends tokens and gives the keys of the blocks that they fill.
func (c *Chain) Add(tokens ...int32) []Hash {
	out := make([]Hash, 0, (len(c.rest)+len(tokens))/c.block)
	for len(c.rest)+len(tokens) >= c.block {
		block := tokens[:c.block-len(c.rest)]
		tokens = tokens[len(block):]
		if len(c.rest) > 0 {
			block = append(c.rest, block...)
			c.rest = c.rest[:0]
		}
		out = append(out, c.next(block))
	}
	c.rest = append(c.rest, tokens...)
	return out
}

// next hashes one full block.
func (c *Chain) next(tokens []int32) Hash {
	begin := c.blocks * int64(c.block)
	count := 0
	for count < len(c.keys) && c.keys[count].Offset < begin+int64(c.block) {
		count++
	}
	buffer := append(c.buffer[:0], c.parent[:]...)
	buffer = binary.LittleEndian.AppendUint32(buffer, uint32(count))
	for _, key := range c.keys[:count] {
		buffer = binary.LittleEndian.AppendUint32(buffer, key.Type)
		buffer = binary.LittleEndian.AppendUint32(buffer, uint32(key.Offset-begin))
		buffer = binary.LittleEndian.AppendUint64(buffer, uint64(len(key.Data)))
		buffer = append(buffer, key.Data...)
	}
	for _, token := range tokens {
		buffer = binary.LittleEndian.AppendUint32(buffer, uint32(token))
	}
	c.keys = c.keys[count:]
	c.buffer = buffer
	c.parent = sha256.Sum256(buffer)
	c.blocks++
	return c.parent
}
