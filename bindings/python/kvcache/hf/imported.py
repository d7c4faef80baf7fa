# SPDX-License-Identifier: Apache-2.0
"""Rows of a PagedCache from K and V that are there already: of another cache, or trained as a prefix.

transformers' caches hold K behind its rotation, and pages of this package do too. So rows are copied as they are.
"""

from __future__ import annotations

import torch

from . import compat
from .layers import ImageLayer, KVLayer, StateLayer
from .rows import check_states
from .specs import LayerSpec, Storage, layer_config, num_query_heads
from .store import Store


class Source:
    """K and V by layer, [batch, heads, tokens, dim], the last tokens of `length`."""

    def __init__(self, given):
        self.cache = given if isinstance(given, compat.Cache) else None
        if isinstance(given, compat.EncoderDecoderCache):
            raise TypeError("other: a cache of an encoder and a decoder; its self_attention_cache holds the decoder's tokens")
        if self.cache is None and not isinstance(given, (list, tuple)):
            raise TypeError(f"other: expected a cache, or K and V of every layer, got {type(given).__name__}")
        self.layers = given.layers if self.cache is not None else given
        self.length = 0

    def read(self, spec: LayerSpec) -> tuple[torch.Tensor, torch.Tensor]:
        name = f"layer {spec.index}"
        if spec.index >= len(self.layers):
            raise ValueError(f"other: {len(self.layers)} layers, {name} of the model keeps K and V")
        layer = self.layers[spec.index]
        if self.cache is None:
            keys, values = layer
        elif hasattr(layer, "stored"):  # in pages, where `keys` are placeholders
            keys, values = layer.stored()
        else:
            keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if keys is None or values is None:
            raise ValueError(f"other: {name} holds no tokens")
        if keys.ndim != 4 or values.ndim != 4:  # Quantised layers keep an empty tensor there.
            raise ValueError(f"other: {name} is a {type(layer).__name__} with keys of shape {tuple(keys.shape)}, not [batch, heads, tokens, dim]")
        seen = keys.shape[2] if self.cache is None else int(layer.get_seq_length())
        # Static layers are longer than their tokens.
        keys, values = (one.as_subclass(torch.Tensor).detach()[:, :, :seen] for one in (keys, values))
        check_states(f"{name}, keys", keys)
        check_states(f"{name}, values", values)
        if keys.shape[:3] != values.shape[:3] or not keys.shape[2]:
            raise ValueError(f"other: {name} has keys of shape {tuple(keys.shape)} and values of {tuple(values.shape)}")
        if self.length not in (0, seen):
            raise ValueError(f"other: {name} has {seen} tokens, the layers before it {self.length}")
        self.length = seen
        return keys, values


def _storage(cache, spec: LayerSpec, keys, values) -> Storage:
    config = layer_config(cache.config, spec.index)
    rank, rope = getattr(config, "kv_lora_rank", None), getattr(config, "qk_rope_head_dim", None)
    q_heads = keys.shape[1] if cache.mode == "gather" else num_query_heads(config)
    if cache.mode == "fused" and rank and keys.shape[1] == 1 and (keys.shape[3], values.shape[3]) == (rank, rope):
        if cache.mla != "latent":
            raise NotImplementedError(
                f"mla: layer {spec.index} of other holds latents, which only the model expands; use mla='latent'"
            )
        return Storage("mla", q_heads=q_heads, latent_rank=rank, rope_dim=rope)
    if q_heads % keys.shape[1]:
        raise ValueError(f"other: layer {spec.index} has {keys.shape[1]} heads of K, the model has {q_heads} query heads")
    return Storage("attention", q_heads, keys.shape[1], keys.shape[3], values.shape[3])


def _first_needed(storage: Storage, length: int) -> int:
    """The first token of a row of `length` that a later one can attend to."""
    if storage.chunk:
        return length // storage.chunk * storage.chunk
    return max(length - storage.window + 1, 0) if storage.window else 0


