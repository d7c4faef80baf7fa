"""Pages and sequences of one model."""

from __future__ import annotations

import html
import math
import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex, overload

import numpy as np

from . import _capi
from .config import Config, Layer, config_of
from .debug import DebugAccess
from .errors import ArgumentTypeError, integer, status_error, wrong_type
from .files import Source, load_desc, path_of
from .forward import Forward
from .info import SeqInfo, Stats, made
from .names import (
    DIRECTIONS,
    POOL_KINDS,
    SEQ_OPS,
    Direction,
    PoolKind,
    SeqOp,
    number_of,
)
from .plan import Plan
from .prefix import Events, Prefix
from .tensors import Integers, Tensor, exported
from .tiers import Tiers
from .transfers import Transfer, Transport, nanoseconds

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .config import Limits, ModelLimits

__all__ = ["Cache", "KVCache", "Fence"]


class Fence:
    """Completion of copies. On the CPU they are complete when the call returns."""

    __slots__ = ("_handle", "_plan")

    def __init__(self, handle: Any, plan: Plan) -> None:
        self._handle = handle
        self._plan = plan

    def done(self) -> bool:
        """Whether the copies are complete; does not wait."""
        return bool(_capi.kvc_fence_query(self._handle))

    def wait(self, timeout: float | None = None) -> None:
        """Wait at most `timeout` seconds (None: for ever); `Timeout` when the copies are not done by then."""
        _capi.kvc_fence_wait(self._handle, nanoseconds("timeout", timeout))

    def wait_on_stream(self, stream: Any = None) -> None:
        """Let what is enqueued on a stream of the cache's device from now on wait for the copies; on the CPU wait here."""
        _capi.kvc_fence_wait_on_stream(self._handle, self._plan._stream(stream))

    def __reduce__(self) -> NoReturn:
        raise ArgumentTypeError("a kvcache.Fence cannot be pickled: its copies are this process's")


