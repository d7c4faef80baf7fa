"""Transfers: a sequence goes on in another cache; what fails leaves both as they were."""

from __future__ import annotations

import os
import pickle
import select
import subprocess
import sys
import threading

import numpy as np
import pytest
from support import qkv, small_cache, step

import kvcache

MODULES = os.environ.get("KVCACHE_EMULATED_CUDA", "")


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


# Modules lie in the build folder of the library, and one folder of modules is all that a process has.
UCX = """
import sys
import numpy as np
import kvcache

kvcache.set_module_path(sys.argv[1])
if not kvcache.has_feature("transport.ucx"):
    sys.exit("no module")
layer = kvcache.Layer(num_q_heads=2, num_kv_heads=1, k_dim=8, dtype="float32")
rng = np.random.default_rng(7)


def made():
    return kvcache.Cache(layers=[layer] * 2, page_size=4, num_pages=32, num_threads=1)


def step(cache, tensors):
    with cache.forward([1], [len(tensors[0])]) as forward:
        return [forward.attn(index, *tensors) for index in range(2)]


def qkv(tokens):
    return [rng.standard_normal((tokens, heads, 8)).astype(np.float32) for heads in (2, 1, 1)]


with made() as cache, made() as other:
    cache.add(1)
    step(cache, qkv(9))
    here, there = kvcache.Transport("ucx"), kvcache.Transport("ucx", "127.0.0.1")
    assert here.address != there.address and there.address.startswith("127.0.0.1:")
    receiving = other.receive(there, 1, 9)
    cache.send(here, 1, receiving.ticket).wait(60)
    receiving.wait(60)
    tensors = qkv(1)
    np.testing.assert_array_equal(step(other, tensors), step(cache, tensors))
    cache.check()
    other.check()
    assert there.stats().bytes_received >= here.stats().bytes_sent > 0
for address, expected in (("localhost:7000", kvcache.InvalidArgument), (there.address, kvcache.InputOutputError)):
    try:
        kvcache.Transport("ucx", address)
        sys.exit(f"{address} was not refused")
    except expected as error:
        assert address in str(error), error
print("moved")
"""


def test_two_transports_over_ucx_move_a_sequence():
    if not MODULES:
        pytest.skip("KVCACHE_EMULATED_CUDA does not name the build folder of the library")
    done = subprocess.run([sys.executable, "-c", UCX, os.path.abspath(MODULES)], capture_output=True, text=True, check=False)
    if "no module" in done.stderr:
        pytest.skip("the library was built without libkvcache_transport_ucx.so")
    assert (done.returncode, done.stdout, done.stderr) == (0, "moved\n", "")


def test_rows_leave_as_they_are_computed_and_fit_pages_of_another_size(cache, rng, transport):
    cache.add(1)
    with small_cache(page_size=12) as other:
        receiving = other.receive(transport, 1, 40)
        sending = cache.send(transport, 1, receiving.ticket, as_computed=True)
        for count in (6, 30, 4):
            assert not sending.done()
            step(cache, [1], [count], qkv(rng, count))
        sending.wait(60)
        receiving.wait(60)
        tensors = qkv(rng, 2)
        expected = step(cache, [1], [2], tensors)
        np.testing.assert_allclose(step(other, [1], [2], tensors), expected, rtol=1e-5, atol=1e-6)
        other.check()
        # A sequence that is not what it was ends it.
        receiving = other.receive(transport, 2, 60)
        sending = cache.send(transport, 1, receiving.ticket, as_computed=True)
        cache.pop(1, 3)
        cache.trim()
        for one in (sending, receiving):
            with pytest.raises(kvcache.Cancelled, match="cut"):
                one.wait(60)
    cache.check()


def test_two_ranks_send_their_heads_to_one(transport):
    def rank(heads):
        layer = kvcache.Layer(num_q_heads=heads, num_kv_heads=heads, k_dim=8, dtype="float32")
        return kvcache.Cache(layers=[layer] * 2, page_size=4, num_pages=16, num_threads=1)

    rows = np.random.default_rng(3).standard_normal((2, 9, 4, 8), dtype=np.float32)
    senders = [rank(2), rank(2)]
    with rank(4) as whole, rank(4) as oracle:
        for cache, begin, end in ((oracle, 0, 4), (senders[0], 0, 2), (senders[1], 2, 4)):
            cache.add(1)
            with cache.forward([1], [9]) as forward:
                for layer in range(2):
                    part = np.ascontiguousarray(rows[layer, :, begin:end])
                    forward.kv_append(layer, part, part)
        receiving = whole.receive(transport, 1, 9, sender_tp_size=2)
        with pytest.raises(kvcache.InvalidArgument, match="tp_size = 1"):
            senders[0].send(transport, 1, receiving.ticket)
        sending = [cache.send(transport, 1, receiving.ticket, tp_rank=i, tp_size=2) for i, cache in enumerate(senders)]
        for one in (*sending, receiving):
            one.wait(60)
        assert whole.save([1]) == oracle.save([1])
        # And back: each rank gets its half.
        for i, cache in enumerate(senders):
            sent = cache.save([1])
            cache.remove(1)
            back = cache.receive(transport, 1, 9, tp_rank=i, tp_size=2, sender_tp_size=1)
            whole.send(transport, 1, back.ticket).wait(60)
            back.wait(60)
            assert cache.save([1]) == sent
            cache.check()
    for cache in senders:
        cache.close()


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
    receiving = cache.receive(transport, 1, 2, deadline=0.1)
    for thing in (transport, receiving):
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(thing)
    transport.close(60)
    with pytest.raises(kvcache.InvalidState, match="closed"):
        cache.receive(transport, 1, 2)
