"""Answers of the library as plain objects. Field names and meanings are those of kvcache.h."""

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
    page_size: int
    num_layers: int
    layer_begin: int
    layer_end: int
    num_groups: int
    num_layer_slots: int
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


@dataclass(frozen=True)
class GroupInfo:
    num_layers: int
    is_cross: int
    window: int
    chunk: int
    page_bytes: int
    padding_bytes: int
    page_tokens: int
    first_layer: int
    request_pages: int
    bytes_per_token: int


@dataclass(frozen=True)
class LayerInfo:
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
    slot: int
    state_bytes: int
    slot_bytes: int
    slot_offset: int
    quant: str
    page_tokens: int
    k_scale_bytes: int
    v_scale_bytes: int


def layer_info(given: dict[str, Any]) -> LayerInfo:
    words = dict(
        given,
        kind=word_of(LAYER_KINDS, given["kind"]),
        quant=word_of(QUANTS, given["quant"]),
        k_dtype=dtype_name(given["k_dtype"]),
        v_dtype=dtype_name(given["v_dtype"]),
    )
    return made(LayerInfo, words)


@dataclass(frozen=True)
class SeqInfo:
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
    num_seqs: int
    total_length: int
    pages_total: int
    pages_free: int
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
    pages_cached: int
    pages_evictable: int
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

    @property
    def hit_rate(self) -> float:
        """Share of looked-up tokens that the prefix index had."""
        return self.prefix_hit_tokens / self.prefix_query_tokens if self.prefix_query_tokens else 0.0
