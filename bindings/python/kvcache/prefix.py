"""The prefix index of a cache: prompts that begin alike share pages. And what it tells to routers: events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, SupportsIndex, TypedDict

from . import _capi
from .errors import ArgumentTypeError, type_name, wrong_type
from .names import EVENT_TYPES, TIERS, word_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Prefix", "PrefixKey", "prefix_hash", "Event", "Events", "ADAPTER", "MEDIA", "USER"]

ADAPTER: int = _capi.KVC_PREFIX_KEY_ADAPTER
MEDIA: int = _capi.KVC_PREFIX_KEY_MEDIA
USER: int = _capi.KVC_PREFIX_KEY_USER
HASH_BYTES: int = _capi.KVC_HASH_BYTES


class PrefixKey(NamedTuple):
    """More than tokens that K and V depend on: an adapter, an image, or something of the host's own.

    type: ADAPTER, MEDIA, or USER and above for kinds of your own; not 0.
    offset: first token that the key belongs to; blocks before it are not changed by the key.
    data: what tells one from another, at most 4096 bytes.
    """

    type: int
    offset: int = 0
    data: bytes = b""


class Query(TypedDict, total=False):
    """What a query may say besides its tokens.

    salt: the namespace, for example a tenant, at most 4096 bytes; nothing is shared across.
    keys: more that K and V depend on.
    hashes: keys of the leading full blocks, as `prefix_hash` makes them, so that they are not
        computed again.
    num_tokens: the first so many of `tokens` count; where tokens is None, how many the hashes stand
        for.
    all_tokens: True: the last token may hit as well.
    whole_blocks: True: nothing hits inside a block.
    priority: of the blocks, 0 to 100; higher stays longer.
    """

    salt: bytes
    keys: Iterable[PrefixKey]
    hashes: Sequence[bytes] | None
    num_tokens: SupportsIndex | None
    all_tokens: bool
    whole_blocks: bool
    priority: SupportsIndex


def _tuples(keys: Any) -> tuple[tuple[Any, ...], ...]:
    try:
        return tuple(tuple(key) for key in keys)
    except TypeError:
        raise ArgumentTypeError(
            f"keys: expected kvcache.PrefixKey objects in a row, got {type_name(keys)}"
        ) from None


def _joined(hashes: Any) -> bytes:
    try:
        return b"".join(hashes)
    except TypeError:
        raise wrong_type("hashes", "bytes objects in a row", hashes) from None


def _query(
    tokens: Any,
    *,
    salt: bytes = b"",
    keys: Iterable[PrefixKey] = (),
    hashes: Sequence[bytes] | None = None,
    num_tokens: SupportsIndex | None = None,
    all_tokens: bool = False,
    whole_blocks: bool = False,
    priority: SupportsIndex = 0,
) -> tuple[Any, ...]:
    flags = (_capi.KVC_PREFIX_ALL_TOKENS if all_tokens else 0) | (
        _capi.KVC_PREFIX_WHOLE_BLOCKS if whole_blocks else 0
    )
    return (
        tokens,
        num_tokens,
        None if hashes is None else _joined(hashes),
        None if salt == b"" else salt,
        _tuples(keys),
        flags,
        priority,
    )


def prefix_hash(
    tokens: Any, block_tokens: SupportsIndex, salt: bytes = b"", keys: Iterable[PrefixKey] = ()
) -> list[bytes]:
    """Keys of the full blocks of `tokens`: the same in every process and language."""
    joined = _capi.kvc_prefix_hash(tokens, block_tokens, salt, _tuples(keys))
    return [joined[i : i + HASH_BYTES] for i in range(0, len(joined), HASH_BYTES)]


class Prefix:
    """`cache.prefix`. A query is the tokens of a prompt, and by keyword what `Query` lists: the namespace `salt`, extra `keys`, ...

    Unless `all_tokens`, the last token never hits, so that it is there to be computed. Calls return how many tokens they found.
    """

    __slots__ = ("_handle",)

    def __init__(self, handle: Any) -> None:
        self._handle = handle  # not the cache, which has this object: no cycle

    def __reduce__(self) -> NoReturn:
        raise ArgumentTypeError(f"a {type_name(self)} cannot be pickled: it belongs to a cache")

    def match(self, tokens: Any, **query: Unpack[Query]) -> int:
        """Leading tokens that `attach` would find now."""
        return int(_capi.kvc_prefix_match(self._handle, _query(tokens, **query)))

    def attach(self, seq: SupportsIndex, tokens: Any, **query: Unpack[Query]) -> int:
        """Add `seq` with the longest hit, which is its length then (0: nothing hit; the sequence is added all the same)."""
        return int(_capi.kvc_prefix_attach(self._handle, seq, _query(tokens, **query)))

    def insert(self, seq: SupportsIndex, tokens: Any, **query: Unpack[Query]) -> int:
        """Say that the first tokens of `seq` are these, and publish their full blocks; returns how many are in the index now."""
        return int(_capi.kvc_prefix_insert(self._handle, seq, _query(tokens, **query)))

    def pin(self, tokens: Any, **query: Unpack[Query]) -> int:
        """Keep the full blocks of the query that are in the index from being evicted; counts."""
        return int(_capi.kvc_prefix_pin(self._handle, _query(tokens, **query)))

    def unpin(self, tokens: Any, **query: Unpack[Query]) -> int:
        """Undo one `pin` of the same query."""
        return int(_capi.kvc_prefix_unpin(self._handle, _query(tokens, **query)))

    def evict(self, pages: SupportsIndex) -> int:
        """Evict until so many pages have left the index, or nothing evictable is left; returns how many did."""
        return int(_capi.kvc_prefix_evict(self._handle, pages))

    def reset(self) -> None:
        """Forget the whole index (new weights)."""
        _capi.kvc_prefix_reset(self._handle)

    def set_quota(self, salt: bytes, max_bytes: SupportsIndex) -> None:
        """Keep what the index holds for a namespace within so many bytes; 0: no quota."""
        _capi.kvc_prefix_quota_set(self._handle, salt, max_bytes)


@dataclass(frozen=True)
class Event:
    """A change of what the index holds.

    number: 1, 2, 3, ... since the cache was made; a gap: events were lost, take a snapshot.
    type: "stored", "removed", "moved" or "cleared".
    tier: where the block is: "device" or "host".
    from_tier: "moved": where it was.
    group: layer group of the pages; -1: the recurrent state at the block's end.
    num_tokens: tokens of the block.
    tokens: "stored": their ids; None when they are unknown.
    hash: key of the block.
    parent: "stored": key of the block before, or the root of the namespace.
    """

    number: int
    type: str
    tier: str
    from_tier: str
    group: int
    num_tokens: int
    tokens: tuple[int, ...] | None
    hash: bytes
    parent: bytes

    @classmethod
    def _from(cls, given: tuple[Any, ...]) -> Event:
        number, kind, tier, from_tier, *rest = given
        return cls(number, word_of(EVENT_TYPES, kind), word_of(TIERS, tier), word_of(TIERS, from_tier), *rest)


class Events:
    """`cache.events`: for caches with `event_capacity`."""

    __slots__ = ("_handle",)

    def __init__(self, handle: Any) -> None:
        self._handle = handle  # not the cache, which has this object: no cycle

    def __reduce__(self) -> NoReturn:
        raise ArgumentTypeError(f"a {type_name(self)} cannot be pickled: it belongs to a cache")

    def poll(self) -> list[Event]:
        """All events since the last poll, in order. A gap in their numbers: some were lost, take a snapshot."""
        events: list[Event] = []
        while found := _capi.kvc_events_poll(self._handle):
            events.extend(Event._from(event) for event in found)
        return events

    def snapshot(self) -> tuple[list[Event], int]:
        """Everything that the index holds as stored events, and the number of the last event that they include."""
        found, number = _capi.kvc_events_snapshot(self._handle)
        return [Event._from(event) for event in found], number
