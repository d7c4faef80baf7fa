"""Fixtures of the tests of the Python binding; what they share otherwise is in support.py."""

from __future__ import annotations

import pathlib
import sys

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))  # `support`, `conformance`

from support import small_cache  # noqa: E402


@pytest.fixture
def cache():
    with small_cache() as cache:
        yield cache


@pytest.fixture
def rng():
    seed = 20240607
    print("seed", seed)
    return np.random.default_rng(seed)
