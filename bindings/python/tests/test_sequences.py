"""Sequences beyond plain steps: shared prefixes, the host tier, trees and windows, stored values, recurrent state."""

from __future__ import annotations

import numpy as np
import pytest
from support import DIM, KV_HEADS, qkv, small_cache, step

import kvcache


def test_prompts_that_begin_alike_share_pages(rng):
    with small_cache(event_capacity=100) as cache:
        tokens = np.arange(100, 112, dtype=np.int32)
        assert cache.prefix.attach(1, tokens) == 0
        step(cache, [1], [12], qkv(rng, 12), tokens=tokens)
        assert cache.prefix.match(tokens) == 11 and cache.prefix.match(tokens, whole_blocks=True) == 8
        assert cache.prefix.match(tokens, salt=b"other") == 0
        assert cache.prefix.attach(2, [*tokens, 7, 8]) == 12 == cache.length(2)
        stored = cache.events.poll()
        assert [event.type for event in stored] == ["stored"] * 3 and [event.tokens for event in stored][
            0
        ] == (100, 101, 102, 103)
        hashes = kvcache.prefix_hash(tokens, cache.plan.info.prefix_block)
        assert [event.hash for event in stored] == hashes and stored[1].parent == hashes[0]
        assert cache.prefix.match(None, hashes=hashes, num_tokens=12, all_tokens=True) == 12
        assert cache.prefix.pin(tokens) == 12 == cache.prefix.unpin(tokens)
        cache.remove(1)
        cache.remove(2)
        assert cache.is_empty and cache.prefix.evict(1) >= 1
        snapshot, number = cache.events.snapshot()
        assert len(snapshot) == 2 and number == cache.events.poll()[-1].number
        cache.add(3)
        step(cache, [3], [4], qkv(rng, 4))
        assert (
            cache.prefix.insert(
                3, [1, 2, 3, 4], keys=[kvcache.PrefixKey(kvcache.MEDIA, 2, b"image")], priority=5
            )
            == 4
        )
        cache.prefix.set_quota(b"tenant", 1 << 20)
        cache.prefix.reset()
        assert cache.events.poll()[-1].type == "cleared" and cache.stats().hit_rate > 0


def test_a_trim_gives_free_pages_back(rng):
    layer = kvcache.Layer(num_q_heads=4, num_kv_heads=4, k_dim=128, dtype="float32")
    with kvcache.Cache(layers=[layer], page_size=16, num_pages=64, num_threads=1) as cache:
        rows = rng.standard_normal((160, 4, 128)).astype("float32")
        for seq in (1, 2):
            cache.add(seq)
            with cache.forward([seq], [160]) as forward:
                forward.kv_append(0, rows, rows)
        cache.remove(1)
        assert cache.trim() >= 2 * rows.nbytes
        assert cache.trim() == 0
        k, _ = cache.debug_get_kv(2)
        assert (k[0] == rows).all()
        forward = cache.forward([2], [1])
        with pytest.raises(kvcache.Busy, match="trim"):
            cache.trim()
        forward.abort()


def test_huge_pages_have_a_switch(rng):
    with small_cache(no_huge_pages=True) as cache:
        cache.add(1)
        step(cache, [1], [4], qkv(rng, 4))
        assert cache.length(1) == 4
    with pytest.raises(kvcache.Unsupported, match="NO_HUGE_PAGES"):
        small_cache(no_huge_pages=True, storage="none")


def test_sequences_go_to_the_host_and_come_back(rng):
    with small_cache(host_byte_budget=1 << 20) as cache:
        cache.add(1)
        _, k, v = tensors = qkv(rng, 10)
        step(cache, [1], [10], tensors)
        fence = cache.swap_out([1])
        fence.wait(120.0)
        assert fence.done() and cache.info(1).is_swapped and cache.available_pages == 16
        cache.swap_in([1]).wait()
        assert (cache.debug_get_layer(1, 0)[0] == k).all() and (cache.debug_get_layer(1, 1)[1] == v).all()


def test_pages_are_copied_by_number(rng):
    with small_cache(host_byte_budget=1 << 20) as cache:
        cache.add(1)
        step(cache, [1], [4], qkv(rng, 4))
        page = int(cache.seq_pages(1).numpy()[0])
        pool = cache.export_pool(0).numpy()
        free = [p for p in range(16) if p != page][:2]
        cache.pages_copy([(page, free[0])]).wait()
        cache.pages_swap([(page, 3)], "out")
        cache.pages_swap(np.array([[3, free[1]]]), "in")
        assert (pool[free[0]] == pool[page]).all() and (pool[free[1]] == pool[page]).all()
        with pytest.raises(kvcache.OutOfRange):
            cache.pages_copy([(0, 99)])


