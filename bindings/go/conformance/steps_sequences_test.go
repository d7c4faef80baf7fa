package conformance

import (
	kvcache "github.com/libkvcache/libkvcache/bindings/go"
)

var seqOps = map[string]kvcache.SeqOp{"FORK": kvcache.OpFork, "POP": kvcache.OpPop, "SHIFT": kvcache.OpShift}

// Steps on the plan, the cache and its sequences.
var sequenceSteps = map[string]handler{
	"plan":       planStep,
	"add":        func(s *session, step object) error { return s.cache.AddSeq(step.i64("seq")) },
	"remove":     func(s *session, step object) error { return s.cache.RemoveSeq(step.i64("seq")) },
	"checkpoint": func(s *session, step object) error { return s.cache.CheckpointState(step.i64("seq")) },
	"fork": func(s *session, step object) error {
		return s.cache.Fork(step.i64("parent"), step.i64("child"), step.i64Or("pos", -1))
	},
	"pop": func(s *session, step object) error { return s.cache.Pop(step.i64("seq"), step.i64("n")) },
	"shift": func(s *session, step object) error {
		return s.cache.Shift(step.i64("seq"), step.i64("begin"), step.i64("end"), step.i64("delta"))
	},
	"set_window": func(s *session, step object) error {
		return s.cache.SetWindow(step.i64("seq"), step.i64("window"), step.i64Or("sink", 0))
	},
	"clear":  func(s *session, step object) error { return s.cache.Clear() },
	"resize": func(s *session, step object) error { return s.cache.Resize(step.i64("num_pages")) },
	"can_append": func(s *session, step object) error {
		missing, err := s.cache.CanAppend(ints(step.list("seqs")), ints(step.list("lengths")))
		if err == nil {
			s.equal("missing pages", missing, step.i64("missing"))
		}
		return err
	},
	"can": func(s *session, step object) error {
		nearest, err := s.cache.Can(step.i64("seq"), named(seqOps, step.text("what")), step.i64("pos"))
		if err == nil {
			s.equal("nearest position", nearest, step.i64("nearest"))
		}
		return err
	},
	"commit": func(s *session, step object) error {
		return s.cache.CommitTree(ints(step.list("seqs")), ints32(step.list("leaves")))
	},
}

// planStep plans the step's own configuration, or asks about the scenario's plan.
func planStep(s *session, step object) error {
	if !step.has("config") {
		s.checkPlan(step, s.plan, s.model.begin())
		return nil
	}
	m := newModel(step.object("config"), s.isa)
	plan, err := s.lib.NewPlan(&m.config)
	if err != nil {
		return err
	}
	defer plan.Close()
	s.checkPlan(step, plan, m.begin())
	return nil
}

func (s *session) checkPlan(step object, plan *kvcache.Plan, layerBegin int) {
	if step.has("groups") {
		info, err := plan.Info()
		s.ok(err)
		s.equal("number of page tables of a sequence", int64(info.NumGroups), step.i64("groups"))
	}
	for layer, fields := range step.object("layers") {
		info, err := plan.Layer(int(number(layer)))
		s.ok(err)
		s.checkFields(*info, fields.(object), "layer "+layer)
	}
	// Equal entries: the layers share a page table; different entries: they don't; -1: no table.
	stated, found := map[int64]int64{}, map[int64]int64{}
	for i, entry := range step.listOr("layer_groups") {
		info, err := plan.Layer(layerBegin + i)
		s.ok(err)
		wanted, group := toInt(entry), int64(info.Group)
		if wanted == -1 || group == -1 {
			s.equal("group of a layer", group, wanted)
			continue
		}
		if _, known := stated[wanted]; !known {
			stated[wanted] = group
		}
		if _, known := found[group]; !known {
			found[group] = wanted
		}
		s.equal("group of a layer", group, stated[wanted])
		s.equal("stated group of a layer", wanted, found[group])
	}
	for tokens, wanted := range step.object("request_pages") {
		pages, err := plan.RequestPages(number(tokens))
		s.ok(err)
		s.equal("pages of a request of "+tokens+" tokens", pages, toInt(wanted))
	}
}
