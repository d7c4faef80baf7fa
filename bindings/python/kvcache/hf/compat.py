# SPDX-License-Identifier: Apache-2.0
"""Differences between the transformers versions that this package supports: 4.57 and 5.x."""

from __future__ import annotations

import sys

import transformers
from transformers import PreTrainedModel, cache_utils

NAME = "kvcache"  # The attention implementation, as models are loaded with it.

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


def check_class_tables(name: str) -> None:
    """Make models that pick their attention class from a table of their own refuse `name` in words.

    transformers accepts every registered name, and such a model then fails with a bare KeyError.
    The check is made where transformers checks the name: in the constructor of a model or submodel.
    """
    accept = PreTrainedModel.get_correct_attn_implementation
    if getattr(accept, "checks_class_tables", False):
        return

    def checked(self, *args, **kwargs):
        chosen = accept(self, *args, **kwargs)
        if chosen == name:
            _refuse_class_table(type(self), name)
        return chosen

    checked.checks_class_tables = True
    checked.__doc__ = accept.__doc__
    PreTrainedModel.get_correct_attn_implementation = checked


def _refuse_class_table(model: type, name: str) -> None:
    modules = {base.__module__ for base in model.__mro__ if issubclass(base, PreTrainedModel)}
    for module in modules & sys.modules.keys():
        for variable, table in vars(sys.modules[module]).items():
            if (
                variable.endswith("ATTENTION_CLASSES")
                and isinstance(table, dict)
                and name not in table
            ):
                raise ValueError(
                    f"attn_implementation: {model.__name__} has no attention interface, it "
                    "picks one of "
                    f"{sorted(table)} from {variable}, not {name!r}; load it with "
                    "attn_implementation='eager' and use PagedCache(config). Where it is a part "
                    "of a "
                    f"model, give {name!r} to the text part alone: "
                    f"attn_implementation={{'text_config': {name!r}}}"
                )
