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
