package kvcache

/*
#include "shim_debug.h"
*/
import "C"

// DebugGetKV copies the committed tokens [begin, end) of a sequence, all layers of the slice, K as stored:
// k [layers, n, NumKVHeads, KDim], v [layers, n, NumKVHeads, VDim]. Either may be nil.
func (c *Cache) DebugGetKV(seq, begin, end int64, k, v *Tensor) error {
	return c.debugGet(C.SHIM_STORED_KV, seq, 0, begin, end, k, v)
}

// DebugSetKV overwrites the committed tokens from begin on with values as they are to be stored. Siblings
// keep theirs.
func (c *Cache) DebugSetKV(seq, begin int64, k, v *Tensor) error {
	return c.debugSet(C.SHIM_STORED_KV, seq, 0, begin, k, v)
}

// DebugGetMLA is DebugGetKV for the MLA layers: latent [layers, n, LatentRank + LatentRopeDim].
func (c *Cache) DebugGetMLA(seq, begin, end int64, latent *Tensor) error {
	return c.debugGet(C.SHIM_STORED_MLA, seq, 0, begin, end, latent, nil)
}

// DebugSetMLA is DebugSetKV for the MLA layers.
func (c *Cache) DebugSetMLA(seq, begin int64, latent *Tensor) error {
	return c.debugSet(C.SHIM_STORED_MLA, seq, 0, begin, latent, nil)
}

// DebugGetLayer is DebugGetKV for one layer of any kind that keeps pages: k [n, NumKVHeads, KDim], v [n,
// NumKVHeads, VDim].
func (c *Cache) DebugGetLayer(seq int64, layer int, begin, end int64, k, v *Tensor) error {
	return c.debugGet(C.SHIM_STORED_LAYER, seq, layer, begin, end, k, v)
}

// DebugSetLayer is DebugSetKV for one layer.
func (c *Cache) DebugSetLayer(seq int64, layer int, begin int64, k, v *Tensor) error {
	return c.debugSet(C.SHIM_STORED_LAYER, seq, layer, begin, k, v)
}

func (c *Cache) debugGet(which C.int32_t, seq int64, layer int, begin, end int64, k, v *Tensor) error {
	if err := firstBad(named{"k", k}, named{"v", v}); err != nil {
		return err
	}
	number, err := index("layer", layer)
	if err != nil {
		return err
	}
	if err := c.look(); err != nil {
		return err
	}
	defer c.mu.RUnlock()
	return failure(C.shim_debug_get(c.lib.api, which, c.h, C.int64_t(seq), number, C.int64_t(begin),
		C.int64_t(end), k.d(), k.p(), v.d(), v.p()))
}

func (c *Cache) debugSet(which C.int32_t, seq int64, layer int, begin int64, k, v *Tensor) error {
	if err := firstBad(named{"k", k}, named{"v", v}); err != nil {
		return err
	}
	number, err := index("layer", layer)
	if err != nil {
		return err
	}
	if err := c.enter(); err != nil {
		return err
	}
	defer c.mu.Unlock()
	return failure(C.shim_debug_set(c.lib.api, which, c.h, C.int64_t(seq), number, C.int64_t(begin), k.d(),
		k.p(), v.d(), v.p()))
}

// DebugGetState copies the state of a sequence at its committed length: out [shape...].
func (c *Cache) DebugGetState(seq int64, layer, state int, out *Tensor) error {
	layerNumber, stateNumber, err := debugState(layer, state, named{"out", out})
	if err != nil {
		return err
	}
	if err := c.look(); err != nil {
		return err
	}
	defer c.mu.RUnlock()
	return failure(C.shim_debug_state(c.lib.api, 0, c.h, C.int64_t(seq), layerNumber, stateNumber, out.d(),
		out.p()))
}

// DebugSetState replaces the state of a sequence at its committed length; checkpoints and other sequences
// keep theirs.
func (c *Cache) DebugSetState(seq int64, layer, state int, value *Tensor) error {
	layerNumber, stateNumber, err := debugState(layer, state, named{"value", value})
	if err != nil {
		return err
	}
	if err := c.enter(); err != nil {
		return err
	}
	defer c.mu.Unlock()
	return failure(C.shim_debug_state(c.lib.api, 1, c.h, C.int64_t(seq), layerNumber, stateNumber, value.d(),
		value.p()))
}

func debugState(layer, state int, value named) (layerNumber, stateNumber C.int32_t, err error) {
	if err := firstBad(value); err != nil {
		return 0, 0, err
	}
	return stateIndex(layer, state)
}
