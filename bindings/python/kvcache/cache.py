"""Pages and sequences of one model."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np

from . import _capi
from .config import Config
from .debug import DebugAccess
from .forward import Forward
from .info import SeqInfo, Stats, made
from .names import DIRECTIONS, POOL_KINDS, SEQ_OPS, Direction, PoolKind, SeqOp, number_of
from .plan import Plan
from .prefix import Events, Prefix
from .tensors import Tensor, exported

__all__ = ["Cache", "KVCache", "Fence"]


class Fence:
    """Completion of copies. On the CPU they are complete when the call returns."""

    __slots__ = ("_handle", "_plan")

    def __init__(self, handle: Any, plan: Plan) -> None:
        self._handle = handle
        self._plan = plan

    def done(self) -> bool:
        return bool(_capi.kvc_fence_query(self._handle))

    def wait(self, timeout: float | None = None) -> None:
        """Wait at most `timeout` seconds (None: for ever); `Timeout` when the copies are not done by then."""
        _capi.kvc_fence_wait(self._handle, -1 if timeout is None else int(timeout * 1e9))

    def wait_on_stream(self, stream: Any = None) -> None:
        """Let what is enqueued on a stream of the cache's device from now on wait for the copies; on the CPU wait here."""
        _capi.kvc_fence_wait_on_stream(self._handle, self._plan._stream(stream))


