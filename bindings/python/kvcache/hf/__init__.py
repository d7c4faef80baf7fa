# SPDX-License-Identifier: Apache-2.0
"""Hugging Face transformers over the pages of libkvcache.

    from kvcache.hf import PagedCache
    model.generate(..., past_key_values=PagedCache(model.config))

Importing this package registers the attention implementation "kvcache" with transformers.
"""

from .attention import kvcache_attention, register
from .cache import PagedCache
from .cross import PagedEncoderDecoderCache
from .server import Request, Server

register()

__all__ = ["PagedCache", "PagedEncoderDecoderCache", "Request", "Server", "kvcache_attention"]
