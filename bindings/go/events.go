package kvcache

/*
#include "shim_prefix.h"
*/
import "C"

import "unsafe"

// EventType says what happened to a block.
type EventType int32

// The types of events.
const (
	EventStored  EventType = C.KVC_EVENT_STORED  // group Group of the block is in Tier now
	EventRemoved EventType = C.KVC_EVENT_REMOVED // and no longer
	EventMoved   EventType = C.KVC_EVENT_MOVED   // from FromTier to Tier
	EventCleared EventType = C.KVC_EVENT_CLEARED // nothing is held any more, in no tier
)

// Tier is where pages are.
type Tier int32

// The tiers.
const (
	TierDevice Tier = C.KVC_TIER_DEVICE
	TierHost   Tier = C.KVC_TIER_HOST
	TierFile   Tier = C.KVC_TIER_FILE  // see AttachFileTier
	TierRedis  Tier = C.KVC_TIER_REDIS // see AttachRedisTier
)

// Event is a change of what the prefix index holds. A consumer that starts from nothing (or from
// EventsSnapshot) and applies events in order holds what the index holds: for each hash and group the tier.
type Event struct {
	Number    uint64 // 1, 2, 3, ...; a gap: events were lost, take a snapshot
	Type      EventType
	Tier      Tier
	FromTier  Tier
	Group     int // -1: the recurrent state at the block's end
	NumTokens int // of the block
	// Tokens are the ids of a stored block, nil when they are unknown or the block has been removed since.
	Tokens []int32
	Hash   Hash
	Parent Hash // of a stored block: the block before, or the root of the namespace
}

// goEvents copies events, and the tokens that are the library's.
func goEvents(events []C.kvc_event) []Event {
	total := 0
	for i := range events {
		if events[i].tokens != nil {
			total += int(events[i].num_tokens)
		}
	}
	tokens := make([]int32, 0, total)
	out := make([]Event, len(events))
	for i := range events {
		e := &events[i]
		out[i] = Event{
			Number:    uint64(e.number),
			Type:      EventType(e._type),
			Tier:      Tier(e.tier),
			FromTier:  Tier(e.from_tier),
			Group:     int(e.group),
			NumTokens: int(e.num_tokens),
			Hash:      *(*Hash)(unsafe.Pointer(&e.hash)),
			Parent:    *(*Hash)(unsafe.Pointer(&e.parent)),
		}
		if e.tokens != nil {
			begin := len(tokens)
			tokens = append(tokens, unsafe.Slice((*int32)(e.tokens), int(e.num_tokens))...)
			out[i].Tokens = tokens[begin:len(tokens):len(tokens)]
		}
	}
	return out
}

// eventArray makes an array of C for events.
func eventArray(count int) (*C.kvc_event, error) {
	p := (*C.kvc_event)(C.calloc(C.size_t(count), C.size_t(sizeOfEvent)))
	if p == nil {
		return nil, &Error{Status: ErrNoMemory, Msg: "no memory for events"}
	}
	return p, nil
}

// eventsAtOnce bounds the array that events pass through.
const eventsAtOnce = 1024

// PollEvents takes the oldest unpolled events, at most max of them (>= 1).
func (c *Cache) PollEvents(max int) ([]Event, error) {
	if max < 1 {
		return nil, invalid("max: %d, at least 1", max)
	}
	room := max
	if room > eventsAtOnce {
		room = eventsAtOnce
	}
	array, err := eventArray(room)
	if err != nil {
		return nil, err
	}
	defer C.free(unsafe.Pointer(array))
	if err := c.enter(); err != nil {
		return nil, err
	}
	defer c.mu.Unlock()
	var out []Event
	for len(out) < max {
		if room > max-len(out) {
			room = max - len(out)
		}
		count := C.size_t(room)
		if err := failure(C.shim_events_poll(c.lib.api, c.h, array, &count)); err != nil {
			return nil, err
		}
		// The tokens are valid until the next call.
		out = append(out, goEvents(unsafe.Slice(array, int(count)))...)
		if int(count) < room {
			break
		}
	}
	return out, nil
}

// EventsSnapshot gives everything that the index holds as stored events, parents before their children, and
// the number of the last event that they include: apply polled events with larger ones.
func (c *Cache) EventsSnapshot() (events []Event, number uint64, err error) {
	if err := c.look(); err != nil {
		return nil, 0, err
	}
	defer c.mu.RUnlock()
	var count C.size_t
	var last C.uint64_t
	if err := failure(C.shim_events_snapshot(c.lib.api, c.h, nil, &count, &last)); err != nil {
		return nil, 0, err
	}
	count++ // room to write a size even when there is nothing
	array, err := eventArray(int(count))
	if err != nil {
		return nil, 0, err
	}
	defer C.free(unsafe.Pointer(array))
	if err := failure(C.shim_events_snapshot(c.lib.api, c.h, array, &count, &last)); err != nil {
		return nil, 0, err
	}
	return goEvents(unsafe.Slice(array, int(count))), uint64(last), nil
}
