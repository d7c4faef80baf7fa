"""The installed package and library: where they lie, what they can do, and what they have to say."""

from __future__ import annotations

import os
from collections.abc import Callable

from typing import Any, SupportsIndex

from . import _capi
from ._library import find_library, package_file
from .devices import device_of
from .info import DeviceCaps, made

__all__ = [
    "lib_path",
    "get_include",
    "get_cmake_dir",
    "get_pkgconfig_dir",
    "version",
    "has_feature",
    "device_caps",
    "set_logger",
    "set_module_path",
]


def lib_path() -> str:
    """Path of the shared library, for ctypes, cffi, and linkers."""
    return str(find_library())


def _folder(*parts: str) -> str:
    found = package_file(*parts)
    if found is None:
        raise FileNotFoundError(f"kvcache/{'/'.join(parts)} is not in this installation")
    return str(found)


def get_include() -> str:
    """Folder of kvcache.h and dlpack/dlpack.h."""
    return _folder("include")


def get_cmake_dir() -> str:
    """Folder for CMake's kvcache_DIR: find_package(kvcache) links against the library of this package."""
    return _folder("lib", "cmake", "kvcache")


def get_pkgconfig_dir() -> str:
    """Folder for PKG_CONFIG_PATH."""
    return _folder("lib", "pkgconfig")


def version() -> str:
    """Version and build of the loaded library, for example "0.1.0 cpu"."""
    return str(_capi.kvc_version_string())


def has_feature(name: str) -> bool:
    """Whether the build has a feature; kvcache.h lists the names."""
    return bool(_capi.kvc_has_feature(name))


def device_caps(device: Any = (1, 0)) -> DeviceCaps:
    """What the library can do on a device: "cuda:1", DLPack's (type, id), or a torch.device."""
    return made(DeviceCaps, _capi.kvc_device_query(device_of(device) or (1, 0)))


def set_module_path(path: str | os.PathLike[str] | None) -> None:
    """Where modules lie (`libkvcache_cuda.so`): an absolute directory; None: the library's own, as without this call. Before a module is loaded."""
    _capi.kvc_module_path_set(None if path is None else os.fspath(path))


def set_logger(fn: Callable[[int, str], None] | None, min_level: SupportsIndex = 2) -> None:
    """Send messages of at least `min_level` (0 debug, 1 info, 2 warning, 3 error) to `fn(level, message)`, from any thread; None: silence."""
    _capi.set_logger(fn, min_level)
