"""Nothing is kept that was only lent: references, and memory over many calls, good and bad."""

from __future__ import annotations

import gc
import resource
import sys

import numpy as np
import pytest
from support import DIM, HEADS, qkv, small_cache, step

import kvcache


class Capsules:
    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **words):
        return self.array.__dlpack__(**words)


def test_no_reference_is_kept(cache, rng):
    cache.add(1)
    q, k, v = qkv(rng, 1)
    bias = np.zeros((1, 64), np.float32)
    words = {"opt": kvcache.AttnOptions(bias=bias, sink_logits=np.zeros(HEADS, np.float32))}
    with cache.forward([1], partial=True) as forward:
        out = forward.attn(0, q, k, v)
        things = [
            q,
            k,
            v,
            out,
            bias,
            words["opt"],
            words["opt"].sink_logits,
            forward,
            cache,
            None,
            1 << 40,
            kvcache.Error,
        ]
        before = [sys.getrefcount(x) for x in things]
        for _ in range(200):
            forward.attn(0, q, k, v, out, **words)
            for wrong in (k, q[:, :1], 3):
                try:
                    forward.attn(0, wrong, k, v, out, **words)
                except (kvcache.Error, TypeError):
                    pass
        del wrong
        after = [sys.getrefcount(x) for x in things]
    slack = [0 if x is not None and not isinstance(x, (int, type)) else 50 for x in things]
    assert all(abs(a - b) <= s for a, b, s in zip(after, before, slack)), list(zip(before, after))


def used():
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def everything(rng, tensors, tokens):
    """One life of a cache, with every kind of call, and failures of each kind."""
    with small_cache(host_byte_budget=1 << 16, event_capacity=64) as cache:
        cache.prefix.attach(1, tokens, salt=b"salt", keys=[kvcache.PrefixKey(kvcache.USER, 0, b"x" * 100)])
        step(cache, [1], [6], tensors, tokens=tokens)
        step(cache, [1], [6], tuple(Capsules(x) for x in tensors[:1]) + tensors[1:], tokens=tokens)
        cache.fork(1, 2, 5)
        cache.events.poll(), cache.events.snapshot(), kvcache.prefix_hash(list(tokens), 4, b"salt")
        (
            np.from_dlpack(cache.export_pool(0)),
            cache.seq_pages(1).numpy(),
            cache.export_pool(1, "bytes").__dlpack__(),
        )
        cache.debug_get_kv(1), cache.stats(), cache.info(1), cache.plan.describe(), cache.plan.to_dict()
        cache.swap_out([2]), cache.swap_in([2])
        forward = cache.forward([1], [2], tree_parents=[-1, 0], positions=np.arange(2, dtype=np.int32))
        forward.page_table("block_table").numpy()
        for wrong in (
            lambda: forward.attn(0, tensors[0].astype(np.int8)),
            lambda: forward.attn(0, 3),
            lambda: cache.forward([1], [1, 2]),
            lambda: cache.forward([1], ["a"]),
            lambda: cache.add(1),
            lambda: forward.attn(9, tensors[0], out=tensors[0]),
            lambda: kvcache.Plan(kvcache.Config(layers=[kvcache.Layer(k_dim=-1)])),
            lambda: kvcache.Config.from_hf("{"),
            lambda: cache.prefix.match([1], keys=[kvcache.PrefixKey(0)]),
            lambda: kvcache.as_dtype(tensors[0], "int8"),
            lambda: forward.attn(0, tensors[0], sink_logits=object()),
        ):
            with pytest.raises((kvcache.Error, TypeError, ValueError, BufferError)):
                wrong()
        if rng.integers(2):
            forward.abort()  # else the cache goes with the forward open
        return cache.export_pool(0)  # outlives the cache


def test_memory_does_not_grow(rng):
    tensors = tuple(x[:6] for x in qkv(rng, 6))
    tokens = np.arange(6, dtype=np.int32)
    for _ in range(1200):  # the allocators have seen it all by then
        everything(rng, tensors, tokens)
    before = used()
    for _ in range(600):
        everything(rng, tensors, tokens)
    grown = used() - before
    print(f"{grown} bytes after 600 caches")
    assert grown < 1 << 17


def test_memory_of_calls_does_not_grow(rng):
    q, k, v = qkv(rng, 1)
    with small_cache() as cache:
        cache.add(1)
        with cache.forward([1], partial=True) as forward:
            out = np.empty((1, HEADS, DIM), np.float32)

            def calls(n):
                for _ in range(n):
                    forward.attn(0, Capsules(q), kvcache.Tensor(k), v, out, sink_logits=np.zeros(HEADS, np.float32))
                    forward.page_table("indices")
                    cache.seqs()

            calls(2000)
            before = used()
            calls(20000)
            grown = used() - before
    print(f"{grown} bytes after 20,000 calls")
    assert grown < 20000 * 16


def test_memory_of_refused_arguments_does_not_grow(rng):
    q, k, v = qkv(rng, 1)
    huge, ids = np.uint64(2**64 - 1), np.array([2], np.uint16)
    with small_cache() as cache:
        cache.add(1), cache.add(2)
        with cache.forward([1], partial=True) as forward:
            wrong = (
                lambda: cache.add(1.5),
                lambda: cache.add(huge),
                lambda: cache.length("one"),
                lambda: cache.can_append([1, object()], [1, 1]),
                lambda: cache.can_append([1 << 70], [1]),
                lambda: cache.prefix.match([1], salt="text"),
                lambda: cache.prefix.match([1], keys=[("type", 0, b"")]),
                lambda: forward.attn(0, q, scale="1"),
                lambda: forward.attn(0, [[1.0]], out=q),
                lambda: kvcache.has_feature(3),
                lambda: kvcache.Layer(8),
                lambda: kvcache.Plan(layers=[{}]),
            )

            def calls(n):
                refused = 0
                for _ in range(n):
                    cache.can_append(ids, ids), cache.length(ids[0])
                    for call in wrong:
                        try:
                            call()
                        except kvcache.Error:
                            refused += 1
                return refused

            calls(2000)
            before, blocks = used(), sys.getallocatedblocks()
            refused = calls(10000)
            grown, blocks = used() - before, sys.getallocatedblocks() - blocks
    print(f"{grown} bytes, {blocks} objects after {refused} refused calls")
    assert refused == 10000 * len(wrong) and blocks < 1000 and grown < 1 << 17
