"""Events of a cache as the messages of vLLM's KV event stream: plain lists and dicts, no sockets.

The schema is vLLM's, read in vllm/distributed/kv_events.py; docs/events.md says what each field holds here.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .errors import InvalidArgument

if TYPE_CHECKING:
    from .prefix import Event

Values = dict[str, Any]  # fields of an event on the wire
Message = tuple[str, Values]  # (tag, fields)
Place = tuple[bytes, int, str]  # (key of a block, group, tier)

STATE_GROUP = -1  # group of events of recurrent states

# Fields in their order on the wire, and how many of them, the first ones, a map holds even when they are None.
FIELDS = {
    "BlockStored": ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name",
                    "extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window"),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}
ALWAYS_THERE = {"BlockStored": 7, "BlockRemoved": 2, "AllBlocksCleared": 0}


def as_map(tag: str, values: Values) -> Any:
    """An event as vLLM writes it from 0.24 on: {"type": tag, field: value, ...}."""
    names = FIELDS[tag]
    required = ALWAYS_THERE[tag]
    present = {name: values.get(name) for i, name in enumerate(names) if i < required or values.get(name) is not None}
    return {"type": tag, **present}


def as_array(tag: str, values: Values) -> Any:
    """An event as vLLM wrote it before: [tag, first field, second field, ...], nothing left out."""
    return [tag, *(values.get(name) for name in FIELDS[tag])]


ENCODINGS: dict[str, Callable[[str, Values], Any]] = {"map": as_map, "array": as_array}


def low_64_bits(digest: bytes) -> int:
    """A hash as an unsigned integer: the last eight bytes, big endian, as vLLM shortens its digests."""
    return int.from_bytes(digest[-8:], "big")


HASHES: dict[str, Callable[[bytes], int | bytes]] = {"int": low_64_bits, "bytes": bytes}


def namespace_root(salt: bytes = b"") -> bytes:
    """The parent of a namespace's first blocks, as kvcache.h defines it."""
    return hashlib.sha256(b"kvcache-prefix-1" + struct.pack("<Q", len(salt)) + salt).digest()


@dataclass(frozen=True)
class Namespace:
    """What routers know a namespace (kvc_prefix_query.salt) by."""

    cache_salt: str | None = None
    lora_name: str | None = None
    lora_id: int | None = None


@dataclass(frozen=True)
class Group:
    """A group of layers as routers see it: vLLM's name of its kind, and its window."""

    kind: str | None = None
    window: int | None = None


@dataclass
class _Block:
    """A block that some group holds in some tier. MOVED events name only its key, so the rest is kept here."""

    parent: bytes
    tokens: array[int] | None
    num_tokens: int
    namespace: Namespace | None
    is_first: bool  # of its namespace
    pieces: set[tuple[int, str]] = field(default_factory=set)  # {(group, tier)}


