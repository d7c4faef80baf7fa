"""Transfers: a sequence goes on in another cache; what fails leaves both as they were."""

from __future__ import annotations

import pickle
import select
import threading

import numpy as np
import pytest
from support import qkv, small_cache, step

import kvcache


@pytest.fixture
def transport():
    return kvcache.Transport()


def moved(source, seq, target, transport, **settings):
    receiving = target.receive(transport, seq, source.length(seq) - settings.get("begin", 0), **settings)
    sending = source.send(transport, seq, receiving.ticket, begin=settings.get("begin", 0))
    sending.wait(60)
    receiving.wait(60)
    return receiving, sending


def test_a_sequence_goes_on_in_another_cache_with_the_same_bits(cache, rng, transport):
    cache.add(1)
    step(cache, [1], [6], qkv(rng, 6))
    with small_cache() as other:
        receiving, sending = moved(cache, 1, other, transport)
        assert (receiving.info().state, sending.info().state) == ("done", "done")
        assert receiving.info().is_receiving and not sending.info().is_receiving
        assert receiving.info().bytes_done == sending.info().bytes_total > 0
        tensors = qkv(rng, 2)
        expected = step(cache, [1], [2], tensors)
        np.testing.assert_array_equal(step(other, [1], [2], tensors), expected)
        other.check()
    cache.check()
    stats = transport.stats()
    assert (stats.transfers_open, stats.transfers_done, stats.transfers_failed) == (0, 2, 0)
    assert stats.bytes_sent == stats.bytes_received


def test_a_waiting_thread_lets_others_use_the_cache(cache, rng, transport):
    cache.add(1)
    step(cache, [1], [6], qkv(rng, 6))
    with small_cache() as other:
        receiving = other.receive(transport, 4, 6)
        failures = []

        def wait():
            try:
                receiving.wait(60)
            except kvcache.Error as error:
                failures.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        other.add(9)
        step(other, [9], [3], qkv(rng, 3))
        with pytest.raises(kvcache.Busy, match="transfer is bringing it"):
            other.fork(4, 5)
        cache.send(transport, 1, receiving.ticket).wait(60)
        thread.join()
        assert not failures and other.length(4) == 6
        other.fork(4, 5)
        other.check()


def test_what_is_cancelled_dropped_or_too_late_leaves_nothing(cache, rng, transport):
    cache.add(1)
    step(cache, [1], [6], qkv(rng, 6))
    with small_cache() as other:
        receiving = other.receive(transport, 4, 6)
        ticket = receiving.ticket
        receiving.cancel()
        with pytest.raises(kvcache.Cancelled):
            receiving.wait(60)
        with pytest.raises(kvcache.Cancelled, match="the receiver has ended"):
            cache.send(transport, 1, ticket).wait(60)
        del receiving
        other.receive(transport, 5, 6)  # dropped at once
        late = other.receive(transport, 6, 6, deadline=0.01)
        with pytest.raises(kvcache.Timeout, match="deadline"):
            late.wait(60)
        assert late.info().status == 18
        assert other.is_empty
        other.check()
    cache.check()


def test_another_layout_is_refused_by_name(cache, rng, transport):
    cache.add(1)
    step(cache, [1], [6], qkv(rng, 6))
    layer = kvcache.Layer(num_q_heads=4, num_kv_heads=2, k_dim=8, dtype="bfloat16")
    with kvcache.Cache(layers=[layer] * 2, page_size=4, num_pages=16, num_threads=1) as other:
        receiving = other.receive(transport, 1, 6)
        sending = cache.send(transport, 1, receiving.ticket)
        for one in (receiving, sending):
            with pytest.raises(kvcache.Unsupported, match="dtype"):
                one.wait(60)
        assert other.is_empty


def test_a_transport_without_a_thread_is_driven_by_its_owner(cache, rng, transport):
    cache.add(1)
    step(cache, [1], [6], qkv(rng, 6))
    manual = kvcache.Transport(address="driven", manual=True)
    assert manual.address == "driven"
    with small_cache() as other:
        receiving = other.receive(manual, 1, 6)
        sending = cache.send(transport, 1, receiving.ticket)
        while not receiving.done():
            select.select([manual.fileno()], [], [], 1)
            manual.progress()
        receiving.wait(0)
        sending.wait(60)
        assert other.length(1) == 6


def test_bad_arguments_are_named(cache, transport):
    with pytest.raises(kvcache.Unsupported, match='"tcp"'):
        kvcache.Transport("tcp")
    with pytest.raises(kvcache.InvalidArgument, match="idle"):
        kvcache.Transport(idle=-1)
    with pytest.raises(kvcache.InvalidState, match="thread of its own"):
        transport.progress()
    with pytest.raises(kvcache.InvalidArgument, match="num_tokens = 0"):
        cache.receive(transport, 1, 0)
    with pytest.raises(kvcache.NotFound, match="sequence 7"):
        cache.receive(transport, 7, 1, begin=3)
    with pytest.raises(kvcache.InvalidArgument, match="the ticket of 100 bytes is none"):
        cache.send(transport, 1, b"x" * 100)
    with pytest.raises(TypeError):
        cache.send(transport, 1, "a ticket")
    for thing in (transport, cache.receive(transport, 1, 2)):
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(thing)
    transport.close(60)
    with pytest.raises(kvcache.InvalidState, match="closed"):
        cache.receive(transport, 1, 2)
