# SPDX-License-Identifier: Apache-2.0
"""Encoder-decoder models: the decoder's own K and V, and the encoder's, written once per sequence."""

from __future__ import annotations

import weakref

import torch

from . import compat
from .cache import PagedCache
from .calls import Pages, join_call
from .fused import Tag, tagged
from .imported import Source, fill, read_padding
from .layers import owner_of
from .masks import read_mask, with_bias, pack_bias
from .options import Options
from .rows import Step, check_states
from .saved import load_encoder, load_rows, read_pair, save_pair
from .specs import FULL, LayerSpec, Storage, decoder_config, layer_specs, num_query_heads
from .storage import storage_type
from .store import Store
from .undo import locked, undone_on_failure


class PagedEncoderDecoderCache(compat.EncoderDecoderCache):
    """A cache for T5, Whisper and their kin: ``model.generate(..., past_key_values=PagedEncoderDecoderCache(model.config))``."""

    def __init__(self, config, mode: str = "gather", **limits):
        own = PagedCache(config, mode, **limits)
        encoder = _EncoderCache(config, **limits) if mode == "fused" else _GatheredEncoderCache(config, mode, **limits)
        self._pair(own, encoder)

    def _pair(self, own: PagedCache, encoder) -> None:
        """Tokens that the encoder's cache has already count as given."""
        self._encoder_output: torch.Tensor | None = None  # What the encoder's K and V were computed from, where it is known.
        super().__init__(own, encoder)

    def _begin_beside(self, own: PagedCache) -> None:
        """The decoder's cache is there, and the encoder has given nothing yet."""
        limits = {name: value for name, value in own._limits.items() if name not in ("stored_as", "keep_tokens")}
        encoder = _EncoderCache(own.config, **limits)
        encoder._limits["stored_as"] = own._stored_as
        self._pair(own, encoder)

    @classmethod
    def from_cache(cls, other, config, mode: str = "fused", *, attention_mask: torch.Tensor | None = None,
                   encoder_attention_mask: torch.Tensor | None = None, **options) -> PagedEncoderDecoderCache:
        """A cache that goes on from those of another pair, which are copied into pages; see PagedCache.from_cache.

        other: an EncoderDecoderCache of transformers, or one of this class. attention_mask: padding of the decoder's tokens.
        encoder_attention_mask: [batch, encoder tokens], 0 for padding; the one that the model is given afterwards.
        """
        if not isinstance(other, compat.EncoderDecoderCache):
            raise TypeError(f"other: expected an EncoderDecoderCache, got {type(other).__name__}")
        pair = cls(config, mode, **options)
        own, encoder = pair.self_attention_cache, pair.cross_attention_cache
        fill(own, other.self_attention_cache, attention_mask)
        if mode == "fused":
            encoder._fill(other.cross_attention_cache, encoder_attention_mask)
        elif encoder_attention_mask is not None:
            raise ValueError("encoder_attention_mask: mode='gather' keeps padding as other caches do, and takes no mask")
        else:
            fill(encoder, other.cross_attention_cache, None)
        if len(own._rows) != len(encoder._rows):
            raise ValueError(f"other: {len(own._rows)} rows of the decoder, {len(encoder._rows)} of the encoder")
        pair._pair(own, encoder)
        return pair

    def save(self, path, *, model_id: str | None = None) -> None:
        """Write all rows of the decoder and the encoder to a file; see PagedCache.save."""
        own = self.self_attention_cache
        with own._pages, self.cross_attention_cache._pages:
            save_pair(own, self.cross_attention_cache, path, model_id)

    @classmethod
    def load(cls, path, config, *, mode: str | None = None, dtype: str | torch.dtype | None = None, model_id: str | None = None,
             page_size: int | None = None, num_pages: int | None = None, byte_budget: int | None = None,
             num_threads: int | None = None) -> PagedEncoderDecoderCache:
        """The cache of a file that `save` has written; see PagedCache.load."""
        given = dict(dtype=dtype, model_id=model_id, page_size=page_size, num_pages=num_pages, byte_budget=byte_budget,
                     num_threads=num_threads)
        ours, theirs = read_pair(path)
        own = load_rows(PagedCache, ours, path, config, mode=mode, **given)
        if own.mode == "fused":
            encoder = load_encoder(_EncoderCache, theirs, path, config, **given)
        else:
            encoder = load_rows(_GatheredEncoderCache, theirs, path, config, mode=mode, **given)
        pair = object.__new__(cls)
        pair._pair(own, encoder)
        return pair

    def branch(self) -> PagedEncoderDecoderCache:
        """A cache with the same tokens that goes its own way: pages are shared, also those of the encoder."""
        other = object.__new__(type(self))
        other._pair(self.self_attention_cache.branch(), self.cross_attention_cache.branch())
        other._encoder_output = self._encoder_output
        return other

    def __deepcopy__(self, memo) -> PagedEncoderDecoderCache:
        return self.branch()

    __reduce__ = PagedCache.__reduce__

    @property
    def cross_attention_cache(self):
        return self._encoder

    @cross_attention_cache.setter
    def cross_attention_cache(self, cache) -> None:
        # T5Gemma's `generate` puts an empty one of the same class there, for layers without windows. Ours has none anyway.
        present = getattr(self, "_encoder", None)
        if present is None or type(present) is not type(cache) or cache._rows or present._rows:
            self._encoder = cache

    # A forward, see calls.py: beside the two caches it changes what the encoder has been given for.

    @property
    def _pages(self) -> Pages:
        return self.self_attention_cache._pages

    def _caches_of_call(self) -> tuple:
        return self.self_attention_cache, self.cross_attention_cache, self

    def _begin_call(self) -> tuple:
        return dict(self.is_updated), self._encoder_output

    def _check_encoder_decoder(self, model: str, output) -> None:
        """Models take the encoder's K and V from here once they are there: those of another input would go unnoticed."""
        output = output[0] if output else None
        if not isinstance(output, torch.Tensor):
            return
        known, self._encoder_output = self._encoder_output, output.detach()
        if known is None or not any(self.is_updated.values()) or (known.data_ptr() == output.data_ptr() and known.shape == output.shape):
            return
        if not torch.equal(known, output):
            raise ValueError(
                f"encoder_outputs: {model} was given another input than the one whose K and V the cache holds; reset() it, or let "
                "generate() make a cache for each input (Whisper's long form: for each part)"
            )

    def _check_call(self, tokens: int, mask) -> None:
        """Nothing: the decoder's own cache does."""

    def _end_call(self) -> None:
        """Nothing: the two caches do."""

    def _undo(self, point: tuple) -> None:
        self.is_updated, self._encoder_output = point

    def _is_unused(self) -> bool:
        return self.self_attention_cache._is_unused()

    def __copy__(self):
        return self.self_attention_cache.__copy__()

    def crop(self, tokens_to_remove: int) -> None:
        self.self_attention_cache.crop(tokens_to_remove)

    def reset(self) -> None:
        super().reset()
        self._encoder_output = None

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._encoder_output = None
        self.self_attention_cache.batch_repeat_interleave(repeats)
        self.cross_attention_cache.batch_repeat_interleave(repeats)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self._encoder_output = None
        self.self_attention_cache.batch_select_indices(indices)
        self.cross_attention_cache.batch_select_indices(indices)

    def check_dynamic_cache(self, method: str) -> None:
        """Every method works: these are no dynamic caches, but they grow like them."""


