"""Words for the numbers of the C interface."""

from __future__ import annotations

from typing import Any, Literal, get_args

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
Tier = Literal["device", "host", "file", "redis"]
OutsideTier = Literal["file", "redis"]
Direction = Literal["out", "in"]
TransferState = Literal["waiting", "running", "arrived", "ending", "done", "failed"]


def _numbered(words: Any) -> dict[str, int]:
    """The words of a Literal stand in the order of the C constants."""
    return {word: number for number, word in enumerate(get_args(words))}


LAYER_KINDS = _numbered(LayerKind)
QUANTS = _numbered(Quant)
STORAGES = _numbered(Storage)
POOL_LAYOUTS = _numbered(PoolLayout)
ISAS = _numbered(Isa)
ROPE_MODES = _numbered(RopeMode)
ROPE_STYLES = _numbered(RopeStyle)
ROPE_SCALINGS = _numbered(RopeScaling)
SECTION_LAYOUTS = _numbered(SectionLayout)
POOL_KINDS = _numbered(PoolKind)
TABLE_KINDS = _numbered(TableKind)
SEQ_OPS = _numbered(SeqOp)
DECAYS = _numbered(Decay)
ACTIVATIONS = _numbered(Activation)
OP_LAYOUTS = _numbered(OpLayout)
EVENT_TYPES = _numbered(EventType)
TIERS = _numbered(Tier)
DIRECTIONS = _numbered(Direction)
TRANSFER_STATES = _numbered(TransferState)


def number_of(words: dict[str, int], value: str | int, what: str) -> int:
    """The number of a word. Numbers pass, for values that this package does not know yet."""
    if isinstance(value, int):
        return value
    try:
        return words[value]
    except (KeyError, TypeError):
        raise status_error(
            1, f"{what}: {value!r} is none of {', '.join(map(repr, words))}"
        ) from None


def word_of(words: dict[str, int], number: int) -> str:
    """The word of a number; unknown numbers as text."""
    for word, value in words.items():
        if value == number:
            return word
    return str(number)
