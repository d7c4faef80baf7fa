# SPDX-License-Identifier: Apache-2.0
"""One forward of a model, as its caches see it: when it fails, nothing has happened to them.

transformers tells a cache neither when a forward begins nor when it fails. So `watch_calls` wraps the call of every
transformers model: the outermost one notes the state of each cache that takes part, holds the lock of its pages, and
on any exception puts everything back.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections import deque
from contextlib import ExitStack
from functools import partial

import torch

from .compat import NAME

_thread = threading.local()


class Pages:
    """What caches that share pages have in common: a lock, and sequences that finalisers have left to be removed."""

    def __init__(self):
        self._lock = threading.RLock()
        self._left: deque = deque()  # (store, ids, the open step that goes with them, or None)

    def __enter__(self) -> Pages:
        self._lock.acquire()
        return self

    def __exit__(self, *_) -> None:
        try:
            self._remove_left()
        finally:
            self._lock.release()

    def leave(self, store, rows: list[int], step) -> None:
        """For a finaliser, which may run in any thread: removed now, or by whoever has the lock."""
        self._left.append((store, rows, step))
        if self._lock.acquire(blocking=False):
            self.__exit__()

    def _remove_left(self) -> None:
        while self._left:
            store, rows, step = self._left.popleft()
            if store.cache.is_open:
                if step is not None:
                    store.abort(step)
                for row in rows:
                    store.remove(row)


class Call:
    """The outermost forward of a model in this thread. Caches take part that it was given, or that were updated in it.

    `stack` ends the call: each cache keeps what it got, or goes back to where it was, and gives up its lock.
    """

    def __init__(self, stack: ExitStack, model, args, kwargs):
        self._model = model
        self._stack = stack
        self._caches: list = []
        self._given = [argument for argument in (*args, *kwargs.values()) if hasattr(argument, "_caches_of_call")]
        # Versions 4 hand the cache to the encoder of T5 and its like too, which have the attribute.
        is_encoder = getattr(model, "is_decoder", True) is False
        self._wants_cache = kwargs.get("use_cache") is not False and not is_encoder
        stack.callback(_forget_call)
        for module in (model, getattr(model, "model", None)):
            if "rope_deltas" in getattr(module, "__dict__", ()):  # M-RoPE: what an image shifts the positions behind it by
                stack.push(partial(_put_back, module, module.rope_deltas))
        _thread.call, _thread.waiting = self, None
        for given in self._given:
            for cache in given._caches_of_call():
                self.join(cache)
        if self._caches:
            self._check(args, kwargs)

    def join(self, cache) -> None:
        if any(known is cache for known in self._caches):
            return
        self._stack.enter_context(cache._pages)
        point = cache._begin_call()
        self._stack.push(lambda failure, *_: cache._end_call() if failure is None else cache._undo(point))
        self._caches.append(cache)

    def _check(self, args, kwargs) -> None:
        """What only the arguments of the model tell."""
        if getattr(self._model.config, "is_encoder_decoder", False):
            for given in self._given:
                given._check_encoder_decoder(type(self._model).__name__, kwargs.get("encoder_outputs"))
        inputs, mask, *_ = (*args, None, None)
        for name in ("inputs_embeds", "input_ids"):
            given = kwargs.get(name)
            inputs = inputs if given is None else given
        mask = kwargs.get("attention_mask", mask)
        if isinstance(inputs, torch.Tensor) and isinstance(mask, torch.Tensor) and mask.ndim == 2 and inputs.ndim > 1:
            for cache in self._caches:
                cache._check_call(inputs.shape[1], mask)

    def check_used(self) -> None:
        """Refuse a model that takes a cache and keeps its past elsewhere: its next tokens would not see these."""
        if self._wants_cache and any(given._is_unused() for given in self._given):
            raise NotImplementedError(
                f"past_key_values: {type(self._model).__name__} has put nothing into it; what came before is kept elsewhere, or lost"
            )


def _forget_call() -> None:
    _thread.call = _thread.waiting = None


def _put_back(module, rope_deltas, failure, *_) -> None:
    if failure is not None:
        module.rope_deltas = rope_deltas


def join_call(cache) -> bool:
    """Make `cache` part of the forward that runs in this thread. False: no model that is watched runs."""
    call = getattr(_thread, "call", None)
    if call is not None:
        call.join(cache)
    return call is not None


def calling_model():
    """The outermost model whose forward runs in this thread, or None."""
    call = getattr(_thread, "call", None)
    return None if call is None else call._model


def wait_for_attention(cache) -> None:
    """`cache` has got K and V that may reach attention as others, which the model expands from them."""
    _thread.waiting = weakref.ref(cache)


def last_updated():
    """The cache that got K and V last in the forward that runs in this thread, or None."""
    waiting = getattr(_thread, "waiting", None)
    return None if waiting is None else waiting()


def _attends_in_pages(model) -> bool:
    """Cheap enough for a compiler to trace."""
    config = model.config
    text = getattr(config, "text_config", None)
    return NAME in (getattr(config, "_attn_implementation", None), getattr(text, "_attn_implementation", None))


@torch.compiler.disable(reason="pages are host bookkeeping, which torch.compile cannot trace: the model runs uncompiled")
def _uncompiled(model, args, kwargs):
    warnings.warn(
        f"torch.compile: {type(model).__name__} has attn_implementation={NAME!r} and runs uncompiled, because pages are host "
        "bookkeeping",
        stacklevel=2,
    )
    return model(*args, **kwargs)


def watch_calls(model_class: type) -> None:
    """Wrap the call of `model_class`, once."""
    call = model_class.__call__
    if getattr(call, "watches_calls", False):
        return

    def watched(self, *args, **kwargs):
        if torch.compiler.is_compiling():
            return _uncompiled(self, args, kwargs) if _attends_in_pages(self) else call(self, *args, **kwargs)
        if getattr(_thread, "call", None) is not None:
            return call(self, *args, **kwargs)
        with ExitStack() as stack:
            forward = Call(stack, self, args, kwargs)
            output = call(self, *args, **kwargs)
            forward.check_used()
            return output

    watched.watches_calls = True
    watched.__doc__ = call.__doc__
    model_class.__call__ = watched
