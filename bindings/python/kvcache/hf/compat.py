# SPDX-License-Identifier: Apache-2.0
"""Differences between the transformers versions that this package supports: 4.57 and 5.x."""

from __future__ import annotations

import transformers
from transformers import cache_utils

V5 = int(transformers.__version__.split(".")[0]) >= 5

Cache = cache_utils.Cache
CacheLayerMixin = cache_utils.CacheLayerMixin
EncoderDecoderCache = cache_utils.EncoderDecoderCache

# Recurrent states live in layers of transformers' own; version 4 has a cache class per model instead.
LinearAttentionLayer = getattr(cache_utils, "LinearAttentionLayer", None)
DummyLayer = getattr(cache_utils, "DummyLayer", None)


def query_length(argument) -> int:
    """What get_mask_sizes is given: a length in version 5, the cache positions of the new tokens in version 4."""
    return argument if isinstance(argument, int) else int(argument.shape[0])


def tokens_to_drop(length: int, argument: int) -> int:
    """What crop is given: minus the tokens to drop; in version 4 a positive number is the length to keep."""
    if argument <= 0:
        return min(-argument, length)
    if V5:
        raise ValueError(f"crop: tokens_to_remove must be negative or 0, got {argument}")
    return max(length - argument, 0)
