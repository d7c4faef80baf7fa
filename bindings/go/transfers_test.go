package kvcache_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	kvcache "github.com/libkvcache/libkvcache/bindings/go"
)

// anyWhile is longer than a transfer takes.
func anyWhile(t *testing.T) context.Context {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(stop)
	return ctx
}

func newTransport(t *testing.T, options kvcache.TransportOptions) *kvcache.Transport {
	t.Helper()
	transport, err := load(t).NewTransport(options)
	ok(t, err)
	t.Cleanup(func() { _ = transport.Close(0) })
	return transport
}

func receive(t *testing.T, cache *kvcache.Cache, transport *kvcache.Transport,
	options kvcache.ReceiveOptions) *kvcache.Transfer {
	t.Helper()
	transfer, err := cache.Receive(transport, options)
	ok(t, err)
	t.Cleanup(func() { transfer.Close() })
	return transfer
}

// send sends to the writer of the ticket of another transfer.
func send(t *testing.T, cache *kvcache.Cache, transport *kvcache.Transport, seq int64, to *kvcache.Transfer,
	options kvcache.SendOptions) *kvcache.Transfer {
	t.Helper()
	ticket, err := to.Ticket()
	ok(t, err)
	transfer, err := cache.Send(transport, seq, ticket, options)
	ok(t, err)
	t.Cleanup(func() { transfer.Close() })
	return transfer
}

// extend appends tokens whose elements are all different, with their ids.
func extend(t *testing.T, cache *kvcache.Cache, seq int64, heads, dim int, ids []int32) {
	t.Helper()
	rows := make([]float32, len(ids)*heads*dim)
	for i := range rows {
		rows[i] = float32(ids[0]) + float32(i)/4
	}
	tensor := kvcache.Of(rows, len(ids), heads, dim)
	fwd, err := cache.Begin(&kvcache.Batch{Seqs: []int64{seq}, Lengths: []int64{int64(len(ids))}, Tokens: ids})
	ok(t, err)
	for layer := 0; layer < 2; layer++ {
		ok(t, fwd.KVAppend(layer, tensor, tensor))
	}
	ok(t, fwd.End())
}

func upTo(begin, end int32) []int32 {
	ids := []int32{}
	for id := begin; id < end; id++ {
		ids = append(ids, id)
	}
	return ids
}

// file is a state file of a sequence, and proves that two are equal.
func file(t *testing.T, cache *kvcache.Cache, seq int64) []byte {
	t.Helper()
	saved, err := cache.Save("", seq)
	ok(t, err)
	return saved
}

func TestWhatArrivesIsWhatWasSent(t *testing.T) {
	transport := newTransport(t, kvcache.TransportOptions{})
	for _, shape := range [][2]int{{1, 80}, {3, 65}} {
		for _, lengths := range [][2]int{{1, 1}, {1, 7}, {16, 15}, {16, 16}, {16, 17}, {48, 97}} {
			heads, dim, pageSize, length := shape[0], shape[1], lengths[0], lengths[1]
			layer := kvcache.Layer{NumKVHeads: heads, KDim: dim, KDType: kvcache.F32}
			windowed := layer
			windowed.Window = 20
			config := &kvcache.Config{Layers: []kvcache.Layer{layer, windowed}, PageSize: pageSize, NumPages: 256,
				NumThreads: 1}
			from, to := newCache(t, config), newCache(t, config)
			ok(t, from.AddSeq(4))
			extend(t, from, 4, heads, dim, upTo(0, int32(length)))
			arriving := receive(t, to, transport,
				kvcache.ReceiveOptions{Seq: 4, NumTokens: int64(length), Publish: true})
			leaving := send(t, from, transport, 4, arriving, kvcache.SendOptions{})
			ok(t, leaving.Wait(anyWhile(t)))
			ok(t, arriving.Wait(anyWhile(t)))
			for round := int32(0); round < 2; round++ {
				if !bytes.Equal(file(t, from, 4), file(t, to, 4)) {
					t.Errorf("%d heads of %d, pages of %d, %d tokens, round %d: the files differ", heads, dim, pageSize,
						length, round)
				}
				for _, cache := range []*kvcache.Cache{from, to} { // Both go on.
					extend(t, cache, 4, heads, dim, upTo(900+3*round, 903+3*round))
					ok(t, cache.Check())
				}
			}
			ok(t, from.Close())
			ok(t, to.Close())
		}
	}
	stats, err := transport.Stats()
	ok(t, err)
	if stats.TransfersOpen != 0 || stats.TransfersDone != 24 || stats.TransfersFailed != 0 ||
		stats.BytesSent == 0 || stats.BytesReceived == 0 {
		t.Errorf("%+v", stats)
	}
}

