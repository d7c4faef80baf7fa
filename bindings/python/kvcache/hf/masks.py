# SPDX-License-Identifier: Apache-2.0
"""The mask function "kvcache": who sees whom as data instead of a matrix, refused where kvcache cannot do it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from transformers import masking_utils


class MaskCarrier(torch.Tensor):
    """What models hand around as their mask: shape [batch, 1, queries, keys], no memory, and a Mask in `mask`.

    A slice of it is itself: models slice masks to what they attend, and kvcache knows that from the tensors. Anything that would
    read its elements raises, because they mean nothing.
    """

    mask: Mask

    _SAME = frozenset(("__getitem__", "to", "contiguous", "clone", "detach"))
    _ASKED = frozenset(("__get__", "dim", "size", "__len__", "is_floating_point", "numel", "requires_grad_", "stride"))

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", str(function))
        if name in cls._SAME:
            return args[0]
        if name not in cls._ASKED:
            raise NotImplementedError(
                f"attention_mask: the model computes {name} of its mask, which kvcache "
                "attention has as "
                "data only; load the model with attn_implementation='eager' and use "
                "PagedCache(config) in "
                "mode 'gather'"
            )
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))

    def __repr__(self, **_) -> str:
        return f"MaskCarrier({self.mask})"

    @classmethod
    def of(cls, mask: Mask, *shape: int) -> MaskCarrier:
        carrier = torch.ones(1, dtype=torch.bool).expand(*shape).as_subclass(cls)
        carrier.mask = mask
        return carrier


@dataclass(frozen=True)
class Pattern:
    """Which keys a query sees. `blocks` [batch, tokens]: tokens of one block (>= 0) see each other in both directions."""

    causal: bool = False
    window: int = 0
    chunk: int = 0
    blocks: torch.Tensor | None = field(default=None, compare=False)
    leaves_window: bool = False  # A block is seen whole, also what of it lies behind the window.


def _cells(function) -> dict:
    if not getattr(function, "__closure__", None):
        return {}
    return dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in function.__closure__)))


def read_pattern(function) -> Pattern:
    """The pattern of a mask function that transformers has composed."""
    if function is masking_utils.causal_mask_function:
        return Pattern(causal=True)
    if function is getattr(masking_utils, "bidirectional_mask_function", None):
        return Pattern()
    name = getattr(function, "__qualname__", repr(function))
    outer = name.split(".")[0]
    cells = _cells(function)
    if outer == "and_masks":
        return _all_of([read_pattern(part) for part in cells["mask_functions"]])
    if outer == "or_masks":
        first, *others = cells["mask_functions"]
        pattern, blocks = read_pattern(first), [_blocks_of(other) for other in others]
        if len(blocks) == 1 and blocks[0] is not None:
            return _with_blocks(pattern, blocks[0])
        name = " or ".join(getattr(one, "__qualname__", repr(one)).split(".")[0] for one in (first, *others))
    if outer == "sliding_window_overlay":
        return Pattern(window=int(cells["sliding_window"]))
    if outer == "chunked_overlay":
        return Pattern(chunk=int(cells["chunk_size"]))
    raise NotImplementedError(
        f"mask_function: {name} is none of causal, sliding, chunked or bidirectional, nor causal with "
        "spans of images; kvcache cannot express it over cached tokens"
    )


def _blocks_of(function) -> torch.Tensor | None:
    """The block of every token, of a mask function that lets the tokens of a block see each other."""
    cells = _cells(function)
    match getattr(function, "__qualname__", "").split(".")[0]:
        case "blockwise_overlay":
            return cells["block_sequence_ids"]
        case "token_type_ids_mask_function" if {"image_group_ids", "token_type_ids"} <= cells.keys():  # Gemma-3 of version 4
            return cells["image_group_ids"].masked_fill(cells["token_type_ids"] != 1, -1)
    return None


def _with_blocks(pattern: Pattern, blocks: torch.Tensor) -> Pattern:
    if not bool((blocks >= 0).any()):
        return pattern
    return replace(pattern, blocks=blocks, leaves_window=pattern.window > 0)


def _all_of(parts: list[Pattern]) -> Pattern:
    whole = Pattern()
    for one in parts:
        if whole.blocks is not None and one.blocks is not None:
            raise NotImplementedError("mask_function: two masks with blocks of tokens at once; kvcache cannot express it")
        whole = Pattern(
            whole.causal or one.causal,
            whole.window or one.window,
            whole.chunk or one.chunk,
            one.blocks if whole.blocks is None else whole.blocks,
            whole.leaves_window or one.leaves_window,
        )
    return whole


# Begin and end of the spans of every row, counted in its real tokens.
Spans = list[list[tuple[int, int]]]


def find_spans(blocks: torch.Tensor, padding: torch.Tensor | None, past: int) -> Spans:
    """Blocks of more than one token that reach into the new tokens, behind `past`."""
    spans: Spans = []
    for row, ids in enumerate(blocks.tolist()):
        real = None if padding is None else padding[row].tolist()
        if real is not None:
            ids = ids + [-1] * (len(real) - len(ids))
            old = sum(real[:past])
            ids = [one for one, is_real in zip(ids, real) if is_real]
        else:
            old = past
        found, closed, begin = [], set(), 0
        for end in range(1, len(ids) + 1):
            if end < len(ids) and ids[end] == ids[begin]:
                continue
            if ids[begin] >= 0:
                if ids[begin] in closed:
                    raise NotImplementedError(
                        f"token_type_ids: tokens of block {ids[begin]} of row {row} lie apart, with others between "
                        "them; kvcache has spans of neighbours"
                    )
                closed.add(ids[begin])
                if end > max(begin + 1, old):
                    found.append((begin, end))
            begin = end
        spans.append(found)
    return spans


@dataclass(frozen=True)
class Mask:
    """What the attention function gets: the pattern, and for each row which tokens are real (None: all).

    `dense` makes the additive mask [batch, 1, queries, keys] that eager attention would get. `refusal`: why there is no pattern.
    """

    pattern: Pattern | None
    padding: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    spans: Spans | None = None
    dense: Callable[[], torch.Tensor] | None = None
    refusal: str | None = None

    def check_known(self) -> None:
        if self.refusal is not None:
            raise NotImplementedError(self.refusal)


def kvcache_mask(batch_size: int, q_length: int | None = None, kv_length: int | None = None, q_offset: int = 0,
                 kv_offset: int = 0, mask_function=masking_utils.causal_mask_function, attention_mask=None, **kwargs):
    """Registered as "kvcache" with transformers."""
    places = dict(q_length=q_length, q_offset=q_offset)
    if q_length is None:  # version 4
        positions = kwargs["cache_position"]
        q_length, q_offset, places = positions.shape[0], int(positions[0]), {}
    padding = None
    if attention_mask is not None:
        if attention_mask.ndim != 2:
            raise ValueError(f"attention_mask: expected 2 dimensions, got shape {tuple(attention_mask.shape)}")
        padding = attention_mask.bool()
        if bool(padding.all()):
            padding = None
    pattern = spans = refusal = None
    try:
        pattern = read_pattern(mask_function)
        if pattern.blocks is not None:
            spans = find_spans(pattern.blocks, padding, int(q_offset))
    except NotImplementedError as error:  # Only attention over cached tokens has to know the pattern.
        pattern, refusal = None, str(error)
    whole = {**kwargs, **places, "dtype": torch.float32, "allow_is_bidirectional_skip": False}
    dense = partial(masking_utils.eager_mask, batch_size, kv_length=kv_length, kv_offset=kv_offset, mask_function=mask_function,
                    attention_mask=attention_mask, **whole)
    mask = Mask(pattern, padding, None, spans if spans and any(spans) else None, dense, refusal)
    return MaskCarrier.of(mask, batch_size, 1, int(q_length), int(kv_length))


def read_mask(attention_mask) -> Mask:
    """The Mask of what a model handed to its attention: ours, a padding mask, a 4-D bias, or nothing."""
    if attention_mask is None:
        return Mask(None)
    if isinstance(attention_mask, MaskCarrier):
        return attention_mask.mask
    if not isinstance(attention_mask, torch.Tensor):
        raise TypeError(f"attention_mask: expected a tensor, got {type(attention_mask).__name__}")
    if attention_mask.ndim == 2:
        padding = attention_mask.bool()
        return Mask(None, None if bool(padding.all()) else padding)
    if attention_mask.ndim == 4:
        return Mask(None, None, additive(attention_mask))
    raise ValueError(f"attention_mask: expected 2 or 4 dimensions, got shape {tuple(attention_mask.shape)}")


def additive(mask: torch.Tensor) -> torch.Tensor:
    """A 4-D mask as float32 to be added to scores."""
    if mask.dtype == torch.bool:
        return torch.zeros(mask.shape).masked_fill_(~mask, float("-inf"))
    return mask.detach().float()


def check_causal(bias: torch.Tensor, past: int) -> None:
    """A bias over keys that lie behind their query must hide them: kvcache attends causally."""
    rows, columns = bias.shape[-2:]
    later = torch.ones(rows, columns, dtype=torch.bool).triu(past + 1)
    if bool((bias[..., later] > torch.finfo(torch.bfloat16).min / 2).any()) and not _hidden(bias, later):
        raise NotImplementedError("attention_mask: a query would see a later token; kvcache attends causally")


def _hidden(bias: torch.Tensor, later: torch.Tensor) -> bool:
    # The least finite number of float16 hides as well.
    return bool((bias[..., later] <= torch.finfo(torch.float16).min).all())


def pack_bias(bias: torch.Tensor, step, past_mask: torch.Tensor | None) -> torch.Tensor:
    """[batch | 1, heads | 1, tokens, columns] to [heads, T, J] or [T, J]: columns are the row's real tokens."""
    bias = bias.expand(step.batch, -1, -1, -1)
    if past_mask is not None:
        bias = _drop_columns(bias, past_mask)
    packed = bias.transpose(0, 1).reshape(bias.shape[1], step.batch * step.tokens, bias.shape[3])
    if step.index is not None:
        packed = packed[:, step.index]
    packed = packed.float().contiguous()
    return packed[0] if packed.shape[0] == 1 else packed


def _drop_columns(bias: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    if real.shape != (bias.shape[0], bias.shape[3]):
        raise ValueError(
            f"bias: {bias.shape[3]} columns, the cache has {real.shape[1]} tokens per row; a bias over other tokens than "
            "those of the cache needs mode='gather' with attn_implementation='sdpa' or 'eager'"
        )
    order = torch.argsort(~real, dim=1, stable=True)  # the real tokens first, in their order
    return bias.gather(3, order[:, None, None, :].expand(bias.shape))


def with_bias(mask: Mask, position_bias: torch.Tensor | None) -> Mask:
    """The mask with a position bias (T5) added to what it already holds."""
    if position_bias is None or not bool(position_bias.any()):
        return mask
    bias = position_bias.detach().float()
    return replace(mask, bias=bias if mask.bias is None else mask.bias + bias)
