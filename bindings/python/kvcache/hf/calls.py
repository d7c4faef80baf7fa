# SPDX-License-Identifier: Apache-2.0
"""One forward of a model, as its caches see it: when it fails, nothing has happened to them.

transformers tells a cache neither when a forward begins nor when it fails. So `watch_calls` wraps the call of every
transformers model: the outermost one notes the state of each cache that takes part, holds the lock of its pages, and
on any exception puts everything back.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque

import torch

_thread = threading.local()


class Pages:
    """What caches that share pages have in common: a lock, and sequences that finalisers have left to be removed."""

    def __init__(self):
        self._lock = threading.RLock()
        self._left: deque = deque()  # (store, ids, whether its step is theirs)

    def __enter__(self) -> Pages:
        self._lock.acquire()
        return self

    def __exit__(self, *_) -> None:
        self._remove_left()
        self._lock.release()

    def leave(self, store, rows: list[int], aborts: bool) -> None:
        """For a finaliser, which may run in any thread: removed now, or by whoever has the lock."""
        self._left.append((store, rows, aborts))
        if self._lock.acquire(blocking=False):
            self.__exit__()

    def _remove_left(self) -> None:
        while self._left:
            store, rows, aborts = self._left.popleft()
            if store.cache.is_open:
                if aborts:
                    store.abort()
                for row in rows:
                    store.remove(row)


class Call:
    """The outermost forward of a model in this thread. Caches take part that it was given, or that were updated in it."""

    def __init__(self, args, kwargs):
        self._points: list[tuple] = []  # (cache, its state before)
        self._args, self._kwargs = args, kwargs

    def __enter__(self) -> Call:
        _thread.call = self
        _thread.waiting = None
        try:
            for argument in (*self._args, *self._kwargs.values()):
                for cache in getattr(argument, "_caches_of_call", tuple)():
                    self.join(cache)
            if self._points:
                self._check()
        except BaseException:
            self.__exit__(True)
            raise
        return self

    def _check(self) -> None:
        """What only the arguments of the model tell."""
        inputs, mask, *_ = (*self._args, None, None)
        for name in ("inputs_embeds", "input_ids"):
            given = self._kwargs.get(name)
            inputs = inputs if given is None else given
        mask = self._kwargs.get("attention_mask", mask)
        if isinstance(inputs, torch.Tensor) and isinstance(mask, torch.Tensor) and mask.ndim == 2 and inputs.ndim > 1:
            for cache, _ in self._points:
                cache._check_call(inputs.shape[1], mask)

    def join(self, cache) -> None:
        if any(known is cache for known, _ in self._points):
            return
        cache._pages.__enter__()
        try:
            self._points.append((cache, cache._begin_call()))
        except BaseException:
            cache._pages.__exit__()
            raise

    def __exit__(self, failure, *_) -> None:
        _thread.call = _thread.waiting = None
        try:
            for cache, point in reversed(self._points):
                if failure is not None:
                    cache._undo(point)
                else:
                    cache._end_call()
        finally:
            for cache, _ in reversed(self._points):
                cache._pages.__exit__()


def join_call(cache) -> bool:
    """Make `cache` part of the forward that runs in this thread. False: no model that is watched runs."""
    call = getattr(_thread, "call", None)
    if call is not None:
        call.join(cache)
    return call is not None


def wait_for_attention(cache) -> None:
    """`cache` has got K and V that may reach attention as others, which the model expands from them."""
    _thread.waiting = weakref.ref(cache)


def last_updated():
    """The cache that got K and V last in the forward that runs in this thread, or None."""
    waiting = getattr(_thread, "waiting", None)
    return None if waiting is None else waiting()


def watch_calls(model_class: type) -> None:
    """Wrap the call of `model_class`, once."""
    call = model_class.__call__
    if getattr(call, "watches_calls", False):
        return

    def watched(self, *args, **kwargs):
        if torch.compiler.is_compiling() or getattr(_thread, "call", None) is not None:
            return call(self, *args, **kwargs)
        with Call(args, kwargs):
            return call(self, *args, **kwargs)

    watched.watches_calls = True
    watched.__doc__ = call.__doc__
    model_class.__call__ = watched
