"""Tensors of other packages in: every way that a description of memory can come."""

from __future__ import annotations

import numpy as np
import pytest
from support import DIM, HEADS, NEW_NUMPY, qkv, small_cache

import kvcache


class Versioned:
    """A producer that has nothing but `__dlpack__`."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **words):
        return self.array.__dlpack__(**words)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class Legacy(Versioned):
    """A producer from before DLPack 1.0: no keywords, a capsule without flags."""

    def __dlpack__(self):
        return self.array.__dlpack__()


def outputs_of(cache, seq, wrap, tensors):
    cache.add(seq)
    with cache.forward([seq], [len(tensors[0])], partial=True) as forward:
        out = np.empty(tensors[0].shape, np.float32)
        forward.attn(0, *(wrap(x) for x in tensors), wrap(out))
        return out


def test_every_way_in_gives_the_same_result(cache, rng):
    tensors = qkv(rng, 5)
    plain = outputs_of(cache, 1, lambda x: x, tensors)
    for seq, wrap in enumerate(
        (
            Versioned,
            Legacy,
            kvcache.Tensor,
            lambda x: kvcache.Tensor(Legacy(x)),
            lambda x: kvcache.Tensor(kvcache.Tensor(x)),
            lambda x: memoryview_of(x),
        ),
        2,
    ):
        assert (outputs_of(cache, seq, wrap, tensors) == plain).all(), wrap
        cache.remove(seq)


def memoryview_of(array):
    class Subclass(np.ndarray):  # subclasses go by __dlpack__, which may be theirs
        pass

    return array.view(Subclass)


def test_strides_are_honoured(cache, rng):
    q, k, v = qkv(rng, 4)
    plain = outputs_of(cache, 1, lambda x: x, (q, k, v))
    turned = tuple(
        np.asfortranarray(x.transpose(1, 0, 2)).copy(order="C").transpose(1, 0, 2) for x in (q, k, v)
    )
    spread = tuple(np.repeat(x, 2, axis=0)[::2] for x in (q, k, v))
    backwards = tuple(x[::-1].copy()[::-1] for x in (q, k, v))
    for seq, tensors in enumerate((turned, spread, backwards), 2):
        assert not tensors[0].flags.c_contiguous
        assert (outputs_of(cache, seq, lambda x: x, tensors) == plain).all()
    with cache.forward([1], partial=True) as forward, pytest.raises(kvcache.ShapeError, match="q"):
        forward.attn(0, np.zeros((1, HEADS, 2 * DIM), np.float32)[:, :, ::2])
    memory = np.zeros(2 + 2 * HEADS * DIM, np.float32)[: 2 * HEADS * DIM].reshape(2, HEADS, DIM)
    odd = np.lib.stride_tricks.as_strided(memory, strides=(HEADS * DIM * 4 + 2, DIM * 4, 4))
    with cache.forward([1], [2], partial=True) as forward, pytest.raises(BufferError, match="stride 0 is 130 bytes"):
        forward.attn(0, odd)
    with cache.forward([1], partial=True) as forward:  # the stride of a single row is never used
        forward.attn(0, np.lib.stride_tricks.as_strided(q[:1], strides=(2, DIM * 4, 4)), k[:1], v[:1])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_activations(rng, dtype):
    q, k, v = qkv(rng, 5)
    if dtype == "float16":
        q, k, v = (x.astype(np.float16) for x in (q, k, v))
        wide, given = tuple(x.astype(np.float32) for x in (q, k, v)), (q, k, v)
    else:
        bits = tuple((x.view(np.uint32) >> 16).astype(np.uint16) for x in (q, k, v))
        wide = tuple((x.astype(np.uint32) << 16).view(np.float32) for x in bits)
        given = tuple(kvcache.as_dtype(x, "bfloat16") for x in bits)
        with small_cache() as cache, pytest.raises(kvcache.DtypeError, match="q"):
            outputs_of(cache, 1, lambda x: x, bits)  # uint16 alone is no float
    with small_cache() as cache:
        assert (
            outputs_of(cache, 1, lambda x: x, wide) == outputs_of_given(cache, 2, given, wide[0].shape)
        ).all()


def outputs_of_given(cache, seq, tensors, shape):
    cache.add(seq)
    with cache.forward([seq], [shape[0]], partial=True) as forward:
        return forward.attn(0, *tensors, np.empty(shape, np.float32))


def test_arrays_of_ml_dtypes_are_taken_as_they_are(rng):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    q, k, v = (x.astype(ml_dtypes.bfloat16) for x in qkv(rng, 5))
    with small_cache() as cache:
        got = outputs_of_given(cache, 1, (q, k, v), q.shape)
        assert (
            got == outputs_of(cache, 2, lambda x: x, tuple(x.astype(np.float32) for x in (q, k, v)))
        ).all()
        with cache.forward([1], partial=True) as forward:
            out = forward.attn(0, q[:1], k[:1], v[:1])
            assert out.dtype == ml_dtypes.bfloat16
    layer = kvcache.Layer(num_kv_heads=1, k_dim=4, dtype=ml_dtypes.bfloat16)
    with kvcache.Cache(layers=[layer], num_pages=2) as cache:
        assert cache.export_pool(0).numpy().dtype == ml_dtypes.bfloat16
    layer = kvcache.Layer(num_kv_heads=1, k_dim=4, dtype=ml_dtypes.float8_e4m3fn, quant="per_tensor")
    with kvcache.Cache(layers=[layer], num_pages=2) as cache:
        assert cache.plan.layer(0).k_dtype == "float8_e4m3fn" and cache.export_pool(0, "bytes").shape == (
            2,
            2 * 16 * 4,
        )
    assert kvcache.as_dtype(np.zeros(3, np.uint8), "float8_e5m2").numpy().dtype == ml_dtypes.float8_e5m2


def test_read_only_tensors_may_be_read_but_not_written(cache, rng):
    q, k, v = qkv(rng, 2)
    for x in (q, k, v):
        x.flags.writeable = False
    cache.add(1)
    with cache.forward([1], [2], partial=True) as forward:
        forward.attn(0, q, k, v)
        for wrap in (lambda x: x, *([Versioned] if NEW_NUMPY else [])):
            with pytest.raises(BufferError, match="out: is read-only"):
                forward.attn(0, q, k, v, out=wrap(q))
        positions = forward.page_table("seq_lens")
        assert positions.readonly and positions.numpy().tolist() == [2]
        with pytest.raises(BufferError, match="out: is read-only"):
            forward.positions(positions)


def test_what_is_no_tensor_is_refused(cache, rng):
    q, k, v = qkv(rng, 1)
    cache.add(1)
    with cache.forward([1], partial=True) as forward:
        for wrong in (3, "q", [1.0], object(), bytes(8)):
            with pytest.raises(TypeError, match="^q: expected a tensor, which has __dlpack__.*, got"):
                forward.attn(0, wrong, k, v, out=q)
        with pytest.raises(kvcache.DtypeError, match="q"):
            forward.attn(0, q.astype(np.float64), k, v)
        with pytest.raises(kvcache.ShapeError):
            forward.attn(0, q[None, None, None, None, None, None, None], k, v, out=q)  # ten dimensions
        with pytest.raises((BufferError, ValueError, TypeError)):
            forward.attn(0, q.astype(">f4"), k, v)
        with pytest.raises((BufferError, ValueError, TypeError)):
            forward.attn(0, q.astype(object), k, v, out=q)


def test_this_numpy_is_read_without_capsules(cache, rng):
    from kvcache import _capi, tensors

    assert tensors._numpy_layout_is_as_expected()
    q, k, v = qkv(rng, 3)
    direct = outputs_of(cache, 1, lambda x: x, (q, k, v))
    _capi.numpy_enable(None)
    try:
        assert (outputs_of(cache, 2, lambda x: x, (q, k, v)) == direct).all()
    finally:
        _capi.numpy_enable(np.ndarray)
