package kvcache

/*
#include <stdlib.h>
#include "shim_transfers.h"
*/
import "C"

import (
	"context"
	"errors"
	"sync"
	"time"
	"unsafe"
)

// TransportOptions say how a transport is opened. The zero value is right for caches of one process.
type TransportOptions struct {
	Engine string // what moves the bytes; "": "loopback", in one process; "ucx", between processes and machines
	// Address is where peers reach it. "loopback": a name that is new in this process; "": one is made.
	// "ucx": an IPv4 address of this machine with a port; "": a free one of 127.0.0.1.
	Address        string
	ManualProgress bool          // no thread: the program calls Progress
	Idle           time.Duration // the other side said nothing for so long; 0: 5 s
	Beat           time.Duration // what was not answered is said again after it; 0: a second
	Drain          time.Duration // for what is on its way when a transfer ends; 0: a second
	Tombstone      time.Duration // ended transfers are known to late messages for so long; 0: 60 s
	BytesInFlight  uint64        // of a sending transfer at once; 0: 64 MiB
	ResendRounds   int           // how often chunks are sent again; 0: 3
}

// TransportStats are counters of a transport since it was opened.
type TransportStats struct {
	TransfersOpen    int64
	TransfersDone    uint64 // sent, or arrived
	TransfersFailed  uint64
	MessagesSent     uint64
	MessagesReceived uint64
	BytesSent        uint64 // headers and payloads
	BytesReceived    uint64
	MessagesRefused  uint64 // for no open transfer, or out of place
	MessagesDamaged  uint64 // bytes that are no message
	PayloadsDamaged  uint64 // incomplete, or with another digest
}

// Transport moves bytes between caches. One serves any number of transfers of any number of caches.
type Transport struct {
	lib    *Library
	manual bool
	mu     sync.RWMutex
	h      C.uintptr_t // 0: closed
	leak   *leakWatch
}

// NewTransport opens a transport, with a thread of its own unless the options say otherwise.
func (l *Library) NewTransport(options TransportOptions) (*Transport, error) {
	rounds, err := index("options.ResendRounds", options.ResendRounds)
	if err != nil {
		return nil, err
	}
	engine, err := optionalText("options.Engine", options.Engine)
	if err != nil {
		return nil, err
	}
	defer C.free(unsafe.Pointer(engine))
	address, err := optionalText("options.Address", options.Address)
	if err != nil {
		return nil, err
	}
	defer C.free(unsafe.Pointer(address))
	desc := C.kvc_transport_desc{
		engine:          engine,
		address:         address,
		idle_ns:         C.int64_t(options.Idle),
		beat_ns:         C.int64_t(options.Beat),
		drain_ns:        C.int64_t(options.Drain),
		tombstone_ns:    C.int64_t(options.Tombstone),
		bytes_in_flight: C.uint64_t(options.BytesInFlight),
		resend_rounds:   rounds,
	}
	if options.ManualProgress {
		desc.flags = C.KVC_TRANSPORT_MANUAL_PROGRESS
	}
	t := &Transport{lib: l, manual: options.ManualProgress}
	if err := failure(C.shim_transport_open(l.api, &desc, &t.h)); err != nil {
		return nil, err
	}
	t.leak = watch(t, "Transport")
	return t, nil
}

// look starts a call of the transport; leave with t.mu.RUnlock.
func (t *Transport) look() error {
	t.mu.RLock()
	if t.h == 0 {
		t.mu.RUnlock()
		return closedError("the transport")
	}
	return nil
}

// Address is where peers reach it. Tickets contain it.
func (t *Transport) Address() (string, error) {
	if err := t.look(); err != nil {
		return "", err
	}
	defer t.mu.RUnlock()
	return text(func(buf *C.char, len *C.size_t) *C.kvc_error {
		return C.shim_transport_address(t.lib.api, t.h, buf, len)
	})
}

// Stats are its counters.
func (t *Transport) Stats() (*TransportStats, error) {
	if err := t.look(); err != nil {
		return nil, err
	}
	defer t.mu.RUnlock()
	var out C.kvc_transport_stats
	if err := failure(C.shim_transport_stats_get(t.lib.api, t.h, &out)); err != nil {
		return nil, err
	}
	return &TransportStats{
		TransfersOpen:    int64(out.transfers_open),
		TransfersDone:    uint64(out.transfers_done),
		TransfersFailed:  uint64(out.transfers_failed),
		MessagesSent:     uint64(out.messages_sent),
		MessagesReceived: uint64(out.messages_received),
		BytesSent:        uint64(out.bytes_sent),
		BytesReceived:    uint64(out.bytes_received),
		MessagesRefused:  uint64(out.messages_refused),
		MessagesDamaged:  uint64(out.messages_damaged),
		PayloadsDamaged:  uint64(out.payloads_damaged),
	}, nil
}

