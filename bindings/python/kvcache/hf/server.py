# SPDX-License-Identifier: Apache-2.0
"""Continuous batching: many prompts on one model, each step one packed forward."""

from __future__ import annotations

import inspect
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

import kvcache

from .cache import PagedCache
from .sampling import Sampling


@dataclass(eq=False)
class Request:
    """A prompt and what has been generated for it.

    `finish` is None while it waits or runs, then "stop", "length", "cancelled", or "error" after its `on_token` raised `error`.
    """

    number: int
    prompt: list[int]
    max_new_tokens: int
    sampling: Sampling
    stop_tokens: frozenset[int]
    on_token: Callable[["Request", int], None] | None
    generator: torch.Generator
    tokens: list[int] = field(default_factory=list)
    finish: str | None = None
    error: BaseException | None = None
    cached: int = 0  # tokens that the prefix index gave when the request was admitted last
    preemptions: int = 0
    submitted: float = 0.0
    first_token: float = 0.0
    finished: float = 0.0
    _seq: int = -1
    _computed: int = 0

    @property
    def known(self) -> list[int]:
        return self.prompt + self.tokens

    def _next(self, count: int) -> list[int]:
        """The next `count` tokens to be computed."""
        begin, end, prompt = self._computed, self._computed + count, len(self.prompt)
        return self.prompt[begin:end] + self.tokens[max(begin - prompt, 0):max(end - prompt, 0)]

    @property
    def _pending(self) -> int:
        return len(self.prompt) + len(self.tokens) - self._computed


