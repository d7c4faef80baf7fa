package conformance

import (
	"math"

	kvcache "github.com/libkvcache/libkvcache/bindings/go"
)

// Steps that compare what the pages hold with the formulas, write it, and share it.
var storedSteps = map[string]handler{
	"stored":      storedStep,
	"store":       storeStep,
	"gather":      gatherStep,
	"stored_kv":   func(s *session, step object) error { return s.storedStack(step, kvcache.LayerAttention) },
	"stored_mla":  func(s *session, step object) error { return s.storedStack(step, kvcache.LayerMLA) },
	"store_kv":    func(s *session, step object) error { return s.storeStack(step, kvcache.LayerAttention) },
	"store_mla":   func(s *session, step object) error { return s.storeStack(step, kvcache.LayerMLA) },
	"export_pool": exportPoolStep,
}

// checkStored compares K and V of one layer, [n >= ids][heads][dim]; v nil: not asked for. base is the first
// element of the layer.
func (s *session) checkStored(step object, layer int, ids []int64, k, v *host, base int) {
	r := s.rowsOfLayer(layer)
	if !s.model.views[s.model.keysOf(layer)].turnedOnAppend {
		r.rope.on = false
	}
	longFrom := step.i64Or("long_from", math.MaxInt64)
	for i, id := range ids {
		position := s.positionOf(id)
		if step.has("at") {
			position = []float64{float64(parseIDs(step.text("at"), nil)[i])}
		}
		for head := 0; head < r.kvHeads; head++ {
			row := (base+i)*r.kvHeads + head
			for d, wanted := range r.key(id, head, position, id >= longFrom) {
				if got := k.get(row*r.kDim + d); !s.near(got, wanted) {
					s.Fatalf("K of token %d (id %d) layer %d head %d element %d: %v instead of %v", i, id,
						layer, head, d, got, wanted)
				}
			}
			for d := 0; v != nil && d < r.vDim; d++ {
				got, wanted := v.get(row*r.vDim+d), value(ofValue, r.keyLayer, id, head, d)
				if !s.near(got, wanted) {
					s.Fatalf("V of token %d (id %d) layer %d head %d element %d: %v instead of %v", i, id,
						layer, head, d, got, wanted)
				}
			}
		}
	}
}

// span is [begin, end) of a step, and the ids in it.
func span(step object) (begin, end int64, n int, ids []int64) {
	ids = parseIDs(step.textOr("ids", ""), nil)
	begin = step.i64Or("begin", 0)
	end = step.i64Or("end", begin+int64(len(ids)))
	if end > begin {
		n = int(end - begin)
	}
	return begin, end, n, ids
}

func atLeast1(x int) int {
	if x < 1 {
		return 1
	}
	return x
}

func (s *session) storedInLayer(step object, layer int) error {
	begin, end, n, ids := span(step)
	known := layer
	if layer < 0 || layer >= len(s.model.views) {
		known = 0
	}
	r := s.rowsOfLayer(known)
	k := f32(n, atLeast1(r.kvHeads), atLeast1(r.kDim))
	var v *host
	if !r.vIsK {
		v = f32(n, atLeast1(r.kvHeads), atLeast1(r.vDim))
	}
	if err := s.cache.DebugGetLayer(step.i64("seq"), layer, begin, end, k.arg(), v.arg()); err != nil {
		return err
	}
	s.equal("number of 'ids' in [begin, end)", len(ids), n)
	s.checkStored(step, layer, ids, k, v, 0)
	return nil
}

// storedStep without "layer" asks every layer that keeps its own tokens.
func storedStep(s *session, step object) error {
	if step.has("layer") {
		return s.storedInLayer(step, step.num("layer"))
	}
	for layer := s.model.begin(); layer < s.model.end(); layer++ {
		if !s.model.views[layer].keepsTokens() {
			continue
		}
		if err := s.storedInLayer(step, layer); err != nil {
			return err
		}
	}
	return nil
}

// storeStep gives values as they are to be stored: K is not turned.
func storeStep(s *session, step object) error {
	layer := step.num("layer")
	r := s.rowsOfLayer(layer)
	ids := parseIDs(step.text("ids"), nil)
	var v *host
	if !r.vIsK {
		v = exact(ofValue, r.keyLayer, ids, r.kvHeads, r.vDim)
	}
	k := exact(ofKey, r.keyLayer, ids, r.kvHeads, r.kDim)
	return s.cache.DebugSetLayer(step.i64("seq"), layer, step.i64("begin"), k.arg(), v.arg())
}

