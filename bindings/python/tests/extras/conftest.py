"""Where the tests of examples and flattened header find things. KVCACHE_BUILD_DIR: a folder other than build/."""

import os
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[4]


@pytest.fixture(scope="session")
def root():
    return ROOT


@pytest.fixture(scope="session")
def library():
    """Path of libkvcache.so."""
    path = pathlib.Path(os.environ.get("KVCACHE_BUILD_DIR", ROOT / "build"), "libkvcache.so").resolve()
    assert path.exists(), f"{path} is not there: run `make build`, or set KVCACHE_BUILD_DIR"
    return path


@pytest.fixture(scope="session")
def cdef(tmp_path_factory):
    """Path of a freshly generated kvcache_cdef.h."""
    sys.path.insert(0, str(ROOT / "bindings" / "python" / "cdef"))
    import make_cdef

    path = tmp_path_factory.mktemp("cdef") / "kvcache_cdef.h"
    header = ROOT / "include" / "kvcache_api.h"
    path.write_text(make_cdef.flatten(header, make_cdef.find_dlpack(header, path)))
    return path