def test_trees_windows_shifts_and_preflights(cache, rng):
    cache.add(1)
    q, k, v = qkv(rng, 7)
    step(cache, [1], [4], (q[:4], k[:4], v[:4]))
    with cache.forward([1], [3], tree_parents=[-1, 0, 0]) as forward:
        for layer in range(2):
            forward.attn(layer, q[4:], k[4:], v[4:])
    assert cache.info(1).tree_nodes == 3 and cache.length(1) == 4
    cache.tree_commit([1], [2])
    stored, _ = cache.debug_get_kv(1)
    assert (stored[0] == k[[0, 1, 2, 3, 4, 6]]).all()
    assert cache.can(1, "pop", 2) == 2 and cache.can(1, "fork") == 6
    cache.shift(1, 1, 3)
    assert cache.length(1) == 4 and (cache.debug_get_kv(1)[0][1] == k[[0, 3, 4, 6]]).all()
    cache.set_window(1, 3, 1)
    assert (cache.info(1).window, cache.info(1).sink) == (3, 1)


def test_a_shift_has_no_default_where_positions_are_the_callers(cache, rng):
    cache.add(1)
    q, k, v = qkv(rng, 4)
    with cache.forward([1], [4], positions=np.array([0, 1, 1, 2], np.int32)) as forward:
        for layer in range(2):
            forward.attn(layer, q, k, v)
    with pytest.raises(TypeError, match="delta: .* give delta in positions"):
        cache.shift(1, 1, 3)
    assert cache.length(1) == 4
    cache.shift(1, 1, 3, -1)
    assert cache.length(1) == 2


def test_debug_values_are_written_and_read_back(cache, rng):
    cache.add(1)
    step(cache, [1], [3], qkv(rng, 3))
    cache.fork(1, 2)
    _, k, v = qkv(rng, 2)
    cache.debug_set_layer(1, 0, 1, k, v)
    assert (cache.debug_get_layer(1, 0, 1, 3)[0] == k).all()
    assert (cache.debug_get_layer(2, 0, 1, 3)[0] != k).all()
    both = np.stack([k, k]), np.stack([v, v])
    cache.debug_set_kv(2, 0, *both)
    assert (cache.debug_get_kv(2, 0, 2)[1] == both[1]).all()
    half = np.empty((2, 2, KV_HEADS, DIM), np.float16)
    cache.debug_get_kv(2, 0, 2, k=half)
    assert (half == both[0].astype(np.float16)).all()


def test_recurrent_state_is_kept_by_sequence():
    state = kvcache.State((2, 3), init=np.full((2, 3), 5, np.float32))
    layers = [
        kvcache.Layer(kind="state", states=[state, kvcache.State((2, 4, 4))]),
        kvcache.Layer(kind="mla", num_q_heads=2, latent_rank=8, latent_rope_dim=4, dtype="float32"),
    ]
    with kvcache.Cache(layers=layers, num_pages=64) as cache:
        cache.add(1)
        with cache.forward([1], [2]) as forward:
            assert (forward.state_get(0, 0, np.empty((1, 2, 3), np.float32)) == 5).all()
            forward.state_set(0, 0, np.ones((1, 2, 3), np.float32))
            x = np.ones((2, 2, 4), np.float32)
            forward.attn_linear(0, x, x, x, np.empty_like(x), decay="none", state=1)
            latent = np.ones((2, 12), np.float32)
            forward.mla_append(1, latent)
            out = forward.attn(1, np.ones((2, 2, 12), np.float32), scale=1.0)
            assert out.shape == (2, 2, 8) and np.allclose(out, 1)
        assert (cache.debug_get_state(1, 0, 0, np.empty((2, 3), np.float32)) == 1).all()
        assert (cache.debug_get_mla(1)[1] == latent).all()
        cache.state_checkpoint(1)
        cache.debug_set_state(1, 0, 0, np.zeros((2, 3), np.float32))
        assert (cache.debug_get_state(1, 0, 0, np.empty((2, 3), np.float32)) == 0).all()