class Cache(DebugAccess):
    """A KV cache: of a `Plan`, of a `Config`, of the fields of one, or of a model's `config.json`.

        Cache(Config(layers=[Layer(num_q_heads=8, num_kv_heads=2, k_dim=64)] * 32, byte_budget=1 << 30))
        Cache(layers=[...], num_pages=1024)
        KVCache(model_config="path/to/config.json", byte_budget=1 << 30)

    plan: the `Plan` of the cache.
    prefix: the prefix index, a `Prefix`.
    events: what the index tells routers, an `Events`.
    tiers: files and servers that keep its blocks, a `Tiers`.

    Ids, positions and lengths are integers of Python, NumPy or PyTorch: whatever operator.index
    takes. What costs nothing to look up is an attribute (`available_pages`, `is_empty`); what is counted
    for the answer is a method (`stats()`, `info(seq)`, `seqs()`).

    A context manager: leaving the block frees the memory. Calls from several threads take turns; attention runs beside questions.

    On a GPU (`device="cuda:0"`) tensors lie there too, and calls return before it is done. `stream` of a call is an address, or a stream of PyTorch,
    CuPy or another package with `__cuda_stream__`; None is PyTorch's current stream where PyTorch is imported, else the legacy default stream.
    """

    @overload
    def __init__(self, plan: Plan | Config) -> None: ...
    @overload
    def __init__(
        self, plan: None = None, *, layers: Sequence[Layer], **fields: Unpack[Limits]
    ) -> None: ...
    @overload
    def __init__(
        self, plan: None = None, *, model_config: Any, **fields: Unpack[ModelLimits]
    ) -> None: ...
    def __init__(
        self, plan: Plan | Config | None = None, *, model_config: Any = None, **fields: Any
    ) -> None:
        if isinstance(plan, Plan) and model_config is None and not fields:
            self.plan = plan
        else:
            expected = "a kvcache.Plan or kvcache.Config"
            self.plan = Plan(config_of(plan, model_config, fields, "plan", expected))
        self._handle = _capi.kvc_cache_create(self.plan._handle)
        _capi.cache_keep(self._handle, self.plan._pool)
        self._positions_given = False
        self.prefix = Prefix(self._handle)
        self.events = Events(self._handle)
        self.tiers = Tiers(self._handle)

    # ---- the whole cache

    @property
    def is_open(self) -> bool:
        """Whether `close` was not called."""
        return bool(_capi.is_open(self._handle, "kvc_cache"))

    def close(self) -> None:
        """Free the memory; an open forward is dropped, exported tensors live on. Closing twice is fine."""
        _capi.cache_close(self._handle)

    def __enter__(self) -> Cache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def clear(self) -> None:
        """Forget all sequences and the prefix index, and give memory back as trim() does."""
        _capi.kvc_cache_clear(self._handle)

    def resize(self, num_pages: SupportsIndex) -> None:
        """Grow the pool, or shrink it when the pages above are free."""
        _capi.kvc_cache_resize(self._handle, num_pages)

    def trim(self) -> int:
        """Give the memory of free pages back to the system; returns its bytes."""
        released: int = _capi.kvc_cache_trim(self._handle)
        return released

    def stats(self) -> Stats:
        """Counters and sizes of the whole cache, as they are now."""
        return made(Stats, _capi.kvc_cache_stats_get(self._handle))

    @property
    def available_pages(self) -> int:
        """Pages that no sequence, forward or pin holds; those that only the index knows are free."""
        return int(_capi.kvc_cache_available_pages(self._handle))

    @property
    def total_length(self) -> int:
        """Tokens over all sequences, each counting its shared prefix."""
        return int(_capi.kvc_cache_total_length(self._handle))

    @property
    def is_empty(self) -> bool:
        """Whether there is no sequence, and every page is free."""
        return bool(_capi.kvc_cache_is_empty(self._handle))

    def check(self) -> None:
        """Recount everything; `Corrupt` names the page or the sequence."""
        _capi.kvc_cache_check(self._handle)

    # ---- sequences

    def add(self, seq: SupportsIndex) -> None:
        """Add an empty sequence."""
        _capi.kvc_seq_add(self._handle, seq)

    def remove(self, seq: SupportsIndex) -> None:
        """Remove a sequence; shared pages live on while another one uses them."""
        _capi.kvc_seq_remove(self._handle, seq)

    def fork(self, parent: SupportsIndex, child: SupportsIndex, pos: SupportsIndex = -1) -> None:
        """Add `child` with the first `pos` tokens of `parent` (-1: all). Pages are shared until a branch writes."""
        _capi.kvc_seq_fork(self._handle, parent, child, pos)

    def reserve(self, seq: SupportsIndex, n: SupportsIndex) -> None:
        """Append `n` tokens without content, for rows that come from elsewhere (`pages_import`); the prefix index never gets them."""
        _capi.kvc_seq_reserve(self._handle, seq, n)

    def pop(self, seq: SupportsIndex, n: SupportsIndex) -> None:
        """Drop the last `n` tokens, also past a fork point."""
        _capi.kvc_seq_pop(self._handle, seq, n)

    def shift(
        self,
        seq: SupportsIndex,
        begin: SupportsIndex,
        end: SupportsIndex,
        delta: SupportsIndex | None = None,
    ) -> None:
        """Drop tokens [begin, end) and move the later ones by `delta` positions (None: begin - end, which closes the gap).

        Where forwards have given positions of their own (M-RoPE: an image has fewer positions than tokens) there is no such default.
        """
        if delta is None:
            if self._positions_given:
                raise ArgumentTypeError(
                    "delta: None is begin - end, in tokens; forwards of this cache gave positions of their own, so give delta in positions"
                )
            delta = integer(begin, "begin") - integer(end, "end")
        _capi.kvc_seq_shift(self._handle, seq, begin, end, delta)

    def set_window(
        self, seq: SupportsIndex, window: SupportsIndex, sink: SupportsIndex = 0
    ) -> None:
        """Let the sequence see only its first `sink` tokens and the newest, `window` together."""
        _capi.kvc_seq_set_window(self._handle, seq, window, sink)

    def length(self, seq: SupportsIndex) -> int:
        """Committed tokens."""
        return int(_capi.kvc_seq_length(self._handle, seq))

    def info(self, seq: SupportsIndex) -> SeqInfo:
        """Length, pages and window of one sequence."""
        return made(SeqInfo, _capi.kvc_seq_info_get(self._handle, seq))

    def seqs(self) -> list[int]:
        """All sequence ids, ascending."""
        ids: list[int] = _capi.kvc_seq_list(self._handle)
        return ids

    def __contains__(self, seq: object) -> bool:
        return seq in self.seqs()

    def __len__(self) -> int:
        return len(self.seqs())

    def __bool__(self) -> bool:
        return True  # an empty cache is a cache

    def can_append(self, seqs: Integers, lengths: Integers) -> int:
        """Pages that a forward over these would be missing now; 0: it would find all."""
        return int(_capi.kvc_seq_can_append(self._handle, seqs, lengths))

    def can(self, seq: SupportsIndex, op: SeqOp, pos: SupportsIndex = -1) -> int:
        """The nearest position at or below `pos` where the sequence could be forked at, popped to, or shifted at; -1: none."""
        return int(_capi.kvc_seq_can(self._handle, seq, number_of(SEQ_OPS, op, "op"), pos))

    def positions(self, seq: SupportsIndex, op: SeqOp, pos: SupportsIndex = -1) -> tuple[int, int]:
        """The nearest possible positions as `can` means them, at or below `pos` and at or above it; -1: none."""
        below, above = _capi.kvc_seq_positions(self._handle, seq, number_of(SEQ_OPS, op, "op"), pos)
        return int(below), int(above)

    def state_checkpoint(self, seq: SupportsIndex) -> None:
        """Keep the recurrent state of the sequence's present length, so that it can be forked and popped to it later."""
        _capi.kvc_state_checkpoint(self._handle, seq)

    def state_checkpoint_release(self, seq: SupportsIndex, pos: SupportsIndex) -> None:
        """Give up the checkpoint at `pos`, so that its state slot serves others; `NotFound` where there is none."""
        _capi.kvc_state_checkpoint_release(self._handle, seq, pos)

    def tree_commit(self, seqs: Integers, leaves: Integers, *, stream: Any = None) -> None:
        """Accept the path from the root to a leaf of each sequence's token tree (-1: nothing)."""
        _capi.kvc_tree_commit(self._handle, seqs, leaves, self.plan._stream(stream))

    # ---- one step

    def forward(
        self,
        seqs: Integers,
        lengths: Integers | None = None,
        *,
        tokens: Any = None,
        tree_parents: Any = None,
        positions: Any = None,
        cross_lengths: Any = None,
        stream: Any = None,
        replay: bool = False,
        partial: bool = False,
        whole_spans: bool = False,
    ) -> Forward:
        """Open a step: which sequences grow by how many tokens (None: one each).

        `tokens`: the ids of the new tokens, packed, so that full blocks are published to the prefix index. `NoPages` when the cache is full now.
        `stream`: of all work until the end. `replay`: the step is computed by launching the CUDA graph that an earlier one of its shape was
        captured in (docs/cuda.md); calls on layers are refused. `partial`: it may end without K and V in every layer, and publishes
        nothing; without it such an end is refused where the library alone writes the pool. `whole_spans`: spans that end behind the tokens
        of their sequence are refused, not cut. `cross_lengths`: encoder tokens that it writes, once per sequence; those of a sequence without
        tokens replace the ones of before, which an abort does not bring back.
        """
        if not hasattr(seqs, "__len__"):
            seqs = _listed(seqs)
        if lengths is None:
            lengths = [1] * _count(seqs)
        handle = _capi.kvc_forward_begin(
            self._handle,
            (
                seqs,
                lengths,
                tree_parents,
                tokens,
                positions,
                cross_lengths,
                self.plan._stream(stream),
                (_capi.KVC_FORWARD_REPLAY if replay else 0)
                | (_capi.KVC_FORWARD_PARTIAL if partial else 0)
                | (_capi.KVC_FORWARD_WHOLE_SPANS if whole_spans else 0),
            ),
        )
        self._positions_given |= positions is not None
        return Forward(self, handle, seqs)

    # ---- zero-copy export

    def export_pool(self, layer: SupportsIndex, kind: PoolKind = "kv") -> Tensor:
        """The pool memory of one layer, writable and shared: [pages, (2,) heads, page_size, dim]."""
        pool = _capi.kvc_export_pool(self._handle, layer, number_of(POOL_KINDS, kind, "kind"))
        if self.plan._pool:
            _capi.export_keep(pool, self.plan._pool)
        return exported(pool)

    def seq_pages(self, seq: SupportsIndex, group: SupportsIndex = 0) -> Tensor:
        """Ids of the kept pages of one sequence, int32, a read-only snapshot."""
        return exported(_capi.kvc_export_seq_pages(self._handle, seq, group))

    # ---- copies and swap

    def swap_out(self, seqs: Integers, *, stream: Any = None) -> Fence:
        """Move sequences to the host."""
        return Fence(_capi.kvc_swap_out(self._handle, seqs, self.plan._stream(stream)), self.plan)

    def swap_in(self, seqs: Integers, *, stream: Any = None) -> Fence:
        """Bring them back."""
        return Fence(_capi.kvc_swap_in(self._handle, seqs, self.plan._stream(stream)), self.plan)

    def pages_swap(self, pairs: Any, direction: Direction, *, stream: Any = None) -> Fence:
        """Copy whole pages between the pools: pairs int64 [n, 2] of (from, to), on the host; "out": device to host."""
        way = number_of(DIRECTIONS, direction, "direction")
        fence = _capi.kvc_pages_swap(self._handle, _pairs(pairs), way, self.plan._stream(stream))
        return Fence(fence, self.plan)

    def pages_copy(self, pairs: Any, *, stream: Any = None) -> Fence:
        """Copy whole pages inside the device pool; pairs lie on the host."""
        return Fence(_capi.kvc_pages_copy(self._handle, _pairs(pairs), self.plan._stream(stream)), self.plan)

    def pages_export(self, layer: SupportsIndex, pages: Any, *, stream: Any = None) -> np.ndarray[Any, Any]:
        """A layer's parts of pages as stored: uint8 [number of pages, bytes]. `pages`: ids, a list or an int64 tensor on the host."""
        ids = _page_ids(pages)
        out = np.empty((len(ids), self.plan.layer(layer).page_bytes), np.uint8)
        _capi.kvc_pages_export(self._handle, layer, ids, out, self.plan._stream(stream))
        return out

    def pages_import(self, layer: SupportsIndex, pages: Any, data: Any, *, stream: Any = None) -> None:
        """Write what `pages_export` returned, here or for another cache of an equal `plan.fingerprint`, into a layer's parts of pages."""
        _capi.kvc_pages_import(self._handle, layer, _page_ids(pages), data, self.plan._stream(stream))

    # ---- state files

    @overload
    def save(self, seqs: Integers, path: str | os.PathLike[str], *, model_id: str | None = None, stream: Any = None) -> None: ...
    @overload
    def save(self, seqs: Integers, path: None = None, *, model_id: str | None = None, stream: Any = None) -> bytes: ...
    def save(
        self,
        seqs: Integers,
        path: str | os.PathLike[str] | None = None,
        *,
        model_id: str | None = None,
        stream: Any = None,
    ) -> bytes | None:
        """Save sequences as a state file, or as bytes when no path is given.

        What they share is saved once. A file appears whole or not at all. `model_id`: a name of the model and its weights, which `load` can ask for.
        """
        place = None if path is None else path_of(path)
        saved: bytes | None = _capi.kvc_seq_save(self._handle, seqs, (place, model_id), self.plan._stream(stream))
        return saved

    def load(
        self,
        seqs: Integers,
        source: Source,
        *,
        model_id: str | None = None,
        convert: bool = False,
        publish: bool = True,
        stream: Any = None,
    ) -> None:
        """Add the sequences of a state file under new ids; none of their tokens has to be computed again.

        `source`: a path, or the bytes of a file. `model_id`: what the file must have been saved with. `convert`: rows of other float types
        are converted. `publish=False`: the prefix index gets nothing of them, for files of other weights. `Unsupported` names the field where the layout differs; `Corrupt` a damaged file; `NoPages` when the cache is full now.
        """
        _capi.kvc_seq_load(self._handle, load_desc(source, model_id, convert, publish), seqs, self.plan._stream(stream))

    # ---- transfers

    def receive(
        self,
        transport: Transport,
        seq: SupportsIndex,
        num_tokens: SupportsIndex,
        *,
        begin: SupportsIndex = 0,
        cross_length: SupportsIndex = 0,
        publish: bool = False,
        priority: SupportsIndex = 0,
        deadline: float | None = 30,
        idle: float | None = 0,
        model_id: str | None = None,
        tp_rank: SupportsIndex = 0,
        tp_size: SupportsIndex = 0,
        sender_tp_size: SupportsIndex = 0,
        on_done: Callable[[int], object] | None = None,
    ) -> Transfer:
        """Reserve room for a sequence that another cache sends: its `ticket` goes to the sender's `send`.

        `seq`: a new id, or with `begin` a sequence that has the first `begin` tokens already, as `prefix.attach` makes one: they do not travel.
        `cross_length`: encoder tokens. `publish`: the prefix index learns what arrives. `deadline`: seconds for all of it; None: none. `idle`:
        seconds without a word of the sender; 0: the transport's. `tp_rank` of `tp_size` (0: 1): the tensor-parallel rank whose KV heads this
        cache has; `sender_tp_size` (0: as tp_size): ranks of the senders. One size divides the other. Where there are more senders, each
        sends its part with the same ticket, and the sequence is there when all have arrived. `on_done(status)` runs once when all of it has
        arrived (0) or the transfer has failed, a number of `kvc_status`: on the transport's thread, or where the last reference to a
        transfer goes that is not over. In asyncio: `on_done=lambda status: loop.call_soon_threadsafe(future.set_result, status)`.
        """
        times = (nanoseconds("deadline", deadline), nanoseconds("idle", idle))
        ranks = (tp_rank, tp_size, sender_tp_size)
        desc = (1 if publish else 0, seq, begin, num_tokens, cross_length, *times, priority, model_id, *ranks, on_done)
        return Transfer(_capi.kvc_transfer_recv(self._handle, transport._handle, desc), self._handle)

    def send(
        self,
        transport: Transport,
        seq: SupportsIndex,
        ticket: bytes,
        *,
        begin: SupportsIndex = 0,
        as_computed: bool = False,
        deadline: float | None = 30,
        idle: float | None = 0,
        model_id: str | None = None,
        tp_rank: SupportsIndex = 0,
        tp_size: SupportsIndex = 0,
        on_done: Callable[[int], object] | None = None,
    ) -> Transfer:
        """Send a sequence to the cache that wrote the ticket. It stays here as it is, and may be used, changed and removed meanwhile.

        as_computed: the coming forwards compute tokens of the ticket, and rows leave layer by layer as they are written. The end comes with
        the forward that brings the last token. One that is aborted, or a sequence that is removed, popped or shifted before, ends the transfer.
        tp_rank, tp_size: the tensor-parallel rank that this cache has the KV heads of; see `receive`. on_done(status): runs once when all is
        sent, or the transfer has failed; as in `receive`.
        """
        limits = (nanoseconds("deadline", deadline), nanoseconds("idle", idle))
        desc = (seq, begin, ticket, int(bool(as_computed)), *limits, model_id, tp_rank, tp_size, on_done)
        return Transfer(_capi.kvc_transfer_send(self._handle, transport._handle, desc), None)

    def __reduce__(self) -> NoReturn:
        raise ArgumentTypeError(
            "a kvcache.Cache cannot be pickled or copied: its pages are memory of this process; "
            "pickle cache.plan, which makes an equal cache"
        )

    def __repr__(self) -> str:
        if not hasattr(self, "_handle"):
            return "<kvcache.Cache not created>"
        if not self.is_open:
            return "<kvcache.Cache closed>"
        s = self.stats()
        return (
            f"<kvcache.Cache {s.num_seqs} sequences, {s.total_length} tokens, "
            f"{s.pages_used} of {s.pages_total} pages used, {s.pages_shared} shared, "
            f"hit rate {s.hit_rate:.0%}>"
        )

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}\n\n{html.escape(self.plan.describe())}</pre>"


