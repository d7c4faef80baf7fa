# SPDX-License-Identifier: Apache-2.0
"""The cache of a model that was given none.

transformers makes a DynamicCache where the caller gave no cache: in `generate`, in the second stream of guidance, for a
draft model, and in a model's forward. A model with attn_implementation="kvcache" attends in pages, so such a cache becomes
a fused PagedCache while it is made. What a caller makes stays what it is.
"""

from __future__ import annotations

import threading

from transformers import GenerationMixin
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from .cache import PagedCache
from .calls import calling_model
from .compat import NAME
from .cross import PagedEncoderDecoderCache
from .specs import decoder_config

_thread = threading.local()


def uses_pages(config) -> bool:
    """Does a model of this configuration attend with this package?"""
    return getattr(decoder_config(config), "_attn_implementation", None) == NAME


def _preparing_model():
    """The model whose `generate` makes a cache in this thread, or None."""
    return getattr(_thread, "model", None)


def _config_of_default(args: tuple, kwargs: dict):
    """The configuration of the cache that transformers makes here by itself; None where it keeps its own."""
    model = _preparing_model() or calling_model()
    if model is None or args or any(value for name, value in kwargs.items() if name != "config"):
        return None
    config = kwargs.get("config") or model.config
    return config if uses_pages(config) else None


def replace_defaults() -> None:
    """Make transformers' own caches of such models paged, once."""
    if getattr(DynamicCache.__init__, "makes_pages", False):
        return
    make, pair, prepare = DynamicCache.__init__, EncoderDecoderCache.__init__, GenerationMixin._prepare_cache_for_generation

    def made(self, *args, **kwargs):
        config = _config_of_default(args, kwargs) if type(self) is DynamicCache else None
        if config is None:
            make(self, *args, **kwargs)
            return
        try:
            self.__class__ = PagedCache
            self.__init__(config, "fused")
        except (NotImplementedError, ValueError):
            if _preparing_model() is not None:
                raise
            # One forward needs no past. The next one is refused.
            self.__class__ = DynamicCache
            make(self, *args, **kwargs)
            return
        if not kwargs.get("config"):  # Version 4 wants layers without windows for assisted generation.
            self.activate_past_recording()

    def paired(self, *caches):
        pair(self, *caches)
        own = self.self_attention_cache
        is_inside = _preparing_model() is not None or calling_model() is not None
        if type(self) is EncoderDecoderCache and isinstance(own, PagedCache) and own.mode == "fused" and is_inside:
            self.__class__ = PagedEncoderDecoderCache
            self._begin_beside(own)

    def prepared(self, *args, **kwargs):
        before, _thread.model = _preparing_model(), self
        try:
            return prepare(self, *args, **kwargs)
        finally:
            _thread.model = before

    made.makes_pages = True
    for own, theirs in ((made, make), (paired, pair), (prepared, prepare)):
        own.__doc__ = theirs.__doc__
    DynamicCache.__init__, EncoderDecoderCache.__init__ = made, paired
    GenerationMixin._prepare_cache_for_generation = prepared
