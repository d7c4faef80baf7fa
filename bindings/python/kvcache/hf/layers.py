# SPDX-License-Identifier: Apache-2.0
"""The layers that transformers sees: lengths, views and mask sizes as its own dynamic layers have them."""

from __future__ import annotations

import weakref

import torch

from . import compat
from .specs import IMAGE, LayerSpec


OF_IMAGE = "_kvcache_of_image"  # Set on K of an image: every query sees all of it.


def owner_of(layer):
    """The cache whose pages a layer reads."""
    cache = layer._cache()
    if cache is None:
        raise ReferenceError("the cache of this layer is gone, and with it the pages; keep the PagedCache, not its layers alone")
    return cache


class KVLayer(compat.CacheLayerMixin):
    """K and V of one layer, kept in the pages of the cache that owns it."""

    is_compileable = False
    is_croppable = True
    supports_early_init = False

    def __init__(self, cache, spec: LayerSpec):
        # Not the base class's __init__: it sets keys and values, which are read from pages here.
        self._cache = weakref.ref(cache)
        self.spec = spec
        self.seen = 0  # tokens given so far, padding included

    @property
    def is_sliding(self) -> bool:
        return self.spec.view > 0

    @property
    def is_initialized(self) -> bool:
        return self.seen > 0

    @property
    def sliding_window(self) -> int:
        return self.spec.view

    @property
    def record_past(self) -> bool:
        return self._owner.record_past

    @property
    def _owner(self):
        return owner_of(self)

    @property
    def keys(self):
        return self._owner._stored(self.spec.index)[0]

    @keys.setter
    def keys(self, changed) -> None:
        self._owner._overwrite(self.spec.index, keys=changed)

    @property
    def values(self):
        return self._owner._stored(self.spec.index)[1]

    @values.setter
    def values(self, changed) -> None:
        self._owner._overwrite(self.spec.index, values=changed)

    def lazy_initialization(self, key_states, value_states=None) -> None:
        """Nothing to do: the pages are planned when the first tokens come."""

    def update(self, key_states, value_states, *args, **kwargs):
        return self._owner._update(self.spec.index, key_states, value_states)

    def first_kept(self, length: int) -> int:
        return max(length - self.spec.view + 1, 0) if self.spec.view else 0

    def get_mask_sizes(self, query_length) -> tuple[int, int]:
        offset = self.first_kept(self.seen)
        return self.seen - offset + compat.query_length(query_length), offset

    def get_seq_length(self, *_) -> int:
        return self.seen

    def get_max_length(self) -> int:
        return self.spec.view or -1

    get_max_cache_shape = get_max_length

    def offload(self) -> None:
        raise NotImplementedError("kvcache.hf: layers cannot be offloaded; swap sequences instead")

    prefetch = offload

    def _whole(self, *_, **__):
        raise NotImplementedError("kvcache.hf: call this on the cache, all layers change together")

    reset = crop = reorder_cache = batch_repeat_interleave = batch_select_indices = _whole


_NO_STATE = frozenset(("_cache", "spec", "seen"))


def _copied(value):
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(_copied, value))
    return value


class EmptyLayer(compat.DummyLayer or object):
    """A layer that keeps nothing: an MLP, or one that reads the K and V of another."""

    if compat.DummyLayer is None:
        is_compileable = False
        is_sliding = False
        is_croppable = True
        seen = 0

        def get_mask_sizes(self, query_length):
            return compat.query_length(query_length), 0

        def get_seq_length(self, *_):
            return 0

        def get_max_cache_shape(self):
            return -1


class ImageLayer(EmptyLayer):
    """K and V of an image (Mllama), in PyTorch tensors: they do not grow with the text. Without an image the model leaves it out."""

    def __init__(self):
        super().__init__()
        self.reset()

    def update(self, key_states, value_states, *_, **__):
        if self.is_initialized:  # a further image
            key_states, value_states = (torch.cat(both, dim=-2) for both in ((self.keys, key_states), (self.values, value_states)))
        self.keys, self.values, self.is_initialized = key_states, value_states, True
        setattr(self.keys, OF_IMAGE, True)
        return self.keys, self.values

    def get_seq_length(self, *_) -> int:
        return self.keys.shape[-2] if self.is_initialized else 0

    def reset(self) -> None:
        self.keys = self.values = None
        self.is_initialized = False

    def activate_past_recording(self) -> None:
        """Nothing: text is taken back without it."""

    def state(self) -> tuple:
        return self.keys, self.values

    def set_state(self, state: tuple) -> None:
        self.keys, self.values = state
        self.is_initialized = self.keys is not None

    def copy_states(self, other) -> None:
        other.set_state(self.state())

    def _rows(self, change) -> None:
        if self.is_initialized:
            self.keys, self.values = change(self.keys), change(self.values)
            setattr(self.keys, OF_IMAGE, True)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._rows(lambda states: states.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices) -> None:
        self._rows(lambda states: states[indices, ...])


