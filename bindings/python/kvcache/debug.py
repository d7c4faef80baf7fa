"""Stored values of a cache, to prove equality with another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from . import _capi
from .errors import integer

if TYPE_CHECKING:
    from .plan import Plan

__all__ = ["DebugAccess"]

Array = np.ndarray[Any, Any]


class DebugAccess:
    """K as stored (rotated when the layer rotates on append). Outputs that are not given are float32 NumPy arrays (of a cache on a GPU they have to
    be given, and lie there); `end` None: the length. Calls return when all is done, after PyTorch's current stream."""

    _handle: Any
    plan: Plan

    def _range(
        self, seq: SupportsIndex, begin: SupportsIndex, end: SupportsIndex | None
    ) -> tuple[int, int, int]:
        """Begin, end, and the number of tokens between them."""
        begin = integer(begin, "begin")
        end = int(_capi.kvc_seq_length(self._handle, seq)) if end is None else integer(end, "end")
        return begin, end, max(0, end - begin)

    def _layers(self, *kinds: str) -> list[Any]:
        info = self.plan.info
        return [
            layer
            for layer in map(self.plan.layer, range(info.layer_begin, info.layer_end))
            if layer.kind in kinds
        ]

    def debug_get_kv(
        self,
        seq: SupportsIndex,
        begin: SupportsIndex = 0,
        end: SupportsIndex | None = None,
        k: Any = None,
        v: Any = None,
    ) -> tuple[Any, Any]:
        """k and v [layers, n, heads, dim] of the attention layers; smaller layers leave the rest as it is (zero)."""
        begin, end, n = self._range(seq, begin, end)
        if k is None and v is None:
            info, layers = self.plan.info, self._layers("attention")
            heads = max((layer.num_kv_heads for layer in layers), default=0)
            shape = info.layer_end - info.layer_begin, n, heads
            k = np.zeros((*shape, max((layer.k_dim for layer in layers), default=0)), np.float32)
            v = np.zeros((*shape, max((layer.v_dim for layer in layers), default=0)), np.float32)
        _capi.kvc_debug_get_kv(self._handle, seq, begin, end, k, v, self.plan._stream(None))
        return k, v

    def debug_set_kv(
        self, seq: SupportsIndex, begin: SupportsIndex, k: Any = None, v: Any = None
    ) -> None:
        """Overwrite committed tokens with values as they are to be stored. Siblings keep theirs."""
        _capi.kvc_debug_set_kv(self._handle, seq, begin, k, v, self.plan._stream(None))

    def debug_get_layer(
        self,
        seq: SupportsIndex,
        layer: SupportsIndex,
        begin: SupportsIndex = 0,
        end: SupportsIndex | None = None,
        k: Any = None,
        v: Any = None,
    ) -> tuple[Any, Any]:
        """k and v [n, heads, dim] of one layer; v is None where the layer has none. Cross layers count encoder tokens."""
        info = self.plan.layer(layer)
        if info.kind == "shared":
            info = self.plan.layer(info.source_layer)
        if end is None and info.kind == "cross":
            end = int(_capi.kvc_seq_info_get(self._handle, seq)["cross_length"])
        begin, end, n = self._range(seq, begin, end)
        if k is None and v is None:
            if info.kind == "mla":
                k = np.empty((n, 1, info.latent_rank + info.latent_rope_dim), np.float32)
            else:
                k = np.empty((n, info.num_kv_heads, info.k_dim), np.float32)
                if not info.flags & _capi.KVC_LAYER_V_IS_K:
                    v = np.empty((n, info.num_kv_heads, info.v_dim), np.float32)
        stream = self.plan._stream(None)
        _capi.kvc_debug_get_layer(self._handle, seq, layer, begin, end, k, v, stream)
        return k, v

    def debug_set_layer(
        self,
        seq: SupportsIndex,
        layer: SupportsIndex,
        begin: SupportsIndex,
        k: Any = None,
        v: Any = None,
    ) -> None:
        """Overwrite committed tokens of one layer."""
        _capi.kvc_debug_set_layer(self._handle, seq, layer, begin, k, v, self.plan._stream(None))

    def debug_get_mla(
        self,
        seq: SupportsIndex,
        begin: SupportsIndex = 0,
        end: SupportsIndex | None = None,
        latent: Any = None,
    ) -> Any:
        """latent [layers, n, rank + rope dim] of the MLA layers."""
        begin, end, n = self._range(seq, begin, end)
        if latent is None:
            info, layers = self.plan.info, self._layers("mla")
            width = max((layer.latent_rank + layer.latent_rope_dim for layer in layers), default=0)
            latent = np.zeros((info.layer_end - info.layer_begin, n, width), np.float32)
        _capi.kvc_debug_get_mla(self._handle, seq, begin, end, latent, self.plan._stream(None))
        return latent

    def debug_set_mla(self, seq: SupportsIndex, begin: SupportsIndex, latent: Any) -> None:
        """Overwrite committed latents."""
        _capi.kvc_debug_set_mla(self._handle, seq, begin, latent, self.plan._stream(None))

    def debug_get_state(
        self, seq: SupportsIndex, layer: SupportsIndex, state: SupportsIndex, out: Any
    ) -> Any:
        """The recurrent state of a sequence at its committed length: out [shape...]."""
        _capi.kvc_debug_get_state(self._handle, seq, layer, state, out, self.plan._stream(None))
        return out

    def debug_set_state(
        self, seq: SupportsIndex, layer: SupportsIndex, state: SupportsIndex, value: Any
    ) -> None:
        """Replace it; checkpoints and other sequences keep theirs."""
        _capi.kvc_debug_set_state(self._handle, seq, layer, state, value, self.plan._stream(None))