func gatherStep(s *session, step object) error {
	layer := step.num("layer")
	r := s.rowsOfLayer(layer)
	ids := parseIDs(step.textOr("ids", ""), nil)
	room := len(ids)
	if step.has("status") && room < 64 { // a refusal may come before or after the shapes are looked at
		room = 64
	}
	k := f32(room, r.kvHeads, r.kDim)
	var v *host
	if !r.vIsK {
		v = f32(room, r.kvHeads, r.vDim)
	}
	if err := s.fwd.KVGather(layer, step.i64("seq"), k.arg(), v.arg()); err != nil {
		return err
	}
	s.checkStored(step, layer, ids, k, v, 0)
	return nil
}

// stack is the layers of a kind in the slice, which have equal shapes in such scenarios.
func (s *session) stack(kind kvcache.LayerKind) (layers []int, r rows) {
	for layer := s.model.begin(); layer < s.model.end(); layer++ {
		if s.model.views[layer].kind == kind {
			layers = append(layers, layer)
		}
	}
	if len(layers) == 0 {
		return layers, s.rowsOfLayer(0)
	}
	return layers, s.rowsOfLayer(layers[0])
}

// stackTensors have a row for every layer of the slice; those of another kind are left as they are.
func (s *session) stackTensors(mla bool, r *rows, n int) (k, v *host) {
	layers := s.model.end() - s.model.begin()
	if mla {
		return f32(layers, n, r.kDim), nil
	}
	return f32(layers, n, r.kvHeads, r.kDim), f32(layers, n, r.kvHeads, r.vDim)
}

func (s *session) storedStack(step object, kind kvcache.LayerKind) error {
	layers, r := s.stack(kind)
	begin, end, n, ids := span(step)
	k, v := s.stackTensors(kind == kvcache.LayerMLA, &r, n)
	var err error
	if kind == kvcache.LayerMLA {
		err = s.cache.DebugGetMLA(step.i64("seq"), begin, end, k.arg())
	} else {
		err = s.cache.DebugGetKV(step.i64("seq"), begin, end, k.arg(), v.arg())
	}
	if err != nil {
		return err
	}
	s.equal("number of 'ids' in [begin, end)", len(ids), n)
	for _, layer := range layers {
		s.checkStored(step, layer, ids, k, v, (layer-s.model.begin())*n)
	}
	return nil
}

func (s *session) storeStack(step object, kind kvcache.LayerKind) error {
	_, r := s.stack(kind)
	ids := parseIDs(step.text("ids"), nil)
	k, v := s.stackTensors(kind == kvcache.LayerMLA, &r, len(ids))
	ki, vi := 0, 0
	for layer := s.model.begin(); layer < s.model.end(); layer++ {
		for _, id := range ids {
			for head := 0; head < r.kvHeads; head++ {
				for d := 0; d < r.kDim; d++ {
					k.set(ki, value(ofKey, layer, id, head, d))
					ki++
				}
				for d := 0; v != nil && d < r.vDim; d++ {
					v.set(vi, value(ofValue, layer, id, head, d))
					vi++
				}
			}
		}
	}
	if kind == kvcache.LayerMLA {
		return s.cache.DebugSetMLA(step.i64("seq"), step.i64("begin"), k.arg())
	}
	return s.cache.DebugSetKV(step.i64("seq"), step.i64("begin"), k.arg(), v.arg())
}

var poolKinds = map[string]kvcache.PoolKind{"K": kvcache.PoolK, "V": kvcache.PoolV, "KV": kvcache.PoolKV,
	"BYTES": kvcache.PoolBytes}

func exportPoolStep(s *session, step object) error {
	export, err := s.cache.ExportPool(step.num("layer"), named(poolKinds, step.text("kind")))
	if err != nil {
		return err
	}
	defer export.Close()
	if step.has("shape") {
		shape := []int64{}
		for _, extent := range export.Shape() {
			shape = append(shape, int64(extent))
		}
		s.equal("shape of the pool", shape, ints(step.list("shape")))
	}
	return nil
}
