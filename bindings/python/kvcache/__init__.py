"""The KV cache of LLM serving: layer specs in, pages planned; tokens in, pages shared; Q, K, V in, attention out.

    import numpy as np, kvcache

    with kvcache.Cache(layers=[kvcache.Layer(num_q_heads=8, num_kv_heads=2, k_dim=64)], byte_budget=1 << 20) as cache:
        cache.add(1)
        q, k, v = (np.zeros((3, heads, 64), np.float32) for heads in (8, 2, 2))
        with cache.forward([1], [3]) as step:     # 3 new tokens of sequence 1
            out = step.attn(0, q, k, v)           # appends k and v, then attends: once per layer
        cache.fork(1, 2)                          # shares the pages until a branch writes

Tensors are anything with `__dlpack__`: NumPy arrays, PyTorch tensors, others. NumPy has no bfloat16: use ml_dtypes' arrays as they are, or
`kvcache.as_dtype(uint16_array, "bfloat16")`.
"""

from typing import TYPE_CHECKING

from . import _library

_library.check_library(_library.find_library())

from . import _capi  # noqa: E402  (linked against the library that was checked above)
from .errors import *  # noqa: E402, F403
from .errors import status_error as _status_error  # noqa: E402

_capi.set_error_factory(_status_error)

from . import errors, ops  # noqa: E402
from .cache import Cache, Fence, KVCache  # noqa: E402
from .config import Config, Layer, Rope, State  # noqa: E402
from .files import describe_state_file  # noqa: E402
from .forward import BATCH_INVARIANT, DETERMINISTIC, NO_CASCADE, AttnOptions, Forward  # noqa: E402
from .info import DeviceCaps, GroupInfo, LayerInfo, PlanInfo, SeqInfo, Stats  # noqa: E402
from .package import (  # noqa: E402
    device_caps,
    get_cmake_dir,
    get_include,
    get_pkgconfig_dir,
    has_feature,
    lib_path,
    set_logger,
    set_module_path,
    version,
)
from .plan import Plan, min_pages, plan_for  # noqa: E402
from .prefix import ADAPTER, MEDIA, USER, Event, Events, Prefix, PrefixKey, prefix_hash  # noqa: E402
from .tensors import SupportsDLPack, Tensor, as_dtype, to_numpy  # noqa: E402
from .tiers import Tiers, TierStats  # noqa: E402
from .transfers import Transfer, TransferInfo, Transport, TransportStats  # noqa: E402

if TYPE_CHECKING:
    from .events_publisher import EventPublisher as EventPublisher
else:

    def __getattr__(name: str) -> object:
        """What needs packages of its own is imported when it is asked for."""
        if name == "EventPublisher":
            from .events_publisher import EventPublisher

            return EventPublisher
        raise AttributeError(f"module 'kvcache' has no attribute {name!r}")


__version__ = "0.1.0"
__all__ = [
    "Cache",
    "KVCache",
    "Config",
    "Layer",
    "Rope",
    "State",
    "Plan",
    "min_pages",
    "plan_for",
    "Forward",
    "AttnOptions",
    "Fence",
    "describe_state_file",
    "Prefix",
    "PrefixKey",
    "prefix_hash",
    "Event",
    "Events",
    "Tiers",
    "TierStats",
    "Tensor",
    "SupportsDLPack",
    "as_dtype",
    "to_numpy",
    "PlanInfo",
    "GroupInfo",
    "LayerInfo",
    "SeqInfo",
    "Stats",
    "DeviceCaps",
    "ADAPTER",
    "MEDIA",
    "USER",
    "DETERMINISTIC",
    "BATCH_INVARIANT",
    "NO_CASCADE",
    "lib_path",
    "get_include",
    "get_cmake_dir",
    "get_pkgconfig_dir",
    "has_feature",
    "device_caps",
    "set_logger",
    "set_module_path",
    "version",
    "ops",
    "errors",
    *errors.__all__,
]
