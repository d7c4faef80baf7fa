"""Tensors in and out: element types by name, `Tensor` objects, and the shapes of outputs that the caller leaves to us."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, NoReturn, Protocol, SupportsIndex, Union, runtime_checkable

import numpy as np

from . import _capi
from .errors import ArgumentTypeError, status_error, wrong_type

__all__ = ["SupportsDLPack", "Tensor", "as_dtype", "to_numpy", "dtype_code", "dtype_name"]


@runtime_checkable
class SupportsDLPack(Protocol):
    """What every call takes as a tensor: NumPy arrays, PyTorch tensors, `kvcache.Tensor`, and others."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        """A DLPack capsule over the memory of the tensor."""

    def __dlpack_device__(self) -> tuple[Any, Any]:
        """DLPack's (device type, device id)."""


# Integers in a row: a list, tuple, range, or a tensor of integers with one dimension on the CPU.
Integers = Union[Iterable[SupportsIndex], SupportsDLPack]

_CODES: dict[str, tuple[int, int, int]] = {
    "float32": (2, 32, 1),
    "float16": (2, 16, 1),
    "bfloat16": (4, 16, 1),
    "float64": (2, 64, 1),
    "int8": (0, 8, 1),
    "int16": (0, 16, 1),
    "int32": (0, 32, 1),
    "int64": (0, 64, 1),
    "int4": (0, 4, 1),
    "uint8": (1, 8, 1),
    "uint16": (1, 16, 1),
    "uint32": (1, 32, 1),
    "uint64": (1, 64, 1),
    "bool": (6, 8, 1),
    "float8_e4m3fn": (10, 8, 1),
    "float8_e5m2": (12, 8, 1),
    "float4_e2m1fn": (17, 4, 1),
}
_NAMES = {code: name for name, code in _CODES.items()}
_SHORT = {
    "f32": "float32",
    "fp32": "float32",
    "float": "float32",
    "f16": "float16",
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "f64": "float64",
    "fp64": "float64",
    "double": "float64",
}


def dtype_code(dtype: Any) -> tuple[int, int, int]:
    """DLPack's (code, bits, lanes) of a dtype: a name ("bfloat16"), a NumPy or ml_dtypes dtype, or a PyTorch one."""
    if isinstance(dtype, tuple) and len(dtype) == 3:
        return dtype
    name = (
        dtype
        if isinstance(dtype, str)
        else getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    )
    name = name.removeprefix("torch.")
    name = _SHORT.get(name, name)
    if name not in _CODES:
        raise status_error(7, f"dtype {dtype!r} is not known; known are {', '.join(_CODES)}")
    return _CODES[name]


def dtype_name(code: tuple[int, int, int]) -> str | None:
    """The name of DLPack's (code, bits, lanes); None for (0, 0, 0), the default."""
    return None if code == (0, 0, 0) else _NAMES.get(code, str(code))


