"""Devices and streams as the C interface takes them."""

from __future__ import annotations

import sys
from typing import Any

from .errors import integer, status_error

__all__ = ["device_of", "stream_address"]

_TYPES = {"cpu": 1, "cuda": 2}


def device_of(device: Any) -> tuple[int, int] | None:
    """DLPack's (type, id) of "cpu", "cuda", "cuda:1", such a pair, or an object with `type` and `index` (torch.device). None: the CPU."""
    if device is None:
        return None
    if isinstance(device, tuple) and len(device) == 2:
        return integer(device[0], "device[0]"), integer(device[1], "device[1]")
    if isinstance(device, str):
        name, _, number = device.partition(":")
    else:
        name, number = getattr(device, "type", ""), str(getattr(device, "index", None) or 0)
    if name not in _TYPES or not (number or "0").isdecimal():
        raise status_error(1, f"device: {device!r} is none of 'cpu', 'cuda', 'cuda:N'")
    return _TYPES[name], int(number or 0)


def stream_address(stream: Any, device: tuple[int, int] | None) -> int | None:
    """The cudaStream_t of an integer, of a PyTorch or CuPy stream, or of an object with `__cuda_stream__`.

    None: PyTorch's current stream of the device where PyTorch is imported, else the legacy default stream. The CPU has none.
    """
    if device is None or device[0] != _TYPES["cuda"]:
        return None
    if stream is None:
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_available():
            return None
        return int(torch.cuda.current_stream(device[1]).cuda_stream)
    if hasattr(stream, "__index__"):
        return integer(stream, "stream")
    if hasattr(stream, "__cuda_stream__"):  # of NVIDIA's packages: (version, address)
        return int(stream.__cuda_stream__()[1])
    for name in ("cuda_stream", "ptr"):
        if hasattr(stream, name):
            return int(getattr(stream, name))
    raise status_error(
        1, f"stream: {stream!r} is no address, has no __cuda_stream__, cuda_stream (PyTorch) or ptr (CuPy)"
    )
