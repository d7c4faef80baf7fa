"""What the tests of the Python binding share: a small cache, its tensors, and attention by NumPy."""

from __future__ import annotations

import numpy as np

import kvcache

HEADS, KV_HEADS, DIM = 4, 2, 8
NEW_NUMPY = np.lib.NumpyVersion(np.__version__) >= "2.1.0"  # knows DLPack 1, with read-only tensors


def small_cache(**fields):
    """Two layers of 4/2 heads of 8, float32, 16 pages of 4 tokens."""
    fields.setdefault("num_pages", 16)
    fields.setdefault("page_size", 4)
    fields.setdefault("num_threads", 0 if "device" in fields else 1)
    layer = kvcache.Layer(num_q_heads=HEADS, num_kv_heads=KV_HEADS, k_dim=DIM, dtype="float32")
    return kvcache.Cache(layers=[layer] * 2, **fields)


def qkv(rng, tokens, dtype=np.float32):
    return tuple(
        rng.standard_normal((tokens, heads, DIM)).astype(dtype) for heads in (HEADS, KV_HEADS, KV_HEADS)
    )


def step(cache, seqs, lengths, tensors, **words):
    """A whole forward: both layers with the same q, k, v. Returns the outputs."""
    with cache.forward(seqs, lengths, **words) as forward:
        return [forward.attn(layer, *tensors) for layer in range(2)]


def attention(q, k, v, past=0):
    """Causal attention in double: q [T, Hq, D] behind `past` tokens of k and v [past + T, Hk, D]."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    out = np.empty((len(q), q.shape[1], v.shape[2]))
    group = q.shape[1] // k.shape[1]
    for t in range(len(q)):
        for h in range(q.shape[1]):
            s = k[: past + t + 1, h // group] @ q[t, h] / np.sqrt(q.shape[2])
            w = np.exp(s - s.max())
            out[t, h] = w @ v[: past + t + 1, h // group] / w.sum()
    return out
