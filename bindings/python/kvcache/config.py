"""What to plan: layers, their rotations and states, and the limits of a cache."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypedDict

from . import _capi
from .devices import device_of
from .errors import ArgumentTypeError, integer, wrong_type
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

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

__all__ = ["Rope", "State", "Layer", "Config"]


class _Keywords:
    """Fields are given by name: `Layer(8, 2, 64)` would say nothing to its reader."""

    _example = ""

    def __new__(cls, *values: Any, **fields: Any) -> Self:
        if values:
            raise ArgumentTypeError(
                f"{cls.__name__}: fields are given by name, as in {cls._example}; "
                f"got {values[0]!r} without one"
            )
        return object.__new__(cls)


@dataclass(frozen=True, kw_only=True)
class Rope(_Keywords):
    """Rotary embedding (RoPE) of a layer. Fields are given by name; 0 is the default of a number.

    Where a layer has a mode other than "none", q and k are handed over unrotated. Pair i at
    position p turns by p * scale * theta**(-2i / rotary_dim) / freq_factors[i], as `scaling`
    changes it further.

    mode: "on_append" stores K rotated, "on_read" stores it unrotated and rotates whenever it is
        read (sinks need that), "none" rotates nothing.
    style: pairs are (i, i + rotary_dim / 2) in "half" (Llama, NeoX), (2i, 2i + 1) in "interleaved"
        (GPT-J).
    rotary_dim: elements of a head that turn, even, at most k_dim; 0: k_dim.
    theta: base of the frequencies, above 0; 0: 10000.
    scale: factor on the position; 0: 1. Linear scaling by n is 1 / n.
    freq_factors: rotary_dim / 2 divisors of the frequencies, above 0; None: 1 each.
    scaling: "none", "llama3", "yarn" or "longrope".
    sections: pairs of each section of M-RoPE, 2 to 4 numbers that add up to rotary_dim / 2; ():
        none.
    section_layout: "contiguous" (Qwen2-VL) or "interleaved" (Qwen3-VL).
    factor: llama3, yarn: above 0. longrope: 0, or the longest context / original_context.
    low_freq_factor: llama3: above 0; 0: 1.
    high_freq_factor: llama3: above low_freq_factor; 0: 4.
    beta_fast: yarn: turns in original_context from which on a pair is left unchanged; 0: 32.
    beta_slow: yarn: turns below which a pair is divided by factor; 0: 1.
    attention_factor: multiplies the turned elements, above 0; 0: what yarn and longrope say, else
        1.
    original_context: llama3, yarn, longrope: tokens that the model was trained with.
    long_freq_factors: longrope: divisors for sequences longer than original_context.
    """

    _example = "Rope(theta=500000.0)"

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
    """One recurrent state of a "state" layer.

    shape: of one sequence, 1 to 8 dimensions of at least 1.
    dtype: storage type: "float32", "float16" or "bfloat16".
    init: value of an empty sequence, a tensor on the host of that shape and dtype; None: zeros.
    """

    shape: Sequence[int]
    dtype: Any = "float32"
    init: Any = None

    def as_dict(self) -> dict[str, Any]:
        """In the words of the C interface."""
        shape = [integer(n, "shape") for n in _items(self.shape, "shape", "integers")]
        return {"shape": shape, "dtype": dtype_code(self.dtype), "init": self.init}


def _items(given: Any, name: str, what: str) -> list[Any]:
    """The items of a field that holds several."""
    try:
        return list(given)
    except TypeError:
        raise wrong_type(name, f"a sequence of {what}", given) from None


def _quant_of_v(number: int) -> Any:
    """`Layer.v_quant` of what the C interface says."""
    if number == 0:
        return None
    return "none" if number == _capi.KVC_QUANT_OFF else word_of(QUANTS, number)


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
    "keep_tokens",
)


@dataclass(frozen=True, kw_only=True)
class Layer(_Keywords):
    """One layer of the model. Fields are given by name; 0 is the default of a number.

        Layer(num_q_heads=32, num_kv_heads=8, k_dim=128)          # K and V per token
        Layer(kind="mla", num_q_heads=128, latent_rank=512, latent_rope_dim=64)

    kind: "attention" (K and V per token), "mla" (one latent row per token), "cross" (K and V of an
        encoder's tokens), "state" (recurrent state), "shared" (reads the K and V of source_layer),
        "none" (keeps nothing).
    num_q_heads: query heads, a multiple of num_kv_heads; 0: num_kv_heads.
    num_kv_heads: key and value heads, at least 1; 0 in "mla", and in "shared" for the source's.
    k_dim: elements of a key (and query) head, 1 to 512.
    v_dim: elements of a value (and output) head, 1 to 512; 0: k_dim.
    dtype: storage type of K, and of V without v_dtype: a name ("float16"), or a type of NumPy,
        ml_dtypes or PyTorch; None: bfloat16. With quant: "float8_e4m3fn", "float8_e5m2", "int8",
        "int4", "float4_e2m1fn".
    v_dtype: storage type of V; None: dtype.
    rope: rotation of q and k; None: none, or the model's own.
    window: a query at position p sees the keys p - window + 1 to p; 0: all.
    chunk: a query at position p sees the keys from p // chunk * chunk on (Llama 4); 0: all.
    source_layer: "shared": number of the layer whose K and V are read, smaller than this one's.
    latent_rank: "mla": elements of the latent, which are the value too.
    latent_rope_dim: "mla": elements behind the latent that rotate, even.
    v_is_k: True: the row of K is the row of V too and is stored once.
    quant: quantised storage: "none", "per_tensor" (float8, int8: one scale for K and one for V),
        "per_token_head" (float8, int8, int4: a scale per token and head) or "block16" (float4: one
        per 16 elements). The CPU attends to types of 8 bits. It keeps those of 4 bits in "borrowed"
        and "none" storage only, where the host's own kernels attend.
    states: "state": its recurrent states, 1 to 16.
    k_scale: "per_tensor": value of K = stored element * k_scale, above 0; 0: 1. Other layers: 0.
        What does not fit is clipped; Stats.values_saturated counts it.
    v_scale: the same of V.
    v_quant: quantised storage of V apart from K, "none" included; None: as quant. v_dtype is then
        its type, and bfloat16 where that is None and V is not quantised.
    keep_tokens: quantised "attention" and "mla" layers: so many leading tokens of a sequence, the
        attention sinks, are kept in bfloat16; 0: none.
    """

    _example = "Layer(num_q_heads=8, num_kv_heads=2, k_dim=64)"

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
    k_scale: float = 0.0
    v_scale: float = 0.0
    v_quant: Quant | None = None
    keep_tokens: int = 0

    def as_dict(self, name: str = "layer") -> dict[str, Any]:
        """In the words of the C interface; `name` is what messages call the layer."""
        given: dict[str, Any] = {
            key: integer(getattr(self, key), f"{name}.{key}") for key in _LAYER_NUMBERS
        }
        given["kind"] = number_of(LAYER_KINDS, self.kind, f"{name}.kind")
        given["quant"] = number_of(QUANTS, self.quant, f"{name}.quant")
        if self.v_quant is not None:
            apart = number_of(QUANTS, self.v_quant, f"{name}.v_quant")
            given["v_quant"] = apart or _capi.KVC_QUANT_OFF
        given["flags"] = _capi.KVC_LAYER_V_IS_K if self.v_is_k else 0
        given["k_scale"], given["v_scale"] = self.k_scale, self.v_scale
        if self.dtype is not None:
            given["k_dtype"] = dtype_code(self.dtype)
        if self.v_dtype is not None:
            given["v_dtype"] = dtype_code(self.v_dtype)
        if self.rope is not None:
            if not isinstance(self.rope, Rope):
                raise wrong_type(f"{name}.rope", "a kvcache.Rope", self.rope)
            given["rope"] = self.rope.as_dict()
        states = _items(self.states, f"{name}.states", "kvcache.State")
        for index, state in enumerate(states):
            if not isinstance(state, State):
                raise wrong_type(f"{name}.states[{index}]", "a kvcache.State", state)
        if states:
            given["states"] = [state.as_dict() for state in states]
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
            k_scale=given["k_scale"],
            v_scale=given["v_scale"],
            v_quant=_quant_of_v(given["v_quant"]),
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
        what = "a dict, JSON text, a path, or an object with to_dict()"
        raise wrong_type("model_config", what, model)
    return json.dumps(model, default=str)


class Limits(TypedDict, total=False):
    """The fields of a `Config` but for its layers, as keyword arguments."""

    page_size: int
    num_pages: int
    byte_budget: int
    host_byte_budget: int
    max_seqs: int
    max_seq_len: int
    max_tokens_per_forward: int
    forwards_in_flight: int
    layer_begin: int
    layer_end: int
    storage: Storage
    pool_layout: PoolLayout
    pool_tensors: Sequence[Any] | None
    num_threads: int
    cpu_isa: Isa
    max_cross_len: int
    state_stride: int
    num_state_slots: int
    event_capacity: int
    cp_size: int
    pad_pages: bool
    clear_pages: bool
    no_huge_pages: bool
    device: Any
    poison: bool


class ModelLimits(Limits, total=False):
    """The keyword arguments of `Config.from_hf`."""

    dtype: Any
    rope: bool
    assume: str | None
    mtp_layers: int


@dataclass(frozen=True)
class Config:
    """What to plan: layers, and limits of the cache. 0 is the default of a number.

    Give num_pages, byte_budget or pool_tensors; without one of them the plan answers questions but
    makes no cache. On a GPU (`device`) the caller's thread alone works: num_threads is 0 or 1 and
    cpu_isa "auto".

    layers: the `Layer`s of the whole model, at least one.
    page_size: tokens per page, 1 to 65536; 0: 16.
    num_pages: pages of the pool.
    byte_budget: bytes of everything that sequences keep, instead of num_pages.
    host_byte_budget: bytes of host memory for swapped sequences and demoted prefix pages; 0: none.
    max_seqs: sequences of one forward at most; 0: no limit.
    max_seq_len: tokens of the longest sequence; 0: what the pages hold.
    max_tokens_per_forward: new tokens of one forward at most; 0: no limit.
    forwards_in_flight: at most 64. Where max_tokens_per_forward is set too, layers' windows keep their
        product more tokens, so that so many can be popped. 0: they keep none, and the plan counts 1.
    layer_begin: first layer of the pipeline slice that is kept here.
    layer_end: behind the last layer of the slice; both 0: all layers.
    storage: "owned" (memory of the library), "borrowed" (pool_tensors) or "none" (bookkeeping
        only).
    pool_layout: "layer_first" (fastest to read) or "page_first" (one copy moves a page).
    pool_tensors: "borrowed": tensors that are the pool; dimension 0 counts pages.
    num_threads: CPU threads including the caller's; 0: one per core.
    cpu_isa: instruction set: "auto", "reference", "scalar", "avx2", "avx512" or "avx512_bf16".
    max_cross_len: encoder tokens of one sequence at most; 0: no limit.
    state_stride: tokens between automatic checkpoints of recurrent state; 0: page_size; -1: none.
    num_state_slots: recurrent states kept at most, checkpoints included; 0: as many as memory
        holds.
    event_capacity: events kept for `cache.events`, at most 2**24; 0: none are made.
    cp_size: context parallel ranks that the tokens of a sequence are dealt out over; 0: 1. For plans
        alone: a cache takes 0 or 1.
    pad_pages: True: every layer group has page_size tokens per page, and narrow ones are padded.
    clear_pages: True: pages and state slots are zeroed before another sequence gets them.
    no_huge_pages: True: memory is committed in the system's small pages. A cache of the library's
        own memory on the CPU alone.
    device: "cpu", "cuda", "cuda:1", (type, id) as in DLPack, or a torch.device; None: the CPU.
    poison: for tests: a pool of the library starts as bytes 0xFF, which is NaN in every format.
    """

    layers: Sequence[Layer]
    _: KW_ONLY
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
    cp_size: int = 0
    pad_pages: bool = False
    clear_pages: bool = False
    no_huge_pages: bool = False
    device: Any = None
    poison: bool = False
    _kept: list[Tensor] = field(default_factory=list, init=False, repr=False, compare=False)

    @classmethod
    def from_hf(
        cls,
        model_config: Any,
        *,
        dtype: Any = None,
        rope: bool = True,
        assume: str | None = None,
        mtp_layers: int = 0,
        **limits: Unpack[Limits],
    ) -> Config:
        """The layers of a Hugging Face model: of a `config.json` (path, text, or dict) or a transformers configuration object.

        Storage is of the model's dtype. `dtype` stores all attention layers in another one; `rope=False` leaves rotations to the model, which
        then hands over rotated q and k. `max_seq_len` is the model's unless given (0: what the pages hold). `assume` names the family whose
        rules read a model_type that is not known: "llama" for a plain decoder. `mtp_layers` layers of multi-token prediction are appended, at most
        those of the model.
        """
        if assume is not None and not isinstance(assume, str):
            raise wrong_type("assume", "the name of a model_type", assume)
        mtp_layers = integer(mtp_layers, "mtp_layers")
        given = _capi.config_from_hf(_model_json(model_config), assume, mtp_layers)
        layers = [Layer._from_dict(layer) for layer in given["layers"]]
        if dtype is not None:
            layers = [
                replace(layer, dtype=dtype, v_dtype=None, quant="none")
                if layer.kind != "state"
                else layer
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
                "cp_size",
                "poison",
            )
        }
        given["device"] = device_of(self.device)
        layers = _items(self.layers, "layers", "kvcache.Layer")
        for index, layer in enumerate(layers):
            if not isinstance(layer, Layer):
                raise wrong_type(f"layers[{index}]", "a kvcache.Layer", layer)
        given["layers"] = [layer.as_dict(f"layers[{index}]") for index, layer in enumerate(layers)]
        given["storage"] = number_of(STORAGES, self.storage, "storage")
        given["pool_layout"] = number_of(POOL_LAYOUTS, self.pool_layout, "pool_layout")
        given["cpu_isa"] = number_of(ISAS, self.cpu_isa, "cpu_isa")
        given["flags"] = (
            (_capi.KVC_CONFIG_PAD_PAGES if self.pad_pages else 0)
            | (_capi.KVC_CONFIG_CLEAR_PAGES if self.clear_pages else 0)
            | (_capi.KVC_CONFIG_NO_HUGE_PAGES if self.no_huge_pages else 0)
        )
        if self.pool_tensors is not None:
            pool = _items(self.pool_tensors, "pool_tensors", "tensors")
            for index, tensor in enumerate(pool):
                if not hasattr(tensor, "__dlpack__"):
                    name = f"pool_tensors[{index}]"
                    raise wrong_type(name, "a tensor, which has __dlpack__", tensor)
            self._kept[:] = [
                tensor if isinstance(tensor, Tensor) else Tensor(tensor) for tensor in pool
            ]
            given["pool_tensors"] = list(self._kept)
        return given


def config_of(
    given: Any, model_config: Any, fields: Mapping[str, Any], name: str, expected: str
) -> Config:
    """The one configuration that a constructor was given: an object, fields, or a model and limits.

    `name`: what messages call the object; `expected`: its type.
    """
    if given is not None:
        if model_config is not None or fields:
            raise ArgumentTypeError(
                f"give {expected}, or model_config and fields of a config, not both"
            )
        if not isinstance(given, Config):
            raise wrong_type(name, expected, given)
        return given
    known = (ModelLimits if model_config is not None else Limits).__annotations__
    unknown = fields.keys() - known.keys() - {"layers"}
    if unknown:
        names = ", ".join(sorted(unknown))
        raise ArgumentTypeError(f"no fields of a config: {names}; there are {', '.join(known)}")
    if model_config is not None:
        if "layers" in fields:
            raise ArgumentTypeError("give layers or model_config, not both")
        return Config.from_hf(model_config, **fields)
    if "layers" not in fields:
        raise ArgumentTypeError(
            f"give {expected}, or layers=[kvcache.Layer(...), ...], or model_config="
        )
    return Config(**fields)
