# SPDX-License-Identifier: Apache-2.0
"""The keyword arguments of an attention function: which change the maths, which do not, which are unknown."""

from __future__ import annotations

from dataclasses import dataclass

import torch

# Passed along by models, without influence on attention.
_HARMLESS = frozenset((
    "cache_position", "logits_to_keep", "mm_token_type_ids", "num_items_in_batch", "output_hidden_states",
    "output_router_logits", "position_ids", "return_dict", "token_type_ids", "use_cache", "head_mask_is_none",
))


@dataclass(frozen=True)
class Options:
    scale: float
    soft_cap: float | None = None
    sink_logits: torch.Tensor | None = None
    window: int | None = None
    causal: bool = True
    position_bias: torch.Tensor | None = None


def read_options(module, query: torch.Tensor, scaling, dropout: float, kwargs: dict) -> Options:
    """Raises for what kvcache would have to ignore: results must not change silently."""
    rest = {name: value for name, value in kwargs.items() if value is not None and name not in _HARMLESS}
    soft_cap = rest.pop("softcap", None)
    sink_logits = rest.pop("s_aux", None)
    window = rest.pop("sliding_window", None)
    position_bias = rest.pop("position_bias", None)
    causal = rest.pop("is_causal", None)
    if rest.pop("output_attentions", False) or getattr(getattr(module, "config", None), "output_attentions", False):
        raise NotImplementedError("output_attentions: kvcache does not return attention weights; use attn_implementation='eager'")
    if dropout:
        raise NotImplementedError(f"dropout: kvcache attends without dropout, got {dropout}; call model.eval()")
    if rest.pop("return_shared_kv_states", False):  # Gemma-4 hands them to the model that drafts.
        raise NotImplementedError(
            "return_shared_kv_states: a fused cache hands the model new K and V alone, and the model that drafts needs all of them; "
            "use mode='gather' with attn_implementation='sdpa' or 'eager'"
        )
    if rest:
        name = sorted(rest)[0]
        raise NotImplementedError(f"{name}: kvcache attention does not know this argument ({type(rest[name]).__name__})")
    if causal is None:
        causal = getattr(module, "is_causal", True)
    return Options(
        scale=float(scaling) if scaling is not None else query.shape[-1] ** -0.5,
        soft_cap=None if soft_cap is None else float(soft_cap),
        sink_logits=None if sink_logits is None else sink_logits.detach().float().reshape(-1),
        window=None if window is None else int(window),
        causal=bool(causal),
        position_bias=position_bias,
    )
