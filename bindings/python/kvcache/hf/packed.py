# SPDX-License-Identifier: Apache-2.0
"""Packed steps: many sequences in one row of a model's input, each with its own length."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class PackedBatch:
    ids: list[int]
    lengths: list[int]
    token_ids: list[int] | None

    @property
    def total(self) -> int:
        return sum(self.lengths)


class PackedSteps:
    """The part of PagedCache that serves packed steps; needs mode="fused"."""

    @contextmanager
    def packed(self, ids: list[int], lengths: list[int], token_ids: list[int] | None = None):
        """Around one forward of the model over input_ids [1, T]: `lengths` new tokens for each sequence of the store.

        Leaving the block makes the tokens part of their sequences; an exception undoes the step. Pass position_ids [1, T] to the
        model, and no attention mask. With `token_ids` full blocks are published to the prefix index.
        """
        if self.mode != "fused":
            raise ValueError(f"packed: needs mode='fused', the cache has {self.mode!r}")
        if self._rows:
            raise RuntimeError(f"packed: the cache holds {len(self._rows)} rows of an unpacked batch; call reset() first")
        if self._step is not None or self._packed is not None:
            raise RuntimeError("packed: a step is open")
        self._packed = PackedBatch(list(ids), list(lengths), token_ids)
        try:
            yield self
            self._commit()
        finally:
            self._abort()
            self._packed = None
