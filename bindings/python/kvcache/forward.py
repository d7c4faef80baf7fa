"""One step of a model over a batch of sequences."""

from __future__ import annotations

from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NamedTuple,
    NoReturn,
    SupportsIndex,
    TypedDict,
    TypeVar,
    overload,
)

import numpy as np

from . import _capi
from .errors import ArgumentTypeError, status_error, wrong_type
from .names import ACTIVATIONS, DECAYS, TABLE_KINDS, Activation, Decay, TableKind, number_of
from .tensors import SupportsDLPack, Tensor, empty_like, exported, shape_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .cache import Cache

__all__ = ["Forward", "AttnOptions", "DETERMINISTIC", "BATCH_INVARIANT", "NO_CASCADE"]

DETERMINISTIC: int = _capi.KVC_ATTN_DETERMINISTIC
BATCH_INVARIANT: int = _capi.KVC_ATTN_BATCH_INVARIANT
NO_CASCADE: int = _capi.KVC_ATTN_NO_CASCADE

# Looked up once: these run for every layer of every step.
_attn, _attn_self, _attn_cached, _kv_append = (
    _capi.kvc_attn,
    _capi.kvc_attn_self,
    _capi.kvc_attn_cached,
    _capi.kvc_kv_append,
)


class AttnOptions(NamedTuple):
    """Options of an attention call. Build one outside the loop when every layer has the same.

    For query position p, key position j and query head h:

        s = scale * (q . k), then soft_cap * tanh(s / soft_cap)
        s = s - alibi_slopes[h] * (p - j) + bias[h, p, j]
        out = sum(exp(s) * v) / (sum(exp(s)) + exp(sink_logits[h]))

    scale: factor on the scores; 0: 1 / sqrt(k_dim). MLA layers need one.
    soft_cap: bound of the scores (Gemma 2); 0: none.
    window: keys that a query sees in this call, at most the layer's own; 0: the layer's.
    sink_logits: float32 [num_q_heads], logits of one more term of the denominator (gpt-oss); None: none.
    alibi_slopes: float32 [num_q_heads]; None: none.
    bias: float32 [tokens, keys] or [num_q_heads, tokens, keys]; -inf masks a key; None: none.
    spans: int32 [n, 3] of (entry of the batch, begin, end): new tokens inside see the span to its
        end; None: none.
    flags: DETERMINISTIC, BATCH_INVARIANT, NO_CASCADE, joined by |.
    """

    scale: float = 0.0
    soft_cap: float = 0.0
    window: SupportsIndex = 0
    sink_logits: Any = None
    alibi_slopes: Any = None
    bias: Any = None
    spans: Any = None
    flags: int = 0


class AttnKeywords(TypedDict, total=False):
    """The fields of `AttnOptions` as keyword arguments."""

    scale: float
    soft_cap: float
    window: SupportsIndex
    sink_logits: Any
    alibi_slopes: Any
    bias: Any
    spans: Any
    flags: int


# What attention returns: of the package of q. For a kvcache.Tensor, which is of no package, NumPy's.
ArrayT = TypeVar("ArrayT", bound=SupportsDLPack)
NumpyArray = np.ndarray[Any, Any]


def _chosen(opt: AttnOptions | None, options: AttnKeywords) -> AttnOptions:
    unknown = options.keys() - set(AttnOptions._fields)
    if unknown:
        raise ArgumentTypeError(
            f"no attention options: {', '.join(sorted(unknown))}; "
            f"there are {', '.join(AttnOptions._fields)}"
        )
    if opt is not None and not isinstance(opt, AttnOptions):
        raise wrong_type("opt", "a kvcache.AttnOptions or None", opt)
    return (opt or AttnOptions())._replace(**options)