def _check_offloading(offloading: bool) -> None:
    if offloading:
        raise NotImplementedError("offloading: kvcache.hf keeps pages on the CPU; leave cache_implementation out")


class _GatheredEncoderCache(PagedCache):
    """The encoder's K and V as ordinary full layers: given once, gathered whenever the model asks."""

    def __init__(self, config, mode: str = "gather", *, offloading: bool = False, keep_tokens: int = 0, **limits):
        _check_offloading(offloading)
        super().__init__(config, mode, **limits)  # keep_tokens: of the decoder alone

    def _read_specs(self) -> list[LayerSpec]:
        return [LayerSpec(spec.index, FULL) for spec in layer_specs(self.config)]


class _EncoderLayer(compat.CacheLayerMixin):
    is_compileable = False
    is_sliding = False
    is_croppable = True
    supports_early_init = False
    sliding_window = None

    def __init__(self, cache, index: int):
        self._cache = weakref.ref(cache)
        self.index = index
        self.seen = 0

    @property
    def is_initialized(self) -> bool:
        return self.seen > 0

    @property
    def keys(self):
        return owner_of(self)._placeholder(self.index, values=False)

    @property
    def values(self):
        return owner_of(self)._placeholder(self.index, values=True)

    def lazy_initialization(self, *_):
        """Nothing to do."""

    def update(self, key_states, value_states, *args, **kwargs):
        return owner_of(self)._update(self.index, key_states, value_states)

    def get_mask_sizes(self, query_length):
        return self.seen, 0

    def get_seq_length(self, *_) -> int:
        return self.seen

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length

    def stored(self) -> tuple:
        return owner_of(self)._stored(self.index)