func TestRowsLeaveAsTheyAreComputed(t *testing.T) {
	transport := newTransport(t, kvcache.TransportOptions{})
	for _, pageSize := range []int{16, 48} {
		layer := kvcache.Layer{NumKVHeads: 1, KDim: 80, KDType: kvcache.F32}
		config := &kvcache.Config{Layers: []kvcache.Layer{layer, layer}, PageSize: 16, NumPages: 64, NumThreads: 1}
		other := *config
		other.PageSize = pageSize
		from, to, back := newCache(t, config), newCache(t, &other), newCache(t, config)
		ok(t, from.AddSeq(4))
		arriving := receive(t, to, transport, kvcache.ReceiveOptions{Seq: 4, NumTokens: 60, Publish: true})
		leaving := send(t, from, transport, 4, arriving, kvcache.SendOptions{AsComputed: true})
		for _, end := range [][2]int32{{0, 7}, {7, 57}, {57, 60}} {
			extend(t, from, 4, 1, 80, upTo(end[0], end[1]))
		}
		ok(t, leaving.Wait(anyWhile(t)))
		ok(t, arriving.Wait(anyWhile(t)))
		// Back again they are the sender's bit for bit.
		arriving = receive(t, back, transport, kvcache.ReceiveOptions{Seq: 4, NumTokens: 60, Publish: true})
		leaving = send(t, to, transport, 4, arriving, kvcache.SendOptions{})
		ok(t, leaving.Wait(anyWhile(t)))
		ok(t, arriving.Wait(anyWhile(t)))
		if !bytes.Equal(file(t, from, 4), file(t, back, 4)) {
			t.Errorf("pages of %d: the files differ", pageSize)
		}
		for _, cache := range []*kvcache.Cache{from, to, back} {
			ok(t, cache.Check())
			ok(t, cache.Close())
		}
	}
}

func TestTwoRanksSendTheirHeadsToOneAndGetThemBack(t *testing.T) {
	transport := newTransport(t, kvcache.TransportOptions{})
	heads := func(count int) *kvcache.Cache {
		layer := kvcache.Layer{NumKVHeads: count, KDim: 8, KDType: kvcache.F32}
		return newCache(t, &kvcache.Config{Layers: []kvcache.Layer{layer, layer}, NumPages: 16, NumThreads: 1})
	}
	ranks, whole, again := []*kvcache.Cache{heads(1), heads(1)}, heads(2), heads(1)
	arriving := receive(t, whole, transport, kvcache.ReceiveOptions{Seq: 4, NumTokens: 30, SenderTPSize: 2, Publish: true})
	for rank, cache := range ranks {
		ok(t, cache.AddSeq(4))
		extend(t, cache, 4, 1, 8, upTo(0, 30))
		leaving := send(t, cache, transport, 4, arriving, kvcache.SendOptions{TPRank: rank, TPSize: 2})
		ok(t, leaving.Wait(anyWhile(t)))
	}
	ok(t, arriving.Wait(anyWhile(t)))
	arriving = receive(t, again, transport,
		kvcache.ReceiveOptions{Seq: 4, NumTokens: 30, TPRank: 1, TPSize: 2, SenderTPSize: 1, Publish: true})
	leaving := send(t, whole, transport, 4, arriving, kvcache.SendOptions{})
	ok(t, leaving.Wait(anyWhile(t)))
	ok(t, arriving.Wait(anyWhile(t)))
	if !bytes.Equal(file(t, ranks[1], 4), file(t, again, 4)) {
		t.Error("the files differ")
	}
	for _, cache := range []*kvcache.Cache{ranks[0], ranks[1], whole, again} {
		ok(t, cache.Check())
		ok(t, cache.Close())
	}
}