class Tensor(_capi.TensorBase):
    """Memory that any package takes by `__dlpack__`, without a copy: exports of the library, and views with another dtype.

    `Tensor(source, dtype)` is `source` (any DLPack producer) read as another element type of the same width.

    `torch.from_dlpack(tensor)` takes every type. NumPy has no bfloat16 and no 8-bit floats: of such
    a tensor `np.from_dlpack` says "Unsupported dtype in DLTensor", while `np.asarray(tensor)`,
    `tensor[index]` and `tensor.numpy()` give arrays of ml_dtypes where that package is installed.

    shape: elements in each dimension.
    strides: elements from one entry to the next, in each dimension.
    dtype_code: DLPack's (code, bits, lanes) of the elements.
    readonly: whether nobody may write to it.
    data_address: address of the first element.
    """

    __slots__ = ()

    def __new__(cls, source: Any, dtype: Any = None) -> Tensor:
        return _capi.TensorBase.__new__(cls, source, None if dtype is None else dtype_code(dtype))

    @property
    def dtype(self) -> str:
        """Name of the element type."""
        return dtype_name(self.dtype_code) or "?"

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def numpy(self) -> np.ndarray[Any, Any]:
        """A NumPy array over the same memory. bfloat16 and 8-bit floats: of ml_dtypes where it is installed, else as unsigned integers."""
        return to_numpy(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """What `np.asarray` takes: an array over the same memory, of values and not only of bits."""
        array = to_numpy(self)
        if array.dtype.kind == "u" and self.dtype_code[0] not in (1, 6):
            raise status_error(
                7,
                f"dtype {self.dtype}: NumPy has no such elements; install ml_dtypes, which has, or "
                "take the bits as unsigned integers with tensor.numpy()",
            )
        if dtype is not None and np.dtype(dtype) != array.dtype:
            if copy is False:
                raise status_error(
                    1, f"copy=False: {array.dtype} does not become {np.dtype(dtype)} without one"
                )
            return array.astype(dtype)
        return array.copy() if copy else array

    def __getitem__(self, index: Any) -> Any:
        """What NumPy's indexing gives: an element, or an array over the same memory."""
        return self.__array__()[index]

    def __reduce__(self) -> NoReturn:
        raise ArgumentTypeError(
            "a kvcache.Tensor cannot be pickled: it is memory of this process; "
            "pickle np.array(tensor)"
        )

    def __repr__(self) -> str:
        return (
            f"kvcache.Tensor(shape={self.shape}, dtype={self.dtype}{', readonly' if self.readonly else ''})"
        )


def exported(base: _capi.TensorBase) -> Tensor:
    """The library's export as a public object."""
    return Tensor(base)


def as_dtype(source: Any, dtype: Any) -> Tensor:
    """`source` read as another element type of the same width: `as_dtype(uint16_array, "bfloat16")`. Shares the memory."""
    if not hasattr(source, "__dlpack__"):
        raise wrong_type("source", "a tensor, which has __dlpack__ and __dlpack_device__", source)
    if isinstance(source, np.ndarray) and source.dtype.kind not in "biufc":
        source = source.view(f"u{source.dtype.itemsize}")  # NumPy exports its own types only
    return Tensor(source, dtype)


class _Memory:
    """What NumPy needs to know of a tensor's memory, which lives as long as the array. (NumPy before 2.1 takes no read-only DLPack.)"""

    __slots__ = ("__array_interface__", "_tensor")

    def __init__(self, tensor: Tensor, typestr: str, width: int) -> None:
        self._tensor = tensor
        self.__array_interface__ = {
            "version": 3,
            "typestr": typestr,
            "shape": tensor.shape,
            "strides": tuple(stride * width for stride in tensor.strides),
            "data": (tensor.data_address, tensor.readonly),
        }


def to_numpy(tensor: Any) -> np.ndarray[Any, Any]:
    """A NumPy array over a CPU tensor's memory, also of types that NumPy does not have (through ml_dtypes, else unsigned integers)."""
    if isinstance(tensor, np.ndarray):
        return tensor
    view = Tensor(tensor)
    code, bits, lanes = view.dtype_code
    if view.__dlpack_device__()[0] != 1:
        raise status_error(
            8, f"the tensor is on device {view.__dlpack_device__()}, NumPy's arrays are on the CPU (1, 0)"
        )
    if bits < 8 or lanes != 1:
        raise status_error(
            7, f"dtype {view.dtype}: no NumPy array has such elements; export the bytes of the pool"
        )
    width = bits // 8
    typestr = ("<" if width > 1 else "|") + {0: "i", 2: "f", 6: "b"}.get(code, "u") + str(width)
    if 0 in view.shape:  # may have no address
        array = np.empty(view.shape, np.dtype(typestr))
    else:
        array = np.asarray(_Memory(view, typestr, width))
    if code in (0, 1, 2, 6):
        return array
    try:
        import ml_dtypes
    except ImportError:
        return array
    kind = getattr(ml_dtypes, view.dtype, None)
    return array if kind is None else array.view(kind)


def _is_torch(tensor: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(tensor, torch.Tensor)


def empty_like(tensor: Any, shape: tuple[int, ...], dtype: Any = None) -> Any:
    """A new tensor of the same package, element type and device; NumPy for packages that are not known here."""
    if _is_torch(tensor):
        torch = sys.modules["torch"]
        return torch.empty(
            shape, dtype=tensor.dtype if dtype is None else getattr(torch, dtype), device=tensor.device
        )
    if dtype is None and isinstance(tensor, np.ndarray):
        return np.empty(shape, dtype=tensor.dtype)
    return np.empty(shape, dtype=np.float32 if dtype is None else dtype)


def shape_of(tensor: Any, name: str) -> Any:
    """The shape of an argument, a sequence of numbers; `name` is what messages call it."""
    shape = getattr(tensor, "shape", None)
    if shape is not None:
        return shape
    if not hasattr(tensor, "__dlpack__"):
        raise wrong_type(name, "a tensor, which has __dlpack__ and __dlpack_device__", tensor)
    return Tensor(tensor).shape


def _numpy_layout_is_as_expected() -> bool:
    """Compare what the extension reads in an array's C struct with what NumPy says about it."""
    for dtype in (np.float32, np.float16, np.int64, np.int32):
        array = np.zeros((5, 4, 3), dtype)[::2, 1:, ::2]
        array.flags.writeable = dtype is not np.int32
        interface = array.__array_interface__
        if _capi.numpy_probe(array) != (
            interface["data"][0],
            array.shape,
            array.strides,
            array.dtype.num,
            array.dtype.kind,
            int(array.flags.writeable),
        ):
            return False
    return True


if _numpy_layout_is_as_expected():
    _capi.numpy_enable(np.ndarray)