class Cache(DebugAccess):
    """A KV cache: of a `Plan`, of a `Config`, of the fields of one, or of a model's `config.json`.

        Cache(Config(layers=[Layer(num_q_heads=8, num_kv_heads=2, k_dim=64)] * 32, byte_budget=1 << 30))
        Cache(layers=[...], num_pages=1024)
        KVCache(model_config="path/to/config.json", byte_budget=1 << 30)

    A context manager: leaving the block frees the memory. Calls from several threads take turns; attention runs beside questions.

    On a GPU (`device="cuda:0"`) tensors lie there too, and calls return before it is done. `stream` of a call is an address, or a stream of PyTorch,
    CuPy or another package with `__cuda_stream__`; None is PyTorch's current stream where PyTorch is imported, else the legacy default stream.
    """

    def __init__(self, plan: Plan | Config | None = None, *, model_config: Any = None, **fields: Any) -> None:
        if plan is not None and (model_config is not None or fields):
            raise TypeError("give a plan or config, or model_config and fields of a config, not both")
        if plan is None:
            plan = Config.from_hf(model_config, **fields) if model_config is not None else Config(**fields)
        self.plan = plan if isinstance(plan, Plan) else Plan(plan)
        self._handle = _capi.kvc_cache_create(self.plan._handle)
        _capi.cache_keep(self._handle, self.plan._pool)
        self.prefix = Prefix(self._handle)
        self.events = Events(self._handle)

    # ---- the whole cache

    @property
    def is_open(self) -> bool:
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
        """Forget all sequences and the prefix index."""
        _capi.kvc_cache_clear(self._handle)

    def resize(self, num_pages: int) -> None:
        """Grow the pool, or shrink it when the pages above are free."""
        _capi.kvc_cache_resize(self._handle, num_pages)

    def stats(self) -> Stats:
        return made(Stats, _capi.kvc_cache_stats_get(self._handle))

    @property
    def free_pages(self) -> int:
        return int(_capi.kvc_cache_free_pages(self._handle))

    @property
    def total_length(self) -> int:
        """Tokens over all sequences, each counting its shared prefix."""
        return int(_capi.kvc_cache_total_length(self._handle))

    @property
    def is_empty(self) -> bool:
        return bool(_capi.kvc_cache_is_empty(self._handle))

    def check(self) -> None:
        """Recount everything; `Corrupt` names the page or the sequence."""
        _capi.kvc_cache_check(self._handle)

    # ---- sequences

    def add(self, seq: int) -> None:
        """Add an empty sequence."""
        _capi.kvc_seq_add(self._handle, seq)

    def remove(self, seq: int) -> None:
        """Remove a sequence; shared pages live on while another one uses them."""
        _capi.kvc_seq_remove(self._handle, seq)

    def fork(self, parent: int, child: int, pos: int = -1) -> None:
        """Add `child` with the first `pos` tokens of `parent` (-1: all). Pages are shared until a branch writes."""
        _capi.kvc_seq_fork(self._handle, parent, child, pos)

    def pop(self, seq: int, n: int) -> None:
        """Drop the last `n` tokens, also past a fork point."""
        _capi.kvc_seq_pop(self._handle, seq, n)

    def shift(self, seq: int, begin: int, end: int, delta: int | None = None) -> None:
        """Drop tokens [begin, end) and move the later ones by `delta` positions (None: close the gap)."""
        _capi.kvc_seq_shift(self._handle, seq, begin, end, begin - end if delta is None else delta)

    def set_window(self, seq: int, window: int, sink: int = 0) -> None:
        """Let the sequence see only its first `sink` tokens and the newest, `window` together."""
        _capi.kvc_seq_set_window(self._handle, seq, window, sink)

    def length(self, seq: int) -> int:
        """Committed tokens."""
        return int(_capi.kvc_seq_length(self._handle, seq))

    def info(self, seq: int) -> SeqInfo:
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

    def can_append(self, seqs: Sequence[int], lengths: Sequence[int]) -> int:
        """Pages that a forward over these would be missing now; 0: it would find all."""
        return int(_capi.kvc_seq_can_append(self._handle, seqs, lengths))

    def can(self, seq: int, op: SeqOp, pos: int = -1) -> int:
        """The nearest position to `pos` where the sequence could be forked at, popped to, or shifted at; -1: none."""
        return int(_capi.kvc_seq_can(self._handle, seq, number_of(SEQ_OPS, op, "op"), pos))

    def state_checkpoint(self, seq: int) -> None:
        """Keep the recurrent state of the sequence's present length, so that it can be forked and popped to it later."""
        _capi.kvc_state_checkpoint(self._handle, seq)

    def tree_commit(self, seqs: Sequence[int], leaves: Sequence[int], *, stream: Any = None) -> None:
        """Accept the path from the root to a leaf of each sequence's token tree (-1: nothing)."""
        _capi.kvc_tree_commit(self._handle, seqs, leaves, self.plan._stream(stream))

    # ---- one step

    def forward(
        self,
        seqs: Sequence[int] | np.ndarray[Any, Any],
        lengths: Sequence[int] | np.ndarray[Any, Any] | None = None,
        *,
        tokens: Any = None,
        tree_parents: Any = None,
        positions: Any = None,
        cross_lengths: Any = None,
        stream: Any = None,
        replay: bool = False,
    ) -> Forward:
        """Open a step: which sequences grow by how many tokens (None: one each).

        `tokens`: the ids of the new tokens, packed, so that full blocks are published to the prefix index. `NoPages` when the cache is full now.
        `stream`: of all work until the end. `replay`: the step is computed by launching the CUDA graph that an earlier one of its shape was
        captured in (docs/cuda.md); calls on layers are refused.
        """
        if lengths is None:
            lengths = [1] * len(seqs)
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
                _capi.KVC_FORWARD_REPLAY if replay else 0,
            ),
        )
        return Forward(self, handle, seqs)

    # ---- zero-copy export

    def export_pool(self, layer: int, kind: PoolKind = "kv") -> Tensor:
        """The pool memory of one layer, writable and shared: [pages, (2,) heads, page_size, dim]."""
        pool = _capi.kvc_export_pool(self._handle, layer, number_of(POOL_KINDS, kind, "kind"))
        if self.plan._pool:
            _capi.export_keep(pool, self.plan._pool)
        return exported(pool)

    def seq_pages(self, seq: int, group: int = 0) -> Tensor:
        """Ids of the kept pages of one sequence, int32, a read-only snapshot."""
        return exported(_capi.kvc_export_seq_pages(self._handle, seq, group))

    # ---- copies and swap

    def swap_out(self, seqs: Sequence[int], *, stream: Any = None) -> Fence:
        """Move sequences to the host."""
        return Fence(_capi.kvc_swap_out(self._handle, seqs, self.plan._stream(stream)), self.plan)

    def swap_in(self, seqs: Sequence[int], *, stream: Any = None) -> Fence:
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

    def __repr__(self) -> str:
        if not self.is_open:
            return "<kvcache.Cache closed>"
        s = self.stats()
        return (
            f"<kvcache.Cache {s.num_seqs} sequences, {s.total_length} tokens, {s.pages_used} of {s.pages_total} pages used, "
            f"{s.pages_shared} shared, hit rate {s.hit_rate:.0%}>"
        )


KVCache = Cache


def _pairs(pairs: Any) -> Any:
    return pairs if hasattr(pairs, "__dlpack__") else np.asarray(pairs, np.int64).reshape(-1, 2)
