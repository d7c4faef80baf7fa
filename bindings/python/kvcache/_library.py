"""Finding and checking libkvcache.so before the extension module is linked against it."""

from __future__ import annotations

import ctypes
import os
import pathlib

SONAME = "libkvcache.so.0"
NEEDED_ABI = (0, 1)  # KVC_ABI_VERSION of the header this package was written for


def package_file(*parts: str) -> pathlib.Path | None:
    """A file or folder of the installed package. Editable installs keep built files and Python files in different folders."""
    import kvcache

    for folder in kvcache.__path__:
        path = pathlib.Path(folder).joinpath(*parts)
        if path.exists():
            return path
    return None


def find_library() -> pathlib.Path:
    """The shared library that KVCACHE_LIB names, else the one that this package carries."""
    if given := os.environ.get("KVCACHE_LIB"):
        return pathlib.Path(given)
    found = package_file("lib", SONAME)
    if found is None:
        import kvcache

        places = ", ".join(str(pathlib.Path(folder) / "lib" / SONAME) for folder in kvcache.__path__)
        raise ImportError(
            f"{places}: not found; kvcache {'.'.join(map(str, NEEDED_ABI))} needs this shared library, here or "
            "where KVCACHE_LIB says",
            name="kvcache",
        )
    return found


def check_library(path: pathlib.Path) -> None:
    """Refuse a library that cannot serve this package, by name and with both versions. It stays loaded, so the
    extension module finds it by its soname, wherever it lies."""
    needed = ".".join(map(str, NEEDED_ABI))
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(
            f"{path}: cannot be loaded ({error}); kvcache needs version {needed} of it, here or where KVCACHE_LIB says",
            name="kvcache",
            path=str(path),
        ) from error
    try:
        version = library.kvc_abi_version
    except AttributeError:
        raise ImportError(
            f"{path}: is no libkvcache (kvc_abi_version is missing); kvcache needs version {needed}",
            name="kvcache",
            path=str(path),
        ) from None
    version.restype = ctypes.c_uint32
    version.argtypes = []
    found = version() >> 16, version() & 0xFFFF
    if found[0] != NEEDED_ABI[0] or found[1] < NEEDED_ABI[1]:
        raise ImportError(
            f"{path}: has version {found[0]}.{found[1]}; kvcache needs {needed} or a later {NEEDED_ABI[0]}.x",
            name="kvcache",
            path=str(path),
        )
