# SPDX-License-Identifier: Apache-2.0
"""Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434) in the absorbed form: queries are brought to the latents."""

from __future__ import annotations

import torch


def is_latent(module, latent: torch.Tensor, rope: torch.Tensor) -> bool:
    """Did the module cache (latent, rotated key part), one head each, to be expanded by `expand_kv`?"""
    return (
        hasattr(module, "expand_kv") and hasattr(module, "kv_b_proj")
        and latent.shape[1] == 1 and latent.shape[3] == module.kv_lora_rank
        and rope.shape[1] == 1 and rope.shape[3] == module.qk_rope_head_dim
    )


def _weights(module) -> tuple[torch.Tensor, torch.Tensor]:
    weight = module.kv_b_proj.weight.detach()
    weight = weight.view(-1, module.qk_nope_head_dim + module.v_head_dim, module.kv_lora_rank)
    return weight[:, : module.qk_nope_head_dim], weight[:, module.qk_nope_head_dim:]


def absorb(module, query: torch.Tensor) -> torch.Tensor:
    """Packed q [T, heads, nope + rope] to [T, heads, rank + rope]. float32: rounding here would come on top of the model's."""
    to_latent, _ = _weights(module)
    nope, rope = query.float().split([module.qk_nope_head_dim, module.qk_rope_head_dim], dim=-1)
    return torch.cat((torch.einsum("thd,hdr->thr", nope, to_latent.float()), rope), dim=-1)


def project(module, out: torch.Tensor) -> torch.Tensor:
    """Latent outputs [T, heads, rank] to [T, heads, v_dim]."""
    _, to_value = _weights(module)
    return torch.einsum("thr,hvr->thv", out, to_value.float())


def check_expansion(module, layer: int, latent, rope, key, value) -> None:
    """Raises unless K and V of the last token are what `kv_b_proj` makes of its latent.

    The absorbed form computes with the latents, the rotated part and the weights of `kv_b_proj`.
    """
    to_key, to_value = _weights(module)
    row, rotated = (states[-1, 0, -1].detach().float() for states in (latent, rope))
    nope = torch.einsum("hdr,r->hd", to_key.float(), row)
    wanted_key = torch.cat((nope, rotated.expand(len(nope), -1)), dim=-1)
    wanted_value = torch.einsum("hvr,r->hv", to_value.float(), row)
    for name, states, wanted in (("K", key, wanted_key), ("V", value, wanted_value)):
        last = states[-1, :, -1].detach().float()
        # The result was rounded, and float32 sums were taken in another order.
        room = max(2 * torch.finfo(states.dtype).eps, 1e-4) * wanted.abs().max()
        if last.shape != wanted.shape or bool((last - wanted).abs().max() > room):
            raise RuntimeError(
                f"layer {layer}: {name} is not what kv_b_proj makes of the cached latents; use "
                "mla='expanded', or mode='gather' with attn_implementation='sdpa' or 'eager'"
            )
