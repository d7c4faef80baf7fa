"""Layer specs to bytes and pages; no device is touched."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

from . import _capi
from .config import Config, Layer, config_of
from .devices import device_of, stream_address
from .errors import integer, wrong_type
from .info import GroupInfo, LayerInfo, PlanInfo, layer_info, made

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .config import Limits, ModelLimits

__all__ = ["Plan", "min_pages"]


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
