# SPDX-License-Identifier: Apache-2.0
"""The step that a forward of the model opens, and how its tensors become packed tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass
class Step:
    """One open forward: `lengths` new tokens for each sequence of `ids`, in the order of the packed tokens."""

    ids: list[int]
    lengths: list[int]
    batch: int
    tokens: int  # per row of the model's tensors, padding included
    index: torch.Tensor | None = None  # rows of [batch * tokens] that are appended; None: all
    done: set[int] = field(default_factory=set)
    opened: bool = False  # the padding is known and the pages are reserved
    in_store: bool = False  # false when every new token is padding
    entries: list[int] = field(default_factory=list)  # Rows of the batch that have new tokens; empty: all.
    owners: dict[int, object] = field(default_factory=dict)  # Fused: layers' own attention modules.

    @property
    def total(self) -> int:
        return sum(self.lengths)

    def pack(self, states: torch.Tensor) -> torch.Tensor:
        """[batch, heads, tokens, dim] to packed [T, heads, dim]: a view where the memory allows it."""
        states = states.detach()
        if states.shape[2] == 1 and self.index is None:
            packed = states[:, :, 0]
        else:
            packed = states.transpose(1, 2)
            packed = packed[0] if packed.shape[0] == 1 else packed.reshape(-1, packed.shape[2], packed.shape[3])
            if self.index is not None:
                packed = packed[self.index]
        return packed if packed.stride(-1) == 1 else packed.contiguous()

    def unpack(self, packed: torch.Tensor) -> torch.Tensor:
        """Packed [T, heads, dim] to [batch, tokens, heads, dim]; rows of padding are zero."""
        if self.index is not None:
            rows = packed.new_zeros(self.batch * self.tokens, *packed.shape[1:])
            rows[self.index] = packed
            packed = rows
        return packed.view(self.batch, self.tokens, *packed.shape[1:])


def check_states(name: str, states: torch.Tensor) -> None:
    if states.ndim != 4:
        raise ValueError(f"{name}: expected [batch, heads, tokens, dim], got shape {tuple(states.shape)}")
    if states.device.type != "cpu":
        raise NotImplementedError(f"{name}: kvcache.hf runs on the CPU, the tensor is on {states.device}")
    if states.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise TypeError(f"{name}: expected float32, float16 or bfloat16, got {states.dtype}")
    check_gradients(**{name: states})


def check_gradients(**tensors: torch.Tensor | None) -> None:
    """Raises where autograd records a tensor: pages carry no gradients."""
    if not torch.is_grad_enabled():
        return
    for name, tensor in tensors.items():
        if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
            raise NotImplementedError(
                f"{name}: requires gradients, which kvcache.hf does not compute; run the model "
                "under "
                "torch.no_grad() or torch.inference_mode(), and train it without these caches, "
                "with "
                "attn_implementation='sdpa' or 'eager'"
            )
