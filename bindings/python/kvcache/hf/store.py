# SPDX-License-Identifier: Apache-2.0
"""The pages behind a cache of this package: a kvcache.Cache that numbers its sequences and can grow."""

from __future__ import annotations

import weakref

import torch

import kvcache
from kvcache import ops

from .specs import Storage
from .storage import StorageType

FIRST_PAGES = 1024  # of a pool that grows as needed; memory is committed when pages are written


def _layer(one: Storage, stored_as: StorageType, keep_tokens: int) -> kvcache.Layer:
    if one.kind == "none":
        return kvcache.Layer(kind="none")
    return kvcache.Layer(
        kind=one.kind, num_q_heads=one.q_heads, num_kv_heads=one.kv_heads, k_dim=one.k_dim, v_dim=one.v_dim,
        dtype=stored_as.name, quant=stored_as.quant, window=one.window, chunk=one.chunk, latent_rank=one.latent_rank,
        latent_rope_dim=one.rope_dim, keep_tokens=0 if one.kind == "cross" else keep_tokens,
    )


class Store:
    """Sequences of one model. Ids are given out here; one step is open at a time."""

    def __init__(self, layers: list[Storage], dtype: torch.dtype, *, page_size: int = 16, num_pages: int | None = None,
                 byte_budget: int | None = None, num_threads: int | None = None, max_step_tokens: int = 0,
                 stored_as: StorageType | None = None, keep_tokens: int = 0):
        self.grows = num_pages is None and byte_budget is None
        self.cache = kvcache.Cache(
            layers=[_layer(one, stored_as or StorageType(dtype), keep_tokens) for one in layers],
            page_size=page_size,
            num_pages=num_pages or (FIRST_PAGES if self.grows else 0),
            byte_budget=byte_budget or 0,
            num_threads=num_threads or torch.get_num_threads(),
            max_tokens_per_forward=max_step_tokens,
        )
        self._next = 0
        self._forward: kvcache.Forward | None = None
        self._commit_open: weakref.WeakMethod | None = None  # ends the open step, of the cache that began it

    def close(self) -> None:
        self.cache.close()

    # Sequences

    def _id(self) -> int:
        self._next += 1
        return self._next

    def add(self) -> int:
        seq = self._id()
        self.cache.add(seq)
        return seq

    def attach(self, tokens, **query) -> tuple[int, int]:
        """A new sequence that starts with what the prefix index knows of `tokens`; and how many tokens that is."""
        seq = self._id()
        return seq, self.cache.prefix.attach(seq, tokens, **query)

    def load(self, saved: bytes, count: int, model_id: str | None) -> list[int]:
        """New sequences, those of a state file."""
        seqs = [self._id() for _ in range(count)]
        while True:
            try:
                self.cache.load(seqs, saved, model_id=model_id, publish=False)
                return seqs
            except (kvcache.NoPages, kvcache.NeverFits):
                if not self.grows:
                    raise
                self.cache.resize(2 * self.cache.stats().pages_total)

    def remove(self, seq: int) -> None:
        self.cache.remove(seq)

    def fork(self, seq: int, pos: int = -1) -> int:
        child = self._id()
        self.cache.fork(seq, child, pos)
        return child

    def select(self, seqs: list[int], indices: list[int]) -> list[int]:
        """`seqs[i]` for every index, forks where one comes again; what is not chosen is removed."""
        kept: set[int] = set()
        chosen = []
        for index in indices:
            chosen.append(self.fork(seqs[index]) if index in kept else seqs[index])
            kept.add(index)
        for index, seq in enumerate(seqs):
            if index not in kept:
                self.remove(seq)
        return chosen

    def pop(self, seq: int, count: int) -> None:
        self.cache.pop(seq, count)

    def length(self, seq: int) -> int:
        return self.cache.length(seq)

    # Steps

    def begin(self, seqs, lengths, tokens=None, cross_lengths=None, commit=None, partial=False) -> None:
        """Open a step. Caches that share this store leave theirs open until somebody needs it to end: `commit` does that."""
        open_one = self._commit_open() if self._commit_open is not None else None
        if self._forward is not None and open_one is not None:
            open_one()
        self._commit_open = None if commit is None else weakref.WeakMethod(commit)
        while True:
            try:
                self._forward = self.cache.forward(
                    seqs, lengths, tokens=tokens, cross_lengths=cross_lengths, partial=partial
                )
                return
            except (kvcache.NoPages, kvcache.NeverFits):
                if not self.grows:
                    raise
                self.cache.resize(2 * self.cache.stats().pages_total)

    def end(self) -> None:
        forward, self._forward = self._forward, None
        forward.end()

    @property
    def step(self):
        """What tells an open step from others; None: no step is open."""
        return self._forward

    def abort(self, step=None) -> None:
        """Undo the open step, if any; with `step`, only if it is that one."""
        if self._forward is not None and step in (None, self._forward):
            forward, self._forward = self._forward, None
            forward.abort()

    def append(self, layer: int, keys, values) -> None:
        self._forward.kv_append(layer, keys, values)

    def attend(self, layer: int, query, keys, values, out, **options) -> None:
        self._forward.attn(layer, query, keys, values, out=out, opt=_options(**options))

    def attend_shared(self, layer: int, query, out, **options) -> None:
        self._forward.attn_shared_kv(layer, query, out=out, opt=_options(**options))

    def attend_cross(self, layer: int, query, keys, values, out, **options) -> None:
        self._forward.attn_cross(layer, query, keys, values, out=out, opt=_options(**options))

    # Direct access

    def read(self, layer: int, seq: int, begin: int, end: int, keys, values) -> None:
        self.cache.debug_get_layer(seq, layer, begin, end, keys, values)

    def read_open(self, layer: int, seq: int, begin: int, end: int, keys, values) -> None:
        """The same inside the open step, with the tokens that it has appended."""
        whole = [None if out is None else out.new_empty(end, *out.shape[1:]) for out in (keys, values)]
        try:
            self._forward.gather(layer, seq, *whole)
        except kvcache.OutOfRange as error:
            raise NotImplementedError(f"layer {layer}: its window has dropped tokens; read it after the forward") from error
        for out, rows in zip((keys, values), whole):
            if out is not None:
                out.copy_(rows[begin:])

    def write(self, layer: int, seq: int, begin: int, keys, values) -> None:
        self.cache.debug_set_layer(seq, layer, begin, keys, values)


def _options(scale: float, soft_cap=None, sink_logits=None, bias=None, window: int = 0,
             spans=None) -> kvcache.AttnOptions:
    return kvcache.AttnOptions(
        scale=scale, soft_cap=soft_cap or 0.0, sink_logits=sink_logits, bias=bias, window=window, spans=spans
    )


def attend_ragged(query, keys, values, out, query_offsets, key_offsets, *, causal: bool, window: int, scale: float,
                  soft_cap=None, sink_logits=None, bias=None) -> None:
    """Attention of packed queries over packed keys that no cache holds."""
    ops.attention_ragged(query_offsets, query, keys, values, out, kv_indptr=key_offsets, full=not causal,
                         opt=_options(scale, soft_cap, sink_logits, bias, window))
