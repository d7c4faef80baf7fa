"""What a failed call raises: an `Error`, often also the built-in exception that a user expects.

Most are statuses of the library. `ArgumentTypeError`, `ArgumentOverflowError` and `TensorError` are
the package's own, for arguments that never reach the library.
"""

from __future__ import annotations

import operator
from typing import SupportsIndex

__all__ = [
    "Error",
    "ArgumentTypeError",
    "ArgumentOverflowError",
    "TensorError",
    "InvalidArgument",
    "InvalidState",
    "NotFound",
    "AlreadyExists",
    "OutOfRange",
    "ShapeError",
    "DtypeError",
    "DeviceMismatch",
    "Unsupported",
    "NoPages",
    "NeverFits",
    "NoMemory",
    "Busy",
    "BufferTooSmall",
    "VersionError",
    "Corrupt",
    "InputOutputError",
    "Timeout",
    "PeerError",
    "Cancelled",
    "DeviceError",
    "InternalError",
    "status_error",
]


class Error(Exception):
    """A call that failed.

    status: number of the status in the C interface (KVC_E_*).
    detail: the number that belongs to it, for example the missing pages of `NoPages`; 0: none.
    sys_code: number of the operating system or the device; 0: none.
    """

    status: int = 0
    detail: int = 0
    sys_code: int = 0

    @property
    def name(self) -> str:
        """Name of the status, for example "KVC_E_NO_PAGES"."""
        return _NAMES.get(self.status, "KVC_E_UNKNOWN")


class InvalidArgument(Error, ValueError):
    """Missing, negative, or contradictory arguments."""


class InvalidState(Error, RuntimeError):
    """Closed handles, ended forwards, layers that are not there or of another kind."""


class NotFound(Error, KeyError):
    """Unknown sequence."""

    __str__ = Exception.__str__  # KeyError shows the message in quotes


class AlreadyExists(Error, ValueError):
    """Sequence id taken."""


class OutOfRange(Error, IndexError):
    """Position, length, count, or index beyond its limit; `detail` is the nearest one that is possible, where there is one."""


class ShapeError(Error, ValueError):
    """Tensor rank, shape, stride, or alignment not accepted."""


class DtypeError(Error, TypeError):
    """Tensor element type not accepted."""


class DeviceMismatch(Error, ValueError):
    """Tensor lives on another device than the cache."""


class Unsupported(Error, NotImplementedError):
    """Meaningful, but not available in this build or in this combination."""


class NoPages(Error):
    """Full now: nothing changed, `missing_pages` are needed. Expected; preempt a sequence or wait."""

    @property
    def missing_pages(self) -> int:
        """Pages that the call needed and did not find."""
        return self.detail


class NeverFits(Error, ValueError):
    """Could not be served even by an empty cache."""


class NoMemory(Error, MemoryError):
    """Host or device allocation failed."""


class Busy(Error, RuntimeError):
    """Object is in use: open forward, exported memory."""


class BufferTooSmall(Error, ValueError):
    """A buffer of the caller is too small."""


class VersionError(Error):
    """Struct tail or version not understood."""


class Corrupt(Error):
    """An invariant of the cache does not hold."""


class InputOutputError(Error, OSError):
    """A file or a connection failed."""


class Timeout(Error, TimeoutError):
    """Not done in time."""


class PeerError(Error):
    """Another machine failed."""


class Cancelled(Error):
    """Given up by the caller."""


class DeviceError(Error, RuntimeError):
    """The device failed."""


class InternalError(Error, RuntimeError):
    """A defect in the library."""


class ArgumentTypeError(Error, TypeError):
    """An argument of a type that the call does not take; the message names argument and type."""

    status = 1


class ArgumentOverflowError(OutOfRange, OverflowError):
    """A number that does not fit the 32 or 64 bits of its argument; the message names both."""

    status = 5


class TensorError(Error, BufferError):
    """A tensor that cannot be taken or given: read-only where the call writes, one that requires
    grad, or one whose producer describes it against DLPack."""

    status = 1


_CLASSES: tuple[type[Error], ...] = (
    Error,
    InvalidArgument,
    InvalidState,
    NotFound,
    AlreadyExists,
    OutOfRange,
    ShapeError,
    DtypeError,
    DeviceMismatch,
    Unsupported,
    NoPages,
    NeverFits,
    NoMemory,
    Busy,
    BufferTooSmall,
    VersionError,
    Corrupt,
    InputOutputError,
    Timeout,
    PeerError,
    Cancelled,
    DeviceError,
    InternalError,
)
for _number, _kind in enumerate(_CLASSES):
    _kind.status = _number
_STATUS_NAMES = (
    "OK INVALID_ARGUMENT INVALID_STATE NOT_FOUND ALREADY_EXISTS OUT_OF_RANGE SHAPE DTYPE DEVICE_MISMATCH UNSUPPORTED NO_PAGES "
    "NEVER_FITS NO_MEMORY BUSY BUFFER_TOO_SMALL VERSION CORRUPT IO TIMEOUT PEER CANCELLED DEVICE INTERNAL"
).split()
_NAMES = {number: ("KVC_" if number == 0 else "KVC_E_") + name for number, name in enumerate(_STATUS_NAMES)}


_OWN: dict[int, type[Error]] = {-1: ArgumentTypeError, -2: ArgumentOverflowError, -3: TensorError}


def status_error(status: int, message: str, detail: int = 0, sys_code: int = 0) -> Error:
    """The exception of a status, not raised. Numbers below zero are the package's own exceptions."""
    if status < 0:
        return _OWN[status](message)
    error = (_CLASSES[status] if 0 < status < len(_CLASSES) else Error)(message)
    error.status, error.detail, error.sys_code = status, detail, sys_code
    return error


def type_name(value: object) -> str:
    """Name of a value's type as messages show it: "list", "numpy.float64"."""
    kind = type(value)
    module = "" if kind.__module__ == "builtins" else kind.__module__ + "."
    return module + kind.__qualname__


def wrong_type(name: str, expected: str, value: object) -> ArgumentTypeError:
    """The exception of an argument of the wrong type, not raised."""
    return ArgumentTypeError(f"{name}: expected {expected}, got {type_name(value)}")


def integer(value: SupportsIndex, name: str) -> int:
    """`value` as an int: integers of Python, NumPy, PyTorch, and whatever else has __index__."""
    try:
        return operator.index(value)
    except TypeError:
        raise wrong_type(name, "an integer", value) from None
