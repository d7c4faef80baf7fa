# SPDX-License-Identifier: Apache-2.0
"""The attention function "kvcache", registered with transformers when this package is imported."""

from __future__ import annotations

from dataclasses import replace

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from .calls import watch_calls
from .compat import NAME, check_class_tables
from .defaults import replace_defaults
from .fused import TAG, waiting_cache
from .layers import OF_IMAGE
from .masks import kvcache_mask
from .options import read_options
from .rows import check_gradients
from .stateless import attend_without_cache


def kvcache_attention(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask,
                      scaling: float | None = None, dropout: float = 0.0, **kwargs) -> tuple[torch.Tensor, None]:
    """query [B, Hq, L, Dk], key [B, Hkv, L, Dk], value [B, Hkv, L, Dv] to [B, L, Hq, Dv]."""
    options = read_options(module, query, scaling, dropout, kwargs)
    check_gradients(
        query=query,
        key=key,
        value=value,
        attention_mask=attention_mask,
        s_aux=kwargs.get("s_aux"),
        position_bias=options.position_bias,
    )
    if getattr(key, OF_IMAGE, False):
        return attend_without_cache(query, key, value, attention_mask, replace(options, causal=False)), None
    tag = getattr(key, TAG, None)
    if tag is not None:
        return tag.cache._attend(tag, module, query, key, value, attention_mask, options), None
    cache = waiting_cache(module)
    if cache is not None:
        return cache._attend_latent(module, query, key, value, attention_mask, options), None
    return attend_without_cache(query, key, value, attention_mask, options), None


def register() -> None:
    AttentionInterface.register(NAME, kvcache_attention)
    AttentionMaskInterface.register(NAME, kvcache_mask)
    check_class_tables(NAME)
    watch_calls(PreTrainedModel)
    replace_defaults()
