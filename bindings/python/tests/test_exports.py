"""Memory of the library for other packages, and memory of other packages as the library's pool."""

from __future__ import annotations

import gc
import sys
import weakref

import numpy as np
import pytest
from support import DIM, HEADS, KV_HEADS, NEW_NUMPY, qkv, small_cache, step

import kvcache


def test_exports_speak_both_protocols(cache, rng):
    cache.add(1)
    _, k, _ = tensors = qkv(rng, 6)
    step(cache, [1], [6], tensors)
    pool = cache.export_pool(0, "k")
    assert (
        pool.shape == (16, KV_HEADS, 4, DIM)
        and pool.dtype == "float32"
        and pool.ndim == 4
        and not pool.readonly
    )
    assert pool.__dlpack_device__() == (1, 0) and "float32" in repr(pool)
    assert '"dltensor"' in repr(pool.__dlpack__()) and '"dltensor_versioned"' in repr(
        pool.__dlpack__(max_version=(1, 0))
    )
    pages = cache.seq_pages(1).numpy()
    array = np.from_dlpack(pool) if NEW_NUMPY else pool.numpy()
    assert array.ctypes.data == pool.data_address and [s // 4 for s in array.strides] == list(pool.strides)
    np.testing.assert_array_equal(array[pages].transpose(0, 2, 1, 3).reshape(-1, KV_HEADS, DIM)[:6], k)
    array[pages[0], 0, 0, 0] = 42
    assert cache.debug_get_layer(1, 0)[0][0, 0, 0] == 42
    assert (
        cache.export_pool(0, "kv").shape == (16, 2, KV_HEADS, 4, DIM)
        and cache.export_pool(1, "bytes").dtype == "uint8"
    )
    for words, error in (
        ({"stream": 3}, ValueError),
        ({"copy": True}, BufferError),
        ({"dl_device": (2, 0)}, BufferError),
        ({"max_version": 1}, TypeError),
    ):
        with pytest.raises(error):
            pool.__dlpack__(**words)
    assert pool.__dlpack__(stream=None, max_version=(1, 1), dl_device=(1, 0), copy=False)
    with pytest.raises(BufferError, match="read-only"):
        cache.seq_pages(1).__dlpack__()


def test_page_tables_describe_the_batch(cache, rng):
    cache.add(1)
    cache.add(2)
    step(cache, [1], [6], qkv(rng, 6))
    with cache.forward([1, 2], [3, 2], partial=True) as forward:
        table = {
            kind: forward.page_table(kind).numpy()
            for kind in (
                "indptr",
                "indices",
                "last_page_len",
                "block_table",
                "slot_mapping",
                "seq_lens",
                "qo_indptr",
                "page_position",
            )
        }
    assert (
        table["indptr"].tolist() == [0, 3, 4]
        and table["last_page_len"].tolist() == [1, 2]
        and table["seq_lens"].tolist() == [9, 2]
    )
    assert table["qo_indptr"].tolist() == [0, 3, 5] and table["page_position"].tolist() == [0, 4, 8, 0]
    assert table["block_table"].shape == (2, 3) and table["block_table"][1, 1] == -1
    assert (
        table["slot_mapping"].tolist()[2] == table["indices"][2] * 4 and not table["indices"].flags.writeable
    )


def write_to_borrowed(pools, rng):
    with small_cache(num_pages=0, storage="borrowed", pool_tensors=pools) as cache:
        cache.add(1)
        _, k, _ = tensors = qkv(rng, 3)
        step(cache, [1], [3], tensors)
        page = int(cache.seq_pages(1).numpy()[0])
        return sys.getrefcount(pools[0]), (
            pools[0][page][: KV_HEADS * 4 * DIM].reshape(KV_HEADS, 4, DIM)[:, :3] == k.transpose(1, 0, 2)
        ).all()


def test_a_borrowed_pool_is_kept_and_written(rng):
    pools = [np.zeros((8, 2 * KV_HEADS * 4 * DIM), np.float32) for _ in range(2)]
    before = sys.getrefcount(pools[0])
    during, written = write_to_borrowed(pools, rng)
    assert written and during > before
    gc.collect()
    after = sys.getrefcount(pools[0])  # not inside the assert, which keeps what it looked at
    assert after == before
    pools[0].flags.writeable = False
    with pytest.raises(BufferError, match=r"pool_tensors\[0\]: is read-only" if NEW_NUMPY else "readonly"):
        small_cache(num_pages=0, storage="borrowed", pool_tensors=pools)


def borrowed_and_gone(rng):
    pools = [np.zeros((8, 2 * KV_HEADS * 4 * DIM), np.float32) for _ in range(2)]
    cache = small_cache(num_pages=0, storage="borrowed", pool_tensors=pools)
    return cache.export_pool(0, "k"), cache.prefix, weakref.ref(cache), [weakref.ref(pool) for pool in pools]


def test_a_borrowed_pool_lives_as_long_as_anything_that_lies_in_it(rng):
    pool, prefix, cache, memory = borrowed_and_gone(rng)
    assert cache() is None, "a cache goes with its last reference, without the garbage collector"
    assert memory[0]() is not None and prefix.match([1, 2, 3]) == 0
    del prefix
    array = np.array(pool.numpy())
    assert memory[0]() is not None and (array == 0).all()
    del pool
    assert memory[0]() is None and memory[1]() is None


def test_bookkeeping_needs_no_memory():
    with small_cache(storage="none") as cache:
        cache.add(1)
        with cache.forward([1], [5]) as forward:
            assert forward.page_table("block_table").numpy().shape == (1, 2)
            with pytest.raises(kvcache.Unsupported):
                forward.attn(0, np.zeros((5, HEADS, DIM), np.float32))
        with pytest.raises(kvcache.Unsupported):
            cache.export_pool(0)


def test_numpy_functions_take_exports_as_arrays(cache, rng):
    cache.add(1)
    _, k, _ = tensors = qkv(rng, 3)
    step(cache, [1], [3], tensors)
    pool = cache.export_pool(0, "k")
    array = np.asarray(pool)
    assert array.dtype == np.float32 and array.ctypes.data == pool.data_address
    page = int(np.asarray(cache.seq_pages(1))[0])
    np.testing.assert_array_equal(array[page, :, :3], k.transpose(1, 0, 2))
    assert pool[page, 1, 2, 3] == k[2, 1, 3] and pool[page].shape == (KV_HEADS, 4, DIM)
    pool[page][0, 0, 0] = 42  # a view
    assert array[page, 0, 0, 0] == 42
    assert np.array(pool).ctypes.data != pool.data_address
    assert np.asarray(pool, dtype=np.float64).dtype == np.float64
    assert np.array_equal(np.stack([cache.seq_pages(1)]), [[page]])
    if NEW_NUMPY:
        with pytest.raises(ValueError, match="copy=False"):
            np.array(pool, dtype=np.float64, copy=False)
    assert list(cache.seq_pages(1)) == [page]


def test_arrays_of_bfloat16_have_its_values_or_say_what_is_missing(monkeypatch):
    layer = kvcache.Layer(num_kv_heads=1, k_dim=4)
    with kvcache.Cache(layers=[layer], num_pages=2) as cache:
        pool = cache.export_pool(0)
        assert pool.dtype == "bfloat16"
        ml_dtypes = pytest.importorskip("ml_dtypes")
        pool.numpy().view(np.uint16)[...] = 0x3FC0  # 1.5
        assert np.asarray(pool).dtype == ml_dtypes.bfloat16
        assert (np.asarray(pool, np.float32) == 1.5).all() and pool[0, 0, 0, 0, 0] == 1.5
        monkeypatch.setitem(sys.modules, "ml_dtypes", None)  # as if it were not installed
        assert pool.numpy().dtype == np.uint16  # the bits, on request
        for read in (lambda: np.asarray(pool), lambda: pool[0]):
            with pytest.raises(kvcache.DtypeError, match="bfloat16.*install ml_dtypes.*numpy"):
                read()


def test_types_without_an_array_raise():
    layer = kvcache.Layer(num_kv_heads=1, k_dim=4, dtype="int4", quant="per_token_head")
    plan = kvcache.Plan(layers=[layer], num_pages=2)
    with pytest.raises(kvcache.Unsupported, match=r"layers\[0\].k_dtype = int4 .*OWNED.*8 bits.*BORROWED"):
        kvcache.Cache(plan)
    pages = np.zeros((2, plan.layer(0).region_bytes), np.uint8)
    with kvcache.Cache(layers=[layer], storage="borrowed", pool_tensors=[pages]) as cache:
        pool = cache.export_pool(0, "k")
        assert pool.dtype == "int4"
        with pytest.raises(kvcache.DtypeError, match="int4"):
            np.asarray(pool)
