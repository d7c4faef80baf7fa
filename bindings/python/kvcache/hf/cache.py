# SPDX-License-Identifier: Apache-2.0
"""PagedCache: a transformers cache whose K and V lie in the pages of libkvcache."""

from __future__ import annotations

from dataclasses import replace

import torch

from . import compat
from .calls import Pages
from .compat import NAME
from .copies import copied
from .fused import FusedSteps
from .imported import fill
from .layers import TENSOR_LAYERS, HybridLayer, KVLayer, StateLayer, make_layers
from .packed import PackedSteps
from .rows import Step, check_states
from .saved import load_rows, read_file, save_rows
from .specs import NO_STORAGE, LayerSpec, Storage, decoder_config, layer_specs
from .storage import KEPT, check_kept, storage_type
from .store import Store
from .undo import UndoneCalls, locked, undone_on_failure

MODES = ("gather", "fused")
MLA_MODES = ("latent", "expanded")


class PagedCache(UndoneCalls, FusedSteps, PackedSteps, compat.Cache):
    """A cache for ``model.generate(..., past_key_values=PagedCache(model.config))``.

    mode="gather" keeps K and V in pages and returns whole K and V. Any attention implementation but
    "kvcache" works, and results are bit-identical to DynamicCache. mode="fused" appends and attends
    in C++: load the model with ``attn_implementation="kvcache"``.

    Pages are planned when the first tokens come. dtype: how they store K and V, a torch.dtype or a word of ``kvcache plan
    --kv-dtype``: "fp32", "fp16", "bf16", and with a scale per token and head "int8", "fp8" (e4m3) and "fp8_e5m2". None: as the
    first K has it. New tokens are rounded before anything attends to them, so chunks of a prompt do not change results.
    keep_tokens: so many leading tokens of each row (attention sinks) are read in bfloat16 where the others have 8 bits; in
    gather mode padding counts. Without `num_pages` and `byte_budget` the pool grows as needed; with one of them a full pool
    raises kvcache's NoPages error, and nothing has happened. The same holds for every forward of a transformers model that
    raises.

    Caches that share pages (branch) may be used in threads: their forwards wait for one another.
    """

    def __init__(self, config, mode: str = "gather", *, page_size: int = 16, num_pages: int | None = None,
                 byte_budget: int | None = None, num_threads: int | None = None, mla: str = "latent",
                 dtype: str | torch.dtype | None = None, keep_tokens: int = 0):
        if mode not in MODES:
            raise ValueError(f"mode: expected one of {', '.join(MODES)}, got {mode!r}")
        if mla not in MLA_MODES:
            raise ValueError(f"mla: expected one of {', '.join(MLA_MODES)}, got {mla!r}")
        if num_pages is not None and byte_budget is not None:
            raise ValueError(f"num_pages and byte_budget: give one of them, got {num_pages} and {byte_budget}")
        self.config = decoder_config(config)
        self.mode = mode
        self.mla = mla
        self._stored_as = storage_type(dtype)
        check_kept(keep_tokens, self._stored_as)
        self.record_past = False
        self.store: Store | None = None
        self._limits = dict(page_size=page_size, num_pages=num_pages, byte_budget=byte_budget, num_threads=num_threads,
                            stored_as=self._stored_as, keep_tokens=keep_tokens)
        self._more_limits: dict = {}  # what a Server adds
        self._shapes: dict[int | str, Storage] = {}  # of layers that differ from the first one, by index and by type
        self._first: list | None = []  # K and V of the first forward, while another plan may be needed
        self._specs: list[LayerSpec] = self._read_specs()
        self._attention = {spec.index for spec in self._specs if spec.has_attention}
        self._used: set[int] | None = None  # Layers of `_attention` that the model has; None: none has come yet.
        self._dtype: torch.dtype | None = None
        self._rows: list[int] = []  # sequence ids, one per batch row
        self._step: Step | None = None
        self._point = None  # the state before the open forward
        self._pages = Pages()
        self._init_fused()
        super().__init__(layers=make_layers(self, self._specs))

    def _read_specs(self) -> list[LayerSpec]:
        return layer_specs(self.config)

    # What transformers asks ------------------------------------------------------------------------------

    @property
    def is_compileable(self) -> bool:
        return False

    @property
    def is_linear(self) -> list[bool]:
        return [isinstance(layer, StateLayer) and not isinstance(layer, HybridLayer) for layer in self.layers]

    @property
    def is_croppable(self) -> bool:
        return not any(isinstance(layer, StateLayer) for layer in self.layers)

    @property
    def is_initialized(self) -> bool:
        return any(layer.is_initialized for layer in self.layers if isinstance(layer, KVLayer))

    @property
    def batch_size(self) -> int:
        return len(self._rows) or -1

    @locked
    def activate_past_recording(self) -> None:
        """Keep what windows would drop, so that `crop` works past them (assisted generation)."""
        if self.record_past:
            return
        self.record_past = True
        for layer in self.layers:
            if isinstance(layer, TENSOR_LAYERS):
                layer.activate_past_recording()
        if self.store is not None and any(spec.view for spec in self._specs):
            self._replan()

    @locked
    def reset(self) -> None:
        """Forget all tokens; the planned pages stay."""
        self._abort()
        for row in self._rows:
            self.store.remove(row)
        self._rows, self._used = [], None
        self._reset_fused()
        for layer in self.layers:
            if isinstance(layer, KVLayer):
                layer.seen = 0
            if isinstance(layer, TENSOR_LAYERS):
                layer.reset()

    @locked
    def crop(self, tokens_to_remove: int) -> None:
        """Drop the last tokens of every row. Versions 5: a negative number; 4.57 also takes the length to keep."""
        self._commit()
        length = self.get_seq_length()
        drop = compat.tokens_to_drop(length, tokens_to_remove)
        for layer in self.layers:
            if isinstance(layer, StateLayer):
                layer.crop(-drop)
            elif drop and isinstance(layer, KVLayer) and layer.is_sliding and not self.record_past:
                if length >= layer.spec.view:
                    raise RuntimeError(
                        f"crop: layer {layer.spec.index} has dropped tokens behind its window of {layer.spec.view}; call "
                        "activate_past_recording before the first tokens"
                    )
        if drop:
            self._pop(drop, length)

    def _pop(self, drop: int, length: int) -> None:
        for row, count in zip(self._rows, self._real_tokens(length - drop, length)):
            self.store.pop(row, count)
        self._crop_fused(length - drop)
        for layer in self.layers:
            if isinstance(layer, KVLayer) and layer.seen:  # 0: the model leaves it out
                layer.seen -= drop

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Row i becomes a copy of row beam_idx[i]: pages are shared, nothing is copied."""
        self._select(beam_idx.tolist())
        for layer in self.layers:
            if isinstance(layer, TENSOR_LAYERS):
                layer.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._select([row for row in range(len(self._rows)) for _ in range(repeats)])
        for layer in self.layers:
            if isinstance(layer, TENSOR_LAYERS):
                layer.batch_repeat_interleave(repeats)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        if self._rows:
            indices = torch.arange(len(self._rows))[indices]  # negative ones and masks, as of any tensor
        self._select(indices.tolist())
        for layer in self.layers:
            if isinstance(layer, TENSOR_LAYERS):
                layer.batch_select_indices(indices)

    # Copies -------------------------------------------------------------------------------------------------

    @locked
    def branch(self) -> PagedCache:
        """A cache with the same tokens that goes its own way: pages are shared, nothing is copied but recurrent states."""
        self._commit()
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._point = None
        other._init_fused()
        other._real = self._real
        other.layers = make_layers(other, self._specs)
        for mine, copy in zip(self.layers, other.layers):
            if isinstance(mine, TENSOR_LAYERS):
                mine.copy_states(copy)
            if isinstance(mine, KVLayer):
                copy.seen = mine.seen
        other._rows = [self.store.fork(row) for row in self._rows]
        return other

    def __deepcopy__(self, memo) -> PagedCache:
        """What transformers' users write for `branch`."""
        return self.branch()

    def __copy__(self):
        raise NotImplementedError(
            "copy.copy: two caches cannot own the same rows; use branch() or copy.deepcopy, which share pages and go "
            "their own ways, or hand on the cache itself"
        )

    @classmethod
    def from_cache(cls, other, config, mode: str = "fused", *, attention_mask: torch.Tensor | None = None, **options) -> PagedCache:
        """A cache that goes on from given K and V, which are copied into pages.

        other: a cache of transformers or of this package, or (keys, values) of every layer, [batch, heads, tokens, dim], as the
        model gives them to its cache: K behind its rotation. attention_mask: [batch, tokens], 0 for padding, which fused rows
        leave out; None: no padding. options: those of PagedCache.
        """
        cache = cls(config, mode, **options)
        fill(cache, other, attention_mask)
        return cache

    # Files --------------------------------------------------------------------------------------------------

    @locked
    def save(self, path, *, model_id: str | None = None) -> None:
        """Write all rows to a file: K, V, recurrent states, lengths and padding. The file appears whole or not at all.

        model_id: a name of the model and its weights, which `load` can ask for.
        """
        save_rows(self, path, model_id)

    @classmethod
    def load(cls, path, config, *, mode: str | None = None, dtype: str | torch.dtype | None = None, model_id: str | None = None,
             page_size: int | None = None, num_pages: int | None = None, byte_budget: int | None = None,
             num_threads: int | None = None) -> PagedCache:
        """The cache of a file that `save` has written; no token has to be computed again.

        config: that of the same model; where it differs, the message names the field and both values. mode, dtype, model_id: what
        the file must have been saved with; None: any.
        """
        return load_rows(cls, read_file(path), path, config, mode=mode, dtype=dtype, model_id=model_id, page_size=page_size, num_pages=num_pages,
                         byte_budget=byte_budget, num_threads=num_threads)

    def __reduce__(self):
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled: its pages are memory of this process; cache.save(path) writes its rows to "
            f"a file, and {type(self).__name__}.load(path, config) reads them"
        )

    def __del__(self):
        # At the interpreter's exit PyTorch is half gone, and an operation on a tensor would abort
        # the process. Only the store is told.
        try:
            store, step = self.store, self._step
            if store is not None and store.cache.is_open:
                self._pages.leave(store, self._rows, store.step if step is not None and step.in_store else None)
        except Exception:  # noqa: BLE001 (never from a finaliser; the pages go with the store at the latest)
            pass

    # Rows -------------------------------------------------------------------------------------------------

    @locked
    def _select(self, indices: list[int]) -> None:
        self._commit()
        if not self._rows:
            return
        self._rows = self.store.select(self._rows, indices)
        self._select_fused(indices)

    # Steps --------------------------------------------------------------------------------------------------

    @undone_on_failure
    def _update(self, layer: int, keys: torch.Tensor, values: torch.Tensor):
        check_states("key_states", keys)
        check_states("value_states", values)
        if keys.shape[:1] + keys.shape[2:3] != values.shape[:1] + values.shape[2:3]:
            raise ValueError(f"value_states: shape {tuple(values.shape)} does not go with key_states {tuple(keys.shape)}")
        self._check_used(layer)
        if self.mode == "fused":
            return self._update_fused(layer, keys, values)
        return self._update_gather(layer, keys, values)

    def _update_gather(self, layer: int, keys: torch.Tensor, values: torch.Tensor):
        if getattr(self.config, "_attn_implementation", None) == NAME:
            raise ValueError(
                "mode: the cache has mode='gather', the model has "
                f"attn_implementation={NAME!r}, which "
                "attends in pages; make the cache with mode='fused', or load the model with "
                "attn_implementation='sdpa' or 'eager'"
            )
        batch, _, count, _ = keys.shape
        shape = Storage("attention", keys.shape[1], keys.shape[1], keys.shape[3], values.shape[3])
        if self._step is None or layer in self._step.done:
            self._commit()
            self._begin_step()
            if self.store is None:
                self._plan(shape, keys.dtype)
            self._begin(batch, count)
        self._check_step(layer, batch, count)
        self._check_shape(layer, shape)
        packed = self._step.pack(keys), self._step.pack(values)
        self.store.append(layer, *packed)
        self._remember(layer, *packed)
        state = self.layers[layer]
        old = state.seen
        first = state.first_kept(old)
        whole = self._read(layer, first, old, extra=count, like=(keys, values))
        for part, new, rows in zip(whole, (keys, values), packed):
            part[:, :, old - first:] = new.detach() if self._stored_as is None else self._rounded(rows, old)
        self._step.done.add(layer)
        state.seen += count
        return whole

    def _rounded(self, packed: torch.Tensor, past: int) -> torch.Tensor:
        """Packed rows of the step, which begin behind `past` tokens, as later steps read them: [batch, heads, tokens, dim]."""
        rounded = self._step.unpack(self._stored_as.rounded(packed)).transpose(1, 2)
        kept = self._limits["keep_tokens"] - past
        if kept > 0:
            rounded[:, :, :kept] = self._step.unpack(KEPT.rounded(packed)).transpose(1, 2)[:, :, :kept]
        return rounded

    def _check_step(self, layer: int, batch: int, count: int) -> None:
        if (batch, count) != (self._step.batch, self._step.tokens):
            raise ValueError(
                f"layer {layer}: {batch} rows of {count} tokens in a step of {self._step.batch} rows of {self._step.tokens} tokens"
            )

    def _read(self, layer: int, begin: int, end: int, extra: int, like) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [begin, end) of every row as one tensor each, with room for `extra` tokens behind."""
        keys, values = (
            torch.empty(len(self._rows), states.shape[1], end - begin + extra, states.shape[3], dtype=states.dtype)
            for states in like
        )
        if end > begin:
            for index, row in enumerate(self._rows):
                self.store.read(layer, row, begin, end, keys[index, :, : end - begin].transpose(0, 1),
                                values[index, :, : end - begin].transpose(0, 1))
        return keys, values

    @locked
    def _stored(self, layer: int):
        """Keys and values of a layer as transformers keeps them, or (None, None) before the first forward."""
        if self.store is None or not self._rows:
            return None, None
        if self._is_whole():
            self._commit()
        read = self._store_reader(layer)
        state, storage = self.layers[layer], self._storage[layer]
        first, last = state.first_kept(state.seen), state.seen
        heads, dims = storage.kv_heads, (storage.k_dim, storage.v_dim)
        if storage.kind == "mla":
            heads, dims = 1, (storage.latent_rank + storage.rope_dim,)
        parts = [torch.zeros(len(self._rows), heads, last - first, dim, dtype=self._dtype) for dim in dims]
        before, kept = self._real_tokens(0, first), self._real_tokens(first, last)
        for index, row in enumerate(self._rows):
            rows = [torch.empty(kept[index], heads, dim, dtype=self._dtype) for dim in dims]
            if kept[index]:
                read(row, before[index], before[index] + kept[index], rows[0], rows[1] if len(rows) > 1 else None)
            where = slice(None) if self._real is None else self._real[index, first:last]
            for part, one in zip(parts, rows):
                part[index, :, where] = one.transpose(0, 1)
        if storage.kind == "mla":
            parts = parts[0].split([storage.latent_rank, storage.rope_dim], dim=-1)
        return tuple(map(copied, parts))

    def _store_reader(self, layer: int):
        """A function that reads rows of a layer: read(row, begin, end, keys, values)."""
        if self._step is None or layer not in self._step.done or not self._step.in_store:
            return lambda *where: self.store.read(layer, *where)
        if self._pending is not None and self._pending[0] == layer:
            raise NotImplementedError(
                f"layer {layer}: its keys and values are read between the cache and attention; read what update returned"
            )
        return lambda *where: self.store.read_open(layer, *where)

    @locked
    def _overwrite(self, layer: int, keys=None, values=None) -> None:
        """What `layer.keys = ...` and `layer.values = ...` do."""
        self._commit()
        stored = self._stored(layer)
        if stored[0] is None:
            raise ValueError(f"layer {layer}: keys and values are assigned before the first forward; give them to update")
        if self._storage[layer].kind == "mla":
            raise NotImplementedError(f"layer {layer}: latents cannot be assigned")
        new = [old if given is None else given for old, given in zip(stored, (keys, values))]
        for name, old, given in zip(("keys", "values"), stored, new):
            if given.shape != old.shape:
                raise ValueError(
                    f"layer {layer}: {name} of shape {tuple(given.shape)} for {tuple(old.shape)}; crop() and "
                    "batch_select_indices() change what is kept"
                )
        first, last = self.layers[layer].first_kept(self.layers[layer].seen), self.layers[layer].seen
        before = self._real_tokens(0, first)
        for index, row in enumerate(self._rows):
            where = slice(None) if self._real is None else self._real[index, first:last]
            rows = [given.as_subclass(torch.Tensor)[index, :, where].transpose(0, 1).to(self._dtype).contiguous() for given in new]
            if len(rows[0]):
                self.store.write(layer, row, before[index], *rows)

    def _plan(self, first: Storage, dtype: torch.dtype) -> None:
        """Plan the pages when the shape of the first attention layer is known, and take it for the others until they show theirs."""
        self._dtype = dtype
        self._storage = [self._layer_storage(spec, first) for spec in self._specs]
        self.store = Store(self._storage, dtype, **self._limits, **self._more_limits)

    def _layer_storage(self, spec: LayerSpec, first: Storage) -> Storage:
        if not spec.has_attention:
            return NO_STORAGE
        # Gathered layers are views of the last keys: a chunked one is a window as wide as the chunk.
        window, chunk = (spec.window, spec.chunk) if self.mode == "fused" else (spec.view, 0)
        window = 0 if self.record_past else window
        shape = self._shapes.get(spec.index) or self._shapes.get(spec.type) or first
        return replace(shape, window=window, chunk=chunk)

    def _check_shape(self, layer: int, shape: Storage) -> None:
        """In the first forward layers may turn out to have other heads or dims than planned: plan again, and repeat what was done."""
        planned = self._storage[layer]
        if planned.without_mask() == shape:
            return
        if self._first is None:
            raise ValueError(f"layer {layer}: K and V of {shape}, the cache was planned with {planned}")
        spec = self._specs[layer]
        self._shapes[spec.index] = shape
        self._shapes.setdefault(spec.type, shape)
        step = self._step
        self.store.abort()
        self.store.close()
        self._plan(next(one for one in self._storage if one.kind != "none"), self._dtype)
        renamed = {row: self.store.add() for row in self._rows or step.ids}
        self._rows = [renamed[row] for row in self._rows]
        step.ids = [renamed[row] for row in step.ids]
        self.store.begin(step.ids, step.lengths, commit=self._commit, partial=True)
        for done, keys, values in self._first:
            self.store.append(done, keys, values)

    def _remember(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        # Models whose layers are all of one type do not vary: nothing needs to be kept for a second plan.
        if self._first is not None and len({spec.type for spec in self._specs if spec.has_attention}) > 1:
            self._first.append((layer, keys, values))

    def _add_rows(self, batch: int) -> None:
        if not self._rows:
            self._rows = [self.store.add() for _ in range(batch)]
        elif len(self._rows) != batch:
            raise ValueError(f"batch: the cache holds {len(self._rows)} rows, the tensors have {batch}")

    def _begin(self, batch: int, count: int) -> None:
        self._add_rows(batch)
        self.store.begin(self._rows, [count] * batch, commit=self._commit, partial=True)
        self._step = Step(list(self._rows), [count] * batch, batch, count, opened=True, in_store=True)

    def _commit(self, has_returned: bool = False) -> None:
        """End the open step: its tokens become part of the rows. A step that some layer never saw is undone.

        has_returned: a forward of a model is over, so the layers of the first one are those that the model has.
        """
        step = self._step
        if step is None:
            return
        missing = sorted(self._waited_for() - step.done)
        if has_returned and self._used is None and step.done:
            missing = []
        if missing or self._pending is not None:
            layer = missing[0] if missing else self._pending[0]
            self._abort()
            raise RuntimeError(f"layer {layer} was not attended in the last forward of the model; that forward has been undone")
        if self._used is None and not self._packed:
            self._used = set(step.done)
        self._step = self._first = self._point = None
        if step.in_store:
            self.store.end()

    def _waited_for(self) -> set[int]:
        """Layers that every forward has to reach."""
        return self._attention if self._used is None else self._used

    def _check_used(self, layer: int) -> None:
        if self._used is not None and layer not in self._used:
            raise RuntimeError(
                f"layer {layer}: the forwards before left it out, so it has no K and V of their tokens; give this one a cache of its own"
            )

    def _abort(self) -> None:
        if self._step is not None:
            self._undo(self._point)

    def _replan(self) -> None:
        """Move everything to pages without windows. What windows have dropped stays unwritten: nobody sees it again."""
        if self.mode == "fused":
            raise RuntimeError("activate_past_recording: a fused cache needs the call before its first tokens")
        self._commit()
        old, rows = self.store, self._rows
        self._plan(next(one for one in self._storage if one.kind != "none"), self._dtype)
        length = self.get_seq_length()
        self._rows = []
        self._add_rows(len(rows))
        if length:
            self.store.begin(self._rows, [length] * len(rows), partial=True)  # rows are written below
            self.store.end()
        for layer in sorted(self._waited_for()):
            first = self.layers[layer].first_kept(length)
            storage = self._storage[layer]
            for source, target in zip(rows, self._rows):
                # In float32 rows that are quantised come back as the same elements.
                keys = torch.empty(length - first, storage.kv_heads, storage.k_dim)
                values = torch.empty(length - first, storage.kv_heads, storage.v_dim)
                if length > first:
                    old.read(layer, source, first, length, keys, values)
                    self.store.write(layer, target, first, keys, values)
        for row in rows:  # branches may still use the old pages
            old.remove(row)

    def __repr__(self) -> str:
        rows = f"{len(self._rows)} rows, {self.get_seq_length()} tokens"
        return f"PagedCache(mode={self.mode!r}, {len(self.layers)} layers, {rows})"
