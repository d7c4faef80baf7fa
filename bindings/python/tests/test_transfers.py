"""Transfers: a sequence goes on in another cache; what fails leaves both as they were."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import queue
import select
import subprocess
import sys
import threading
import weakref

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


def test_each_end_is_told_once(cache, rng, transport):
    cache.add(1)
    step(cache, [1], [6], qkv(rng, 6))
    told = queue.SimpleQueue()

    def on_done(side):
        return lambda status: told.put((side, status, threading.current_thread() is threading.main_thread()))

    def both():
        return sorted(told.get(timeout=60) for _ in range(2))

    with small_cache() as other:
        receiving = other.receive(transport, 1, 6, on_done=on_done("receiver"))
        sending = cache.send(transport, 1, receiving.ticket, on_done=on_done("sender"))
        assert both() == [("receiver", 0, False), ("sender", 0, False)]
        sending.wait(60)
        receiving.wait(60)
        assert other.length(1) == 6
        receiving = other.receive(transport, 2, 6, on_done=on_done("receiver"))
        ticket = receiving.ticket
        receiving.cancel()
        sending = cache.send(transport, 1, ticket, on_done=on_done("sender"))
        assert both() == [("receiver", 20, False), ("sender", 20, False)]
        # One that nobody keeps is told where it goes, and one that does not begin is not.
        dropped = other.receive(transport, 3, 6, on_done=on_done("dropped"))
        del dropped
        assert told.get(timeout=60) == ("dropped", 20, True)
        with pytest.raises(kvcache.NotFound):
            cache.send(transport, 9, ticket, on_done=on_done("never"))
        with pytest.raises(kvcache.NeverFits):
            other.receive(transport, 3, 10**6, on_done=on_done("never"))
        with pytest.raises(TypeError, match=r"on_done: expected .*callable as on_done\(status\)"):
            other.receive(transport, 3, 6, on_done=7)
        transport.close(60)
        del receiving, sending
        assert told.empty()
        other.check()
    cache.check()


def test_a_loop_of_asyncio_is_told(cache, rng, transport):
    cache.add(1)
    step(cache, [1], [6], qkv(rng, 6))

    async def moved(other):
        loop = asyncio.get_running_loop()
        arrived = loop.create_future()
        receiving = other.receive(transport, 1, 6, on_done=lambda status: loop.call_soon_threadsafe(arrived.set_result, status))
        sending = cache.send(transport, 1, receiving.ticket)
        assert await asyncio.wait_for(arrived, 60) == 0
        receiving.wait(0)
        sending.wait(60)

    with small_cache() as other:
        asyncio.run(moved(other))
        assert other.length(1) == 6


# References of functions: none is lost, and none is kept. One that raises is reported, and the next one runs.
def test_functions_are_let_go_when_they_have_run(cache, transport, monkeypatch):
    raised = []
    monkeypatch.setattr(sys, "unraisablehook", lambda error: raised.append(str(error.exc_value)))

    class Function:
        def __call__(self, status):
            raise ValueError(status)

    function = Function()
    alive = weakref.ref(function)
    before = sys.getrefcount(function)
    with pytest.raises(kvcache.NeverFits):
        cache.receive(transport, 3, 10**6, on_done=function)
    assert sys.getrefcount(function) == before
    receiving = cache.receive(transport, 3, 2, on_done=function)
    del function
    assert alive() is not None
    del receiving
    gc.collect()
    assert alive() is None
    assert raised == ["20"]


EXIT = """
import kvcache

layer = kvcache.Layer(num_q_heads=2, num_kv_heads=1, k_dim=8, dtype="float32")
cache = kvcache.Cache(layers=[layer], page_size=4, num_pages=32, num_threads=1)
transport = kvcache.Transport()
open_ones = [cache.receive(transport, seq, 4, on_done=print, deadline=0.001 * seq) for seq in range(8)]
"""


def test_the_interpreter_may_end_while_transfers_are_open():
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", EXIT], capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        assert set(done.stdout.split()) <= {"18", "20"}


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