// FD is a descriptor that is readable when Progress has work; the transport owns it. Timers do not make it
// readable: Progress is called every TransportOptions.Beat at least. Only with ManualProgress.
func (t *Transport) FD() (uintptr, error) {
	if err := t.look(); err != nil {
		return 0, err
	}
	defer t.mu.RUnlock()
	var fd C.int32_t
	err := failure(C.shim_transport_fd(t.lib.api, t.h, &fd))
	return uintptr(fd), err
}

// Progress does what is due, after waiting at most so long for something; negative: as long as it takes. Close
// waits for it. Only with ManualProgress.
func (t *Transport) Progress(timeout time.Duration) error {
	if err := t.look(); err != nil {
		return err
	}
	defer t.mu.RUnlock()
	return failure(C.shim_transport_progress(t.lib.api, t.h, C.int64_t(timeout)))
}

// Close takes no new transfers, waits at most so long for the open ones (negative: as long as it takes), cancels
// the others, which is ErrTimeout, and frees the transport in any case. What has arrived stays, and transfers may
// be closed after it.
func (t *Transport) Close(timeout time.Duration) error {
	if t.look() != nil {
		return nil
	}
	err := failure(C.shim_transport_close(t.lib.api, t.h, C.int64_t(timeout)))
	t.mu.RUnlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.h != 0 {
		C.shim_transport_destroy(t.lib.api, t.h)
		t.h = 0
		t.leak.done()
	}
	return err
}

// TransferState is how far a transfer is.
type TransferState int32

// The states of a transfer.
const (
	TransferWaiting TransferState = C.KVC_TRANSFER_WAITING // for the other side
	TransferRunning TransferState = C.KVC_TRANSFER_RUNNING
	TransferArrived TransferState = C.KVC_TRANSFER_ARRIVED // everything is here and compared; the sender knows
	TransferEnding  TransferState = C.KVC_TRANSFER_ENDING  // it has failed, and something may still be on its way
	TransferDone    TransferState = C.KVC_TRANSFER_DONE    // sent; or the sequence is an ordinary one
	TransferFailed  TransferState = C.KVC_TRANSFER_FAILED
)

// TransferInfo is what a transfer does.
type TransferInfo struct {
	State        TransferState
	Status       Status // why it ends or has failed; StatusOK: it has not
	IsReceiving  bool
	ChunksTotal  uint64 // 0 before the two sides have met
	ChunksDone   uint64
	ChunksResent uint64
	BytesTotal   uint64
	BytesDone    uint64
	Message      string // why it has failed; "": it has not
	PeerMessage  string // what the other side said; "": nothing
}

// Transfer is a sequence on its way. It may be closed after its cache and its transport.
type Transfer struct {
	lib       *Library
	cache     *Cache
	transport *Transport
	receives  bool
	mu        sync.RWMutex
	h         C.uintptr_t // 0: closed
	leak      *leakWatch
}

// ReceiveOptions say what a cache receives. Deadline and Idle: negative: none.
type ReceiveOptions struct {
	Seq         int64         // a new id with Begin 0, else a sequence of the cache
	Begin       int64         // tokens that the sequence has; they are the sender's
	NumTokens   int64         // tokens that arrive, at least 1
	CrossLength int64         // encoder tokens that arrive; 0 with Begin above 0
	Publish     bool          // the prefix index gets its blocks; without it the tokens count as unknown
	Priority    int           // of its blocks, 0 to 100, with Publish
	Deadline    time.Duration // for all of it, from now on; 0: 30 s
	Idle        time.Duration // the sender said nothing for so long; 0: as of the transport
	ModelID     string        // the name that the sender must give; "": any
	// Tensor parallelism: this cache has the KV heads of rank TPRank of TPSize (0: 1), the senders are SenderTPSize
	// ranks (0: as TPSize). One size divides the other. Where there are more senders, each sends its part with the
	// same ticket, and the sequence is there when all have arrived.
	TPRank, TPSize, SenderTPSize int
	// OnDone runs once when all has arrived (StatusOK) or the transfer has failed. It runs on a thread of the
	// transport, in calls that drive a transport with ManualProgress, and in Close of a transfer that is not over. It
	// must not panic, nor use its transfer or their transport: it sends on a channel, which has room, or closes one.
	OnDone func(Status)
}

