"""A case as its file has it: objects that note which keys were read, and the tensors in them."""

from __future__ import annotations

import json

import numpy as np

import kvcache


class Fields(dict):
    """A JSON object. A key that nobody reads is one that this runner does not know."""

    def __init__(self, pairs):
        super().__init__(pairs)
        self.seen = set()

    def __getitem__(self, key):
        self.seen.add(key)
        return super().__getitem__(key)

    def __contains__(self, key):
        self.seen.add(key)
        return super().__contains__(key)

    def get(self, key, default=None):
        self.seen.add(key)
        return super().get(key, default)

    def given(self, *keys):
        """The members under these keys that are there."""
        return {key: self[key] for key in keys if key in self}

    def every(self):
        """All members, which count as read."""
        self.seen.update(self)
        return list(self.items())


def refuse_unread(node, where):
    if isinstance(node, Fields):
        unread = set(node) - node.seen
        assert not unread, f"{where}: unknown keys {sorted(unread)}"
        for key, child in node.items():
            refuse_unread(child, f"{where}.{key}")
    elif isinstance(node, list):
        for child in node:
            refuse_unread(child, where)


def load(path):
    return json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=Fields)


def value(kind, layer, token, head, element):
    """The generator of README.md: a multiple of 1/64 in [-1, 1); arguments may be arrays."""
    x = np.uint32(0)
    factors = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1)
    with np.errstate(over="ignore"):
        for part, factor in zip((token, layer, head, element, kind), factors, strict=True):
            x = x + np.asarray(part).astype(np.uint32) * np.uint32(factor)
        x = x ^ (x >> np.uint32(15))
        x = x * np.uint32(0x2C1B3C6D)
        x = x ^ (x >> np.uint32(12))
        x = x * np.uint32(0x297A2D39)
        x = x ^ (x >> np.uint32(15))
    return ((x & np.uint32(127)).astype(np.float64) - 64) / 64


def elements(spec):
    """The elements that a tensor of a case gives, flat; none where it gives only a shape."""
    if "values" in spec:
        return np.array([-np.inf if x is None else x for x in spec["values"]], np.float64)
    if "kind" not in spec:
        return np.zeros(0)
    shape, kind, layer = spec["shape"], spec["kind"], spec["layer"]
    ids = np.concatenate(
        [np.arange(first, first + count) for first, count in [(0, 0), *spec["ids"]]]
    )
    heads = np.arange(shape[1] if len(shape) > 2 else 1).reshape(1, -1, 1)
    found = value(kind, layer, ids.reshape(-1, 1, 1), heads, np.arange(shape[-1]))
    return (found * (kind != 0)).reshape(-1)


FLOAT8 = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}


def tensor(spec):
    """The tensor that a case describes; elements that it does not give are NaN, or -1."""
    shape, name = spec["shape"], spec.get("dtype", "f32")
    types = {
        "f32": np.float32,
        "f16": np.float16,
        "bf16": np.float32,
        "i8": np.int8,
        "i32": np.int32,
        "i64": np.int64,
        "e4m3": np.uint8,  # by their bits, as all float8
        "e5m2": np.uint8,
    }
    empty = 255 if name in FLOAT8 else -1 if name[0] == "i" else np.nan
    flat = np.full(int(np.prod(shape)), empty, types[name])
    given = elements(spec)
    flat[: len(given)] = given
    if name in FLOAT8:
        return kvcache.as_dtype(flat.reshape(shape), FLOAT8[name])
    if name != "bf16":
        return flat.reshape(shape)
    bits = (flat.view(np.uint32) >> np.uint32(16)).astype(
        np.uint16
    )  # cases give what bfloat16 holds exactly
    return kvcache.as_dtype(bits.reshape(shape), "bfloat16")


def differs(want, got, tolerance, what):
    """How a result differs from the expected one, or None; and the number of elements compared."""
    if list(got.shape) != want["shape"]:
        return f"{what} has the shape {got.shape}", 0
    expected, rows = elements(want), want.get("rows")
    tolerance = 0 if want.get("exact", False) else want.get("tolerance", tolerance)
    count = want["shape"][0] if want["shape"] else 1
    if want.get("dtype") in FLOAT8:
        got = got.numpy().view(np.uint8)
    flat = np.asarray(got, np.float64).reshape(count, -1) if got.size else np.zeros((count, 0))
    untouched = want.get("untouched", count)
    if not np.isnan(flat[untouched:]).all():
        return f"padding rows of {what} were written", 0
    actual = (flat if rows is None else flat[rows]).reshape(-1)[: len(expected)]
    with np.errstate(invalid="ignore"):
        near = np.abs(actual - expected) <= tolerance * np.maximum(1, np.abs(expected))
    good = (actual == expected) | (near & np.isfinite(expected))
    if good.size == expected.size and good.all():
        return None, len(expected)
    at = int(np.argmin(good)) if good.size else 0
    return f"{what} has {actual[at]} instead of {expected[at]} at element {at}", 0
