"""Tiers: blocks of the prefix index outside the process, in files or on servers that machines share."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, NoReturn, SupportsIndex

from . import _capi
from .errors import ArgumentTypeError, type_name
from .files import path_of
from .info import made
from .names import TIERS, OutsideTier, number_of

__all__ = ["Tiers", "TierStats"]


@dataclass(frozen=True)
class TierStats:
    """Counters of a tier since it was attached.

    blocks_put: blocks written.
    blocks_dropped: blocks not written, because the queue was full or the tier left alone.
    blocks_put_failed: blocks whose write failed.
    bytes_put: bytes written.
    lookups: questions which blocks are there.
    blocks_found: blocks that were there.
    blocks_got: blocks read.
    blocks_missed: blocks that were gone when they were read.
    blocks_corrupt: blocks whose bytes were damaged.
    blocks_timed_out: lookups and blocks that took too long.
    blocks_failed: lookups and blocks that failed otherwise.
    bytes_got: bytes read.
    waiting_bytes: bytes that wait to be written now.
    stored_bytes: bytes that the tier holds now, as far as it knows; 0 for servers.
    """

    blocks_put: int
    blocks_dropped: int
    blocks_put_failed: int
    bytes_put: int
    lookups: int
    blocks_found: int
    blocks_got: int
    blocks_missed: int
    blocks_corrupt: int
    blocks_timed_out: int
    blocks_failed: int
    bytes_got: int
    waiting_bytes: int
    stored_bytes: int


class Tiers:
    """`cache.tiers`. Blocks go there when they are published; `prefix.attach` brings back what the cache itself no longer has.

    A tier is a cache: whatever fails there is a miss, counted in `stats`. The modules libkvcache_tier_rocksdb.so and
    libkvcache_tier_redis.so lie beside the library or where `set_module_path` says; `Unsupported` names a missing one.
    """

    __slots__ = ("_handle",)

    def __init__(self, handle: Any) -> None:
        self._handle = handle  # not the cache, which has this object: no cycle

    def __reduce__(self) -> NoReturn:
        raise ArgumentTypeError(f"a {type_name(self)} cannot be pickled: it belongs to a cache")

    def attach_file(
        self,
        folder: str | os.PathLike[str],
        byte_limit: SupportsIndex,
        *,
        model_id: str | None = None,
        shard: SupportsIndex = 0,
        queue_bytes: SupportsIndex = 0,
        get_ms: SupportsIndex = 0,
    ) -> None:
        """Keep blocks in files, at most `byte_limit` bytes. One cache at a time uses a folder.

        `model_id`: the model and its weights. `shard`: the tensor-parallel rank. `queue_bytes`: memory for blocks that wait to be
        written; 0: 64 MiB. `get_ms`: how long a call waits for the tier, beside 8 ms per MiB; 0: 1000.
        """
        place = path_of(folder)
        desc = (TIERS["file"], shard, place, model_id, byte_limit, queue_bytes, get_ms, 0, 0, 0, None, None)
        _capi.kvc_tier_attach(self._handle, desc)

    def attach_redis(
        self,
        address: str,
        *,
        model_id: str | None = None,
        shard: SupportsIndex = 0,
        queue_bytes: SupportsIndex = 0,
        get_ms: SupportsIndex = 0,
        put_ms: SupportsIndex = 0,
        connect_ms: SupportsIndex = 0,
        ttl_s: SupportsIndex = 0,
        username: str | None = None,
        password: str | None = None,
    ) -> None:
        """Keep blocks on servers of the Redis protocol: "host:port", several separated by commas; a cluster is followed.

        `put_ms`, `connect_ms`: how long a write and a connection may take; 0: 1000. `ttl_s`: seconds that a block is kept; 0: until the
        server evicts it. The rest as `attach_file`.
        """
        desc = (TIERS["redis"], shard, address, model_id, 0, queue_bytes, get_ms, put_ms, connect_ms, ttl_s, username, password)
        _capi.kvc_tier_attach(self._handle, desc)

    def detach(self, tier: OutsideTier) -> None:
        """Write what waits, and close the tier."""
        _capi.kvc_tier_detach(self._handle, number_of(TIERS, tier, "tier"))

    def flush(self, timeout_ms: SupportsIndex = -1) -> None:
        """Wait until what was published so far is written or dropped; `Timeout` when it takes longer. Negative: as long as it takes."""
        _capi.kvc_tier_flush(self._handle, timeout_ms)

    def stats(self, tier: OutsideTier) -> TierStats:
        """The counters of an attached tier."""
        return made(TierStats, _capi.kvc_tier_stats_get(self._handle, number_of(TIERS, tier, "tier")))
