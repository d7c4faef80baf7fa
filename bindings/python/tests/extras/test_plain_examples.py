"""The examples run as their users run them, and compare themselves with NumPy."""

import os
import subprocess
import sys

import pytest

NUMBERS = "differs from NumPy by"


def run(root, name, *arguments):
    program = root / "examples" / "python" / name
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, str(program), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.mark.parametrize("name", ["ctypes_example.py", "cffi_example.py"])
def test_the_example_computes_attention_like_numpy(root, library, cdef, name):
    pytest.importorskip("numpy")
    pytest.importorskip(name.split("_")[0])
    arguments = [library] if name.startswith("ctypes") else [library, cdef]
    result = run(root, name, *arguments)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count(NUMBERS) == 2, result.stdout


def test_the_router_sends_prompts_where_they_are_cached(root):
    pytest.importorskip("zmq")
    pytest.importorskip("msgspec")
    result = run(root, "router_example.py")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("496 of 560 tokens cached") == 9, result.stdout


def test_the_examples_notice_a_wrong_result(root):
    np = pytest.importorskip("numpy")
    sys.path.insert(0, str(root / "examples" / "python"))
    try:
        from reference import attention, check
    finally:
        sys.path.pop(0)
    q = np.random.default_rng(1).standard_normal((3, 4, 8))
    out = attention(q, q, q)
    check("equal", out, out)
    with pytest.raises(SystemExit, match="wrong"):
        check("wrong", out + 1e-3, out)
