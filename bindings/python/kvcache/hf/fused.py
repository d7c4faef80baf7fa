# SPDX-License-Identifier: Apache-2.0
"""Fused steps: K and V go to the pages and attention runs there, in one call per layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from . import mla
from .calls import last_updated, wait_for_attention
from .compat import NAME
from .masks import Mask, check_causal, pack_bias, read_mask, with_bias
from .options import Options
from .rows import Step
from .specs import Storage, padding_reaches_states
from .undo import undone_on_failure

TAG = "_kvcache_tag"


def waiting_cache(module):
    """The cache that waits for the attention of `module`, whose K came without a tag; None when there is none."""
    cache = last_updated()
    if cache is None or cache._pending is None:
        return None
    # Encoders and other models inside of this one have nothing to do with it.
    if getattr(getattr(module, "config", None), "model_type", None) != cache.config.model_type:
        return None
    index = getattr(module, "layer_idx", None)
    # A module that does not say which layer it is may be the one that the cache waits for.
    unnamed = index is None and getattr(module, "is_causal", True)
    return cache if unnamed or index == cache._pending[0] else None


@dataclass(frozen=True)
class Tag:
    """Travels on K and on V that update returns; names the pages that hold the rest."""

    cache: "FusedSteps"
    layer: int
    step: Step | None
    version: int | None  # Of the tensor, to notice changes in place.

    def check(self, key: torch.Tensor, value: torch.Tensor) -> None:
        """Raises unless K and V are those that update returned. The pages hold what update got."""
        for name, states in (("K", key), ("V", value)):
            other = getattr(states, TAG, None)
            if other is None or not other.belongs_to(self) or _version(states) != other.version:
                raise changed(self.layer, name)

    def belongs_to(self, other: Tag) -> bool:
        return self.cache is other.cache and self.layer == other.layer and self.step is other.step


def tagged(states: torch.Tensor, cache, layer: int, step: Step | None = None) -> torch.Tensor:
    setattr(states, TAG, Tag(cache, layer, step, _version(states)))
    return states


def _version(states: torch.Tensor) -> int | None:
    """How often a tensor was changed in place. PyTorch does not count that in inference mode."""
    return None if states.is_inference() else states._version


def changed(layer: int, name: str) -> RuntimeError:
    return RuntimeError(
        f"layer {layer}: the model changed {name} between the cache and attention; the new "
        f"{name} is "
        "lost. Use mode='gather' with attn_implementation='sdpa' or 'eager'"
    )


def _check_query(layer: int, query: torch.Tensor, step: Step) -> None:
    if (query.shape[0], query.shape[2]) != (step.batch, step.tokens):
        raise NotImplementedError(
            f"query: {query.shape[0]} rows of {query.shape[2]} queries in layer {layer}, in a "
            "step of "
            f"{step.batch} rows of {step.tokens} tokens"
        )


class FusedSteps:
    """The part of PagedCache that serves mode="fused"."""

    def _init_fused(self) -> None:
        self._pending: tuple | None = None  # (layer, keys, values) given to update, not yet attended
        self._real: torch.Tensor | None = None  # bool [rows, seen]: tokens that are no padding; None: all
        self._packed = None  # the batch of a Server's step, see packed.py
        self._expanded: set[int] = set()  # Layers whose K and V are known to be expanded latents.

    def _reset_fused(self) -> None:
        self._pending = self._real = None

    def _crop_fused(self, length: int) -> None:
        self._pending = None
        if self._real is not None:
            self._real = self._real[:, :length]

    def _select_fused(self, indices: list[int]) -> None:
        if self._real is not None:
            self._real = self._real[indices]

    def _real_tokens(self, begin: int, end: int) -> list[int]:
        if self._real is None:
            return [end - begin] * len(self._rows)
        return self._real[:, begin:end].sum(dim=1).tolist()

    # update: remember, and hand the new K and V through --------------------------------------------------

    def _update_fused(self, layer: int, keys: torch.Tensor, values: torch.Tensor):
        implementation = getattr(self.config, "_attn_implementation", None)
        if implementation != NAME:
            raise ValueError(
                f"attn_implementation: a fused cache needs {NAME!r}, the model has "
                f"{implementation!r}; "
                f"load the model with attn_implementation={NAME!r}, or make the cache with "
                "mode='gather'"
            )
        if self._pending is not None:
            raise RuntimeError(
                f"layer {self._pending[0]}: its K and V were given to the cache and never attended by {NAME!r} attention"
            )
        batch, _, count, _ = keys.shape
        if self._step is None or (layer in self._step.done and not self._packed):
            self._commit()
            self._begin_step()
            self._step = Step([], [], batch, count)
        self._check_step(layer, batch, count)
        self._pending = (layer, keys, values)
        wait_for_attention(self)
        self._step.done.add(layer)
        if not self._packed:
            self.layers[layer].seen += count
        handed = keys
        if hasattr(self.config, "relative_attention_num_buckets"):
            # The model makes a position bias as wide as K: a tensor of the whole length without memory.
            handed = keys.new_empty(1).expand(batch, keys.shape[1], self.layers[layer].seen, keys.shape[3])
        return tagged(handed, self, layer, self._step), tagged(values, self, layer, self._step)

    # attention ----------------------------------------------------------------------------------------------

    @undone_on_failure
    def _attend(self, tag: Tag, module, query, key, value, attention_mask, options: Options):
        if tag.step is not self._step:
            raise RuntimeError(f"layer {tag.layer}: K of a forward that has ended")
        tag.check(key, value)
        mask = with_bias(read_mask(attention_mask), options.position_bias)
        self._check_mask(tag.layer, mask, options)
        if self._pending is None or self._pending[0] != tag.layer:
            if self._step.owners.get(tag.layer) is module:
                raise RuntimeError(
                    f"layer {tag.layer}: the model attends the new K and V of this layer twice; "
                    "use "
                    "mode='gather' with attn_implementation='sdpa' or 'eager'"
                )
            return self._attend_shared(tag.layer, module, query, mask, options)
        _, key, value = self._pending
        self._step.owners[tag.layer] = module
        return self._append_and_attend(tag.layer, query, key, value, mask, options)

    def _append_and_attend(self, layer: int, query, key, value, mask: Mask, options: Options) -> torch.Tensor:
        step = self._step
        _check_query(layer, query, step)
        shape = Storage("attention", query.shape[1], key.shape[1], key.shape[3], value.shape[3])
        if not step.opened:
            self._open(layer, mask, shape, key.dtype)
        self._pending = None
        out = torch.empty(step.total, query.shape[1], value.shape[3], dtype=query.dtype)
        if step.total:
            self._check_shape(layer, shape)
            key, value = step.pack(key), step.pack(value)
            self.store.attend(layer, step.pack(query), key, value, out, **self._call(layer, mask, options))
            self._remember(layer, key, value)
        return step.unpack(out)

    def _attend_shared(self, layer: int, module, query, mask: Mask, options: Options) -> torch.Tensor:
        """A layer that reads the K and V of another one, which has been appended in this forward."""
        step = self._step
        count = query.shape[2]
        if count < step.tokens and getattr(module, "is_kv_shared_layer", False):
            # Gemma-4 drops all queries of a prompt but the last ones here: the others are computed for nothing.
            padded = query.new_zeros(*query.shape[:2], step.tokens, query.shape[3])
            padded[:, :, -count:] = query
            query = padded
        _check_query(layer, query, step)
        out = torch.empty(step.total, query.shape[1], self._storage[layer].v_dim, dtype=query.dtype)
        if step.total:
            self.store.attend_shared(layer, step.pack(query), out, **self._call(layer, mask, options))
        return step.unpack(out)[:, -count:]

    @undone_on_failure
    def _attend_latent(self, module, query, key, value, attention_mask, options: Options):
        """Attention of a module that caches latents and expands them after update (DeepSeek-V3)."""
        layer, latent, rope = self._pending
        if not mla.is_latent(module, latent, rope):
            raise changed(layer, "K")
        mask = with_bias(read_mask(attention_mask), options.position_bias)
        self._check_mask(layer, mask, options)
        if self.mla == "expanded":
            return self._append_and_attend(layer, query, key, value, mask, options)
        step = self._step
        _check_query(layer, query, step)
        if layer not in self._expanded:  # a model does the same in every forward
            mla.check_expansion(module, layer, latent, rope, key, value)
            self._expanded.add(layer)
        if not step.opened:
            self._open(layer, mask, Storage("mla", q_heads=query.shape[1], latent_rank=latent.shape[3], rope_dim=rope.shape[3]),
                       key.dtype)
        self._pending = None
        out = torch.empty(step.total, query.shape[1], latent.shape[3])
        if step.total:
            row = step.pack(torch.cat((latent, rope), dim=-1))
            self.store.attend(layer, mla.absorb(module, step.pack(query)), row, None, out, **self._call(layer, mask, options))
        return step.unpack(mla.project(module, out).to(query.dtype))

    def _call(self, layer: int, mask: Mask, options: Options) -> dict:
        bias = None
        if mask.bias is not None:
            bias = pack_bias(mask.bias, self._step, self._real)
        spec = self._specs[layer]
        # With past recording the pages are planned without windows, and each call says its own.
        window = spec.window if self._storage[layer].window != spec.window else 0
        return dict(scale=options.scale, soft_cap=options.soft_cap, sink_logits=options.sink_logits, bias=bias, window=window,
                    spans=self._spans(layer, mask))

    def _spans(self, layer: int, mask: Mask) -> torch.Tensor | None:
        """Spans of images as the library takes them, int32 [n, 3]."""
        if mask.spans is None:
            return None
        step, spec, pattern = self._step, self._specs[layer], mask.pattern
        entries = step.entries or range(step.batch)
        found = [(entry, *span) for entry, row in enumerate(entries) for span in mask.spans[row]]
        longest = max((end - begin for _, begin, end in found), default=0)
        if found and (spec.chunk or (pattern.leaves_window and longest > spec.window)):
            limit = f"the window of {spec.window}" if spec.window else f"chunks of {spec.chunk}"
            raise NotImplementedError(
                f"token_type_ids: {longest} tokens see each other in both directions, which {limit} of layer {layer} "
                "does not limit; use mode='gather' with attn_implementation='sdpa' or 'eager'"
            )
        return torch.tensor(found, dtype=torch.int32) if found else None

    def _check_mask(self, layer: int, mask: Mask, options: Options) -> None:
        spec = self._specs[layer]
        mask.check_known()
        # The mask decides: PaliGemma's modules say False, and its masks have a prefix and causal text.
        if not options.causal and (mask.pattern is None or not mask.pattern.causal):
            raise NotImplementedError(f"layer {layer}: is_causal is False; cached self-attention is causal")
        if options.window is not None and options.window != spec.window:
            raise ValueError(f"layer {layer}: sliding_window {options.window}, the cache was planned with {spec.window}")
        pattern = mask.pattern
        if pattern is None:
            if mask.bias is not None and not self._packed:
                seen = self.layers[layer].seen
                if 0 < spec.view < seen:
                    raise NotImplementedError(
                        f"attention_mask: 4-D, over {seen} tokens; layer {layer} would also hide what lies behind its window of {spec.view}"
                    )
                check_causal(mask.bias, seen - self._step.tokens)
            return
        if not pattern.causal:
            raise NotImplementedError(f"layer {layer}: its mask is bidirectional; cached self-attention is causal")
        if (pattern.window, pattern.chunk) != (spec.window, spec.chunk):
            raise ValueError(
                f"layer {layer}: its mask has window {pattern.window} and chunk {pattern.chunk}, the cache was planned with "
                f"{spec.window} and {spec.chunk}"
            )

    # opening a step -------------------------------------------------------------------------------------------

    def _open(self, layer: int, mask: Mask, shape: Storage, dtype: torch.dtype) -> None:
        """Begin the forward: now the padding is known, and with it how many tokens every row grows by."""
        step = self._step
        if self.store is None:
            self._plan(shape, dtype)
        if self._packed:
            packed = self._packed
            if step.batch != 1 or step.tokens != packed.total:
                raise ValueError(f"input_ids: expected one row of {packed.total} tokens, got {step.batch} of {step.tokens}")
            step.ids, step.lengths = packed.ids, packed.lengths
            self.store.begin(step.ids, step.lengths, tokens=packed.token_ids, commit=self._commit)
            step.opened = step.in_store = True
            return
        self._add_rows(step.batch)
        past = self.layers[layer].seen - step.tokens
        real = self._new_real(mask.padding, past, step)
        if padding_reaches_states(self.config, self._specs, real):
            raise NotImplementedError(
                f"attention_mask: the recurrent layers of {self.config.model_type} read "
                "padding, which "
                "fused rows do not have; give rows of one length, or use mode='gather'"
            )
        lengths = real.sum(dim=1).tolist() if real is not None else [step.tokens] * step.batch
        rows = [(row, length) for row, length in zip(self._rows, lengths) if length]
        step.ids = [row for row, _ in rows]
        step.lengths = [length for _, length in rows]
        step.entries = [index for index, length in enumerate(lengths) if length]
        if real is not None and not bool(real.all()):
            step.index = real.flatten().nonzero().flatten()
        if rows:
            self.store.begin(step.ids, step.lengths, commit=self._commit, partial=True)
        step.opened, step.in_store = True, bool(rows)
        if real is not None:
            before = self._real if self._real is not None else torch.ones(step.batch, past, dtype=torch.bool)
            self._real = torch.cat((before, real), dim=1)

    def _new_real(self, padding: torch.Tensor | None, past: int, step: Step) -> torch.Tensor | None:
        """Which of the new tokens are real, bool [batch, tokens]; None: all, now and before."""
        if padding is None:
            if self._real is None:
                return None
            if not bool(self._real.all()):
                raise ValueError("attention_mask: tokens that were padding before are not masked any more")
            return torch.ones(step.batch, step.tokens, dtype=torch.bool)
        if padding.shape != (step.batch, past + step.tokens):
            raise ValueError(
                f"attention_mask: shape {tuple(padding.shape)}, the cache and the new tokens make {(step.batch, past + step.tokens)}"
            )
        before = self._real if self._real is not None else torch.ones(step.batch, past, dtype=torch.bool)
        if not torch.equal(padding[:, :past], before):
            raise ValueError("attention_mask: differs from the one that the cached tokens were given with")
        if any(spec.window or spec.chunk for spec in self._specs):
            started = padding.long().cumsum(dim=1) > 0
            followed = padding.flip(1).long().cumsum(dim=1).flip(1) > 0
            if bool((started & followed & ~padding).any()):
                raise NotImplementedError("attention_mask: padding between tokens of a row, with layers that slide or chunk")
        return padding[:, past:]
