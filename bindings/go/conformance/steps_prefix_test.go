package conformance

import (
	"encoding/hex"

	kvcache "github.com/libkvcache/libkvcache/bindings/go"
	"github.com/libkvcache/libkvcache/bindings/go/prefixhash"
)

var prefixFlags = map[string]kvcache.PrefixFlags{"ALL_TOKENS": kvcache.AllTokens,
	"WHOLE_BLOCKS": kvcache.WholeBlocks}
var keyTypes = map[string]kvcache.PrefixKeyType{"ADAPTER": kvcache.PrefixKeyAdapter,
	"MEDIA": kvcache.PrefixKeyMedia,
	"USER":  kvcache.PrefixKeyUser}
var eventTypes = map[string]kvcache.EventType{"STORED": kvcache.EventStored, "REMOVED": kvcache.EventRemoved,
	"MOVED":   kvcache.EventMoved,
	"CLEARED": kvcache.EventCleared}

// Steps on the prefix cache. A token's id in the scenario is its id for the cache, so that what `stored`
// finds in a page says which tokens it holds.
var prefixSteps = map[string]handler{
	"prefix_hash": prefixHashStep,
	"match": func(s *session, step object) error {
		return s.withQuery(step, s.cache.PrefixMatch)
	},
	"attach": func(s *session, step object) error {
		return s.withQuery(step, func(q *kvcache.PrefixQuery) (int64, error) {
			return s.cache.PrefixAttach(step.i64("seq"), q)
		})
	},
	"insert": func(s *session, step object) error {
		return s.withQuery(step, func(q *kvcache.PrefixQuery) (int64, error) {
			return s.cache.PrefixInsert(step.i64("seq"), q)
		})
	},
	"pin":   func(s *session, step object) error { return s.withQuery(step, s.cache.PrefixPin) },
	"unpin": func(s *session, step object) error { return s.withQuery(step, s.cache.PrefixUnpin) },
	"evict": func(s *session, step object) error {
		freed, err := s.cache.PrefixEvict(step.i64("pages"))
		if err == nil && step.has("freed") {
			s.equal("freed pages", freed, step.i64("freed"))
		}
		return err
	},
	"prefix_reset": func(s *session, step object) error { return s.cache.PrefixReset() },
	"quota": func(s *session, step object) error {
		info, err := s.plan.Info()
		s.ok(err)
		return s.cache.SetPrefixQuota([]byte(step.textOr("salt", "")), info.PageBytes*uint64(step.i64("pages")))
	},
	"events": eventsStep,
}

func readQuery(step object) *kvcache.PrefixQuery {
	q := &kvcache.PrefixQuery{Tokens: []int32{}, Salt: []byte(step.textOr("salt", "")),
		Priority: step.intOr("priority", 0)}
	if text, ok := step["tokens"].(string); ok {
		for _, id := range parseIDs(text, nil) {
			q.Tokens = append(q.Tokens, int32(id))
		}
	} else {
		q.Tokens = append(q.Tokens, ints32(step.list("tokens"))...)
	}
	if step.has("num_tokens") {
		q.NumTokens = step.i64("num_tokens")
		if q.NumTokens == 0 {
			q.Tokens = q.Tokens[:0]
		}
	}
	for _, one := range step.listOr("keys") {
		json := one.(object)
		q.Keys = append(q.Keys, kvcache.PrefixKey{Type: named(keyTypes, json.textOr("type", "USER")),
			Offset: json.i64Or("offset", 0), Data: []byte(json.textOr("data", ""))})
	}
	for _, flag := range step.listOr("flags") {
		q.Flags |= named(prefixFlags, flag.(string))
	}
	return q
}

// withQuery calls with the step's query, with keys of blocks instead of, or beside, the tokens where the step
// says so.
func (s *session) withQuery(step object, call func(q *kvcache.PrefixQuery) (int64, error)) error {
	q := readQuery(step)
	if how, found := step["hashes"]; found {
		info, err := s.plan.Info()
		s.ok(err)
		hashes, err := s.lib.PrefixHash(q.Tokens, int(info.PrefixBlock), q.Salt, q.Keys...)
		if err != nil {
			return err
		}
		switch how {
		case "all":
			q.Hashes = hashes
		case "only":
			q.Hashes, q.NumTokens, q.Tokens = hashes, int64(len(q.Tokens)), nil
		default:
			// More than there are is for the library to refuse.
			q.Hashes = append(hashes, make([]kvcache.Hash, toInt(how))...)[:toInt(how)]
		}
	}
	tokens, err := call(q)
	if err == nil && step.has("hit") {
		s.equal("tokens found", tokens, step.i64("hit"))
	}
	return err
}

func prefixHashStep(s *session, step object) error {
	q := readQuery(step)
	hashes, err := s.lib.PrefixHash(q.Tokens, step.num("block"), q.Salt, q.Keys...)
	if err != nil {
		return err
	}
	keys := []prefixhash.Key{}
	for _, one := range q.Keys {
		keys = append(keys, prefixhash.Key{Type: uint32(one.Type), Offset: one.Offset, Data: one.Data})
	}
	pure, err := prefixhash.Hashes(q.Tokens, step.num("block"), q.Salt, keys...)
	s.ok(err)
	got, own := []string{}, []string{}
	for i := range hashes {
		got, own = append(got, hex.EncodeToString(hashes[i][:])), append(own, hex.EncodeToString(pure[i][:]))
	}
	s.equal("keys of the library", got, texts(step.list("values")))
	s.equal("keys in pure Go", own, texts(step.list("values")))
	return nil
}

// eventsStep polls everything that waits, two events at a time.
func eventsStep(s *session, step object) error {
	counts := map[kvcache.EventType]int64{}
	for {
		events, err := s.cache.PollEvents(2)
		if err != nil {
			return err
		}
		if len(events) == 0 {
			break
		}
		for _, event := range events {
			counts[event.Type]++
		}
	}
	for name, what := range eventTypes {
		s.equal("events "+name, counts[what], step.object("counts").i64Or(name, 0))
	}
	return nil
}
