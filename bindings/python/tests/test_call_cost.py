"""bench/call_cost.py runs and measures every kind of call. What a call may cost is for the benchmark to say, not for a test."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

SCRIPT = pathlib.Path(__file__).resolve().parents[1] / "bench" / "call_cost.py"


def test_every_kind_of_call_is_measured(tmp_path):
    found = subprocess.run(
        [sys.executable, SCRIPT, "--rounds", "60"], capture_output=True, text=True, cwd=tmp_path, timeout=600
    )
    assert found.returncode in (0, 1), found.stderr  # 1: above the goal
    print(found.stdout)
    for tensors in ("NumPy arrays", "kvcache.Tensor", r"capsules \(others\)"):
        costs = re.findall(rf"^{tensors} .* (\d+) ns  C +\d+ ns  above C: +-?\d+ ns", found.stdout, re.MULTILINE)
        assert len(costs) == 3 and all(int(cost) > 0 for cost in costs), found.stdout
    assert re.search(r"^slowest without capsules: -?\d+ ns above C", found.stdout, re.MULTILINE), found.stdout
