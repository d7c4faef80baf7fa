"""Stored values of a cache, to prove equality with another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import _capi

if TYPE_CHECKING:
    from .plan import Plan

__all__ = ["DebugAccess"]

Array = np.ndarray[Any, Any]


class DebugAccess:
    """K as stored (rotated when the layer rotates on append). Outputs that are not given are float32 NumPy arrays (of a cache on a GPU they have to
    be given, and lie there); `end` None: the length. Calls return when all is done, after PyTorch's current stream."""

    _handle: Any
    plan: Plan

    def _end(self, seq: int, end: int | None) -> int:
        return int(_capi.kvc_seq_length(self._handle, seq)) if end is None else end

    def _layers(self, *kinds: str) -> list[Any]:
        info = self.plan.info
        return [
            layer
            for layer in map(self.plan.layer, range(info.layer_begin, info.layer_end))
            if layer.kind in kinds
        ]

    def debug_get_kv(
        self, seq: int, begin: int = 0, end: int | None = None, k: Any = None, v: Any = None
    ) -> tuple[Any, Any]:
        """k and v [layers, n, heads, dim] of the attention layers; smaller layers leave the rest as it is (zero)."""
        if k is None and v is None:
            info, layers = self.plan.info, self._layers("attention")
            heads = max((layer.num_kv_heads for layer in layers), default=0)
            shape = info.layer_end - info.layer_begin, max(0, self._end(seq, end) - begin), heads
            k = np.zeros((*shape, max((layer.k_dim for layer in layers), default=0)), np.float32)
            v = np.zeros((*shape, max((layer.v_dim for layer in layers), default=0)), np.float32)
        _capi.kvc_debug_get_kv(self._handle, seq, begin, self._end(seq, end), k, v, self.plan._stream(None))
        return k, v

    def debug_set_kv(self, seq: int, begin: int, k: Any = None, v: Any = None) -> None:
        """Overwrite committed tokens with values as they are to be stored. Siblings keep theirs."""
        _capi.kvc_debug_set_kv(self._handle, seq, begin, k, v, self.plan._stream(None))

    def debug_get_layer(
        self, seq: int, layer: int, begin: int = 0, end: int | None = None, k: Any = None, v: Any = None
    ) -> tuple[Any, Any]:
        """k and v [n, heads, dim] of one layer; v is None where the layer has none. Cross layers count encoder tokens."""
        if k is None and v is None:
            info = self.plan.layer(layer)
            if info.kind == "shared":
                info = self.plan.layer(info.source_layer)
            if end is None and info.kind == "cross":
                end = int(_capi.kvc_seq_info_get(self._handle, seq)["cross_length"])
            n = max(0, self._end(seq, end) - begin)
            if info.kind == "mla":
                k = np.empty((n, 1, info.latent_rank + info.latent_rope_dim), np.float32)
            else:
                k = np.empty((n, info.num_kv_heads, info.k_dim), np.float32)
                if not info.flags & _capi.KVC_LAYER_V_IS_K:
                    v = np.empty((n, info.num_kv_heads, info.v_dim), np.float32)
        _capi.kvc_debug_get_layer(self._handle, seq, layer, begin, self._end(seq, end), k, v, self.plan._stream(None))
        return k, v

    def debug_set_layer(self, seq: int, layer: int, begin: int, k: Any = None, v: Any = None) -> None:
        """Overwrite committed tokens of one layer."""
        _capi.kvc_debug_set_layer(self._handle, seq, layer, begin, k, v, self.plan._stream(None))

    def debug_get_mla(self, seq: int, begin: int = 0, end: int | None = None, latent: Any = None) -> Any:
        """latent [layers, n, rank + rope dim] of the MLA layers."""
        if latent is None:
            info, layers = self.plan.info, self._layers("mla")
            width = max((layer.latent_rank + layer.latent_rope_dim for layer in layers), default=0)
            latent = np.zeros(
                (info.layer_end - info.layer_begin, max(0, self._end(seq, end) - begin), width), np.float32
            )
        _capi.kvc_debug_get_mla(self._handle, seq, begin, self._end(seq, end), latent, self.plan._stream(None))
        return latent

    def debug_set_mla(self, seq: int, begin: int, latent: Any) -> None:
        """Overwrite committed latents."""
        _capi.kvc_debug_set_mla(self._handle, seq, begin, latent, self.plan._stream(None))

    def debug_get_state(self, seq: int, layer: int, state: int, out: Any) -> Any:
        """The recurrent state of a sequence at its committed length: out [shape...]."""
        _capi.kvc_debug_get_state(self._handle, seq, layer, state, out, self.plan._stream(None))
        return out

    def debug_set_state(self, seq: int, layer: int, state: int, value: Any) -> None:
        """Replace it; checkpoints and other sequences keep theirs."""
        _capi.kvc_debug_set_state(self._handle, seq, layer, state, value, self.plan._stream(None))
