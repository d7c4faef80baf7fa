# SPDX-License-Identifier: Apache-2.0
"""Choosing the next token of one request."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Sampling:
    """temperature 0: the most likely token. top_k 0 and top_p 1: all tokens take part. The same seed gives the same tokens."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self):
        if self.temperature < 0:
            raise ValueError(f"temperature: expected at least 0, got {self.temperature}")
        if self.top_k < 0:
            raise ValueError(f"top_k: expected at least 0, got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p: expected a number in (0, 1], got {self.top_p}")

    def choose(self, logits: torch.Tensor, generator: torch.Generator) -> int:
        """logits [vocabulary] to a token id."""
        if self.temperature == 0:
            return int(logits.argmax())
        logits = logits.float() / self.temperature
        if 0 < self.top_k < logits.numel():
            logits = logits.masked_fill(logits < logits.topk(self.top_k).values[-1], float("-inf"))
        chances = logits.softmax(dim=-1)
        if self.top_p < 1:
            ordered, order = chances.sort(descending=True)
            behind = ordered.cumsum(dim=-1) - ordered >= self.top_p
            chances = chances.clone()
            chances[order[behind]] = 0
        return int(torch.multinomial(chances, 1, generator=generator))
