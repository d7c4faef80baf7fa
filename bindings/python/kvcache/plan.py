"""Layer specs to bytes and pages; no device is touched."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from . import _capi
from .config import Config
from .devices import device_of, stream_address
from .info import GroupInfo, LayerInfo, PlanInfo, layer_info, made

__all__ = ["Plan", "min_pages"]


class Plan:
    """Planned memory of a model: immutable, and shared by as many caches and threads as you like."""

    def __init__(self, config: Config) -> None:
        self.config = config
        given = config.as_dict()
        self._device = device_of(config.device)
        self._pool = list(config._kept)  # borrowed memory lives as long as the plan and its caches
        self._handle = _capi.kvc_plan_create(given)
        self.info: PlanInfo = made(PlanInfo, _capi.kvc_plan_info_get(self._handle))
        self._layers: dict[int, LayerInfo] = {}

    def _stream(self, stream: Any) -> int | None:
        return stream_address(stream, self._device)

    def group(self, group: int) -> GroupInfo:
        """Layers that share a page table."""
        return made(GroupInfo, _capi.kvc_plan_group_get(self._handle, group))

    def layer(self, layer: int) -> LayerInfo:
        """A layer as planned, defaults filled in."""
        found = self._layers.get(layer)
        if found is None:
            found = self._layers[layer] = layer_info(_capi.kvc_plan_layer_get(self._handle, layer))
        return found

    def pages_for(self, byte_budget: int) -> int:
        """Pages that a byte budget holds."""
        return int(_capi.kvc_plan_pages_for(self._handle, byte_budget))

    def max_tokens(self, byte_budget: int) -> int:
        """Longest single request, in tokens, that a byte budget holds."""
        return int(_capi.kvc_plan_max_tokens(self._handle, byte_budget))

    def request_pages(self, num_tokens: int) -> int:
        """Pages that one request of so many tokens needs at most while it is computed."""
        return int(_capi.kvc_plan_request_pages(self._handle, num_tokens))

    def describe(self) -> str:
        """The plan as a table for people."""
        return str(_capi.kvc_plan_describe(self._handle))

    def to_dict(self) -> dict[str, Any]:
        """The plan as data: groups, layers, bytes, waste."""
        found: dict[str, Any] = json.loads(_capi.kvc_plan_to_json(self._handle))
        return found

    def __repr__(self) -> str:
        i = self.info
        return f"<kvcache.Plan {i.layer_end - i.layer_begin} layers, {i.num_pages} pages of {i.page_bytes} bytes, page_size {i.page_size}>"


def min_pages(plans: Sequence[Plan]) -> int:
    """Pages that every rank of one model has: give each rank's plan this number."""
    return int(_capi.kvc_plan_min_pages(tuple(plan._handle for plan in plans)))