KVCache = Cache


def _listed(seqs: Any) -> list[Any]:
    try:
        return list(seqs)
    except TypeError:
        raise wrong_type("seqs", "integers in a row", seqs) from None


def _count(seqs: Any) -> int:
    try:
        return len(seqs)
    except TypeError:  # an array of no dimension has a length that raises
        raise wrong_type("seqs", "integers in a row", seqs) from None


def _page_ids(pages: Any) -> Any:
    """Page ids as the library takes them, int64 [n]."""
    if isinstance(pages, np.ndarray):
        return pages
    if hasattr(pages, "__dlpack__"):
        return np.from_dlpack(pages)
    try:
        return np.asarray([integer(page, "pages") for page in pages], np.int64)
    except TypeError as error:
        if isinstance(error, ArgumentTypeError):
            raise
        raise wrong_type("pages", "page ids", pages) from None
    except OverflowError:
        raise status_error(-2, "pages: a page id is no 64-bit integer") from None


def _pairs(pairs: Any) -> Any:
    """Pairs of page ids as the library takes them, int64 [n, 2]."""
    if hasattr(pairs, "__dlpack__"):
        return pairs
    try:
        items = [[integer(page, "pairs") for page in pair] for pair in pairs]
    except TypeError as error:
        if isinstance(error, ArgumentTypeError):
            raise
        raise wrong_type("pairs", "pairs of page ids", pairs) from None
    for pair in items:
        if len(pair) != 2:
            raise status_error(6, f"pairs: expected pairs of page ids, got {pair}")
    try:
        return np.asarray(items, np.int64).reshape(-1, 2)
    except OverflowError:
        raise status_error(-2, "pairs: a page id is no 64-bit integer") from None
