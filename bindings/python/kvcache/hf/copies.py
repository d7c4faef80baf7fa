# SPDX-License-Identifier: Apache-2.0
"""Keys and values that were copied out of the pages: writing into them would change nothing, so it raises."""

from __future__ import annotations

import torch

_CHANGES = frozenset((
    "__setitem__", "__set__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__imod__", "__ipow__",
    "__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__",
))


class Copied(torch.Tensor):
    """A copy of K or V, and every view of it."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        in_place = name in _CHANGES or (name.endswith("_") and not name.endswith("__") and name != "requires_grad_")
        written = (args[:1] if in_place else ()) + (kwargs.get("out"),)
        if any(isinstance(one, cls) for one in written):
            raise RuntimeError(
                "keys and values of a paged cache are copies of its pages, and changing them changes nothing; change a "
                "clone and assign it: layer.keys = changed"
            )
        with torch._C.DisableTorchFunctionSubclass():
            result = function(*args, **kwargs)
            return _marked(result, {one.untyped_storage().data_ptr() for one in args if isinstance(one, cls)})


def _marked(result, storages: set[int]):
    """`result`, where it is a view of one of the storages as what cannot be written, else as a plain tensor."""
    if isinstance(result, (list, tuple)) and any(isinstance(one, torch.Tensor) for one in result):
        parts = [_marked(one, storages) for one in result]
        return parts if isinstance(result, list) else tuple(parts)
    if not isinstance(result, torch.Tensor) or result.layout != torch.strided:
        return result
    is_view = result.untyped_storage().data_ptr() in storages
    return result.as_subclass(Copied if is_view else torch.Tensor)


def copied(states: torch.Tensor) -> Copied:
    return states.as_subclass(Copied)
