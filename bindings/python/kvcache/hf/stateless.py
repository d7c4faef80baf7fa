# SPDX-License-Identifier: Apache-2.0
"""Attention without a cache: encoders, and decoders that run with use_cache=False."""

from __future__ import annotations

import sys
from dataclasses import replace

import torch

from .calls import calling_model
from .compat import Cache
from .masks import Mask, Pattern, check_causal, pack_bias, read_mask, with_bias
from .options import Options
from .rows import Step
from .store import attend_ragged


def attend_without_cache(query, key, value, attention_mask, options: Options) -> torch.Tensor:
    mask = read_mask(attention_mask)
    batch, heads, rows, _ = query.shape
    columns = key.shape[2]
    causal, window = options.causal, options.window or 0
    pattern = mask.pattern
    if mask.dense is not None and (pattern is None or _is_beyond(pattern, mask, columns)):
        mask, causal, window = replace(mask, bias=mask.dense()), False, 0
    elif pattern is not None:
        causal, window = pattern.causal, pattern.window
    elif mask.bias is not None and causal:
        check_causal(mask.bias, columns - rows)
    mask = with_bias(mask, options.position_bias)
    if causal and rows != columns:
        _check_own_cache()
        raise ValueError(
            f"past_key_values: {columns} keys for {rows} queries come from a cache that is not fused, and "
            "the model has attn_implementation='kvcache', which attends to cached tokens in pages only; "
            "give no cache and no cache_implementation, then a fused one is made, or give the model "
            "past_key_values=PagedCache(config, mode='fused'), or load it with attn_implementation='sdpa' or 'eager'"
        )
    real = mask.padding
    if real is not None and real.shape != (batch, columns):
        raise ValueError(f"attention_mask: shape {tuple(real.shape)} for {batch} rows of {columns} keys")
    keys = Step([], _lengths(real, batch, columns), batch, columns, _index(real))
    # Queries are the same tokens in self-attention; in cross-attention every one of them is real.
    same = rows == columns
    queries = keys if same else Step([], [rows] * batch, batch, rows)
    bias = None if mask.bias is None else pack_bias(mask.bias, queries, real)
    out = torch.empty(queries.total, heads, value.shape[3], dtype=query.dtype)
    if queries.total:
        attend_ragged(queries.pack(query), keys.pack(key), keys.pack(value), out, _offsets(queries), _offsets(keys),
                      causal=causal, window=window, scale=options.scale, soft_cap=options.soft_cap, sink_logits=options.sink_logits, bias=bias)
    return queries.unpack(out)


def _check_own_cache() -> None:
    """Name the class of models that make a cache of their own (MiniMax), which nobody can replace."""
    model = calling_model()
    module = sys.modules.get(type(model).__module__)
    own = [one for one in vars(module).values() if isinstance(one, type) and issubclass(one, Cache) and one.__module__ == module.__name__] if module else []
    if own:
        raise NotImplementedError(
            f"past_key_values: {type(model).__name__} keeps its past in a {own[0].__name__} of its own, which kvcache attention does "
            "not read; load it with attn_implementation='sdpa' or 'eager'"
        )


def _is_beyond(pattern: Pattern, mask: Mask, columns: int) -> bool:
    """Does the kernel need all of the mask as a bias? It knows causal attention and causal windows by itself."""
    return mask.spans is not None or 0 < pattern.chunk < columns or (pattern.window > 0 and not pattern.causal)


def _lengths(real, batch: int, columns: int) -> list[int]:
    return [columns] * batch if real is None else real.sum(dim=1).tolist()


def _index(real):
    return None if real is None else real.flatten().nonzero().flatten()


def _offsets(step: Step) -> torch.Tensor:
    return torch.tensor([0, *step.lengths]).cumsum(0).to(torch.int32)
