"""What to plan: layers, their rotations and states, and the limits of a cache."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from . import _capi
from .devices import device_of
from .names import (
    ISAS,
    LAYER_KINDS,
    POOL_LAYOUTS,
    QUANTS,
    ROPE_MODES,
    ROPE_SCALINGS,
    ROPE_STYLES,
    SECTION_LAYOUTS,
    STORAGES,
    Isa,
    LayerKind,
    PoolLayout,
    Quant,
    RopeMode,
    RopeScaling,
    RopeStyle,
    SectionLayout,
    Storage,
    number_of,
    word_of,
)
from .tensors import Tensor, dtype_code, dtype_name

__all__ = ["Rope", "State", "Layer", "Config"]


@dataclass(frozen=True)
class Rope:
    """Rotary embedding of a layer; see kvc_rope in kvcache.h. Zeros are the defaults that it names."""

    mode: RopeMode = "on_append"
    style: RopeStyle = "half"
    rotary_dim: int = 0
    theta: float = 0.0
    scale: float = 0.0
    freq_factors: Sequence[float] | None = None
    scaling: RopeScaling = "none"
    sections: Sequence[int] = ()
    section_layout: SectionLayout = "contiguous"
    factor: float = 0.0
    low_freq_factor: float = 0.0
    high_freq_factor: float = 0.0
    beta_fast: float = 0.0
    beta_slow: float = 0.0
    attention_factor: float = 0.0
    original_context: int = 0
    long_freq_factors: Sequence[float] | None = None

    def as_dict(self) -> dict[str, Any]:
        """In the words of the C interface."""
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        given["mode"] = number_of(ROPE_MODES, self.mode, "rope.mode")
        given["style"] = number_of(ROPE_STYLES, self.style, "rope.style")
        given["scaling"] = number_of(ROPE_SCALINGS, self.scaling, "rope.scaling")
        given["section_layout"] = number_of(SECTION_LAYOUTS, self.section_layout, "rope.section_layout")
        given["num_sections"] = len(self.sections)
        given["sections"] = list(self.sections)[:4]  # more are refused by their number
        for name in ("freq_factors", "long_freq_factors"):
            given[name] = None if given[name] is None else [float(value) for value in given[name]]
        return given

    @classmethod
    def _from_dict(cls, given: Mapping[str, Any]) -> Rope:
        known = {f.name: given[f.name] for f in fields(cls) if f.name in given}
        known["mode"] = word_of(ROPE_MODES, given["mode"])
        known["style"] = word_of(ROPE_STYLES, given["style"])
        known["scaling"] = word_of(ROPE_SCALINGS, given["scaling"])
        known["section_layout"] = word_of(SECTION_LAYOUTS, given["section_layout"])
        known["sections"] = tuple(given["sections"][: given["num_sections"]])
        return cls(**known)


@dataclass(frozen=True)
class State:
    """One recurrent state of a "state" layer: its shape per sequence, and the value of an empty sequence (None: zeros)."""

    shape: Sequence[int]
    dtype: Any = "float32"
    init: Any = None

    def as_dict(self) -> dict[str, Any]:
        """In the words of the C interface."""
        return {"shape": [int(n) for n in self.shape], "dtype": dtype_code(self.dtype), "init": self.init}


_LAYER_NUMBERS = (
    "num_q_heads",
    "num_kv_heads",
    "k_dim",
    "v_dim",
    "window",
    "chunk",
    "source_layer",
    "latent_rank",
    "latent_rope_dim",
)


@dataclass(frozen=True)
class Layer:
    """One layer of the model; see kvc_layer in kvcache.h. `dtype` is the storage type of K, and of V unless `v_dtype` is given."""

    kind: LayerKind = "attention"
    num_q_heads: int = 0
    num_kv_heads: int = 0
    k_dim: int = 0
    v_dim: int = 0
    dtype: Any = None
    v_dtype: Any = None
    rope: Rope | None = None
    window: int = 0
    chunk: int = 0
    source_layer: int = 0
    latent_rank: int = 0
    latent_rope_dim: int = 0
    v_is_k: bool = False
    quant: Quant = "none"
    states: Sequence[State] = ()

    def as_dict(self) -> dict[str, Any]:
        """In the words of the C interface."""
        given: dict[str, Any] = {name: getattr(self, name) for name in _LAYER_NUMBERS}
        given["kind"] = number_of(LAYER_KINDS, self.kind, "layer.kind")
        given["quant"] = number_of(QUANTS, self.quant, "layer.quant")
        given["flags"] = _capi.KVC_LAYER_V_IS_K if self.v_is_k else 0
        if self.dtype is not None:
            given["k_dtype"] = dtype_code(self.dtype)
        if self.v_dtype is not None:
            given["v_dtype"] = dtype_code(self.v_dtype)
        if self.rope is not None:
            given["rope"] = self.rope.as_dict()
        if self.states:
            given["states"] = [state.as_dict() for state in self.states]
        return given

    @classmethod
    def _from_dict(cls, given: Mapping[str, Any]) -> Layer:
        states = tuple(
            State(tuple(state["shape"]), dtype_name(state["dtype"]) or "float32")
            for state in given.get("states", ())
        )
        return cls(
            kind=word_of(LAYER_KINDS, given["kind"]),  # type: ignore[arg-type]
            quant=word_of(QUANTS, given["quant"]),  # type: ignore[arg-type]
            dtype=dtype_name(given["k_dtype"]),
            v_dtype=dtype_name(given["v_dtype"]),
            v_is_k=bool(given["flags"] & _capi.KVC_LAYER_V_IS_K),
            rope=Rope._from_dict(given["rope"]) if "rope" in given else None,
            states=states,
            **{name: given[name] for name in _LAYER_NUMBERS},
        )


def _model_json(model: Any) -> str:
    """The text of a config.json: of a dict, a path to the file or its folder, JSON text, or an object with to_dict() (transformers)."""
    if isinstance(model, (str, os.PathLike)):
        text = os.fspath(model)
        if isinstance(text, str) and text.lstrip().startswith("{"):
            return text
        path = pathlib.Path(os.fsdecode(text))
        return (path / "config.json" if path.is_dir() else path).read_text(encoding="utf-8")
    if hasattr(model, "to_dict"):
        model = model.to_dict()
    if not isinstance(model, Mapping):
        raise TypeError(
            f"model_config: expected a dict, JSON text, a path, or an object with to_dict(), got {type(model).__name__}"
        )
    return json.dumps(model, default=str)


@dataclass(frozen=True)
class Config:
    """What to plan; see kvc_config in kvcache.h. Give `num_pages` or `byte_budget` (bytes of memory), or `pool_tensors` of your own.

    On a GPU (`device`) the caller's thread alone works: `num_threads` is 0 or 1 and `cpu_isa` "auto".
    """

    layers: Sequence[Layer]
    page_size: int = 0
    num_pages: int = 0
    byte_budget: int = 0
    host_byte_budget: int = 0
    max_seqs: int = 0
    max_seq_len: int = 0
    max_tokens_per_forward: int = 0
    forwards_in_flight: int = 0
    layer_begin: int = 0
    layer_end: int = 0
    storage: Storage = "owned"
    pool_layout: PoolLayout = "layer_first"
    pool_tensors: Sequence[Any] | None = None
    num_threads: int = 0
    cpu_isa: Isa = "auto"
    max_cross_len: int = 0
    state_stride: int = 0
    num_state_slots: int = 0
    event_capacity: int = 0
    pad_pages: bool = False
    device: Any = None  # "cuda:1", (type, id) as in DLPack, a torch.device; None: the CPU
    poison: bool = False  # tests: a pool that the library allocates starts as 0xFF bytes, NaN in every format
    _kept: list[Tensor] = field(default_factory=list, init=False, repr=False, compare=False)

    @classmethod
    def from_hf(cls, model_config: Any, **limits: Any) -> Config:
        """The layers of a Hugging Face model: of a `config.json` (path, text, or dict) or a transformers configuration object.

        Storage is of the model's dtype. `dtype` stores all attention layers in another one; `rope=False` leaves rotations to the model, which
        then hands over rotated q and k. `max_seq_len` is the model's unless given (0: what the pages hold).
        """
        dtype, rope = limits.pop("dtype", None), limits.pop("rope", True)
        given = _capi.config_from_hf_json(_model_json(model_config))
        layers = [Layer._from_dict(layer) for layer in given["layers"]]
        if dtype is not None:
            layers = [
                replace(layer, dtype=dtype, v_dtype=None) if layer.kind != "state" else layer
                for layer in layers
            ]
        if not rope:
            layers = [replace(layer, rope=None) for layer in layers]
        limits.setdefault("max_seq_len", given["max_seq_len"])
        if given["max_cross_len"]:
            limits.setdefault("max_cross_len", given["max_cross_len"])
        return cls(layers=layers, **limits)

    def as_dict(self) -> dict[str, Any]:
        """In the words of the C interface."""
        given: dict[str, Any] = {
            name: getattr(self, name)
            for name in (
                "page_size",
                "num_pages",
                "byte_budget",
                "host_byte_budget",
                "max_seqs",
                "max_seq_len",
                "max_tokens_per_forward",
                "forwards_in_flight",
                "layer_begin",
                "layer_end",
                "num_threads",
                "max_cross_len",
                "state_stride",
                "num_state_slots",
                "event_capacity",
                "poison",
            )
        }
        given["device"] = device_of(self.device)
        given["layers"] = [layer.as_dict() for layer in self.layers]
        given["storage"] = number_of(STORAGES, self.storage, "storage")
        given["pool_layout"] = number_of(POOL_LAYOUTS, self.pool_layout, "pool_layout")
        given["cpu_isa"] = number_of(ISAS, self.cpu_isa, "cpu_isa")
        given["flags"] = _capi.KVC_CONFIG_PAD_PAGES if self.pad_pages else 0
        if self.pool_tensors is not None:
            self._kept[:] = [
                tensor if isinstance(tensor, Tensor) else Tensor(tensor) for tensor in self.pool_tensors
            ]
            given["pool_tensors"] = list(self._kept)
        return given
