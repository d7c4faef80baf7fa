"""Answers of the library as plain objects. Field names are those of kvcache.h."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeVar

from .names import LAYER_KINDS, QUANTS, word_of
from .tensors import dtype_name

__all__ = ["PlanInfo", "GroupInfo", "LayerInfo", "Stats", "SeqInfo", "DeviceCaps"]

T = TypeVar("T")


def made(kind: type[T], given: dict[str, Any]) -> T:
    """A struct of the library as an object; fields that a newer library adds are left out."""
    return kind(**{f.name: given[f.name] for f in fields(kind)})  # type: ignore[arg-type]


@dataclass(frozen=True)
class PlanInfo:
    """A plan as numbers.

    page_size: tokens per page of the widest layer group.
    num_layers: layers of the whole model.
    layer_begin: first layer of the slice that is kept here.
    layer_end: behind the last layer of the slice.
    num_groups: layer groups, each with a page table per sequence.
    num_layer_regions: regions of a page that layer_first keeps apart.
    num_pages: pages of the pool; 0: none were asked for.
    page_bytes: bytes of one page, all layers of the slice.
    bytes_per_token: bytes of one token, all layers of the slice.
    pool_bytes: num_pages * page_bytes.
    max_tokens: tokens that all pages hold together while no window has dropped any.
    max_seq_len: tokens of the longest single sequence.
    state_slot_bytes: bytes of the recurrent state of one sequence, all state layers; 0: none.
    num_state_slots: recurrent states kept at most; 0: no limit.
    state_slot_pages: pages that a state takes out of use; 0: states have memory of their own.
    prefix_block: tokens of a block of the prefix index.
    forwards_in_flight: forwards whose tokens a window keeps.
    num_host_pages: pages that host_byte_budget holds.
    request_pages: pages of one request of max_seq_len tokens.
    concurrency: requests of max_seq_len tokens that num_pages hold at once.
    waste: share of such a request's bytes that is padding or lies behind its last token, 0 to 1.
    cos_sin_bytes_per_token: beside the pool, for every token in sight: cos and sin of layers that
        rotate K on read.
    host_bytes: upper bound of Stats.host_bytes of a cache that is full, with max_seqs sequences
        that share no page and forwards of max_tokens_per_forward tokens, each as many as the pages
        allow where it is 0. 0: no pages.
    """

    page_size: int
    num_layers: int
    layer_begin: int
    layer_end: int
    num_groups: int
    num_layer_regions: int
    num_pages: int
    page_bytes: int
    bytes_per_token: int
    pool_bytes: int
    max_tokens: int
    max_seq_len: int
    state_slot_bytes: int
    num_state_slots: int
    state_slot_pages: int
    prefix_block: int
    forwards_in_flight: int
    num_host_pages: int
    request_pages: int
    concurrency: float
    waste: float
    cos_sin_bytes_per_token: int
    host_bytes: int


@dataclass(frozen=True)
class GroupInfo:
    """A layer group: layers that see the same keys and share a page table.

    num_layers: its layers.
    is_cross: 1: it counts encoder tokens.
    window: of its layers, tokens; 0: none.
    chunk: of its layers, tokens; 0: none.
    page_bytes: bytes that its layers use of a page.
    padding_bytes: bytes of a page that they leave unused.
    page_size: tokens per page.
    first_layer: number of its first layer in the slice; -1: none here.
    request_pages: its part of `PlanInfo.request_pages`.
    bytes_per_token: bytes of one token, its layers.
    keep_tokens: kept rows (`Layer.keep_tokens`): its tables end after so many tokens; 0: they have
        all.
    """

    num_layers: int
    is_cross: int
    window: int
    chunk: int
    page_bytes: int
    padding_bytes: int
    page_size: int
    first_layer: int
    request_pages: int
    bytes_per_token: int
    keep_tokens: int


@dataclass(frozen=True)
class LayerInfo:
    """A layer as planned, defaults filled in.

    kind: as in `Layer`.
    group: layer group whose page table it reads; -1: none.
    num_q_heads: query heads.
    num_kv_heads: key and value heads.
    k_dim: elements of a key head.
    v_dim: elements of a value head.
    k_dtype: storage type of K; None: keeps none.
    v_dtype: storage type of V; None: keeps none.
    page_bytes: bytes of its part of one page.
    k_page_bytes: of these, K; V follows.
    v_page_bytes: of these, V.
    bytes_per_token: bytes of one token.
    window: keys that a query sees; 0: all.
    chunk: tokens of a chunk; 0: none.
    source_layer: "shared": the layer whose K and V are read; else -1.
    latent_rank: "mla": elements of the latent.
    latent_rope_dim: "mla": elements behind the latent that rotate.
    flags: KVC_LAYER_* bits; 1: the row of K is the row of V too.
    num_states: recurrent states.
    region: region of a page where the layer lies; -1: none.
    state_bytes: bytes of all its states, one sequence.
    region_bytes: bytes of that region in one page.
    region_offset: byte of the region where the layer's part begins.
    quant: quantised storage of K, as in `Layer`.
    page_size: tokens per page of its group; 0: keeps no pages.
    k_scale_bytes: bytes of K's scales in one page, behind V; 0: none.
    v_scale_bytes: bytes of V's scales in one page; 0: none.
    v_quant: quantised storage of V; "none": it is not quantised.
    keep_tokens: leading tokens that are kept unquantised.
    kept_group: page table of their rows; -1: keep_tokens is 0.
    """

    kind: str
    group: int
    num_q_heads: int
    num_kv_heads: int
    k_dim: int
    v_dim: int
    k_dtype: str | None
    v_dtype: str | None
    page_bytes: int
    k_page_bytes: int
    v_page_bytes: int
    bytes_per_token: int
    window: int
    chunk: int
    source_layer: int
    latent_rank: int
    latent_rope_dim: int
    flags: int
    num_states: int
    region: int
    state_bytes: int
    region_bytes: int
    region_offset: int
    quant: str
    page_size: int
    k_scale_bytes: int
    v_scale_bytes: int
    v_quant: str
    keep_tokens: int
    kept_group: int


def layer_info(given: dict[str, Any]) -> LayerInfo:
    words = dict(
        given,
        kind=word_of(LAYER_KINDS, given["kind"]),
        quant=word_of(QUANTS, given["quant"]),
        v_quant=word_of(QUANTS, given["v_quant"]),
        k_dtype=dtype_name(given["k_dtype"]),
        v_dtype=dtype_name(given["v_dtype"]),
    )
    return made(LayerInfo, words)


@dataclass(frozen=True)
class SeqInfo:
    """A sequence.

    length: committed tokens.
    first_position: first position that every layer group still keeps, sink tokens aside; -1: empty.
    last_position: last position that is kept; -1: empty.
    num_pages: pages held, all groups together.
    num_shared_pages: of these, held by other sequences too.
    window: of `Cache.set_window`; 0: none.
    sink: sink tokens of that window; 0: none.
    in_forward: 1: part of the open forward.
    num_checkpoints: positions below length with a recurrent state.
    tree_nodes: nodes of its token tree that are not committed.
    cross_length: encoder tokens.
    is_swapped: 1: swapped out; num_pages are the host's.
    known_tokens: leading tokens whose ids the cache knows.
    """

    length: int
    first_position: int
    last_position: int
    num_pages: int
    num_shared_pages: int
    window: int
    sink: int
    in_forward: int
    num_checkpoints: int
    tree_nodes: int
    cross_length: int
    is_swapped: int
    known_tokens: int


@dataclass(frozen=True)
class DeviceCaps:
    """What the library can do on a device.

    backend_present: 1: caches can be made on it.
    arch: CPU: number of the best instruction set; GPU: 10 * compute capability; 0: unknown.
    num_cores: CPU: hardware threads that this process may use.
    page_granularity: largest bytes in which memory of a pool is committed; 0: unknown.
    dtypes: storage types that attention reads, KVC_DTYPE_* bits.
    isas: CPU: bit i is set where instruction set i can be chosen.
    memory_bytes: physical memory; 0: unknown.
    memory_free_bytes: of these, free.
    name: of the device, for people.
    """

    backend_present: int
    arch: int
    num_cores: int
    page_granularity: int
    dtypes: int
    isas: int
    memory_bytes: int
    memory_free_bytes: int
    name: str


@dataclass(frozen=True)
class Stats:
    """Counters and sizes of a cache. Prefix counters count blocks unless they say tokens or pages.

    num_seqs: sequences.
    total_length: tokens of all sequences; a shared token counts once per sequence.
    pages_total: pages of the pool.
    pages_available: pages that no sequence, forward or pin holds.
    pages_used: pages held by sequences or the open forward.
    pages_shared: of these, held by more than one sequence.
    pages_peak: most pages_used so far.
    page_bytes: bytes of one page.
    pool_bytes: bytes of the pool.
    forwards: forwards that ended.
    forwards_aborted: forwards that were aborted.
    tokens_appended: tokens of the forwards that ended.
    pages_copied: pages copied because a branch wrote to a shared one (copy on write).
    no_pages: forwards refused with `NoPages`.
    step_bytes: bytes sent to the device by the last begin.
    step_copies: copies to the device by the last begin.
    state_slots_used: recurrent states and checkpoints kept.
    state_slot_bytes: bytes of one of them.
    tree_tokens: nodes of token trees that are not committed.
    cascades: shared prefixes read once for several sequences, all attention calls together.
    slots_unused: token slots of used pages behind the last token of their sequence.
    pages_indexed: pages that the prefix index knows, used ones too.
    pages_cached: of these, held by the index alone, so counted in pages_available.
    prefix_blocks: blocks in the index, on the device and on the host.
    prefix_blocks_host: of these, with pages on the host.
    prefix_pinned: pinned blocks.
    prefix_lookups: calls of `Prefix.attach`.
    prefix_query_tokens: tokens that they asked for.
    prefix_hit_tokens: tokens that they found.
    recent_query_tokens: tokens that the last 1,000 of them asked for.
    recent_hit_tokens: tokens that the last 1,000 of them found.
    prefix_stored: blocks that became part of the index.
    prefix_duplicates: blocks that were there already, whose pages the sequence took over.
    prefix_evicted: blocks that left the index for others.
    prefix_rejected: blocks that a quota kept out.
    prefix_demoted: pages that went to the host.
    prefix_promoted: pages that came back from it.
    host_pages_total: pages of the host pool.
    host_pages_used: of these, held by swapped sequences and the index.
    num_swapped_seqs: swapped sequences.
    pages_swapped_out: pages copied to the host by swaps.
    pages_swapped_in: pages copied back.
    copy_runs: contiguous copies that swaps and page copies were merged into.
    events_made: events so far.
    events_lost: events overwritten before they were polled.
    block_lifetime: evicted blocks by time in the index; number i counts 2**i to 2**(i + 1)
        milliseconds.
    block_idle: evicted blocks by time since their last use, likewise.
    block_reuse_gap: hits, one per attach that found something, by time since the use before of
        the last block that it found, likewise.
    cos_sin_bytes: cos and sin on the host, of layers that rotate K on read.
    values_saturated: elements of K and V that were clipped when they were stored with a scale of
        their tensor. The CPU alone counts them.
    state_slots_cached: states that the prefix index alone keeps; they give way to those of
        sequences.
    host_bytes: host memory that the library has allocated for this cache, all pages of a pool on
        the CPU and of the host pool included, whether they were written or not.
    """

    num_seqs: int
    total_length: int
    pages_total: int
    pages_available: int
    pages_used: int
    pages_shared: int
    pages_peak: int
    page_bytes: int
    pool_bytes: int
    forwards: int
    forwards_aborted: int
    tokens_appended: int
    pages_copied: int
    no_pages: int
    step_bytes: int
    step_copies: int
    state_slots_used: int
    state_slot_bytes: int
    tree_tokens: int
    cascades: int
    slots_unused: int
    pages_indexed: int
    pages_cached: int
    prefix_blocks: int
    prefix_blocks_host: int
    prefix_pinned: int
    prefix_lookups: int
    prefix_query_tokens: int
    prefix_hit_tokens: int
    recent_query_tokens: int
    recent_hit_tokens: int
    prefix_stored: int
    prefix_duplicates: int
    prefix_evicted: int
    prefix_rejected: int
    prefix_demoted: int
    prefix_promoted: int
    host_pages_total: int
    host_pages_used: int
    num_swapped_seqs: int
    pages_swapped_out: int
    pages_swapped_in: int
    copy_runs: int
    events_made: int
    events_lost: int
    block_lifetime: tuple[int, ...]
    block_idle: tuple[int, ...]
    block_reuse_gap: tuple[int, ...]
    cos_sin_bytes: int
    values_saturated: int
    state_slots_cached: int
    host_bytes: int

    @property
    def hit_rate(self) -> float:
        """Share of looked-up tokens that the prefix index had."""
        return self.prefix_hit_tokens / self.prefix_query_tokens if self.prefix_query_tokens else 0.0