if compat.LinearAttentionLayer is not None:

    class StateLayer(compat.LinearAttentionLayer):
        """Recurrent states of one layer. They stay in torch tensors, one row per batch row."""

        # Its states are held in place for CUDA graphs by the base class; ours change rows with the batch.
        is_compileable = False

        def _rows(self, change) -> None:
            for states in (self.conv_states, self.recurrent_states):
                for index, value in states.items():
                    if value is not None:
                        states[index] = change(value)

        def batch_repeat_interleave(self, repeats: int) -> None:
            self._rows(lambda value: value.repeat_interleave(repeats, dim=0))

        def batch_select_indices(self, indices) -> None:
            self._rows(lambda value: value[indices, ...])

        @property
        def is_used(self) -> bool:
            return any(self.is_conv_states_initialized.values()) or any(self.is_recurrent_states_initialized.values())

        def copy_states(self, other) -> None:
            """Give another layer the same states, in tensors of its own."""
            for name in ("conv_states", "recurrent_states"):
                setattr(other, name, {index: None if value is None else value.clone() for index, value in getattr(self, name).items()})
            for name in ("is_conv_states_initialized", "is_recurrent_states_initialized", "has_previous_state", "conv_kernel_size"):
                setattr(other, name, dict(getattr(self, name)))
            other.device, other.dtype, other.record_past = self.device, self.dtype, self.record_past

        def state(self) -> dict:
            """All that a forward may change, copied: models write into the tensors."""
            return {name: _copied(value) for name, value in self.__dict__.items() if name not in _NO_STATE}

        def set_state(self, state: dict) -> None:
            for name in self.__dict__.keys() - state.keys() - _NO_STATE:
                delattr(self, name)
            self.__dict__.update(state)

        def reset(self) -> None:
            self.__init__(self.number_of_states)

    class HybridLayer(StateLayer, KVLayer):
        """A layer with both: attention over pages, states in torch tensors."""

        supports_early_init = False

        def __init__(self, cache, spec: LayerSpec):
            KVLayer.__init__(self, cache, spec)
            compat.LinearAttentionLayer.__init__(self, number_of_states=spec.num_states)

        def lazy_initialization(self, *args, **kwargs) -> None:
            if kwargs:
                compat.LinearAttentionLayer.lazy_initialization(self, **kwargs)

        def update(self, key_states, value_states, *args, **kwargs):
            return KVLayer.update(self, key_states, value_states)

        @property
        def is_used(self) -> bool:
            return self.seen > 0

        get_max_length = KVLayer.get_max_length
        is_croppable = False
        record_past = False

        def reset(self) -> None:
            compat.LinearAttentionLayer.__init__(self, number_of_states=self.spec.num_states)


else:  # version 4 keeps states in a cache class per model: make_layers refuses such layers

    class StateLayer:
        """Never made."""

    class HybridLayer(StateLayer):
        """Never made."""


# Layers that keep tensors beside the pages.
TENSOR_LAYERS = (StateLayer, ImageLayer)


def make_layers(cache, specs: list[LayerSpec]) -> list:
    layers = []
    for spec in specs:
        if spec.has_state and compat.LinearAttentionLayer is None:
            raise NotImplementedError(
                f"config: layer {spec.index} ({spec.type}) keeps a recurrent state, which needs transformers 5"
            )
        if spec.has_state and spec.has_attention:
            layers.append(HybridLayer(cache, spec))
        elif spec.has_attention:
            layers.append(KVLayer(cache, spec))
        elif spec.has_state:
            layers.append(StateLayer(number_of_states=spec.num_states))
        elif spec.type == IMAGE:
            layers.append(ImageLayer())
        else:
            layers.append(EmptyLayer())
    return layers
