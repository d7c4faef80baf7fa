"""Rows of 8 bits in the operators: int8, and float8 as ml_dtypes' arrays and as bytes under a name."""

from __future__ import annotations

import numpy as np
import pytest

import kvcache
from kvcache import ops

LARGEST = {"int8": 127, "float8_e4m3fn": 448, "float8_e5m2": 57344}


def codes(dtype, shape):
    """An array of ml_dtypes, or of NumPy's own."""
    if dtype == "int8":
        return np.full(shape, 99, np.int8)
    return np.zeros(shape, getattr(pytest.importorskip("ml_dtypes"), dtype))


@pytest.mark.parametrize("dtype", LARGEST)
def test_rows_with_their_own_scales_come_back(rng, dtype):
    x = rng.standard_normal((7, 3, 80)).astype(np.float32)
    out, scales, back = codes(dtype, x.shape), np.empty((7, 3), np.float32), np.empty(x.shape, np.float32)
    assert ops.quantize(x, out, scales, "per_token_head") == 0
    assert (scales == abs(x).max(2) / np.float32(LARGEST[dtype])).all()
    rounded = (x / scales[..., None]).astype(out.dtype) if dtype != "int8" else np.rint(x / scales[..., None])
    assert (out.astype(np.float32) == rounded.astype(np.float32)).all()
    assert ops.dequantize(out, scales, back, "per_token_head") is back
    assert (back == out.astype(np.float32) * scales[..., None]).all()


@pytest.mark.parametrize("dtype", LARGEST)
def test_what_one_scale_does_not_fit_is_clipped_and_counted(dtype):
    scale = np.array([2.0 / LARGEST[dtype]], np.float32)
    x = np.array([[[1.0, -2.0, 2.5, -np.inf]]], np.float32)
    out, back = codes(dtype, x.shape), np.empty(x.shape, np.float32)
    assert ops.quantize(x, out, scale, "per_tensor", isa="scalar") == 2
    ops.dequantize(out, scale, back, "per_tensor")
    least = -2.0 * 128 / 127 if dtype == "int8" else -2.0
    np.testing.assert_allclose(back[0, 0, 1:], [-2.0, 2.0, least], rtol=1e-6)


def test_bytes_are_rows_of_float8_under_a_name(rng):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = rng.standard_normal((3, 1, 5)).astype(np.float32)
    plain, scales = np.zeros(x.shape, np.uint8), np.empty((3, 1), np.float32)
    ops.quantize(x, kvcache.as_dtype(plain, "float8_e5m2"), scales, "per_token_head")
    named = codes("float8_e5m2", x.shape)
    ops.quantize(x, named, scales, "per_token_head")
    assert (plain.view(ml_dtypes.float8_e5m2) == named).all()


def test_what_does_not_fit_is_refused_by_name(rng):
    x, out, scales = np.ones((2, 1, 4), np.float32), np.zeros((2, 1, 4), np.int8), np.ones((2, 1), np.float32)
    with pytest.raises(kvcache.InvalidArgument, match=r"quant = NONE \(0\)"):
        ops.quantize(x, out, scales, "none")
    with pytest.raises(kvcache.Unsupported, match="BLOCK16"):
        ops.dequantize(out, scales, x, "block16")
    with pytest.raises(ValueError, match="quant"):
        ops.quantize(x, out, scales, "per_row")
    with pytest.raises(kvcache.DtypeError, match="out is uint8, expected int8, float8_e4m3fn or float8_e5m2"):
        ops.quantize(x, out.view(np.uint8), scales, "per_token_head")
    with pytest.raises(kvcache.OutOfRange, match=r"scales\[0\] = -1"):
        ops.quantize(x, out, np.array([-1], np.float32), "per_tensor")
    assert not out.any()


@pytest.mark.parametrize("dtype", LARGEST)
@pytest.mark.parametrize("layout", ["hnd", "nhd", "mla"])
def test_a_pool_of_eight_bits_is_written_read_and_copied(rng, dtype, layout):
    heads = 1 if layout == "mla" else 3
    rows = {"hnd": (4, heads, 5), "nhd": (4, 5, heads), "mla": (4, 5)}[layout]
    k, v = codes(dtype, (*rows, 16)), codes(dtype, (*rows, 8))
    k_scales, v_scales = np.zeros(rows, np.float32), np.zeros(rows, np.float32)
    pool = ops.Pool(k, v, layout, "per_token_head", k_scales=k_scales, v_scales=v_scales)
    new_k, new_v = (rng.standard_normal((7, heads, dim)).astype(np.float32) for dim in (16, 8))
    if layout == "mla":
        pool, new_v = pool._replace(v=None, v_scales=None), None
    ops.append(pool, np.arange(5, 12), new_k, new_v)
    ops.copy_pages(pool, np.array([[2, 0]]))
    out, scales, want = codes(dtype, new_k.shape), np.empty((7, heads), np.float32), np.empty_like(new_k)
    ops.quantize(new_k, out, scales, "per_token_head")
    ops.dequantize(out, scales, want, "per_token_head")
    got = np.empty_like(new_k)
    table = ops.Table(np.array([7], np.int32), block_table=np.array([[1, 0]], np.int32))
    ops.gather(pool, table, got)
    assert (got == want).all()

    q, attended = np.zeros((1, heads, 16), np.float32), np.empty((1, heads, 8), np.float32)
    if layout == "mla":
        ops.mla_paged(pool, table, 8, q, attended, opt=kvcache.AttnOptions(scale=1.0))
        means = want[:, :, :8].mean(0)
    else:
        ops.attention_paged(pool, table, q, attended)
        values = np.empty_like(new_v)
        ops.gather(pool, table, v_out=values)
        means = values.mean(0)
    np.testing.assert_allclose(attended[0], means, atol=4e-3)  # weights of few bits, on some machines


def test_a_pool_with_one_scale_and_what_is_refused(rng):
    k, v = np.zeros((2, 1, 4, 8), np.int8), np.zeros((2, 1, 4, 8), np.int8)
    pool = ops.Pool(k, v, quant="per_tensor", k_scale=0.5, v_scale=0.25)
    rows = np.arange(8, dtype=np.float32).reshape(1, 1, 8)
    ops.append(pool, np.array([6]), rows, rows)
    assert k[1, 0, 2].tolist() == [0, 2, 4, 6, 8, 10, 12, 14] and v[1, 0, 2, 1] == 4
    with pytest.raises(kvcache.OutOfRange, match="pool.k_scale = -1"):
        ops.append(pool._replace(k_scale=-1.0), np.array([6]), rows, rows)
    with pytest.raises(kvcache.InvalidArgument, match="pool.k_scales is NULL"):
        ops.append(ops.Pool(k, v, quant="per_token_head"), np.array([6]), rows, rows)
    with pytest.raises(kvcache.DtypeError, match=r"pool.k is int8 with pool.quant = NONE \(0\)"):
        ops.append(ops.Pool(k, v), np.array([6]), rows, rows)
