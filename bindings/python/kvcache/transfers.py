"""Transfers: sequences from one cache to another, of this process or of another machine."""

from __future__ import annotations

import atexit
import math
from dataclasses import dataclass
from typing import Any, NoReturn, SupportsIndex

from . import _capi
from .errors import ArgumentTypeError, status_error, type_name, wrong_type
from .info import made
from .names import TRANSFER_STATES, word_of

__all__ = ["Transfer", "TransferInfo", "Transport", "TransportStats"]


atexit.register(_capi.transfers_end)


def nanoseconds(name: str, seconds: float | None) -> int:
    """Seconds as the library takes them: None is for ever, -1."""
    if seconds is None:
        return -1
    try:
        value = float(seconds)
    except (TypeError, ValueError):
        raise wrong_type(name, "seconds or None", seconds) from None
    if math.isnan(value) or value < 0:
        raise status_error(1, f"{name}: {seconds!r} is no number of seconds, which is at least 0")
    return -1 if value > 1e9 else int(value * 1e9)  # thirty years


@dataclass(frozen=True)
class TransportStats:
    """Counters of a transport since it was opened.

    transfers_open: transfers that have not ended.
    transfers_done: transfers that were sent or have arrived.
    transfers_failed: the others.
    messages_sent: messages that went out.
    messages_received: messages that came in.
    bytes_sent: bytes of headers and payloads that went out.
    bytes_received: bytes that came in.
    messages_refused: messages for no open transfer, or out of place.
    messages_damaged: bytes that were no message.
    payloads_damaged: payloads that were incomplete, or had another digest.
    """

    transfers_open: int
    transfers_done: int
    transfers_failed: int
    messages_sent: int
    messages_received: int
    bytes_sent: int
    bytes_received: int
    messages_refused: int
    messages_damaged: int
    payloads_damaged: int


@dataclass(frozen=True)
class TransferInfo:
    """What a transfer does.

    state: "waiting" for the other side, "running", "arrived" (all of it is here and compared), "ending", "done" or "failed".
    status: why it has failed, a number of `kvc_status`; 0: it has not.
    is_receiving: whether this is the receiving side.
    chunks_total: parts that travel; 0 before both sides have met.
    chunks_done: parts that have.
    chunks_resent: parts that travelled again.
    bytes_total: bytes of all parts.
    bytes_done: bytes of those that have travelled.
    message: why it has failed; empty: it has not.
    peer_message: what the other side said; empty: nothing.
    """

    state: str
    status: int
    is_receiving: bool
    chunks_total: int
    chunks_done: int
    chunks_resent: int
    bytes_total: int
    bytes_done: int
    message: str
    peer_message: str


class Transport:
    """Moves sequences between caches: `Cache.receive` and `Cache.send` use it. "loopback" connects transports of one process,
    "ucx" those of processes and machines; its module lies beside the library or where `set_module_path` says.

    address: where peers reach it; None: one is made. idle, beat, drain, tombstone: seconds, 0 for the default; see
    `kvc_transport_desc`. manual: there is no thread, and the caller calls `progress`.
    """

    __slots__ = ("_handle", "__weakref__")

    def __init__(
        self,
        engine: str = "loopback",
        address: str | None = None,
        *,
        idle: float = 0,
        beat: float = 0,
        drain: float = 0,
        tombstone: float = 0,
        bytes_in_flight: SupportsIndex = 0,
        resend_rounds: SupportsIndex = 0,
        manual: bool = False,
    ) -> None:
        times = [nanoseconds(name, value) for name, value in (("idle", idle), ("beat", beat), ("drain", drain), ("tombstone", tombstone))]
        self._handle = _capi.kvc_transport_open((1 if manual else 0, engine, address, *times, bytes_in_flight, resend_rounds))

    @property
    def address(self) -> str:
        """Where peers reach it."""
        address: str = _capi.kvc_transport_address(self._handle)
        return address

    def stats(self) -> TransportStats:
        """Its counters."""
        return made(TransportStats, _capi.kvc_transport_stats_get(self._handle))

    def fileno(self) -> int:
        """A descriptor that is readable when `progress` has work, for select and asyncio; `manual` only."""
        fd: int = _capi.kvc_transport_fd(self._handle)
        return fd

    def progress(self, timeout: float | None = 0) -> None:
        """Do what is due, after waiting at most `timeout` seconds for something; `manual` only."""
        _capi.kvc_transport_progress(self._handle, nanoseconds("timeout", timeout))

    def close(self, timeout: float | None = None) -> None:
        """Take no new transfers, and wait for the open ones; `Timeout` when some were cancelled because the time was over."""
        _capi.kvc_transport_close(self._handle, nanoseconds("timeout", timeout))

    def __reduce__(self) -> NoReturn:
        raise ArgumentTypeError(f"a {type_name(self)} cannot be pickled: its connections are this process's")


class Transfer:
    """A sequence on its way, made by `Cache.receive` or `Cache.send`. One that is dropped before it has ended is cancelled."""

    __slots__ = ("_handle", "_cache", "__weakref__")

    def __init__(self, handle: Any, cache: Any) -> None:
        self._handle = handle
        self._cache = cache  # of a receiving one: the handle of its cache

    @property
    def ticket(self) -> bytes:
        """What the sender needs; only the receiving side has it. Of use once, and to be kept from strangers."""
        ticket: bytes = _capi.kvc_transfer_ticket(self._handle)
        return ticket

    def info(self) -> TransferInfo:
        """What it does; does not wait."""
        info = _capi.kvc_transfer_query(self._handle)
        return made(TransferInfo, {**info, "state": word_of(TRANSFER_STATES, info["state"]), "is_receiving": bool(info["is_receiving"])})

    def done(self) -> bool:
        """Whether it has arrived, is sent or has failed; does not wait."""
        return self.info().state in ("arrived", "done", "failed")

    def wait(self, timeout: float | None = None) -> None:
        """Wait until all is sent, or the sequence is an ordinary one of its cache.

        Other threads may use the cache meanwhile. `Timeout` when it is not over after `timeout` seconds; `PeerError`, `Cancelled`, `Corrupt`,
        `Unsupported` (another layout) and others say why it has failed. `Busy` while a forward is open.
        """
        _capi.kvc_fence_wait(_capi.kvc_transfer_fence(self._handle), nanoseconds("timeout", timeout))
        if self._cache is None:
            _capi.kvc_transfer_wait(self._handle, 0)
        else:
            _capi.transfer_settle(self._handle, self._cache)

    def cancel(self) -> None:
        """End it; the other side is told."""
        _capi.kvc_transfer_cancel(self._handle)

    def __reduce__(self) -> NoReturn:
        raise ArgumentTypeError(f"a {type_name(self)} cannot be pickled: it belongs to a cache")
