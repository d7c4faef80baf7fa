"""State files: where they come from, and what they hold."""

from __future__ import annotations

import json
import os
from typing import Any

from . import _capi
from .errors import InvalidArgument, wrong_type

__all__ = ["Source", "describe_state_file"]

# A path, or the bytes of a file; bytearray and memoryview are copied.
Source = str | os.PathLike[str] | bytes | bytearray | memoryview


def load_desc(source: Any, model_id: str | None = None, convert: bool = False, publish: bool = True) -> tuple[Any, ...]:
    flags = (_capi.KVC_LOAD_CONVERT if convert else 0) | (0 if publish else _capi.KVC_LOAD_NO_PUBLISH)
    if isinstance(source, (str, os.PathLike)):
        return (path_of(source), None, model_id, flags)
    if isinstance(source, (bytearray, memoryview)):
        source = bytes(source)
    if not isinstance(source, bytes):
        raise wrong_type("source", "a path or bytes", source)
    return (None, source, model_id, flags)


def path_of(path: Any) -> bytes:
    """As the system has it: a path need not be UTF-8."""
    found = os.fspath(path)
    if not isinstance(found, str):
        raise wrong_type("path", "a str path", path)
    try:
        return os.fsencode(found)
    except UnicodeEncodeError:
        raise InvalidArgument(f"path = {found!r} is no text that the file system has") from None


def describe_state_file(source: Source) -> dict[str, Any]:
    """Read and check a whole state file, and say what it holds: sequences, pages, layout.

    `Corrupt` for a damaged file, `Version` for a newer format.
    """
    found: dict[str, Any] = json.loads(_capi.kvc_state_file_describe(load_desc(source)))
    return found