func TestTokensThatTheReceiverHasDoNotTravel(t *testing.T) {
	transport := newTransport(t, kvcache.TransportOptions{})
	from, to := newCache(t, small()), newCache(t, small())
	ok(t, from.AddSeq(1))
	ok(t, to.AddSeq(1))
	extend(t, from, 1, 1, 4, upTo(0, 8))
	extend(t, to, 1, 1, 4, upTo(0, 8))
	extend(t, from, 1, 1, 4, upTo(8, 12))
	arriving := receive(t, to, transport, kvcache.ReceiveOptions{Seq: 1, Begin: 8, NumTokens: 4, Publish: true})
	leaving := send(t, from, transport, 1, arriving, kvcache.SendOptions{Begin: 8})
	ok(t, arriving.Wait(anyWhile(t)))
	ok(t, leaving.Wait(anyWhile(t)))
	if !bytes.Equal(file(t, from, 1), file(t, to, 1)) {
		t.Error("the files differ")
	}
	hit, err := to.PrefixMatch(&kvcache.PrefixQuery{Tokens: upTo(0, 12), Flags: kvcache.AllTokens})
	ok(t, err)
	if hit != 12 {
		t.Errorf("%d tokens", hit)
	}
}

func TestTheCacheGoesOnWhileATransferIsWaitedFor(t *testing.T) {
	transport := newTransport(t, kvcache.TransportOptions{})
	from, to := newCache(t, small()), newCache(t, small())
	ok(t, from.AddSeq(7))
	grow(t, from, 7, 6, 5)
	arriving := receive(t, to, transport, kvcache.ReceiveOptions{Seq: 7, NumTokens: 6})
	info, err := arriving.Info()
	ok(t, err)
	if info.State != kvcache.TransferWaiting || !info.IsReceiving || info.Status != kvcache.StatusOK {
		t.Errorf("%+v", info)
	}
	is(t, to.Pop(7, 1), kvcache.ErrBusy)
	is(t, to.Clear(), kvcache.ErrBusy)
	waited := make(chan error)
	go func() { waited <- arriving.Wait(context.Background()) }()
	ok(t, to.AddSeq(8))
	grow(t, to, 8, 3, 1)
	short, stop := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer stop()
	if err := arriving.Wait(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	leaving := send(t, from, transport, 7, arriving, kvcache.SendOptions{})
	ok(t, from.RemoveSeq(7))
	ok(t, leaving.Wait(context.Background()))
	ok(t, <-waited)
	_, err = leaving.Ticket()
	is(t, err, kvcache.ErrInvalidState)
	info, err = leaving.Info()
	ok(t, err)
	if info.State != kvcache.TransferDone || info.IsReceiving || info.BytesDone == 0 || info.BytesDone != info.BytesTotal {
		t.Errorf("%+v", info)
	}
	v := make([]float32, 4*6)
	ok(t, to.DebugGetLayer(7, 1, 0, 6, nil, kvcache.Of(v, 6, 1, 4)))
	if v[0] != 5 || v[23] != 5 {
		t.Errorf("%v", v)
	}
	ok(t, to.Check())

	// With a forward open it stays as it has arrived.
	ok(t, from.AddSeq(7))
	grow(t, from, 7, 6, 5)
	arriving = receive(t, to, transport, kvcache.ReceiveOptions{Seq: 9, NumTokens: 6})
	fwd := begin(t, to, 8, 1)
	ok(t, send(t, from, transport, 7, arriving, kvcache.SendOptions{}).Wait(context.Background()))
	is(t, arriving.Wait(context.Background()), kvcache.ErrBusy)
	ok(t, fwd.Abort())
	ok(t, arriving.Wait(context.Background()))
	ok(t, to.Pop(9, 1))
}

func TestAProgramMayDriveItsTransport(t *testing.T) {
	sender := newTransport(t, kvcache.TransportOptions{ManualProgress: true})
	receiver := newTransport(t, kvcache.TransportOptions{})
	from, to := newCache(t, small()), newCache(t, small())
	ok(t, from.AddSeq(1))
	grow(t, from, 1, 6, 5)
	if _, err := sender.FD(); err != nil {
		t.Error(err)
	}
	arriving := receive(t, to, receiver, kvcache.ReceiveOptions{Seq: 1, NumTokens: 6})
	leaving := send(t, from, sender, 1, arriving, kvcache.SendOptions{})
	fence, err := leaving.Fence()
	ok(t, err)
	defer fence.Close()
	for done := false; !done; {
		ok(t, sender.Progress(time.Millisecond))
		done, err = fence.Done()
		ok(t, err)
	}
	ok(t, leaving.Wait(anyWhile(t)))
	ok(t, arriving.Wait(anyWhile(t)))
	// Waiting drives it as well.
	arriving = receive(t, to, receiver, kvcache.ReceiveOptions{Seq: 2, NumTokens: 6})
	ok(t, send(t, from, sender, 1, arriving, kvcache.SendOptions{}).Wait(anyWhile(t)))
	ok(t, arriving.Wait(anyWhile(t)))
	_, err = receiver.FD()
	is(t, err, kvcache.ErrInvalidState)
	is(t, receiver.Progress(0), kvcache.ErrInvalidState)
}

func TestTransfersThatEndEarlyLeaveNothing(t *testing.T) {
	ctx := anyWhile(t)
	transport := newTransport(t, kvcache.TransportOptions{})
	from, to := newCache(t, small()), newCache(t, small())
	ok(t, from.AddSeq(1))
	grow(t, from, 1, 6, 5)
	ok(t, to.AddSeq(2))
	grow(t, to, 2, 3, 9)
	before := file(t, to, 2)
	cancelled := receive(t, to, transport, kvcache.ReceiveOptions{Seq: 1, NumTokens: 6})
	late := func() *kvcache.Transfer { return send(t, from, transport, 1, cancelled, kvcache.SendOptions{}) }
	ok(t, cancelled.Cancel())
	is(t, cancelled.Wait(ctx), kvcache.ErrCancelled)
	info, err := cancelled.Info()
	ok(t, err)
	if info.State != kvcache.TransferFailed || info.Status != kvcache.ErrCancelled ||
		!strings.Contains(info.Message, "cancelled") || info.PeerMessage != "" {
		t.Errorf("%+v", info)
	}
	sent := late()
	if err := sent.Wait(ctx); err == nil || !strings.Contains(err.Error(), "cancelled") {
		t.Errorf("%v", err)
	}
	info, err = sent.Info()
	ok(t, err)
	if !strings.Contains(info.PeerMessage, "cancelled") {
		t.Errorf("%+v", info)
	}
	dropped := receive(t, to, transport, kvcache.ReceiveOptions{Seq: 2, Begin: 3, NumTokens: 4})
	ok(t, dropped.Close())
	_, err = to.Trim() // The next call that changes the cache sees that it has ended.
	ok(t, err)
	if !bytes.Equal(file(t, to, 2), before) {
		t.Error("the sequence has changed")
	}
	hasty := receive(t, to, transport,
		kvcache.ReceiveOptions{Seq: 1, NumTokens: 6, Deadline: 20 * time.Millisecond, Idle: -1})
	is(t, hasty.Wait(ctx), kvcache.ErrTimeout)
	patient := receive(t, to, transport, kvcache.ReceiveOptions{Seq: 1, NumTokens: 6, Deadline: -1, Idle: -1})
	is(t, transport.Close(0), kvcache.ErrTimeout)
	ok(t, transport.Close(0))
	is(t, patient.Wait(ctx), kvcache.ErrCancelled)
	_, err = to.Receive(transport, kvcache.ReceiveOptions{Seq: 1, NumTokens: 6})
	is(t, err, kvcache.ErrClosed)
	if !bytes.Equal(file(t, to, 2), before) || to.TotalLength() != 3 {
		t.Error("the cache has changed")
	}
	ok(t, to.Check())
	ok(t, from.Check())
}

func TestTransfersMayBeClosedAfterTheirCaches(t *testing.T) {
	ctx := anyWhile(t)
	transport := newTransport(t, kvcache.TransportOptions{})
	from, to := newCache(t, small()), newCache(t, small())
	ok(t, from.AddSeq(1))
	grow(t, from, 1, 4, 5)
	arrived := receive(t, to, transport, kvcache.ReceiveOptions{Seq: 1, NumTokens: 4})
	waiting := receive(t, to, transport, kvcache.ReceiveOptions{Seq: 2, NumTokens: 4})
	ok(t, send(t, from, transport, 1, arrived, kvcache.SendOptions{}).Wait(ctx))
	is(t, transport.Close(0), kvcache.ErrTimeout)
	ok(t, to.Close())
	is(t, arrived.Wait(ctx), kvcache.ErrInvalidState)
	is(t, waiting.Wait(ctx), kvcache.ErrCancelled)
	for _, transfer := range []*kvcache.Transfer{arrived, waiting} {
		ok(t, transfer.Close())
		ok(t, transfer.Close())
		is(t, transfer.Wait(ctx), kvcache.ErrClosed)
		is(t, transfer.Cancel(), kvcache.ErrClosed)
		_, err := transfer.Ticket()
		is(t, err, kvcache.ErrClosed)
		_, err = transfer.Info()
		is(t, err, kvcache.ErrClosed)
		_, err = transfer.Fence()
		is(t, err, kvcache.ErrClosed)
	}
	_, err := transport.Address()
	is(t, err, kvcache.ErrClosed)
	_, err = transport.Stats()
	is(t, err, kvcache.ErrClosed)
	_, err = transport.FD()
	is(t, err, kvcache.ErrClosed)
	is(t, transport.Progress(0), kvcache.ErrClosed)
	_, err = to.Receive(transport, kvcache.ReceiveOptions{Seq: 1, NumTokens: 6})
	is(t, err, kvcache.ErrClosed)
}

func TestBadArgumentsOfTransfersAreNamed(t *testing.T) {
	ctx := anyWhile(t)
	lib := load(t)
	named := fmt.Sprintf("go-%d", os.Getpid())
	transport := newTransport(t, kvcache.TransportOptions{Address: named})
	address, err := transport.Address()
	ok(t, err)
	if address != named {
		t.Errorf("%q", address)
	}
	for part, options := range map[string]kvcache.TransportOptions{
		`"tcp"`:                        {Engine: "tcp"},
		"options.Engine":               {Engine: "a\x00b"},
		"options.Address":              {Address: "a\x00b"},
		"desc.idle_ns = -1":            {Idle: -1},
		"desc.resend_rounds = -1":      {ResendRounds: -1},
		"ResendRounds does not fit":    {ResendRounds: 1 << 40},
		`"` + named + `"`:              {Address: named},
		"256":                          {Address: strings.Repeat("x", 256)},
		"desc.tombstone_ns = -1000000": {Tombstone: -time.Millisecond},
	} {
		opened, err := lib.NewTransport(options)
		if opened != nil || err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%v does not name %s", err, part)
		}
	}
	cache, other := newCache(t, small()), newCache(t, small())
	ok(t, cache.AddSeq(1))
	grow(t, cache, 1, 4, 5)
	before := file(t, cache, 1)
	unchanged := func() {
		t.Helper()
		seqs, err := cache.Seqs()
		ok(t, err)
		if len(seqs) != 1 || !bytes.Equal(file(t, cache, 1), before) {
			t.Errorf("the cache has changed: %v", seqs)
		}
	}
	good := kvcache.ReceiveOptions{Seq: 5, NumTokens: 4}
	for _, one := range []struct {
		status error
		part   string
		change func(*kvcache.ReceiveOptions)
	}{
		{kvcache.ErrInvalidArgument, "desc.num_tokens = 0", func(o *kvcache.ReceiveOptions) { o.NumTokens = 0 }},
		{kvcache.ErrInvalidArgument, "desc.begin = -1", func(o *kvcache.ReceiveOptions) { o.Begin = -1 }},
		{kvcache.ErrInvalidArgument, "desc.cross_length = -1", func(o *kvcache.ReceiveOptions) { o.CrossLength = -1 }},
		{kvcache.ErrInvalidArgument, "desc.seq = -3", func(o *kvcache.ReceiveOptions) { o.Seq = -3 }},
		{kvcache.ErrInvalidArgument, "255", func(o *kvcache.ReceiveOptions) { o.ModelID = strings.Repeat("m", 256) }},
		{kvcache.ErrInvalidArgument, "options.ModelID", func(o *kvcache.ReceiveOptions) { o.ModelID = "\x00" }},
		{kvcache.ErrNotFound, "sequence 5", func(o *kvcache.ReceiveOptions) { o.Begin = 3 }},
		{kvcache.ErrOutOfRange, "desc.priority = 101", func(o *kvcache.ReceiveOptions) { o.Priority = 101 }},
		{kvcache.ErrOutOfRange, "options.Priority", func(o *kvcache.ReceiveOptions) { o.Priority = 1 << 40 }},
		{kvcache.ErrNeverFits, "", func(o *kvcache.ReceiveOptions) { o.NumTokens = 1 << 40 }},
	} {
		options := good
		one.change(&options)
		transfer, err := cache.Receive(transport, options)
		is(t, err, one.status)
		if transfer != nil || !strings.Contains(err.Error(), one.part) {
			t.Errorf("%v does not name %s", err, one.part)
		}
		unchanged()
	}
	_, err = cache.Receive(nil, good)
	says(t, err, kvcache.ErrInvalidArgument, "transport: nil")

	arriving := receive(t, other, transport, kvcache.ReceiveOptions{Seq: 1, NumTokens: 4})
	ticket, err := arriving.Ticket()
	ok(t, err)
	damaged := append([]byte{}, ticket...)
	damaged[len(damaged)-1] ^= 1
	for _, one := range []struct {
		status     error
		seq, begin int64
		ticket     []byte
	}{
		{kvcache.ErrNotFound, 9, 0, ticket},
		{kvcache.ErrInvalidArgument, 1, 2, ticket},
		{kvcache.ErrInvalidArgument, 1, 0, nil},
		{kvcache.ErrInvalidArgument, 1, 0, make([]byte, 5000)},
		{kvcache.ErrCorrupt, 1, 0, damaged},
	} {
		transfer, err := cache.Send(transport, one.seq, one.ticket, kvcache.SendOptions{Begin: one.begin})
		is(t, err, one.status)
		if transfer != nil {
			t.Error("a transfer beside an error")
		}
		unchanged()
	}
	_, err = cache.Send(transport, 1, ticket, kvcache.SendOptions{ModelID: "\x00"})
	is(t, err, kvcache.ErrInvalidArgument)
	_, err = cache.Send(nil, 1, ticket, kvcache.SendOptions{})
	is(t, err, kvcache.ErrInvalidArgument)

	// Another model is refused by name, on both sides.
	picky := receive(t, other, transport, kvcache.ReceiveOptions{Seq: 2, NumTokens: 4, ModelID: "llama"})
	leaving := send(t, cache, transport, 1, picky, kvcache.SendOptions{ModelID: "gemma"})
	for _, transfer := range []*kvcache.Transfer{picky, leaving} {
		err := transfer.Wait(ctx)
		is(t, err, kvcache.ErrInvalidArgument)
		if !strings.Contains(err.Error(), "llama") || !strings.Contains(err.Error(), "gemma") {
			t.Errorf("%v", err)
		}
	}
	ok(t, cache.Close())
	_, err = cache.Send(transport, 1, ticket, kvcache.SendOptions{})
	is(t, err, kvcache.ErrClosed)
	_, err = cache.Receive(transport, good)
	is(t, err, kvcache.ErrClosed)
}

