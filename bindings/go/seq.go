package kvcache

/*
#include "shim_abi.h"
*/
import "C"

// AddSeq adds an empty sequence with an id of the caller's choice, >= 0. It never fails for capacity.
func (c *Cache) AddSeq(seq int64) error {
	if err := c.enter(); err != nil {
		return err
	}
	defer c.mu.Unlock()
	return failure(C.shim_seq_add(c.lib.api, c.h, C.int64_t(seq)))
}

// RemoveSeq removes a sequence; pages that others share live on.
func (c *Cache) RemoveSeq(seq int64) error {
	if err := c.enter(); err != nil {
		return err
	}
	defer c.mu.Unlock()
	return failure(C.shim_seq_remove(c.lib.api, c.h, C.int64_t(seq)))
}

// Fork adds child with the first pos tokens of parent (-1: all). Nothing is copied.
func (c *Cache) Fork(parent, child, pos int64) error {
	if err := c.enter(); err != nil {
		return err
	}
	defer c.mu.Unlock()
	return failure(C.shim_seq_fork(c.lib.api, c.h, C.int64_t(parent), C.int64_t(child), C.int64_t(pos)))
}

// Reserve appends n tokens without content, for rows that come from elsewhere (ImportPages). The prefix index
// never gets a block that contains one of them.
func (c *Cache) Reserve(seq, n int64) error {
	if err := c.enter(); err != nil {
		return err
	}
	defer c.mu.Unlock()
	return failure(C.shim_seq_reserve(c.lib.api, c.h, C.int64_t(seq), C.int64_t(n)))
}

// Pop drops the last n tokens.
func (c *Cache) Pop(seq, n int64) error {
	if err := c.enter(); err != nil {
		return err
	}
	defer c.mu.Unlock()
	return failure(C.shim_seq_pop(c.lib.api, c.h, C.int64_t(seq), C.int64_t(n)))
}

// Shift drops tokens [begin, end) and moves the later ones by delta positions: begin - end closes the gap.
func (c *Cache) Shift(seq, begin, end, delta int64) error {
	if err := c.enter(); err != nil {
		return err
	}
	defer c.mu.Unlock()
	return failure(C.shim_seq_shift(c.lib.api, c.h, C.int64_t(seq), C.int64_t(begin), C.int64_t(end),
		C.int64_t(delta)))
}

// SetWindow lets the sequence see only its first sink tokens and the newest, at most window keys
// (StreamingLLM).
func (c *Cache) SetWindow(seq, window, sink int64) error {
	if err := c.enter(); err != nil {
		return err
	}
	defer c.mu.Unlock()
	return failure(C.shim_seq_set_window(c.lib.api, c.h, C.int64_t(seq), C.int64_t(window), C.int64_t(sink)))
}

// CheckpointState keeps the recurrent state of the sequence's present length, so that it can be forked at and
// popped to.
func (c *Cache) CheckpointState(seq int64) error {
	if err := c.enter(); err != nil {
		return err
	}
	defer c.mu.Unlock()
	return failure(C.shim_state_checkpoint(c.lib.api, c.h, C.int64_t(seq)))
}

// ReleaseCheckpoint gives up the checkpoint at pos: its state slot serves others.
func (c *Cache) ReleaseCheckpoint(seq, pos int64) error {
	if err := c.enter(); err != nil {
		return err
	}
	defer c.mu.Unlock()
	return failure(C.shim_state_checkpoint_release(c.lib.api, c.h, C.int64_t(seq), C.int64_t(pos)))
}

// CommitTree accepts a path of each sequence's token tree: root to leaves[i] becomes committed tokens; leaf
// -1 keeps nothing.
func (c *Cache) CommitTree(seqs []int64, leaves []int32) error {
	return c.CommitTreeOn(0, seqs, leaves)
}

// CommitTreeOn is CommitTree with its copies on a CUDA stream.
func (c *Cache) CommitTreeOn(stream uintptr, seqs []int64, leaves []int32) error {
	if len(seqs) != len(leaves) {
		return invalid("leaves: %d entries for %d sequences", len(leaves), len(seqs))
	}
	if err := c.enter(); err != nil {
		return err
	}
	defer c.mu.Unlock()
	return failure(C.shim_tree_commit(c.lib.api, c.h, C.size_t(len(seqs)), i64s(seqs), i32s(leaves), C.uintptr_t(stream)))
}

