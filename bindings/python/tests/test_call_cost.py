"""bench/call_cost.py runs, and what it finds is not off by an order of magnitude (a loaded machine says no more)."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

SCRIPT = pathlib.Path(__file__).resolve().parents[1] / "bench" / "call_cost.py"


def test_a_call_with_arrays_costs_little_above_c(tmp_path):
    found = subprocess.run(
        [sys.executable, SCRIPT, "--rounds", "60"], capture_output=True, text=True, cwd=tmp_path, timeout=300
    )
    assert found.returncode in (0, 1), found.stderr  # 1: above the goal
    print(found.stdout)
    costs = re.findall(r"^NumPy arrays .* above C: +(-?\d+) ns", found.stdout, re.MULTILINE)
    assert len(costs) == 3 and all(int(cost) < 15000 for cost in costs), found.stdout
