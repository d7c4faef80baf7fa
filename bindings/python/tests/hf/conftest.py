# SPDX-License-Identifier: Apache-2.0
"""Tests of kvcache.hf. Without torch and transformers there is nothing to test."""

import importlib.util
import logging
import os
import pathlib
import sys

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
sys.path.insert(0, str(pathlib.Path(__file__).parent))

if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    import torch

    torch.set_num_threads(1)
    logging.getLogger("transformers").setLevel(logging.ERROR)


def pytest_report_header(config):
    if "torch" not in sys.modules:
        return "torch or transformers is missing: the tests of kvcache.hf are not collected"
    import transformers

    return f"torch {torch.__version__}, transformers {transformers.__version__}"


def pytest_collection_modifyitems(items):
    """Hybrid models of version 4 have a cache class each, which kvcache.hf does not replace."""
    here = [item for item in items if pathlib.Path(__file__).parent in item.path.parents]
    if not here:
        return
    import families
    import pytest
    from steps import V5

    for item in here:
        callspec = getattr(item, "callspec", None)
        if not V5 and callspec is not None and callspec.params.get("family") in families.HYBRID:
            item.add_marker(pytest.mark.skip(reason="recurrent states need transformers 5"))