func TestEachEndIsToldOnce(t *testing.T) {
	transport := newTransport(t, kvcache.TransportOptions{})
	layer := kvcache.Layer{NumKVHeads: 1, KDim: 8, KDType: kvcache.F32}
	config := &kvcache.Config{Layers: []kvcache.Layer{layer, layer}, PageSize: 16, NumPages: 64, NumThreads: 1}
	from, to := newCache(t, config), newCache(t, config)
	ok(t, from.AddSeq(4))
	extend(t, from, 4, 1, 8, upTo(0, 20))
	told := make(chan string, 8)
	onDone := func(side string) func(kvcache.Status) {
		return func(status kvcache.Status) { told <- fmt.Sprint(side, " ", int32(status)) }
	}
	next := func(expected ...string) {
		t.Helper()
		found := map[string]int{}
		for range expected {
			select {
			case one := <-told:
				found[one]++
			case <-anyWhile(t).Done():
			}
		}
		for _, one := range expected {
			if found[one] != 1 {
				t.Errorf("told of %v, expected %v", found, expected)
			}
		}
	}
	sent := kvcache.SendOptions{OnDone: onDone("sender")}
	arriving := receive(t, to, transport,
		kvcache.ReceiveOptions{Seq: 4, NumTokens: 20, OnDone: onDone("receiver")})
	leaving := send(t, from, transport, 4, arriving, sent)
	next("receiver 0", "sender 0")
	ok(t, leaving.Wait(anyWhile(t)))
	ok(t, arriving.Wait(anyWhile(t)))

	cancelled := receive(t, to, transport,
		kvcache.ReceiveOptions{Seq: 5, NumTokens: 20, OnDone: onDone("receiver")})
	ok(t, cancelled.Cancel())
	send(t, from, transport, 4, cancelled, sent)
	next("receiver 20", "sender 20")

	// One that is closed before its end is told there, and one that does not begin is not.
	closed := receive(t, to, transport, kvcache.ReceiveOptions{Seq: 6, NumTokens: 20, OnDone: onDone("closed")})
	ok(t, closed.Close())
	next("closed 20")
	_, err := to.Receive(transport, kvcache.ReceiveOptions{Seq: 7, NumTokens: 1 << 40, OnDone: onDone("never")})
	if !errors.Is(err, kvcache.ErrNeverFits) {
		t.Error(err)
	}
	ok(t, transport.Close(-1))
	ok(t, arriving.Close())
	ok(t, leaving.Close())
	if len(told) != 0 {
		t.Errorf("also told of %s", <-told)
	}
	ok(t, from.Check())
	ok(t, to.Check())
}
