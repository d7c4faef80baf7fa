# SPDX-License-Identifier: Apache-2.0
"""How pages store K and V: as the model computes them, or in a narrower type."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvcache import ops


@dataclass(frozen=True)
class StorageType:
    """An element type, and what `Layer.quant` says of it: "none", or "per_token_head"."""

    element: torch.dtype
    quant: str = "none"

    @property
    def name(self) -> str:
        return str(self.element).removeprefix("torch.")

    def rounded(self, packed: torch.Tensor) -> torch.Tensor:
        """Rows [T, heads, dim] as they are read again once they are stored, in their own type."""
        if self.quant == "none":
            return packed.to(self.element).to(packed.dtype)
        codes = torch.empty(packed.shape, dtype=self.element)
        scales = torch.empty(packed.shape[:2])
        ops.quantize(packed, codes, scales, self.quant)
        return ops.dequantize(codes, scales, torch.empty(packed.shape, dtype=packed.dtype), self.quant)


# The words of `kvcache plan --kv-dtype`.
STORAGE_TYPES = {
    "fp32": StorageType(torch.float32),
    "fp16": StorageType(torch.float16),
    "bf16": StorageType(torch.bfloat16),
    "int8": StorageType(torch.int8, "per_token_head"),
    "fp8": StorageType(torch.float8_e4m3fn, "per_token_head"),
    "fp8_e5m2": StorageType(torch.float8_e5m2, "per_token_head"),
}


KEPT = STORAGE_TYPES["bf16"]  # How tokens of `keep_tokens` are read.


def check_kept(keep_tokens: int, stored_as: StorageType | None) -> None:
    if not isinstance(keep_tokens, int) or keep_tokens < 0:
        raise ValueError(f"keep_tokens: expected a number of tokens, got {keep_tokens!r}")
    if keep_tokens and (stored_as is None or stored_as.quant == "none"):
        raise ValueError(f"keep_tokens = {keep_tokens}: pages of dtype {stored_as and stored_as.name!r} have no tokens of 8 bits")


def storage_type(dtype: str | torch.dtype | None) -> StorageType | None:
    """What `PagedCache(dtype=...)` means. None: the type of the model's K."""
    if dtype is None:
        return None
    found = [one for word, one in STORAGE_TYPES.items() if dtype in (word, one.name, one.element)]
    if not found:
        raise ValueError(f"dtype: expected one of {', '.join(STORAGE_TYPES)}, got {dtype!r}")
    return found[0]