class Server:
    """Serves requests with one model that was loaded with ``attn_implementation="kvcache"``.

        server = Server(model, byte_budget=1 << 30)
        request = server.submit([1, 2, 3], max_new_tokens=20)
        for request, token in server.stream():
            print(request.number, token)

    Every step computes the last token of the running requests and up to `max_step_tokens` of prompts. Prompts that begin alike share
    pages through the prefix index; a prompt whose beginning is being computed by another request waits for it. When the pages are
    full, the request that was admitted last gives its pages up and is computed again later (its blocks may still be in the index).
    """

    def __init__(self, model, *, max_batch: int = 64, max_step_tokens: int = 512, share_prefixes: bool = True,
                 page_size: int = 16, num_pages: int | None = None, byte_budget: int | None = None,
                 num_threads: int | None = None, mla: str = "latent", dtype: str | torch.dtype | None = None,
                 keep_tokens: int = 0):
        if max_batch < 1:
            raise ValueError(f"max_batch: expected at least 1, got {max_batch}")
        if max_step_tokens < 1:
            raise ValueError(f"max_step_tokens: expected at least 1, got {max_step_tokens}")
        self.model = model
        self.max_batch = max_batch
        self.max_step_tokens = max_step_tokens
        self.share_prefixes = share_prefixes
        self.cache = PagedCache(model.config, "fused", page_size=page_size, num_pages=num_pages, byte_budget=byte_budget,
                                num_threads=num_threads, mla=mla, dtype=dtype, keep_tokens=keep_tokens)
        _check_servable(self.cache)
        self.cache._more_limits = dict(max_step_tokens=max_step_tokens + max_batch)
        self._keeps_logits = "logits_to_keep" in inspect.signature(model.forward).parameters
        with torch.inference_mode():  # the first token shows the shapes of K and V: now the pages can be planned
            model(input_ids=torch.zeros(1, 1, dtype=torch.long), past_key_values=self.cache, use_cache=True)
        self.cache.reset()
        self.store = self.cache.store
        self._block = self.store.cache.plan.info.prefix_block
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []  # in the order of admission
        self._submitted = 0

    # Requests ------------------------------------------------------------------------------------------------

    def submit(self, prompt: Sequence[int], max_new_tokens: int = 64, *, temperature: float = 0.0, top_k: int = 0,
               top_p: float = 1.0, seed: int = 0, stop_tokens: Sequence[int] = (),
               on_token: Callable[[Request, int], None] | None = None) -> Request:
        """Queue a prompt of token ids. `on_token(request, token)` is called for every new token.

        Raises kvcache.NeverFits when the pages could not hold the request even if it were alone.
        """
        prompt = [int(token) for token in prompt]
        if not prompt:
            raise ValueError("prompt: expected at least one token")
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens: expected at least 1, got {max_new_tokens}")
        self._check_fits(len(prompt) + max_new_tokens - 1)
        request = Request(self._submitted, prompt, max_new_tokens, Sampling(temperature, top_k, top_p, seed),
                          frozenset(int(token) for token in stop_tokens), on_token, torch.Generator().manual_seed(seed),
                          submitted=time.perf_counter())
        self._submitted += 1
        self._waiting.append(request)
        return request

    def _check_fits(self, tokens: int) -> None:
        if self.store.grows:
            return
        plan = self.store.cache.plan
        needed = plan.request_pages(tokens)
        if needed > plan.info.num_pages:
            raise kvcache.NeverFits(f"prompt and max_new_tokens: {tokens} tokens need {needed} pages, the pool has {plan.info.num_pages}")

    def cancel(self, request: Request) -> None:
        """Stop a request; what it has generated stays."""
        if request.finish is None:
            self._end(request, "cancelled")

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    def stream(self) -> Iterator[tuple[Request, int]]:
        """Steps until nothing is left to do, yielding (request, token)."""
        while self.has_work:
            yield from self.step()

    def run(self) -> None:
        """Steps until nothing is left to do."""
        for _ in self.stream():
            pass

    # One step -------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def step(self) -> list[tuple[Request, int]]:
        """One forward of the model; the new tokens of the requests that got one."""
        batch = self._plan_batch()
        if not batch:
            return []
        ids = [request._seq for request, _ in batch]
        lengths = [count for _, count in batch]
        tokens = [token for request, count in batch for token in request._next(count)]
        positions = [position for request, count in batch for position in range(request._computed, request._computed + count)]
        ends = torch.tensor(lengths).cumsum(0) - 1
        complete = [index for index, (request, count) in enumerate(batch) if request._pending == count]
        keep = {"logits_to_keep": ends[complete or [0]]} if self._keeps_logits else {}
        with self.cache.packed(ids, lengths, tokens if self.share_prefixes else None):
            logits = self.model(input_ids=torch.tensor([tokens]), position_ids=torch.tensor([positions]),
                                past_key_values=self.cache, use_cache=True, **keep).logits[0]
        if not keep:
            logits = logits[ends[complete]]
        for request, count in batch:
            request._computed += count
        advanced = [self._advance(batch[index][0], row) for index, row in zip(complete, logits)]
        # Callbacks may cancel any request: by now the step is over for all of them.
        return [(request, token) for request, token in advanced if self._tell(request, token)]

    def _tell(self, request: Request, token: int) -> bool:
        """Call `on_token`; False: the request was cancelled before, its token is not told."""
        if request.finish == "cancelled":
            return False
        if request.on_token:
            try:
                request.on_token(request, token)
            except Exception as error:  # noqa: BLE001  (the caller's: it ends this request, and no other)
                request.error = error
                self._end(request, "error")
        return True

    def _end(self, request: Request, finish: str) -> None:
        request.finish, request.finished = finish, request.finished or time.perf_counter()
        if request in self._waiting:
            self._waiting.remove(request)
        if request in self._running:
            self._release(request)

    def _advance(self, request: Request, logits: torch.Tensor) -> tuple[Request, int]:
        token = request.sampling.choose(logits, request.generator)
        now = time.perf_counter()
        request.first_token = request.first_token or now
        request.tokens.append(token)
        if token in request.stop_tokens:
            request.finish = "stop"
        elif len(request.tokens) == request.max_new_tokens:
            request.finish = "length"
        if request.finish:
            self._end(request, request.finish)
        return request, token

    def _plan_batch(self) -> list[tuple[Request, int]]:
        """Which requests grow by how many tokens: decodes first, then prompts in the order they came, within the pages there are."""
        budget = self.max_step_tokens
        batch = []
        for request in sorted(self._running, key=lambda one: one._pending > 1):  # stable: admission order within each kind
            count = min(request._pending, budget) if request._pending > 1 else 1
            if count:
                batch.append((request, count))
                budget -= count if count > 1 else 0
        batch = self._preempt(batch)
        while self._waiting and budget and len(self._running) < self.max_batch:
            request = self._admit(batch)
            if request is None:
                break
            count = min(request._pending, budget)
            batch.append((request, count))
            budget -= count
        return batch

    def _missing(self, batch: list[tuple[Request, int]]) -> int:
        if not batch or self.store.grows:
            return 0
        return self.store.cache.can_append([request._seq for request, _ in batch], [count for _, count in batch])

    def _preempt(self, batch: list[tuple[Request, int]]) -> list[tuple[Request, int]]:
        """Take pages back from the request that was admitted last until the batch finds its own."""
        while self._missing(batch):
            victim = self._running[-1]
            self._release(victim)
            victim.preemptions += 1
            self._waiting.appendleft(victim)
            batch = [(request, count) for request, count in batch if request is not victim]
        return batch

    def _admit(self, batch: list[tuple[Request, int]]) -> Request | None:
        """Start the first waiting request that need not wait for another one's prompt and whose tokens find their pages."""
        for request in self._waiting:
            known = request.known
            hit = self.store.cache.prefix.match(known) if self.share_prefixes else 0
            if self.share_prefixes and self._is_being_computed(known, hit):
                continue
            request._seq, request.cached = self.store.attach(known if self.share_prefixes else [])
            request._computed = request.cached
            if batch and not self._finds_pages(request, batch):
                self.store.remove(request._seq)
                request._seq, request._computed = -1, 0
                return None
            self._waiting.remove(request)
            self._running.append(request)
            return request
        return None

    def _finds_pages(self, request: Request, batch: list[tuple[Request, int]]) -> bool:
        """Room for all its tokens beside the next step of the others, so that it is not preempted at once."""
        if self.store.grows:
            return True
        cache = self.store.cache
        info = cache.plan.info
        own = cache.plan.request_pages(len(request.known)) - cache.info(request._seq).num_pages
        # A sequence starts at most one page per group beside those that its new tokens fill.
        others = sum(info.num_groups * (1 + count // info.page_size) for _, count in batch)
        return own + others <= cache.available_pages

    def _is_being_computed(self, known: list[int], hit: int) -> bool:
        """Is a running prompt about to publish more blocks of these tokens than the index has now?"""
        for other in self._running:
            if other._pending > 1:
                common = _common(known, other.prompt) // self._block * self._block
                if common > hit and common > other._computed:
                    return True
        return False

    def _release(self, request: Request) -> None:
        self.store.remove(request._seq)
        self._running.remove(request)
        request._seq, request._computed = -1, 0

    def __repr__(self) -> str:
        return f"Server({len(self._running)} running, {len(self._waiting)} waiting, {self.store.cache!r})"


def _common(left: list[int], right: list[int]) -> int:
    count = 0
    for one, other in zip(left, right):
        if one != other:
            break
        count += 1
    return count


def _check_servable(cache: PagedCache) -> None:
    """Packed rows are right for layers that see other tokens through attention alone, and positions alone."""
    config = cache.config
    for spec in cache._specs:
        if spec.has_state:
            raise NotImplementedError(f"model: layer {spec.index} ({spec.type}) has a recurrent state, which packed rows would mix")
    if getattr(config, "is_encoder_decoder", False):
        raise NotImplementedError("model: encoder-decoder models are not served in packed rows")
    if getattr(config, "attn_temperature_tuning", False):
        raise NotImplementedError("model: attn_temperature_tuning reads one length for the whole row")
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    for one in (rope, *(value for value in rope.values() if isinstance(value, dict))):
        kind = one.get("rope_type", one.get("type"))
        if kind in ("dynamic", "longrope"):
            raise NotImplementedError(f"model: rope_type {kind!r} depends on the longest sequence of the row")
        if "mrope_section" in one:
            raise NotImplementedError("model: positions of several sections (M-RoPE) are not served in packed rows")