class _EncoderCache(compat.Cache):
    """The encoder's K and V in CROSS layers, attended in C++."""

    def __init__(self, config, *, offloading: bool = False, **limits):
        _check_offloading(offloading)
        self.config = decoder_config(config)
        self.store: Store | None = None
        self._limits = {name: value for name, value in limits.items() if name not in ("mla", "dtype", "keep_tokens")}
        self._limits["stored_as"] = storage_type(limits.get("dtype"))
        self._count = len(layer_specs(self.config))
        self._rows: list[int] = []
        self._step: Step | None = None
        self._given: dict[int, tuple] = {}  # K and V of layers that wait for their first attention
        self._real: torch.Tensor | None = None  # bool [rows, encoder tokens], None: no padding
        self._lengths: list[int] = []
        self._point = None  # the state before the open forward
        self._pages = Pages()
        super().__init__(layers=[_EncoderLayer(self, index) for index in range(self._count)])

    # A forward, see calls.py

    def _caches_of_call(self) -> tuple:
        return (self,)

    def _begin_call(self) -> tuple:
        self._commit()
        self._point = (list(self._rows), [layer.seen for layer in self.layers], dict(self._given), self._real, self._lengths,
                       self.store)
        return self._point

    def _check_call(self, tokens: int, mask) -> None:
        """Nothing: the mask is the decoder's."""

    def _end_call(self) -> None:
        self._commit()
        self._point = None

    def _undo(self, point: tuple) -> None:
        rows, seen, given, real, lengths, store = point
        self._abort()
        if self.store is not store:
            self.store.close()
            self.store = None
        else:
            for row in set(self._rows) - set(rows):
                store.remove(row)
        self._rows, self._given, self._real, self._lengths, self._point = list(rows), dict(given), real, lengths, None
        for layer, count in zip(self.layers, seen):
            layer.seen = count

    @undone_on_failure
    def _update(self, layer: int, keys, values):
        if not join_call(self) and self._point is None:
            self._begin_call()
        check_states("key_states", keys)
        check_states("value_states", values)
        if self.layers[layer].seen:
            raise RuntimeError(f"layer {layer}: the encoder's K and V are written once per sequence")
        self.layers[layer].seen = keys.shape[2]
        self._given[layer] = (keys, values)
        return tagged(keys, self, layer), tagged(values, self, layer)

    def _placeholder(self, layer: int, values: bool):
        """A tensor of the right shape without memory, for the model to hand on to attention. Its elements are NaN."""
        if not self._rows:
            return None
        storage = self._storage[layer]
        dim = storage.v_dim if values else storage.k_dim
        tensor = torch.full((1,), float("nan"), dtype=self._dtype).expand(len(self._rows), storage.kv_heads, self.layers[layer].seen, dim)
        return tagged(tensor, self, layer)

    @undone_on_failure
    def _attend(self, tag: Tag, module, query, key, value, attention_mask, options: Options) -> torch.Tensor:
        if not join_call(self) and self._point is None:
            self._begin_call()
        layer = tag.layer
        tag.check(key, value)
        if options.window:
            raise NotImplementedError(
                "sliding_window: attention to the encoder sees all of it, "
                f"layer {layer} asks for {options.window}"
            )
        mask = with_bias(read_mask(attention_mask), options.position_bias)
        mask.check_known()
        if mask.pattern is not None and (mask.pattern.causal or mask.pattern.window or mask.pattern.chunk):
            raise NotImplementedError(f"layer {layer}: attention to the encoder sees all of it, the mask is {mask.pattern}")
        batch, heads, count, _ = query.shape
        if self._step is None or layer in self._step.done:
            self._commit()
            self._open(key, value, mask, heads, batch, count)
        step = self._step
        self._check_padding(mask)
        keys = values = None
        if layer in self._given:
            given = Step([], self._lengths, batch, self.layers[layer].seen, self._index())
            keys, values = (given.pack(states) for states in self._given.pop(layer))
        bias = None if mask.bias is None else pack_bias(mask.bias, step, self._real)
        out = torch.empty(step.total, heads, value.shape[3], dtype=query.dtype)
        self.store.attend_cross(layer, step.pack(query), keys, values, out, scale=options.scale, soft_cap=options.soft_cap,
                                sink_logits=options.sink_logits, bias=bias)
        step.done.add(layer)
        return step.unpack(out)

    def _open(self, key, value, mask, heads: int, batch: int, count: int) -> None:
        cross = None
        if not self._rows:
            self._plan(heads, key, value)
            self._rows = [self.store.add() for _ in range(batch)]
            self._real = mask.padding
            columns = key.shape[2]
            cross = [columns] * batch if self._real is None else self._real.sum(dim=1).tolist()
            self._lengths = cross
        if len(self._rows) != batch:
            raise ValueError(f"batch: the cache holds {len(self._rows)} rows, the tensors have {batch}")
        self.store.begin(self._rows, [count] * batch, cross_lengths=cross, commit=self._commit, partial=True)
        self._step = Step(list(self._rows), [count] * batch, batch, count, opened=True, in_store=True)

    def _plan(self, heads: int, key, value) -> None:
        if self.store is None:
            self._storage = [Storage("cross", heads, key.shape[1], key.shape[3], value.shape[3])] * self._count
            self._dtype = key.dtype
            self.store = Store(self._storage, key.dtype, **self._limits)

    @locked
    def _stored(self, layer: int) -> tuple:
        """K and V of a layer, [batch, heads, tokens, dim], zeros where tokens are padding; None before its first attention."""
        if not self._rows or layer in self._given or not self.layers[layer].seen:
            return None, None
        self._commit()
        storage = self._storage[layer]
        shape = len(self._rows), storage.kv_heads, self.layers[layer].seen
        both = [torch.zeros(*shape, dim, dtype=self._dtype) for dim in (storage.k_dim, storage.v_dim)]
        for at, (row, count) in enumerate(zip(self._rows, self._lengths)):
            rows = [torch.empty(count, storage.kv_heads, one.shape[3], dtype=self._dtype) for one in both]
            if count:
                self.store.read(layer, row, 0, count, *rows)
            for one, part in zip(both, rows):
                one[at, :, slice(None) if self._real is None else self._real[at]] = part.transpose(0, 1)
        return tuple(both)

    def _fill(self, other, mask) -> None:
        """Give an unused cache the tokens of another."""
        source = Source(other)
        given = [source.read(LayerSpec(index, FULL)) for index in range(self._count)]
        keys, values = given[0]
        for index, both in enumerate(given):
            if both[0].shape != keys.shape or both[1].shape != values.shape or both[0].dtype != keys.dtype:
                raise ValueError(
                    f"other: layer {index} of the encoder has keys of shape {tuple(both[0].shape)} in {both[0].dtype}, the first "
                    f"{tuple(keys.shape)} in {keys.dtype}"
                )
        batch, columns = len(keys), source.length
        real = read_padding("encoder_attention_mask", mask, source, batch, columns)
        lengths = [columns] * batch if real is None else real.sum(dim=1).tolist()
        self._plan(num_query_heads(self.config), keys, values)
        try:
            rows = [self.store.add() for _ in range(batch)]
            self.store.begin(rows, [1] * batch, cross_lengths=lengths, partial=True)  # rows are written below
            self.store.end()
            for index, both in enumerate(given):
                for at, row in enumerate(rows):
                    where = slice(None) if real is None else real[at]
                    if lengths[at]:
                        self.store.write(index, row, 0, *(one[at][:, where].transpose(0, 1).contiguous() for one in both))
        except BaseException:
            self.store.close()
            self.store = None
            raise
        self._rows, self._real, self._lengths = rows, real, lengths
        for layer in self.layers:
            layer.seen = columns

    def _index(self):
        return None if self._real is None else self._real.flatten().nonzero().flatten()

    def _check_padding(self, mask) -> None:
        same = (mask.padding is None) == (self._real is None)
        if not same or (mask.padding is not None and not torch.equal(mask.padding, self._real)):
            raise ValueError("encoder_attention_mask: differs from the one that the encoder's tokens were given with")

    def _commit(self) -> None:
        step, self._step = self._step, None
        if step is not None:
            self.store.end()
            self._point = None

    @locked
    def _select(self, indices: list[int]) -> None:
        self._commit()
        if not self._rows:
            return
        self._rows = self.store.select(self._rows, indices)
        self._lengths = [self._lengths[index] for index in indices]
        if self._real is not None:
            real = self._real[indices]
            self._real = None if bool(real.all()) else real  # as a mask of the rows that are left is read

    @locked
    def branch(self) -> _EncoderCache:
        """A cache with the same encoder tokens; pages are shared."""
        self._commit()
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._point = None
        other.layers = [_EncoderLayer(other, index) for index in range(self._count)]
        for mine, copy in zip(self.layers, other.layers):
            copy.seen = mine.seen
        other._given = {}
        other._rows = [self.store.fork(row) for row in self._rows]
        return other

    def __deepcopy__(self, memo) -> _EncoderCache:
        return self.branch()

    __copy__ = PagedCache.__copy__
    __del__ = PagedCache.__del__

    def _abort(self) -> None:
        step, self._step = self._step, None
        if step is not None:
            self.store.abort()

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self._select(beam_idx.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._select([row for row in range(len(self._rows)) for _ in range(repeats)])

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self._select(torch.arange(len(self._rows))[indices].tolist())

    @locked
    def reset(self) -> None:
        self._commit()
        for row in self._rows:
            self.store.remove(row)
        self._rows, self._given, self._real = [], {}, None
        for layer in self.layers:
            layer.seen = 0