class Forward:
    """An open step. As a context manager it ends when the block is left, and is aborted when an exception leaves it.

    Tensors may be of any package with `__dlpack__`: q [tokens, num_q_heads, k_dim], k [tokens,
    num_kv_heads, k_dim], v [tokens, num_kv_heads, v_dim], the tokens of all sequences packed.
    Outputs that are not given are allocated in the package of `q`. `lse=True` also returns the
    logarithms of the sums: `out, lse`. Options of attention calls are keywords (`scale=`,
    `soft_cap=`, `window=`, `sink_logits=`, `alibi_slopes=`, `bias=`, `spans=`, `flags=`) or an
    `AttnOptions` as `opt=`.

    cache: the `Cache` of the step.
    seqs: its sequences, as they were given.
    num_tokens: new tokens of all sequences together.
    """

    __slots__ = ("_handle", "cache", "seqs", "num_tokens", "__weakref__")

    def __init__(self, cache: Cache, handle: Any, seqs: Any) -> None:
        self.cache = cache
        self.seqs = seqs
        self._handle = handle
        self.num_tokens: int = _capi.kvc_forward_num_tokens(handle)

    # ---- its end

    @property
    def is_open(self) -> bool:
        """Whether neither `end` nor `abort` was called, and the cache is open."""
        return bool(_capi.is_open(self._handle, "kvc_forward"))

    def end(self) -> None:
        """Make the new tokens part of their sequences.

        `InvalidState` where the library alone writes the pool and a layer got no K and V (see `Cache.forward`, `partial`); the step stays open.
        """
        _capi.kvc_forward_end(self._handle)

    def abort(self) -> None:
        """As if the step had not begun."""
        _capi.kvc_forward_abort(self._handle)

    def __enter__(self) -> Forward:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.is_open:
            return
        if kind is not None:
            self.abort()
            return
        try:
            self.end()
        except BaseException:
            self.abort()
            raise

    # ---- attention

    def _out(
        self, layer: SupportsIndex, q: Any, name: str = "q", value_dim: int = 0, heads: int = 0
    ) -> Any:
        plan = self.cache.plan
        info = plan._layers.get(layer) or plan.layer(layer)  # type: ignore[call-overload]
        dim = value_dim or (info.latent_rank if info.kind == "mla" else info.v_dim)
        shape = shape_of(q, name)
        if len(shape) != 3:
            raise status_error(6, f"{name}: shape {tuple(shape)}, expected [tokens, heads, dim]")
        return empty_like(q, (shape[0], heads or shape[1], dim))

    def _lse(self, q: Any, lse: Any) -> Any:
        return empty_like(q, tuple(shape_of(q, "q")[:2]), "float32") if lse is True else lse

    @overload
    def attn(
        self,
        layer: SupportsIndex,
        q: Tensor,
        k: Any = None,
        v: Any = None,
        out: None = None,
        lse: Any = None,
        opt: AttnOptions | None = None,
        **options: Unpack[AttnKeywords],
    ) -> Any: ...
    @overload
    def attn(
        self,
        layer: SupportsIndex,
        q: ArrayT,
        k: Any = None,
        v: Any = None,
        out: ArrayT | None = None,
        *,
        lse: Literal[True],
        opt: AttnOptions | None = None,
        **options: Unpack[AttnKeywords],
    ) -> tuple[ArrayT, Any]: ...
    @overload
    def attn(
        self,
        layer: SupportsIndex,
        q: ArrayT,
        k: Any = None,
        v: Any = None,
        out: ArrayT | None = None,
        lse: SupportsDLPack | Literal[False] | None = None,
        opt: AttnOptions | None = None,
        **options: Unpack[AttnKeywords],
    ) -> ArrayT: ...
    def attn(
        self,
        layer: SupportsIndex,
        q: Any,
        k: Any = None,
        v: Any = None,
        out: Any = None,
        lse: Any = None,
        opt: AttnOptions | None = None,
        **options: Unpack[AttnKeywords],
    ) -> Any:
        """Append k and v (when given), then attend: each new token sees everything up to itself."""
        if options:
            opt = _chosen(opt, options)
        if out is None:
            out = self._out(layer, q)
        if lse is True:
            lse = self._lse(q, lse)
            _attn(self._handle, layer, opt, q, k, v, out, lse)
            return out, lse
        _attn(self._handle, layer, opt, q, k, v, out, lse)
        return out

    @overload
    def attn_fused_qkv(
        self,
        layer: SupportsIndex,
        qkv: Tensor,
        out: None = None,
        opt: AttnOptions | None = None,
        **options: Unpack[AttnKeywords],
    ) -> Any: ...
    @overload
    def attn_fused_qkv(
        self,
        layer: SupportsIndex,
        qkv: ArrayT,
        out: ArrayT | None = None,
        opt: AttnOptions | None = None,
        **options: Unpack[AttnKeywords],
    ) -> ArrayT: ...
    def attn_fused_qkv(
        self,
        layer: SupportsIndex,
        qkv: Any,
        out: Any = None,
        opt: AttnOptions | None = None,
        **options: Unpack[AttnKeywords],
    ) -> Any:
        """`attn` on one packed tensor: q heads, then k heads, then v heads."""
        if options:
            opt = _chosen(opt, options)
        if out is None:
            out = self._out(layer, qkv, "qkv", heads=self.cache.plan.layer(layer).num_q_heads)
        _capi.kvc_attn_fused_qkv(self._handle, layer, opt, qkv, out)
        return out

    @overload
    def attn_self(
        self,
        layer: SupportsIndex,
        q: Tensor,
        k: Any,
        v: Any,
        out: None = None,
        lse: Any = None,
        opt: AttnOptions | None = None,
        **options: Unpack[AttnKeywords],
    ) -> Any: ...
    @overload
    def attn_self(
        self,
        layer: SupportsIndex,
        q: ArrayT,
        k: Any,
        v: Any,
        out: ArrayT | None = None,
        *,
        lse: Literal[True],
        opt: AttnOptions | None = None,
        **options: Unpack[AttnKeywords],
    ) -> tuple[ArrayT, Any]: ...
    @overload
    def attn_self(
        self,
        layer: SupportsIndex,
        q: ArrayT,
        k: Any,
        v: Any,
        out: ArrayT | None = None,
        lse: SupportsDLPack | Literal[False] | None = None,
        opt: AttnOptions | None = None,
        **options: Unpack[AttnKeywords],
    ) -> ArrayT: ...
    def attn_self(
        self,
        layer: SupportsIndex,
        q: Any,
        k: Any,
        v: Any,
        out: Any = None,
        lse: Any = None,
        opt: AttnOptions | None = None,
        **options: Unpack[AttnKeywords],
    ) -> Any:
        """Attention among the new tokens only; nothing is appended."""
        if options:
            opt = _chosen(opt, options)
        if out is None:
            out = self._out(layer, q, value_dim=self.cache.plan.layer(layer).v_dim)
        want, lse = lse is True, self._lse(q, lse)
        _attn_self(self._handle, layer, opt, q, k, v, out, lse)
        return (out, lse) if want else out

    @overload
    def attn_cached(
        self,
        layer: SupportsIndex,
        q: Tensor,
        out: None = None,
        lse: Any = None,
        opt: AttnOptions | None = None,
        **options: Unpack[AttnKeywords],
    ) -> Any: ...
    @overload
    def attn_cached(
        self,
        layer: SupportsIndex,
        q: ArrayT,
        out: ArrayT | None = None,
        *,
        lse: Literal[True],
        opt: AttnOptions | None = None,
        **options: Unpack[AttnKeywords],
    ) -> tuple[ArrayT, Any]: ...
    @overload
    def attn_cached(
        self,
        layer: SupportsIndex,
        q: ArrayT,
        out: ArrayT | None = None,
        lse: SupportsDLPack | Literal[False] | None = None,
        opt: AttnOptions | None = None,
        **options: Unpack[AttnKeywords],
    ) -> ArrayT: ...
    def attn_cached(
        self,
        layer: SupportsIndex,
        q: Any,
        out: Any = None,
        lse: Any = None,
        opt: AttnOptions | None = None,
        **options: Unpack[AttnKeywords],
    ) -> Any:
        """The new queries over the tokens that were cached before this step."""
        if options:
            opt = _chosen(opt, options)
        if out is None:
            out = self._out(layer, q)
        want, lse = lse is True, self._lse(q, lse)
        _attn_cached(self._handle, layer, opt, q, out, lse)
        return (out, lse) if want else out

    def attn_merge(self, out: Any, lse: Any, other_out: Any, other_lse: Any) -> None:
        """Merge two partial attentions over disjoint keys, in place into (out, lse)."""
        _capi.kvc_attn_merge(self._handle, out, lse, other_out, other_lse)

    @overload
    def attn_cross(
        self,
        layer: SupportsIndex,
        q: Tensor,
        k: Any = None,
        v: Any = None,
        out: None = None,
        lse: Any = None,
        opt: AttnOptions | None = None,
        **options: Unpack[AttnKeywords],
    ) -> Any: ...
    @overload
    def attn_cross(
        self,
        layer: SupportsIndex,
        q: ArrayT,
        k: Any = None,
        v: Any = None,
        out: ArrayT | None = None,
        *,
        lse: Literal[True],
        opt: AttnOptions | None = None,
        **options: Unpack[AttnKeywords],
    ) -> tuple[ArrayT, Any]: ...
    @overload
    def attn_cross(
        self,
        layer: SupportsIndex,
        q: ArrayT,
        k: Any = None,
        v: Any = None,
        out: ArrayT | None = None,
        lse: SupportsDLPack | Literal[False] | None = None,
        opt: AttnOptions | None = None,
        **options: Unpack[AttnKeywords],
    ) -> ArrayT: ...
    def attn_cross(
        self,
        layer: SupportsIndex,
        q: Any,
        k: Any = None,
        v: Any = None,
        out: Any = None,
        lse: Any = None,
        opt: AttnOptions | None = None,
        **options: Unpack[AttnKeywords],
    ) -> Any:
        """Every new token sees all encoder tokens of its sequence; k and v in the step that announced them."""
        if options:
            opt = _chosen(opt, options)
        if out is None:
            out = self._out(layer, q)
        want, lse = lse is True, self._lse(q, lse)
        _capi.kvc_attn_cross(self._handle, layer, opt, q, k, v, out, lse)
        return (out, lse) if want else out

    @overload
    def attn_shared_kv(
        self,
        source_layer: SupportsIndex,
        q: Tensor,
        out: None = None,
        lse: Any = None,
        opt: AttnOptions | None = None,
        **options: Unpack[AttnKeywords],
    ) -> Any: ...
    @overload
    def attn_shared_kv(
        self,
        source_layer: SupportsIndex,
        q: ArrayT,
        out: ArrayT | None = None,
        *,
        lse: Literal[True],
        opt: AttnOptions | None = None,
        **options: Unpack[AttnKeywords],
    ) -> tuple[ArrayT, Any]: ...
    @overload
    def attn_shared_kv(
        self,
        source_layer: SupportsIndex,
        q: ArrayT,
        out: ArrayT | None = None,
        lse: SupportsDLPack | Literal[False] | None = None,
        opt: AttnOptions | None = None,
        **options: Unpack[AttnKeywords],
    ) -> ArrayT: ...
    def attn_shared_kv(
        self,
        source_layer: SupportsIndex,
        q: Any,
        out: Any = None,
        lse: Any = None,
        opt: AttnOptions | None = None,
        **options: Unpack[AttnKeywords],
    ) -> Any:
        """Attention that reads another layer's K and V, for a layer that is not in the plan."""
        if options:
            opt = _chosen(opt, options)
        if out is None:
            out = self._out(source_layer, q)
        want, lse = lse is True, self._lse(q, lse)
        _capi.kvc_attn_shared_kv(self._handle, source_layer, opt, q, out, lse)
        return (out, lse) if want else out

    def kv_append(self, layer: SupportsIndex, k: Any, v: Any = None) -> None:
        """Write k [T, heads, k_dim] and v [T, heads, v_dim] into the slots of this step."""
        _kv_append(self._handle, layer, k, v)

    def mla_append(self, layer: SupportsIndex, latent: Any) -> None:
        """Write latents [T, rank + rope dim] into the slots of this step."""
        _capi.kvc_mla_append(self._handle, layer, latent)

    def gather(
        self, layer: SupportsIndex, seq: SupportsIndex, k_out: Any = None, v_out: Any = None
    ) -> None:
        """Copy a sequence's K and V of one layer, with the new tokens of this step, into the outputs that are given."""
        _capi.kvc_kv_gather(self._handle, layer, seq, k_out, v_out)

    # ---- recurrent state

    def state_get(self, layer: SupportsIndex, state: SupportsIndex, out: Any) -> Any:
        """The state of every sequence as it was before this step: out [B, shape...]."""
        _capi.kvc_state_get(self._handle, layer, state, out)
        return out

    def state_set(self, layer: SupportsIndex, state: SupportsIndex, value: Any) -> None:
        """The state of every sequence after this step: value [B, shape...]."""
        _capi.kvc_state_set(self._handle, layer, state, value)

    def attn_linear(
        self,
        layer: SupportsIndex,
        q: Any,
        k: Any,
        v: Any,
        out: Any,
        log_decay: Any = None,
        beta: Any = None,
        *,
        decay: Decay = "none",
        delta: bool = False,
        scale: float = 0.0,
        state: SupportsIndex = 0,
        skip: Any = None,
    ) -> Any:
        """Linear attention over the new tokens; `decay` says what `log_decay` is given per."""
        opt = (_capi.KVC_LINEAR_DELTA if delta else 0, number_of(DECAYS, decay, "decay"), state, scale, skip)
        _capi.kvc_attn_linear(self._handle, layer, opt, q, k, v, log_decay, beta, out)
        return out

    def state_conv(
        self,
        layer: SupportsIndex,
        state: SupportsIndex,
        x: Any,
        weight: Any,
        out: Any,
        bias: Any = None,
        activation: Activation = "none",
    ) -> Any:
        """Causal depthwise convolution over the new tokens; its last inputs are the state."""
        _capi.kvc_state_conv(
            self._handle, layer, state, x, weight, bias, number_of(ACTIVATIONS, activation, "activation"), out
        )
        return out

    # ---- what the host's own kernels need

    def positions(self, out: Any = None) -> Any:
        """Position of each new token, as RoPE takes it: int32 [T]. On a GPU `out` has to be given."""
        if out is None:
            out = np.empty(self.num_tokens, np.int32)
        _capi.kvc_forward_positions(self._handle, out)
        return out

    def page_table(self, kind: TableKind = "indices", group: SupportsIndex = 0) -> Tensor:
        """The page tables of the batch with the new tokens, a read-only snapshot."""
        return exported(
            _capi.kvc_export_page_table(self._handle, group, number_of(TABLE_KINDS, kind, "kind"))
        )

    def __reduce__(self) -> NoReturn:
        raise ArgumentTypeError(
            "a kvcache.Forward cannot be pickled or copied: it is a step of one cache"
        )

    def __repr__(self) -> str:
        return f"<kvcache.Forward {'open' if self.is_open else 'ended'}, {len(self.seqs)} sequences, {self.num_tokens} tokens>"
