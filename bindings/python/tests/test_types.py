"""Types of the public package, as mypy sees them in programs of users: what is right passes, what is wrong is found in its line."""

from __future__ import annotations

import re
import subprocess
import sys
import typing

import pytest

import kvcache
from kvcache import config, forward, prefix

pytest.importorskip("mypy")

GOOD = """
import numpy as np
from typing_extensions import assert_type
import kvcache

Array = np.ndarray[tuple[int, int, int], np.dtype[np.float32]]
layer = kvcache.Layer(num_q_heads=8, num_kv_heads=2, k_dim=64, quant="per_tensor", k_scale=0.5, v_scale=0.25)
plan = kvcache.Plan(layers=[layer], num_pages=4, device="cuda:0")
assert_type(plan.layer(np.int64(0)).k_dim, int)
kvcache.Plan(kvcache.Config([layer], page_size=16))
kvcache.Cache(plan).close()
kvcache.Cache(model_config="config.json", byte_budget=1 << 20, dtype="fp16", rope=False).close()
with kvcache.Cache(layers=[layer], num_pages=4, storage="owned") as cache:
    for seq in np.arange(4):
        cache.add(seq)
    cache.fork(1, np.int32(7), pos=np.int64(0))
    q: Array = np.zeros((1, 8, 64), np.float32)
    with cache.forward(np.arange(1), [1], tokens=[1]) as step:
        assert_type(step.attn(0, q, q, q), Array)
        assert_type(step.attn(np.int64(0), q, scale=0.5, window=np.int64(4), sink_logits=q, flags=kvcache.NO_CASCADE), Array)
        out, lse = step.attn_self(0, q, q, q, lse=True, soft_cap=30.0)
        assert_type(out, Array)
        assert_type(step.attn_cached(0, q, lse=out, opt=kvcache.AttnOptions(window=3)), Array)
        assert_type(step.attn_fused_qkv(0, q, bias=q), Array)
        step.attn(0, kvcache.as_dtype(q, "bfloat16"), out=q)
    cache.forward(iter([1])).abort()
    assert_type(cache.stats().hit_rate, float)
    assert_type(cache.prefix.match(np.arange(3), salt=b"tenant", num_tokens=np.int64(2)), int)
    assert_type(np.asarray(cache.export_pool(0)).ndim, int)
try:
    cache.add(1)
except kvcache.ArgumentTypeError as error:
    assert_type(error.detail, int)
"""

BAD = """
import numpy as np
import kvcache

layer = kvcache.Layer(num_kv_heads=1, k_dim=4)
cache = kvcache.Cache(layers=[layer], num_pages=1)
q = np.zeros((1, 1, 4), np.float32)
kvcache.Cache(layers=[layer], bytes_budget=1)  # wrong
kvcache.Cache(layers=[layer], byte_budget="1 GiB")  # wrong
kvcache.Cache(layers=[layer], storage="rented")  # wrong
kvcache.Cache(num_pages=1)  # wrong
kvcache.Cache(layers=[{}], num_pages=1)  # wrong
kvcache.Plan(layers=[layer], bytes_budget=1)  # wrong
kvcache.Plan(3)  # wrong
kvcache.Config.from_hf("config.json", bytes_budget=1)  # wrong
kvcache.Config([layer], 16)  # wrong
kvcache.Layer(8, 2, 64)  # wrong
kvcache.Layer(head_dim=64)  # wrong
kvcache.Layer(kind="convolution")  # wrong
kvcache.Rope(1e4)  # wrong
cache.add("one")  # wrong
cache.add(1.5)  # wrong
cache.fork(1, "2")  # wrong
cache.forward(["a"])  # wrong
cache.forward([1], 3)  # wrong
cache.prefix.match([1], pepper=b"")  # wrong
cache.prefix.match([1], salt="tenant")  # wrong
with cache.forward([1]) as step:
    step.attn(0, q, sm_scale=1)  # wrong
    step.attn_fused_qkv(0, q, softcap=1.0)  # wrong
    step.attn_self(0, q, q, q, causal=True)  # wrong
    step.attn_cached(0, q, scale="1")  # wrong
    step.attn_cross(0, q, lse=True, dropout=0.1)  # wrong
    step.attn_shared_kv("0", q)  # wrong
    step.attn(0, [[[1.0]]])  # wrong
    text: str = step.attn(0, q)  # wrong
    step.page_table("pages")  # wrong
"""


def strict(folder, program):
    """Exit status of `mypy --strict`, the lines that it finds errors in, and what it printed."""
    (folder / "program.py").write_text(program)
    found = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(folder / "cache"), "program.py"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
    )
    lines = {int(line) for line in re.findall(r"^program\.py:(\d+): error", found.stdout, re.MULTILINE)}
    return found.returncode, lines, found.stdout + found.stderr


def test_a_right_program_passes_mypy_strict(tmp_path):
    status, _, text = strict(tmp_path, GOOD)
    assert status == 0, text


def test_each_wrong_call_is_an_error_of_its_line(tmp_path):
    _, lines, text = strict(tmp_path, BAD)
    assert lines == {number for number, line in enumerate(BAD.splitlines(), 1) if "# wrong" in line}, text


def test_keyword_arguments_are_the_fields_that_they_stand_for():
    fields = {name for name in kvcache.Config.__dataclass_fields__ if name != "_kept"}
    assert set(config.Limits.__annotations__) | {"layers"} == fields
    assert set(config.ModelLimits.__annotations__) == fields - {"layers"} | {"dtype", "rope", "assume", "mtp_layers"}
    assert set(forward.AttnKeywords.__annotations__) == set(kvcache.AttnOptions._fields)
    assert set(prefix.Query.__annotations__) == set(prefix._query.__kwdefaults__)


def test_words_of_limits_are_those_of_the_config():
    given = config.Limits.__annotations__
    for name, field in kvcache.Config.__dataclass_fields__.items():
        if name in given:
            written = given[name]
            written = written.__forward_arg__ if isinstance(written, typing.ForwardRef) else written
            assert written == field.type, name