// SendOptions say how a sequence is sent. Deadline and Idle: negative: none.
type SendOptions struct {
	// The coming forwards compute tokens of the ticket, and rows leave layer by layer as they are written. The end
	// comes with the forward that brings the last token. One that is aborted, or a sequence that is removed, popped
	// or shifted before, ends the transfer.
	AsComputed bool
	Begin      int64         // the first token that travels: ReceiveOptions.Begin
	Deadline   time.Duration // for all of it, from now on; 0: 30 s
	Idle       time.Duration // the receiver said nothing for so long; 0: as of the transport
	ModelID    string        // name of the model and its weights; "": none
	// The tensor-parallel rank whose KV heads this cache has; see ReceiveOptions.
	TPRank, TPSize int
	OnDone         func(Status) // runs once when all is sent or the transfer has failed; see ReceiveOptions
}

// Receive reserves room for a sequence and waits for its sender, who needs the Ticket. Until all of it is here,
// calls on the sequence are ErrBusy; where the transfer fails, the cache is as before.
func (c *Cache) Receive(t *Transport, options ReceiveOptions) (*Transfer, error) {
	priority, err := index("options.Priority", options.Priority)
	if err != nil {
		return nil, err
	}
	model, err := optionalText("options.ModelID", options.ModelID)
	if err != nil {
		return nil, err
	}
	defer C.free(unsafe.Pointer(model))
	ranks, err := indices([]string{"options.TPRank", "options.TPSize", "options.SenderTPSize"},
		[]int{options.TPRank, options.TPSize, options.SenderTPSize})
	if err != nil {
		return nil, err
	}
	desc := C.kvc_recv_desc{
		seq:          C.int64_t(options.Seq),
		begin:        C.int64_t(options.Begin),
		num_tokens:   C.int64_t(options.NumTokens),
		cross_length: C.int64_t(options.CrossLength),
		deadline_ns:  C.int64_t(options.Deadline),
		idle_ns:      C.int64_t(options.Idle),
		priority:     priority,
		model_id:     model,

		tp_rank: ranks[0], tp_size: ranks[1], sender_tp_size: ranks[2],
	}
	if options.Publish {
		desc.flags = C.KVC_TRANSFER_PUBLISH
	}
	return c.transfer(t, true, options.OnDone, func(onDone C.uintptr_t, out *C.uintptr_t) *C.kvc_error {
		return C.shim_transfer_recv(c.lib.api, c.h, t.h, &desc, onDone, out)
	})
}

// Send sends a sequence to the writer of a ticket. The sequence stays as it is, and may be used, changed and removed
// meanwhile.
func (c *Cache) Send(t *Transport, seq int64, ticket []byte, options SendOptions) (*Transfer, error) {
	model, err := optionalText("options.ModelID", options.ModelID)
	if err != nil {
		return nil, err
	}
	defer C.free(unsafe.Pointer(model))
	ranks, err := indices([]string{"options.TPRank", "options.TPSize"}, []int{options.TPRank, options.TPSize})
	if err != nil {
		return nil, err
	}
	desc := C.kvc_send_desc{
		seq:         C.int64_t(seq),
		begin:       C.int64_t(options.Begin),
		deadline_ns: C.int64_t(options.Deadline),
		idle_ns:     C.int64_t(options.Idle),
		model_id:    model,

		tp_rank: ranks[0], tp_size: ranks[1],
	}
	if options.AsComputed {
		desc.mode = C.KVC_SEND_AS_COMPUTED
	}
	data, size := memory(nil, ticket)
	return c.transfer(t, false, options.OnDone, func(onDone C.uintptr_t, out *C.uintptr_t) *C.kvc_error {
		return C.shim_transfer_send(c.lib.api, c.h, t.h, &desc, data, size, onDone, out)
	})
}

// indices is index for several options.
func indices(names []string, values []int) ([]C.int32_t, error) {
	made := make([]C.int32_t, len(values))
	for i, value := range values {
		var err error
		if made[i], err = index(names[i], value); err != nil {
			return nil, err
		}
	}
	return made, nil
}

func (c *Cache) transfer(t *Transport, receives bool, onDone func(Status),
	call func(C.uintptr_t, *C.uintptr_t) *C.kvc_error) (*Transfer, error) {
	if t == nil {
		return nil, invalid("transport: nil")
	}
	if t.lib.api != c.lib.api {
		return nil, invalid("transport: of the library %s, the cache is of %s", t.lib.path, c.lib.path)
	}
	if err := c.enter(); err != nil {
		return nil, err
	}
	defer c.mu.Unlock()
	if err := t.look(); err != nil {
		return nil, err
	}
	defer t.mu.RUnlock()
	x := &Transfer{lib: c.lib, cache: c, transport: t, receives: receives}
	var id uintptr
	if onDone != nil {
		id = callbacks.add(onDone)
	}
	if err := failure(call(C.uintptr_t(id), &x.h)); err != nil {
		callbacks.remove(id)
		return nil, err
	}
	x.leak = watch(x, "Transfer")
	return x, nil
}