def fill(cache, other, attention_mask) -> None:
    """Give an unused cache the tokens of `other`."""
    source = Source(other)
    given = {spec.index: source.read(spec) for spec in cache._specs if spec.has_attention}
    if not given:
        raise NotImplementedError("other: no layer of the model keeps K and V")
    length, first = source.length, next(iter(given.values()))[0]
    batch = len(first)
    for index, (keys, _) in given.items():
        if len(keys) != batch or keys.dtype != first.dtype:
            raise ValueError(f"other: layer {index} has {len(keys)} rows in {keys.dtype}, the first has {batch} in {first.dtype}")
    real = None
    if cache.mode == "fused":
        real = read_padding("attention_mask", attention_mask, source, batch, length)
    elif attention_mask is not None or getattr(source.cache, "_real", None) is not None:
        raise ValueError("attention_mask: mode='gather' keeps padding as other caches do, and takes no mask")
    states = _read_states(cache, source)
    images = _read_images(cache, source)
    shapes = {index: _storage(cache, cache._specs[index], *both) for index, both in given.items()}
    cache._shapes, cache._dtype, cache._first = shapes, first.dtype, None
    cache._storage = [cache._layer_storage(spec, next(iter(shapes.values()))) for spec in cache._specs]
    store = Store(cache._storage, first.dtype, **cache._limits)
    try:
        rows = [store.add() for _ in range(batch)]
        counts = [length] * batch if real is None else real.sum(dim=1).tolist()
        grown = [(row, count) for row, count in zip(rows, counts) if count]
        store.begin([row for row, _ in grown], [count for _, count in grown], partial=True)  # rows are written below
        store.end()
        for index, both in given.items():
            for at, row in enumerate(rows):
                _write(store, cache._storage[index], index, row, counts[at], None if real is None else real[at],
                       [one[at] for one in both], length)
    except BaseException:
        store.close()
        raise
    cache.store, cache._rows, cache._real = store, rows, real
    for layer in cache.layers:
        if isinstance(layer, KVLayer):
            layer.seen = length
    for layer, theirs in images:
        layer.update(theirs.keys, theirs.values)
    for layer, theirs in states:
        StateLayer.copy_states(theirs, layer)


def _write(store, storage: Storage, layer: int, row: int, count: int, real, both, length: int) -> None:
    begin = length - both[0].shape[1]  # in tokens of the source, padding included
    before = begin if real is None else int(real[:begin].sum())
    needed = _first_needed(storage, count)
    if before > needed:
        raise ValueError(
            f"other: layer {layer} holds the last {length - begin} of {length} tokens, and later ones can attend to "
            f"{count - needed} of a row's"
        )
    if real is not None:
        both = [one[:, real[begin:]] for one in both]
    parts = [one[:, needed - before:].transpose(0, 1) for one in both]
    if not len(parts[0]):
        return
    if storage.kind == "mla":
        parts = [torch.cat(parts, dim=-1), None]
    store.write(layer, row, needed, *(None if one is None else one.contiguous() for one in parts))


def read_padding(name: str, mask, source: Source, batch: int, length: int) -> torch.Tensor | None:
    """Which tokens are none of padding, bool [batch, length]; None: all. Without a mask, what the source knows of it."""
    if mask is None:
        mask = getattr(source.cache, "_real", None)
    if mask is None:
        return None
    if tuple(mask.shape) != (batch, length):
        raise ValueError(f"{name}: shape {tuple(mask.shape)}, the tokens of other make {(batch, length)}")
    real = mask.bool()
    if not bool(real.any()):
        raise ValueError(f"{name}: every token is padding")
    return None if bool(real.all()) else real


def _read_states(cache, source: Source) -> list[tuple]:
    found = []
    for index, layer in enumerate(cache.layers):
        if isinstance(layer, StateLayer):
            theirs = source.layers[index] if source.cache is not None and index < len(source.layers) else None
            if not hasattr(theirs, "recurrent_states"):
                raise NotImplementedError(f"other: layer {index} of the model keeps a recurrent state, which {type(theirs).__name__} has not")
            found.append((layer, theirs))
    return found


def _read_images(cache, source: Source) -> list[tuple]:
    """Layers with K and V of an image, where the source has one."""
    pairs = [(layer, source.layers[index]) for index, layer in enumerate(cache.layers) if isinstance(layer, ImageLayer) and source.cache is not None]
    return [(layer, theirs) for layer, theirs in pairs if theirs.get_seq_length()]