// Len is the number of committed tokens of a sequence.
func (c *Cache) Len(seq int64) (int64, error) {
	if err := c.look(); err != nil {
		return 0, err
	}
	defer c.mu.RUnlock()
	var out C.int64_t
	err := failure(C.shim_seq_length(c.lib.api, c.h, C.int64_t(seq), &out))
	return int64(out), err
}

// SeqInfo is what is known of a sequence.
func (c *Cache) SeqInfo(seq int64) (*SeqInfo, error) {
	if err := c.look(); err != nil {
		return nil, err
	}
	defer c.mu.RUnlock()
	var out C.kvc_seq_info
	if err := failure(C.shim_seq_info_get(c.lib.api, c.h, C.int64_t(seq), &out)); err != nil {
		return nil, err
	}
	return goSeqInfo(&out), nil
}

// Seqs are the ids of all sequences, ascending.
func (c *Cache) Seqs() ([]int64, error) {
	if err := c.look(); err != nil {
		return nil, err
	}
	defer c.mu.RUnlock()
	var count C.size_t
	if err := failure(C.shim_seq_list(c.lib.api, c.h, nil, &count)); err != nil {
		return nil, err
	}
	seqs := make([]int64, count)
	if count == 0 {
		return seqs, nil
	}
	err := failure(C.shim_seq_list(c.lib.api, c.h, i64s(seqs), &count))
	return seqs[:count], err
}

// CanAppend tells how many pages would be missing now for a forward with these sequences and lengths: 0 when
// it would find them all.
func (c *Cache) CanAppend(seqs, lengths []int64) (missing int64, err error) {
	if len(seqs) != len(lengths) {
		return 0, invalid("lengths: %d entries for %d sequences", len(lengths), len(seqs))
	}
	if err := c.look(); err != nil {
		return 0, err
	}
	defer c.mu.RUnlock()
	var out C.int64_t
	err = failure(C.shim_seq_can_append(c.lib.api, c.h, C.size_t(len(seqs)), i64s(seqs), i64s(lengths), &out))
	return int64(out), err
}

// SeqOp is an operation that Can asks about.
type SeqOp int32

// The operations of Can.
const (
	OpFork  SeqOp = C.KVC_SEQ_FORK
	OpPop   SeqOp = C.KVC_SEQ_POP
	OpShift SeqOp = C.KVC_SEQ_SHIFT // drop [pos, pos + 1) and close the gap
)

// Can gives the nearest position at or below pos where the sequence could be forked, popped back to or shifted:
// pos itself when it could, -1 when there is none. pos -1 is its end.
func (c *Cache) Can(seq int64, op SeqOp, pos int64) (nearest int64, err error) {
	if err := c.look(); err != nil {
		return 0, err
	}
	defer c.mu.RUnlock()
	var out C.int64_t
	err = failure(C.shim_seq_can(c.lib.api, c.h, C.int64_t(seq), C.int32_t(op), C.int64_t(pos), &out))
	return int64(out), err
}

// Positions gives the nearest positions at or below pos and at or above it, as Can means them; -1: none.
func (c *Cache) Positions(seq int64, op SeqOp, pos int64) (below, above int64, err error) {
	if err := c.look(); err != nil {
		return 0, 0, err
	}
	defer c.mu.RUnlock()
	var low, high C.int64_t
	err = failure(C.shim_seq_positions(c.lib.api, c.h, C.int64_t(seq), C.int32_t(op), C.int64_t(pos), &low, &high))
	return int64(low), int64(high), err
}

// i64s and i32s lend a slice to C for one call.
func i64s(s []int64) *C.int64_t {
	if len(s) == 0 {
		return nil
	}
	return (*C.int64_t)(&s[0])
}

func i32s(s []int32) *C.int32_t {
	if len(s) == 0 {
		return nil
	}
	return (*C.int32_t)(&s[0])
}
