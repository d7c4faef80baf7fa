"""Producers that lie, raise, or change things under a call: refused with an exception, never a crash."""

from __future__ import annotations

import ctypes
import sys

import numpy as np
import pytest
from support import DIM, HEADS, qkv

import kvcache


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Managed(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    ]


_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype, _capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Hostile:
    """A versioned capsule with any content; counts how often its deleter ran."""

    def __init__(self, name=b"dltensor_versioned", shape=(1, HEADS, DIM), strides=None, **fields):
        self.memory = np.zeros(HEADS * DIM, np.float32)
        self.deleted = 0
        self.name = name
        self._shape = (ctypes.c_int64 * len(shape))(*shape) if shape is not None else None
        self._strides = (ctypes.c_int64 * len(strides))(*strides) if strides is not None else None
        t = DLTensor(
            self.memory.ctypes.data,
            1,
            0,
            len(shape) if shape is not None else 3,
            2,
            32,
            1,
            self._shape,
            self._strides,
            0,
        )
        self._deleter = DELETER(self._delete)
        self.managed = Managed(1, 0, None, ctypes.cast(self._deleter, ctypes.c_void_p).value, 0, t)
        for key, value in fields.items():
            setattr(self.managed if hasattr(Managed, key) else t, key, value)
        self.managed.tensor = t

    def _delete(self, _):
        self.deleted += 1

    def __dlpack__(self, **_):
        return _capsule(ctypes.addressof(self.managed), self.name, None)

    def __dlpack_device__(self):
        return 1, 0


@pytest.mark.parametrize(
    "fields, error",
    [
        ({"major": 2}, BufferError),
        ({"name": b"used_dltensor_versioned"}, BufferError),
        ({"name": b"soup"}, BufferError),
        ({"ndim": -1}, BufferError),
        ({"ndim": 1 << 20}, BufferError),
        ({"shape": None}, BufferError),
        ({"shape": (1, -4, DIM)}, BufferError),
        ({"shape": (1, 1 << 62, DIM)}, kvcache.Error),
        ({"device_type": 2}, kvcache.DeviceMismatch),
        ({"data": None}, kvcache.Error),
        ({"bits": 7}, kvcache.DtypeError),
        ({"lanes": 4}, kvcache.DtypeError),
        ({"code": 200}, kvcache.DtypeError),
        ({"byte_offset": 1}, kvcache.ShapeError),
        ({"strides": (1 << 62, 1 << 62, 1)}, kvcache.Error),
        ({"flags": 1}, None),
        ({"strides": (HEADS * DIM, DIM, 1)}, None),
        ({}, None),
    ],
)
def test_hostile_capsules_are_refused_and_never_freed_twice(cache, rng, fields, error):
    _, k, v = qkv(rng, 1)
    producer = Hostile(**fields)
    cache.add(1)
    with cache.forward([1], partial=True) as forward:
        before = sys.getrefcount(producer)
        if error is None:
            forward.attn(0, producer, k, v, out=np.empty((1, HEADS, DIM), np.float32))
        else:
            with pytest.raises(error):
                forward.attn(0, producer, k, v, out=np.empty((1, HEADS, DIM), np.float32))
        assert sys.getrefcount(producer) == before
    assert producer.deleted == 0  # the capsule was borrowed: it stays its producer's


def test_a_tensor_takes_a_capsule_over_and_frees_it_once():
    producer = Hostile()
    tensor = kvcache.Tensor(producer)
    arrays = [np.from_dlpack(tensor) for _ in range(3)]
    view = kvcache.Tensor(tensor, "int32")
    del tensor
    assert producer.deleted == 0 and view.dtype == "int32"
    del view, arrays
    assert producer.deleted == 1
    for fields in ({"major": 2}, {"ndim": -1}, {"shape": (-1, 2, 2)}):
        producer = Hostile(**fields)
        with pytest.raises(BufferError):
            kvcache.Tensor(producer)
        assert producer.deleted == 1
    with pytest.raises(BufferError, match="not an unused"):
        kvcache.Tensor(Hostile(name=b"used_dltensor"))
    with pytest.raises(ValueError, match="64 bits cannot stand for the source's 32"):
        kvcache.Tensor(np.zeros(3, np.float32), "int64")


def test_producers_that_raise_are_heard(cache):
    class Raises:
        def __dlpack__(self, **_):
            raise RuntimeError("out of order")

    class GivesNonsense:
        def __dlpack__(self, **_):
            return "a capsule"

    class EndsTheForward:
        def __dlpack__(self, **_):
            forward.abort()
            return np.zeros((1, HEADS, DIM), np.float32).__dlpack__()

    class ClosesTheCache:
        def __dlpack__(self, **_):
            cache.close()
            return np.zeros((1, HEADS, DIM), np.float32).__dlpack__()

    out = np.empty((1, HEADS, DIM), np.float32)
    cache.add(1)
    for kind, error in (
        (Raises, RuntimeError),
        (GivesNonsense, BufferError),
        (EndsTheForward, kvcache.InvalidState),
        (ClosesTheCache, kvcache.InvalidState),
    ):
        forward = cache.forward([1])
        with pytest.raises(error):
            forward.attn(0, kind(), out=out)
        if forward.is_open:
            forward.abort()
