"""Layer specs to bytes and pages; no device is touched."""

from __future__ import annotations

import html
import json
import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

from . import _capi
from .config import Config, Layer, config_of
from .devices import device_of, stream_address
from .errors import ArgumentTypeError, InvalidArgument, NeverFits, integer, wrong_type
from .info import GroupInfo, LayerInfo, PlanInfo, layer_info, made

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .config import Limits, ModelLimits

__all__ = ["Plan", "min_pages", "plan_for"]


class Plan:
    """Planned memory of a model: immutable, and shared by as many caches and threads as you like.

        Plan(Config(layers=[Layer(num_kv_heads=2, k_dim=64)] * 32, byte_budget=1 << 30))
        Plan(layers=[...], num_pages=1024)
        Plan(model_config="path/to/config.json", byte_budget=1 << 30)

    config: the `Config` that was planned.
    info: the whole plan as a `PlanInfo`.
    """

    @overload
    def __init__(self, config: Config) -> None: ...
    @overload
    def __init__(
        self, config: None = None, *, layers: Sequence[Layer], **fields: Unpack[Limits]
    ) -> None: ...
    @overload
    def __init__(
        self, config: None = None, *, model_config: Any, **fields: Unpack[ModelLimits]
    ) -> None: ...
    def __init__(
        self, config: Config | None = None, *, model_config: Any = None, **fields: Any
    ) -> None:
        config = config_of(config, model_config, fields, "config", "a kvcache.Config")
        self.config = config
        given = config.as_dict()
        self._device = device_of(config.device)
        self._pool = list(config._kept)  # borrowed memory lives as long as the plan and its caches
        self._handle = _capi.kvc_plan_create(given)
        self.info: PlanInfo = made(PlanInfo, _capi.kvc_plan_info_get(self._handle))
        self._layers: dict[int, LayerInfo] = {}

    def _stream(self, stream: Any) -> int | None:
        return stream_address(stream, self._device)

    def group(self, group: SupportsIndex) -> GroupInfo:
        """A layer group, 0 to info.num_groups - 1: layers that share a page table."""
        return made(GroupInfo, _capi.kvc_plan_group_get(self._handle, group))

    def layer(self, layer: SupportsIndex) -> LayerInfo:
        """A layer as planned, defaults filled in; `layer` is its number in the whole model."""
        layer = integer(layer, "layer")
        found = self._layers.get(layer)
        if found is None:
            found = self._layers[layer] = layer_info(_capi.kvc_plan_layer_get(self._handle, layer))
        return found

    def pages_for(self, byte_budget: SupportsIndex) -> int:
        """Pages that a byte budget holds."""
        return int(_capi.kvc_plan_pages_for(self._handle, byte_budget))

    def max_tokens(self, byte_budget: SupportsIndex) -> int:
        """Longest single request, in tokens, that a byte budget holds."""
        return int(_capi.kvc_plan_max_tokens(self._handle, byte_budget))

    def request_pages(self, num_tokens: SupportsIndex) -> int:
        """Pages that one request of so many tokens needs at most while it is computed."""
        return int(_capi.kvc_plan_request_pages(self._handle, num_tokens))

    @property
    def fingerprint(self) -> str:
        """A text that is equal exactly where pages can move between two caches, and state files be loaded."""
        return str(_capi.kvc_layout_fingerprint(self._handle))

    def describe(self) -> str:
        """The plan as a table for people."""
        return str(_capi.kvc_plan_describe(self._handle))

    def to_dict(self) -> dict[str, Any]:
        """The plan as data: groups, layers, bytes, waste."""
        found: dict[str, Any] = json.loads(_capi.kvc_plan_to_json(self._handle))
        return found

    def __reduce__(self) -> Any:
        return Plan, (self.config,)  # a copy in another process is planned anew

    def __repr__(self) -> str:
        i = self.info
        return (
            f"<kvcache.Plan {i.layer_end - i.layer_begin} layers, {i.num_pages} pages of "
            f"{i.page_bytes} bytes, page_size {i.page_size}>"
        )

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.describe())}</pre>"


def min_pages(plans: Iterable[Plan]) -> int:
    """Pages that every rank of one model has: give each rank's plan this number."""
    try:
        given = tuple(plans)
    except TypeError:
        raise wrong_type("plans", "kvcache.Plan objects in a row", plans) from None
    for index, plan in enumerate(given):
        if not isinstance(plan, Plan):
            raise wrong_type(f"plans[{index}]", "a kvcache.Plan", plan)
    return int(_capi.kvc_plan_min_pages(tuple(plan._handle for plan in given)))


_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def _bytes_of(memory: SupportsIndex | str) -> int:
    """24GiB and 24G are powers of 1024, 24GB of 1000; a number is bytes."""
    if not isinstance(memory, str):
        return integer(memory, "memory")
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([kmgt]?)(i?b)?\s*", memory, re.IGNORECASE)
    if match is None or (match[3] and match[3].lower() == "ib" and not match[2]):
        raise InvalidArgument(f"memory: expected a size such as '24GiB', '24GB' or bytes, got {memory!r}")
    base = 1000 if (match[3] or "").lower() == "b" else 1024
    whole = int(match[1]) if match[1].isdigit() else float(match[1])
    return int(whole * base ** _UNITS[match[2].lower()])


def plan_for(
    model_config: Any, memory: SupportsIndex | str, **limits: Unpack[ModelLimits]
) -> Plan:
    """The cache of a Hugging Face model in given memory, as `kvcache plan` plans it.

        kvcache.plan_for("path/to/config.json", memory="24GiB").max_tokens(24 << 30)
        kvcache.plan_for(model.config, memory=24 << 30, max_seq_len=32768).info.num_pages

    model_config: as in `Config.from_hf`, so also a transformers configuration object. A model_type that is not known is read by its keys, with
        a warning in the log (`set_logger`).
    memory: bytes, or a text: "24GiB" and "24G" are powers of 1024, "24GB" of 1000.
    limits: as in `Config.from_hf`, except num_pages and byte_budget. max_tokens_per_forward is 8192 unless given.

    When a request of max_seq_len tokens does not fit, the plan is for the longest that does, with a warning that names both lengths.
    """
    for name in ("num_pages", "byte_budget", "pool_tensors"):
        if name in limits:
            raise ArgumentTypeError(f"{name}: memory says how large the cache is")
    limits.setdefault("max_tokens_per_forward", 8192)
    budget = _bytes_of(memory)
    if budget < 1:  # 0 would be a plan without a limit
        raise InvalidArgument(f"memory: expected a positive size, got {memory!r}")
    limits["byte_budget"] = budget
    config = Config.from_hf(model_config, **limits)
    asked = config.max_seq_len
    while True:
        try:
            plan = Plan(config)
            break
        except NeverFits as error:
            shorter = min(error.detail, config.max_seq_len - 1)
            if shorter < 1:
                raise
            config = replace(config, max_seq_len=shorter)
    if config.max_seq_len != asked:
        warnings.warn(
            f"a request of {asked} tokens does not fit in {memory}: this is the plan for {config.max_seq_len}",
            stacklevel=2,
        )
    return plan
