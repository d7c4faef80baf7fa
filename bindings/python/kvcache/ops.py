"""The kernels over pools and page tables of your own: no cache, nothing is kept.

Tensors lie on the CPU, or all on one GPU, where `stream` is as in `Cache`: None is PyTorch's current one where PyTorch is imported.
"""

from __future__ import annotations

from typing import Any, NamedTuple, SupportsIndex

from . import _capi
from .config import Rope
from .devices import stream_address
from .errors import wrong_type
from .forward import AttnOptions
from .names import DECAYS, ISAS, OP_LAYOUTS, QUANTS, Decay, Isa, OpLayout, Quant, number_of

__all__ = [
    "Pool",
    "Table",
    "append",
    "attention_paged",
    "attention_ragged",
    "mla_paged",
    "merge",
    "gather",
    "copy_pages",
    "rotate",
    "quantize",
    "dequantize",
    "linear_step",
]


class Pool(NamedTuple):
    """One layer's pool of pages.

    k: keys. "hnd": [pages, heads, page_size, dim], "nhd": [pages, page_size, heads, dim], "mla":
        latents [pages, page_size, width].
    v: values in the same layout; None in "mla", or where the keys are the values.
    layout: "hnd", "nhd" or "mla".
    quant: "none"; or, on the CPU, "per_tensor" or "per_token_head" with k and v of int8,
        float8_e4m3fn or float8_e5m2.
    k_scale: "per_tensor": value = element * scale; 0: 1.
    v_scale: the same of V; 0 where v is None.
    k_scales: "per_token_head": float32, "hnd": [pages, heads, page_size], "nhd": [pages, page_size,
        heads], "mla": [pages, page_size]. Appends write them.
    v_scales: the same of V; None where v is.
    """

    k: Any
    v: Any = None
    layout: OpLayout = "hnd"
    quant: Quant = "none"
    k_scale: float = 0.0
    v_scale: float = 0.0
    k_scales: Any = None
    v_scales: Any = None

    def _c(self) -> tuple[Any, ...]:
        return (
            self.k,
            self.v,
            self.k_scales,
            self.v_scales,
            number_of(OP_LAYOUTS, self.layout, "layout"),
            number_of(QUANTS, self.quant, "quant"),
            self.k_scale,
            self.v_scale,
        )


class Table(NamedTuple):
    """Page tables of B sequences, int32: CSR (page_indptr, page_indices) or padded (block_table).

    seq_lens: [B], keys of each sequence, the new ones included.
    qo_indptr: [B + 1], where the rows of q of each sequence begin; None: one row each.
    page_indptr: [B + 1], where the pages of each sequence begin in page_indices.
    page_indices: pages of all sequences, packed.
    block_table: [B, most pages of one sequence]; what lies behind a sequence's pages is not read.
    """

    seq_lens: Any
    qo_indptr: Any = None
    page_indptr: Any = None
    page_indices: Any = None
    block_table: Any = None


def _pool(pool: Pool) -> tuple[Any, ...]:
    if not isinstance(pool, Pool):
        raise wrong_type("pool", "a kvcache.ops.Pool", pool)
    return pool._c()


def _table(table: Table) -> tuple[Any, ...]:
    if not isinstance(table, Table):
        raise wrong_type("table", "a kvcache.ops.Table", table)
    return table


def _opt(
    tensor: Any,
    stream: Any,
    isa: Isa,
    full: bool = False,
    attn: AttnOptions | None = None,
    positions: Any = None,
    rope: Rope | None = None,
) -> tuple[Any, ...]:
    if rope is not None and not isinstance(rope, Rope):
        raise wrong_type("rope", "a kvcache.Rope", rope)
    device = getattr(tensor, "__dlpack_device__", None)
    return (
        number_of(ISAS, isa, "isa"),
        int(full),
        attn,
        positions,
        None if rope is None else rope.as_dict(),
        stream_address(stream, device and device()),
    )


def append(
    pool: Pool,
    slots: Any,
    k: Any,
    v: Any = None,
    *,
    positions: Any = None,
    rope: Rope | None = None,
    isa: Isa = "auto",
    stream: Any = None,
) -> None:
    """Write k and v to `slots` int64 [T] = page * page_size + offset; below 0: skip."""
    chosen = _opt(k, stream, isa, positions=positions, rope=rope)
    _capi.kvc_op_append(_pool(pool), chosen, slots, k, v)


def attention_paged(
    pool: Pool,
    table: Table,
    q: Any,
    out: Any,
    lse: Any = None,
    *,
    full: bool = False,
    opt: AttnOptions | None = None,
    positions: Any = None,
    rope: Rope | None = None,
    isa: Isa = "auto",
    stream: Any = None,
) -> Any:
    """Attention of q [T, q_heads, k_dim] over pages; `full`: every row sees all keys, else causal."""
    chosen = _opt(q, stream, isa, full, opt, positions, rope)
    _capi.kvc_op_attention_paged(_pool(pool), _table(table), chosen, q, out, lse)
    return out


