"""Several Python threads at once: the GIL is let go where the library works, and no order of calls breaks a cache."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
from support import DIM, HEADS, KV_HEADS, attention, qkv, small_cache, step

import kvcache


def run_all(*functions):
    """Run each in a thread of its own; the first exception is raised here."""
    errors = []

    def guarded(function):
        try:
            function()
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    assert not any(thread.is_alive() for thread in threads), "a thread waits for ever"
    if errors:
        raise errors[0]


@pytest.fixture
def switches_late():
    """A thread that asks for the GIL waits a minute for it, unless the one that has it lets it go."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)
    yield
    sys.setswitchinterval(interval)


def ticks_during_attention(tokens):
    """How often another thread runs while one attention call of that many tokens does."""
    layer = kvcache.Layer(num_q_heads=8, num_kv_heads=8, k_dim=64, dtype="float32")
    with kvcache.Cache(layers=[layer], num_pages=tokens // 16, num_threads=1, cpu_isa="reference") as cache:
        cache.add(1)
        x = np.ones((tokens, 8, 64), np.float32)
        span, ticks = [], []

        def attend():
            with cache.forward([1], [tokens]) as forward:
                begin = time.perf_counter()
                forward.attn(0, x, x, x)
                span.extend((begin, time.perf_counter()))

        def tick():
            while not span:
                ticks.append(time.perf_counter())
                cache.available_pages  # a question: runs beside attention
                time.sleep(0.001)

        run_all(tick, attend)
        return sum(span[0] < t < span[1] for t in ticks)


def test_other_threads_run_during_attention(switches_late):
    # Where a machine gives the other thread little time, the call is made longer. While a call keeps the GIL nobody ticks, however
    # long it takes.
    counts = []
    for tokens in (320, 640, 1280, 2560, 5120):
        counts.append(ticks_during_attention(tokens))
        if counts[-1] >= 5:
            break
    assert counts[-1] >= 5, counts


def test_many_threads_on_one_cache_take_turns(rng):
    with small_cache(num_pages=256) as cache:
        q, k, v = qkv(rng, 8)
        want = attention(q, k, v)
        stop = threading.Event()
        turn = threading.Lock()  # one forward is open at a time

        def serve(base):
            def run():
                for i in range(60):
                    seq = base + i % 3
                    cache.add(seq)
                    with turn:
                        out = step(cache, [seq], [8], (q, k, v))
                    np.testing.assert_allclose(out[1], want, rtol=1e-5, atol=1e-5)
                    cache.fork(seq, seq + 50)
                    cache.pop(seq + 50, 3)
                    cache.remove(seq)
                    cache.remove(seq + 50)

            return run

        def look():
            while not stop.is_set():
                cache.stats(), cache.seqs(), cache.total_length, repr(cache)
                cache.check()

        watcher = threading.Thread(target=look)
        watcher.start()
        try:
            run_all(*(serve(100 * (i + 1)) for i in range(4)))
        finally:
            stop.set()
            watcher.join()
        cache.check()
        assert cache.is_empty and cache.stats().forwards == 240


def test_two_threads_in_one_forward_take_turns(rng):
    with small_cache(num_pages=64) as cache:
        cache.add(1)
        q, k, v = qkv(rng, 64)
        results = {}
        with cache.forward([1], [64]) as forward:

            def layer(number):
                def run():
                    for _ in range(20):
                        results[number] = forward.attn(number, q, k, v)

                return run

            run_all(layer(0), layer(1))
        np.testing.assert_allclose(results[0], attention(q, k, v), rtol=1e-4, atol=1e-5)
        assert (results[0] == results[1]).all()


def test_closing_waits_for_calls_and_later_ones_are_refused(rng):
    for _ in range(20):
        cache = small_cache(num_pages=64)
        cache.add(1)
        q, k, v = qkv(rng, 128)
        forward = cache.forward([1], [128])
        started = threading.Event()
        refused = []

        def attend(forward=forward, started=started, refused=refused, tensors=(q, k, v)):
            try:
                while True:
                    forward.attn(0, *tensors)
                    started.set()
            except kvcache.InvalidState as error:
                refused.append(error)

        def close(cache=cache, started=started):
            assert started.wait(300)
            cache.close()

        run_all(attend, attend, close)
        assert len(refused) == 2


def test_one_forward_is_open_at_a_time(rng):
    with small_cache() as cache:
        cache.add(1)
        cache.add(2)
        with cache.forward([1], partial=True):
            with pytest.raises(kvcache.Busy):
                cache.forward([2])
            with pytest.raises(kvcache.Busy):
                cache.remove(1)
            cache.remove(2)


def test_caches_are_independent(rng):
    def serve():
        own = np.random.default_rng(threading.get_ident() % 1000)
        with small_cache() as cache:
            for i in range(50):
                cache.add(i)
                q, k, v = qkv(own, 5)
                np.testing.assert_allclose(
                    step(cache, [i], [5], (q, k, v))[0], attention(q, k, v), rtol=1e-4, atol=1e-5
                )
                cache.remove(i)

    run_all(*[serve] * 4)


def test_the_logger_may_be_called_while_threads_wait(rng):
    lines = []
    kvcache.set_logger(lambda level, message: lines.append(message), 0)
    try:
        test_many_threads_on_one_cache_take_turns(rng)
    finally:
        kvcache.set_logger(None)


def test_operators_run_on_any_thread(rng):
    from kvcache import ops

    q, k, v = qkv(rng, 6)
    indptr = np.array([0, 6], np.int32)

    def attend():
        for _ in range(50):
            out = ops.attention_ragged(indptr, q, k, v, np.empty((6, HEADS, DIM), np.float32))
            np.testing.assert_allclose(out, attention(q, k, v), rtol=1e-4, atol=1e-5)

    assert KV_HEADS == k.shape[1]
    run_all(*[attend] * 4)


def ends_well(program):
    """Run a program in a process of its own."""
    command = [sys.executable, "-c", textwrap.dedent(program)]
    here = pathlib.Path(__file__).parent  # not above: the sources of the package are no package
    found = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=here)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def test_the_interpreter_ends_with_everything_open():
    assert not ends_well("""
        import threading, numpy as np, kvcache
        kvcache.set_logger(lambda level, message: None, 0)
        cache = kvcache.Cache(layers=[kvcache.Layer(num_kv_heads=1, k_dim=4)], num_pages=8)
        cache.add(1)
        forward = cache.forward([1], [3])
        pool, loop = cache.export_pool(0), [cache]
        loop.append(loop)
        x = np.ones((3, 1, 4), np.float32)
        def run():
            while True:
                forward.attn(0, x, x, x)
        threading.Thread(target=run, daemon=True).start()
        forward.attn(0, x, x, x)
        """)


def test_a_forked_child_may_go_on():
    assert (
        ends_well("""
        import os, numpy as np, kvcache
        cache = kvcache.Cache(layers=[kvcache.Layer(num_q_heads=32, num_kv_heads=8, k_dim=64)], num_pages=64, num_threads=2)
        def step(seq):
            cache.add(seq)
            with cache.forward([seq], [256]) as forward:
                q, k = (np.ones((256, heads, 64), np.float32) for heads in (32, 8))
                return float(forward.attn(0, q, k, k).sum())
        total = step(1)
        child = os.fork()
        if child == 0:
            os._exit(0 if step(2) == total and cache.seqs() == [1, 2] else 1)
        print(os.waitpid(child, 0)[1], cache.seqs())
        """)
        == "0 [1]\n"
    )