// look starts a call of the transfer; leave with x.mu.RUnlock.
func (x *Transfer) look() error {
	x.mu.RLock()
	if x.h == 0 {
		x.mu.RUnlock()
		return closedError("the transfer")
	}
	return nil
}

// Ticket is what the sender needs, at most 4,096 bytes. It is of use once, and is to be kept from strangers.
func (x *Transfer) Ticket() ([]byte, error) {
	if err := x.look(); err != nil {
		return nil, err
	}
	defer x.mu.RUnlock()
	var size C.size_t
	if err := failure(C.shim_transfer_ticket(x.lib.api, x.h, nil, &size)); err != nil {
		return nil, err
	}
	ticket := make([]byte, size)
	err := failure(C.shim_transfer_ticket(x.lib.api, x.h, (*C.uint8_t)(&ticket[0]), &size))
	return ticket[:size], err
}

// Info is what it does.
func (x *Transfer) Info() (*TransferInfo, error) {
	if err := x.look(); err != nil {
		return nil, err
	}
	defer x.mu.RUnlock()
	var out C.kvc_transfer_info
	if err := failure(C.shim_transfer_query(x.lib.api, x.h, &out)); err != nil {
		return nil, err
	}
	return &TransferInfo{
		State:        TransferState(out.state),
		Status:       Status(out.status),
		IsReceiving:  out.is_receiving != 0,
		ChunksTotal:  uint64(out.chunks_total),
		ChunksDone:   uint64(out.chunks_done),
		ChunksResent: uint64(out.chunks_resent),
		BytesTotal:   uint64(out.bytes_total),
		BytesDone:    uint64(out.bytes_done),
		Message:      C.GoString(&out.message[0]),
		PeerMessage:  C.GoString(&out.peer_message[0]),
	}, nil
}

// Fence is done when the transfer has arrived, is done or has failed. Waiting for it does not drive a transport
// with ManualProgress.
func (x *Transfer) Fence() (*Fence, error) {
	if err := x.look(); err != nil {
		return nil, err
	}
	defer x.mu.RUnlock()
	var h C.uintptr_t
	if err := failure(C.shim_transfer_fence(x.lib.api, x.h, &h)); err != nil {
		return nil, err
	}
	return newFence(x.lib, h), nil
}

// Wait waits for the end, or returns the context's error. Without an error all is sent, or the sequence is an
// ordinary one; a transfer that has failed says why. Other calls on the cache go on meanwhile. ErrBusy: it has
// arrived, and a forward is open: wait again after its end. It drives a transport with ManualProgress.
func (x *Transfer) Wait(ctx context.Context) error {
	fence, err := x.Fence()
	if err != nil {
		return err
	}
	defer fence.Close()
	err = fence.wait(0)
	for errors.Is(err, ErrTimeout) {
		if err := ctx.Err(); err != nil {
			return err
		}
		pause := waitSlice
		if x.transport.manual && x.transport.Progress(waitSlice) == nil {
			pause = 0
		}
		err = fence.wait(pause)
	}
	if err != nil {
		return err
	}
	// What has arrived becomes a sequence of the cache. One that is closed is not touched.
	if x.receives {
		x.cache.mu.Lock()
		defer x.cache.mu.Unlock()
	}
	if err := x.look(); err != nil {
		return err
	}
	defer x.mu.RUnlock()
	return failure(C.shim_transfer_wait(x.lib.api, x.h, 0))
}

// Cancel ends it; the other side is told. One that is over stays as it is. Wait returns when nothing is on its way
// any more.
func (x *Transfer) Cancel() error {
	if err := x.look(); err != nil {
		return err
	}
	defer x.mu.RUnlock()
	return failure(C.shim_transfer_cancel(x.lib.api, x.h))
}

// Close frees the transfer, and cancels what is not over. What has arrived becomes a sequence all the same. Either is
// seen by the next call that changes the cache.
func (x *Transfer) Close() error {
	x.mu.Lock()
	h := x.h
	x.h = 0
	x.mu.Unlock()
	if h != 0 {
		C.shim_transfer_destroy(x.lib.api, h) // OnDone may run, or is waited for.
		x.leak.done()
	}
	return nil
}