def attention_ragged(
    qo_indptr: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any = None,
    *,
    kv_indptr: Any = None,
    full: bool = False,
    opt: AttnOptions | None = None,
    isa: Isa = "auto",
    stream: Any = None,
) -> Any:
    """Attention of packed q over packed k and v; the indptr cut them into sequences."""
    _capi.kvc_op_attention_ragged(qo_indptr, kv_indptr, _opt(q, stream, isa, full, opt), q, k, v, out, lse)
    return out


def mla_paged(
    pool: Pool,
    table: Table,
    latent_rank: SupportsIndex,
    q: Any,
    out: Any,
    lse: Any = None,
    *,
    opt: AttnOptions,
    full: bool = False,
    positions: Any = None,
    rope: Rope | None = None,
    isa: Isa = "auto",
    stream: Any = None,
) -> Any:
    """Absorbed MLA over a pool of layout "mla"; opt.scale must be given."""
    chosen = _opt(q, stream, isa, full, opt, positions, rope)
    _capi.kvc_op_mla_paged(_pool(pool), _table(table), latent_rank, chosen, q, out, lse)
    return out


def merge(out: Any, lse: Any, other_out: Any, other_lse: Any, *, isa: Isa = "auto", stream: Any = None) -> None:
    """Merge two partial attentions over disjoint keys, in place into (out, lse)."""
    _capi.kvc_op_merge(_opt(out, stream, isa), out, lse, other_out, other_lse)


def gather(
    pool: Pool,
    table: Table,
    k_out: Any = None,
    v_out: Any = None,
    *,
    isa: Isa = "auto",
    stream: Any = None,
) -> None:
    """Copy all keys of the table's sequences, packed in their order, quantised ones as their values."""
    _capi.kvc_op_gather(_pool(pool), _table(table), _opt(pool.k, stream, isa), k_out, v_out)


def copy_pages(pool: Pool, pairs: Any, *, isa: Isa = "auto", stream: Any = None) -> None:
    """Copy pages inside a pool, with their scales: pairs int64 [n, 2] of (from, to)."""
    _capi.kvc_op_copy_pages(_pool(pool), _opt(pool.k, stream, isa), pairs)


def rotate(x: Any, out: Any, positions: Any, rope: Rope, *, isa: Isa = "auto", stream: Any = None) -> Any:
    """Rotate x [T, heads, dim] into out, which may be x."""
    _capi.kvc_op_rotate(_opt(x, stream, isa, positions=positions, rope=rope), x, out)
    return out


def quantize(x: Any, out: Any, scales: Any, quant: Quant, *, isa: Isa = "auto") -> int:
    """Store x [T, heads, dim] as a cache with this `Layer.quant` stores it; on the CPU.

    out: [T, heads, dim] of int8, float8_e4m3fn or float8_e5m2 (ml_dtypes, PyTorch, or bytes under a name
        by `as_dtype`).
    scales: float32. "per_token_head": [T, heads], written. "per_tensor": [1], read.

    Returns how many elements were clipped to the ends of the type's range, infinities among them. With
    "per_token_head" none are.
    """
    chosen = _opt(x, None, isa)
    clipped: int = _capi.kvc_op_quantize(chosen, number_of(QUANTS, quant, "quant"), x, out, scales)
    return clipped


def dequantize(x: Any, scales: Any, out: Any, quant: Quant, *, isa: Isa = "auto") -> Any:
    """Compute out = x * scale, what `quantize` made of rows [T, heads, dim]; on the CPU.

    scales: float32, [T, heads] with "per_token_head", [1] with "per_tensor".
    out: [T, heads, dim] of float32, float16 or bfloat16.
    """
    _capi.kvc_op_dequantize(_opt(x, None, isa), number_of(QUANTS, quant, "quant"), x, scales, out)
    return out


def linear_step(
    states: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    log_decay: Any = None,
    beta: Any = None,
    *,
    qo_indptr: Any = None,
    decay: Decay = "none",
    delta: bool = False,
    scale: float = 0.0,
    skip: Any = None,
    isa: Isa = "auto",
    stream: Any = None,
) -> Any:
    """Linear attention over states [B, H, Dk, Dv], updated in place."""
    linear = (_capi.KVC_LINEAR_DELTA if delta else 0, number_of(DECAYS, decay, "decay"), 0, scale, skip)
    _capi.kvc_op_linear_step(linear, _opt(q, stream, isa), qo_indptr, states, q, k, v, log_decay, beta, out)
    return out