class Translator:
    """Turns kvcache.Event objects, in order, into messages [(tag, values)].

    Consecutive blocks of one group and tier become one BlockStored, and neighbouring removals one BlockRemoved.
    `blocks` mirrors what a consumer holds that has applied all messages.
    """

    def __init__(self, *, hashes: str = "int", groups: Sequence[Group] | None = None,
                 media: tuple[str, str] = ("GPU", "CPU")) -> None:
        self._hash = HASHES[hashes]
        self._groups = groups
        self._media = dict(zip(("device", "host"), media))
        self._roots = {namespace_root(): Namespace()}
        self.blocks: dict[bytes, _Block] = {}

    def add_namespace(self, salt: bytes, namespace: Namespace) -> None:
        self._roots[namespace_root(salt)] = namespace

    def clear(self) -> None:
        self.blocks.clear()

    def held(self) -> set[Place]:
        """{(hash, group, tier)}: what a consumer of the messages holds."""
        return {(key, *piece) for key, block in self.blocks.items() for piece in block.pieces}

    def messages(self, events: Iterable[Event]) -> list[Message]:
        runs = _Runs(self)
        for event in events:
            key, group = bytes(event.hash), event.group
            if event.type == "stored":
                runs.store(key, self._enter(key, event), group, event.tier)
            elif event.type == "moved":
                # The new place first: a consumer that asks "anywhere?" never sees the block missing.
                block = self.blocks.setdefault(key, self._unknown(event))
                block.pieces.add((group, event.tier))
                runs.store(key, block, group, event.tier)
                runs.remove(key, group, event.from_tier)
                self._leave(key, group, event.from_tier)
            elif event.type == "removed":
                runs.remove(key, group, event.tier)
                self._leave(key, group, event.tier)
            elif event.type == "cleared":
                runs.clear()
                self.clear()
            else:
                raise InvalidArgument(f"event {event.number}: its type {event.type!r} is not known")
        return runs.finish()

    def _enter(self, key: bytes, event: Event) -> _Block:
        block = self.blocks.get(key)
        if block is None:
            parent = bytes(event.parent)
            above = self.blocks.get(parent)
            namespace = self._roots.get(parent) or (above.namespace if above else None)
            block = _Block(parent, None, event.num_tokens, namespace, parent in self._roots)
            self.blocks[key] = block
        if block.tokens is None and event.tokens is not None:
            block.tokens = array("i", event.tokens)
        block.pieces.add((event.group, event.tier))
        return block

    def _leave(self, key: bytes, group: int, tier: str) -> None:
        block = self.blocks.get(key)
        if block is None:
            return
        block.pieces.discard((group, tier))
        if not block.pieces:
            del self.blocks[key]

    @staticmethod
    def _unknown(event: Event) -> _Block:
        """A block whose STORED event was before the first event that we were given."""
        return _Block(b"", None, event.num_tokens, None, False)

    def stored(self, keys: list[bytes], blocks: list[_Block], group: int, tier: str) -> Values:
        """The values of one BlockStored of consecutive blocks."""
        first = blocks[0]
        namespace = first.namespace or Namespace()
        index, shape = self._group(group)
        return {
            "block_hashes": [self._hash(key) for key in keys],
            "parent_block_hash": None if first.is_first or not first.parent else self._hash(first.parent),
            "token_ids": [token for block in blocks for token in block.tokens or ()],
            "block_size": first.num_tokens,
            "lora_id": namespace.lora_id,
            "medium": self._media[tier],
            "lora_name": namespace.lora_name,
            "extra_keys": _extra_keys(blocks, namespace),
            "group_idx": index,
            "kv_cache_spec_kind": shape.kind,
            "kv_cache_spec_sliding_window": shape.window,
        }

    def removed(self, keys: list[bytes], group: int, tier: str) -> Values:
        return {"block_hashes": [self._hash(key) for key in keys], "medium": self._media[tier],
                "group_idx": self._group(group)[0]}

    def _group(self, group: int) -> tuple[int, Group]:
        """The group's number on the wire, where states come behind all groups, and what is known of it."""
        if group == STATE_GROUP:
            if self._groups is None:
                raise InvalidArgument("group -1 (recurrent state) has no number on the wire unless `groups` is given")
            return len(self._groups), Group(kind="mamba")
        if self._groups is None:
            return group, Group()
        if group >= len(self._groups):
            raise InvalidArgument(f"an event of group {group}, but `groups` has {len(self._groups)} entries")
        return group, self._groups[group]


def _extra_keys(blocks: list[_Block], namespace: Namespace) -> list[list[str] | None] | None:
    """One entry per block: the adapter in every block, the salt in the first of its namespace. None: neither."""
    adapter = [namespace.lora_name] if namespace.lora_name is not None else []
    salt = [namespace.cache_salt] if namespace.cache_salt is not None else []
    entries = [adapter + (salt if block.is_first else []) or None for block in blocks]
    return entries if any(entries) else None


def _follows(block: _Block, keys: list[bytes], blocks: list[_Block]) -> bool:
    """Whether one BlockStored can tell the block together with those before it."""
    last = blocks[-1]
    return (block.parent == keys[-1] and block.num_tokens == last.num_tokens
            and (block.tokens is None) == (last.tokens is None))


class _Runs:
    """Collects messages. Blocks of different groups and tiers come interleaved: each (group, tier) has its own run.

    Either stored runs wait, or one of removals: what came first is written first.
    """

    def __init__(self, translator: Translator) -> None:
        self._translator = translator
        self._messages: list[Message] = []
        self._stored: dict[tuple[int, str], tuple[list[bytes], list[_Block]]] = {}  # (group, tier) -> keys, blocks
        self._removed: tuple[tuple[int, str], list[bytes]] | None = None  # (group, tier), keys

    def store(self, key: bytes, block: _Block, group: int, tier: str) -> None:
        self._end_removed()
        run = self._stored.get((group, tier))
        if run and not _follows(block, *run):
            self._end_stored((group, tier))
            run = None
        keys, blocks = run or self._stored.setdefault((group, tier), ([], []))
        keys.append(key)
        blocks.append(block)

    def remove(self, key: bytes, group: int, tier: str) -> None:
        for run in list(self._stored):
            self._end_stored(run)
        if self._removed and self._removed[0] != (group, tier):
            self._end_removed()
        if not self._removed:
            self._removed = (group, tier), []
        self._removed[1].append(key)

    def clear(self) -> None:
        """What came before does not matter any more."""
        self._stored.clear()
        self._removed = None
        self._messages = [("AllBlocksCleared", {})]

    def finish(self) -> list[Message]:
        for run in list(self._stored):
            self._end_stored(run)
        self._end_removed()
        return self._messages

    def _end_stored(self, run: tuple[int, str]) -> None:
        keys, blocks = self._stored.pop(run)
        self._messages.append(("BlockStored", self._translator.stored(keys, blocks, *run)))

    def _end_removed(self) -> None:
        if self._removed:
            (group, tier), keys = self._removed
            self._messages.append(("BlockRemoved", self._translator.removed(keys, group, tier)))
            self._removed = None
