"""Words for the numbers of the C interface."""

from __future__ import annotations

from typing import Literal

from .errors import status_error

LayerKind = Literal["attention", "mla", "cross", "state", "shared", "none"]
Quant = Literal["none", "per_tensor", "per_token_head", "block16"]
Storage = Literal["owned", "borrowed", "none"]
PoolLayout = Literal["layer_first", "page_first"]
Isa = Literal["auto", "reference", "scalar", "avx2", "avx512", "avx512_bf16"]
RopeMode = Literal["none", "on_append", "on_read"]
RopeStyle = Literal["half", "interleaved"]
RopeScaling = Literal["none", "llama3", "yarn", "longrope"]
SectionLayout = Literal["contiguous", "interleaved"]
PoolKind = Literal["k", "v", "kv", "bytes"]
TableKind = Literal[
    "indptr",
    "indices",
    "last_page_len",
    "block_table",
    "slot_mapping",
    "seq_lens",
    "qo_indptr",
    "page_position",
]
SeqOp = Literal["fork", "pop", "shift"]
Decay = Literal["none", "head", "token", "channel"]
Activation = Literal["none", "silu"]
OpLayout = Literal["hnd", "nhd", "mla"]
EventType = Literal["stored", "removed", "moved", "cleared"]
Tier = Literal["device", "host"]
Direction = Literal["out", "in"]


def _numbered(*words: str) -> dict[str, int]:
    return {word: number for number, word in enumerate(words)}


LAYER_KINDS = _numbered("attention", "mla", "cross", "state", "shared", "none")
QUANTS = _numbered("none", "per_tensor", "per_token_head", "block16")
STORAGES = _numbered("owned", "borrowed", "none")
POOL_LAYOUTS = _numbered("layer_first", "page_first")
ISAS = _numbered("auto", "reference", "scalar", "avx2", "avx512", "avx512_bf16")
ROPE_MODES = _numbered("none", "on_append", "on_read")
ROPE_STYLES = _numbered("half", "interleaved")
ROPE_SCALINGS = _numbered("none", "llama3", "yarn", "longrope")
SECTION_LAYOUTS = _numbered("contiguous", "interleaved")
POOL_KINDS = _numbered("k", "v", "kv", "bytes")
TABLE_KINDS = _numbered(
    "indptr",
    "indices",
    "last_page_len",
    "block_table",
    "slot_mapping",
    "seq_lens",
    "qo_indptr",
    "page_position",
)
SEQ_OPS = _numbered("fork", "pop", "shift")
DECAYS = _numbered("none", "head", "token", "channel")
ACTIVATIONS = _numbered("none", "silu")
OP_LAYOUTS = _numbered("hnd", "nhd", "mla")
EVENT_TYPES = _numbered("stored", "removed", "moved", "cleared")
TIERS = _numbered("device", "host")
DIRECTIONS = _numbered("out", "in")


def number_of(words: dict[str, int], value: str | int, what: str) -> int:
    """The number of a word. Numbers pass, for values that this package does not know yet."""
    if isinstance(value, int):
        return value
    try:
        return words[value]
    except (KeyError, TypeError):
        raise status_error(1, f"{what}: {value!r} is none of {', '.join(map(repr, words))}") from None


def word_of(words: dict[str, int], number: int) -> str:
    for word, value in words.items():
        if value == number:
            return word
    return str(number)
