# SPDX-License-Identifier: Apache-2.0
"""What a cache is before a forward of its model, so that one that fails leaves nothing behind."""

from __future__ import annotations

from dataclasses import dataclass
from functools import wraps

import torch

from .calls import join_call
from .layers import TENSOR_LAYERS, KVLayer, StateLayer


@dataclass
class Point:
    """A PagedCache between two forwards. Rows of K and V need no copy: the library undoes an open step."""

    rows: list[int]
    seen: list[int | None]  # by layer
    real: torch.Tensor | None
    store: object
    shapes: dict
    used: set[int] | None
    is_first: bool  # another plan may still be needed
    states: dict[int, dict]  # of recurrent layers, copied

    def lengths(self) -> list[int]:
        """Tokens of each row, without padding."""
        if self.real is not None:
            return self.real.sum(dim=1).tolist()
        return [max((seen or 0 for seen in self.seen), default=0)] * len(self.rows)


def undone_on_failure(method):
    """For what models call in a forward: an exception undoes the forward, also of a model that is not watched."""

    @wraps(method)
    def checked(self, *args, **kwargs):
        try:
            return method(self, *args, **kwargs)
        except BaseException:
            if self._point is not None:
                self._undo(self._point)
            raise

    return checked


def locked(method):
    """For what the host program calls: caches that share pages may be used in threads."""

    @wraps(method)
    def alone(self, *args, **kwargs):
        with self._pages:
            return method(self, *args, **kwargs)

    return alone


class UndoneCalls:
    """The part of PagedCache that notes its state at the beginning of a forward and goes back to it; see calls.py."""

    def _caches_of_call(self) -> tuple:
        return (self,)

    def _begin_call(self) -> Point:
        if self._is_whole():
            self._commit()
        if self._step is None or self._point is None:
            self._point = Point(
                list(self._rows),
                [layer.seen if isinstance(layer, KVLayer) else None for layer in self.layers],
                self._real,
                self.store,
                dict(self._shapes),
                self._used,
                self._first is not None,
                {index: layer.state() for index, layer in enumerate(self.layers) if isinstance(layer, TENSOR_LAYERS)},
            )
        return self._point

    def _check_encoder_decoder(self, model: str, _output) -> None:
        raise ValueError(
            f"past_key_values: {model} has an encoder, whose K and V a PagedCache alone has no place for; give it "
            f"PagedEncoderDecoderCache(model.config, mode={self.mode!r})"
        )

    def _check_call(self, tokens: int, mask: torch.Tensor) -> None:
        """Refuse padding that the model's recurrent layers would read: they leave out what comes before a prompt's tokens."""
        if not any(spec.has_state for spec in self._specs) or tokens > mask.shape[1]:
            return
        real, new = mask.bool(), mask[:, mask.shape[1] - tokens:].bool()
        if bool(new.all()):
            return
        behind = (real.long().cumsum(dim=1)[:, -tokens:] > 0) & ~new
        if bool(behind.any()) or tokens == 1 or len(mask) == 1:
            raise NotImplementedError(
                f"attention_mask: the recurrent layers of {getattr(self.config, 'model_type', 'this model')} would read padding: "
                "they leave it out on the left of a prompt only, in a batch of several rows, more than one token at a time"
            )

    def _end_call(self) -> None:
        # A packed step ends with its block. Models may have fewer layers than their configuration says.
        if self._is_whole() and not self._packed:
            self._commit()
        elif self._step is not None and not self._packed:
            self._commit(has_returned=True)
        if self._step is None:
            self._point = None

    def _is_unused(self) -> bool:
        if self._packed is not None:  # its rows are the sequences of the step
            return self._step is None
        return not any(layer.is_used if isinstance(layer, StateLayer) else getattr(layer, "seen", 0) for layer in self.layers)

    def _begin_step(self) -> None:
        """Before the first change of a forward."""
        if not join_call(self) and self._point is None:
            self._begin_call()

    def _is_whole(self) -> bool:
        return self._step is not None and self._pending is None and not self._waited_for() - self._step.done

    def _undo(self, point: Point) -> None:
        step, self._step, self._pending, self._point = self._step, None, None, None
        if step is not None and step.in_store:
            self.store.abort()
        if self.store is not point.store:  # planned in this forward, the first one
            self.store.close()
            self.store, self._rows = None, []
        else:
            for row in set(self._rows) - set(point.rows):
                self.store.remove(row)
            self._rows = list(point.rows)
            for row, length in zip(self._rows, point.lengths()):
                if self.store.length(row) > length:  # of a step that ended before the one that failed
                    self.store.pop(row, self.store.length(row) - length)
        self._real, self._shapes, self._used = point.real, dict(point.shapes), point.used
        self._first = [] if point.is_first else None
        for index, (layer, seen) in enumerate(zip(self.layers, point.seen)):
            if seen is not None:
                layer.seen = seen
            if index in point.states:
                layer.set_state(point.states[index])
