# SPDX-License-Identifier: Apache-2.0
"""What each layer of a transformers model keeps, read from its configuration."""

from __future__ import annotations

from dataclasses import dataclass, replace

# Layer types of transformers whose cache this package knows; others are refused by name.
FULL = "full_attention"
SLIDING = "sliding_attention"
CHUNKED = "chunked_attention"
LINEAR = ("linear_attention", "conv", "mamba")
HYBRID = ("hybrid", "hybrid_sliding")
EMPTY = ("dummy", "moe", "mlp")
IMAGE = "image_attention"  # Our word for layers that attend to an image (Mllama).

# Models whose recurrent layers do not mask padding: attention's result there reaches later tokens.
STATES_READ_PADDING = frozenset(("recurrent_gemma",))


@dataclass(frozen=True)
class LayerSpec:
    """One decoder layer: `type` is transformers' name, `window` and `chunk` are 0 when not used."""

    index: int
    type: str
    window: int = 0
    chunk: int = 0
    num_states: int = 1

    @property
    def has_attention(self) -> bool:
        return self.type in (FULL, SLIDING, CHUNKED, *HYBRID)

    @property
    def has_state(self) -> bool:
        return self.type in LINEAR or self.type in HYBRID

    @property
    def view(self) -> int:
        """Keys that transformers' dynamic layer would keep: 0 all, W the last W - 1. Chunked layers slide as well."""
        return self.window or self.chunk


@dataclass(frozen=True)
class Storage:
    """One entry of the plan. Kinds as in kvcache.h: attention, mla, cross, none."""

    kind: str
    q_heads: int = 0
    kv_heads: int = 0
    k_dim: int = 0
    v_dim: int = 0
    window: int = 0
    chunk: int = 0
    latent_rank: int = 0
    rope_dim: int = 0

    def without_mask(self) -> Storage:
        """Heads and dims alone."""
        return replace(self, window=0, chunk=0)


NO_STORAGE = Storage("none")


def decoder_config(config):
    """The configuration of the decoder of a composite model, or `config` itself."""
    get = getattr(config, "get_text_config", None)
    if get is None:
        raise TypeError(f"config: expected a transformers configuration, got {type(config).__name__}")
    return get(decoder=True)


def layer_config(config, index: int):
    """The configuration of one layer, where layers have their own."""
    layers = getattr(config, "per_layer_config", None)
    return layers[index] if layers is not None and index < len(layers) else config


def _num_layers(config) -> int:
    # A decoder that was taken out of an encoder-decoder (BartForCausalLM) has the encoder's number under the first name.
    names = ("num_hidden_layers", "decoder_layers")
    for name in names if getattr(config, "is_encoder_decoder", False) else reversed(names):
        value = getattr(config, name, None)
        if isinstance(value, int):
            return value
    raise ValueError(f"config: {type(config).__name__} has no num_hidden_layers")


def num_query_heads(config) -> int:
    """Query heads of a decoder; see _num_layers."""
    heads = None if getattr(config, "is_encoder_decoder", False) else getattr(config, "decoder_attention_heads", None)
    return heads or config.num_attention_heads


def _layer_types(config, count: int) -> list[str]:
    types = getattr(config, "layer_types", None)
    if types is None:
        types = []
        for index in range(count):
            one = layer_config(config, index)
            if getattr(one, "sliding_window", None) is not None:
                types.append(SLIDING)
            elif getattr(one, "attention_chunk_size", None) is not None:
                types.append(CHUNKED)
            else:
                types.append(FULL)
    types = list(types)[:count]
    modes = getattr(config, "kv_sharing_modes", None)
    if modes is not None:
        types = ["dummy" if mode == "reuse" else type_ for type_, mode in zip(types, modes)]
    else:
        shared = getattr(config, "num_kv_shared_layers", None) or 0
        if shared:
            types = types[:-shared] + ["dummy"] * shared
    return types


def layer_specs(config) -> list[LayerSpec]:
    """The layers of a decoder configuration, in the order of transformers' layer_idx."""
    count = _num_layers(config)
    crossing = getattr(config, "cross_attention_layers", None) or ()
    specs = []
    for index, type_ in enumerate(_layer_types(config, count)):
        if index in crossing:
            specs.append(LayerSpec(index, IMAGE))
            continue
        one = layer_config(config, index)
        window = chunk = 0
        if type_ in (SLIDING, "hybrid_sliding"):
            window = int(one.sliding_window)
            if window < 2:
                raise ValueError(f"config: sliding_window {window} of layer {index} is below 2")
        elif type_ == CHUNKED:
            chunk = int(one.attention_chunk_size)
        elif type_ not in (FULL, "hybrid", *LINEAR, *EMPTY):
            raise NotImplementedError(f"config: layer {index} is of type {type_!r}, which kvcache.hf does not serve")
        states = getattr(one, "number_of_conv_states", 1) or 1
        specs.append(LayerSpec(index, type_, window, chunk, states))
    return specs


def padding_reaches_states(config, specs: list[LayerSpec], real) -> bool:
    """Would the zeros that fused attention gives for padding change other tokens?

    `real`: bool [rows, tokens]; None: no padding.
    """
    if getattr(config, "model_type", None) not in STATES_READ_PADDING or real is None:
        return False
    return any(spec.has_state for spec in specs) and not bool(real.all())
