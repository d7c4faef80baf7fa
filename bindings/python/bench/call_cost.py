"""What a call from Python costs above the same call from C, in the same process.

    python bench/call_cost.py [--rounds N] [--torch]

The attention call is as small as can be (one token, one head of 8), so that the library's part is short; it is timed in a loop of C
(kvcache._capi.time_attn) and in a loop of Python, in turns. The difference is the binding's cost. Best of the rounds, as a loaded machine
adds to both; the differences are those of neighbouring rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import numpy as np

import kvcache
from kvcache import _capi

CALLS = 300  # short enough to fall between two interruptions now and then
LIMIT_NS = 1500


class Capsules:
    """A producer without shortcuts: NumPy's own __dlpack__, a capsule per tensor."""

    def __init__(self, array):
        self.array = array
        self.shape = array.shape

    def __dlpack__(self, **words):
        return self.array.__dlpack__(**words)


def per_call(function):
    begin = time.perf_counter_ns()
    function(CALLS)
    return (time.perf_counter_ns() - begin) / CALLS


def loops(forward, tensors, opt):
    """The same call in several dresses: name and function of the number of calls."""
    q, k, v, out = tensors
    attn, raw, handle = forward.attn, _capi.kvc_attn, forward._handle

    def method(n):
        for _ in range(n):
            attn(0, q, k, v, out)

    def with_options(n):
        for _ in range(n):
            attn(0, q, k, v, out, opt=opt)

    def extension(n):
        for _ in range(n):
            raw(handle, 0, None, q, k, v, out, None)

    return {
        "step.attn(0, q, k, v, out)": method,
        "the same with opt=": with_options,
        "_capi.kvc_attn alone": extension,
    }


def measure(forward, name, tensors, rounds):
    plain = [np.zeros((1, 1, 8), np.float32) for _ in range(4)]
    result = {}
    for what, loop in loops(forward, tensors, kvcache.AttnOptions(scale=0.5)).items():
        loop(CALLS)
        pairs = [
            (_capi.time_attn(forward._handle, 0, tuple(plain), CALLS), per_call(loop)) for _ in range(rounds)
        ]
        above = [python - c for c, python in pairs]
        best_c, best = min(c for c, _ in pairs), min(python for _, python in pairs)
        result[what] = best - best_c
        print(
            f"{name:32} {what:28} {best:7.0f} ns  C {best_c:5.0f} ns  above C: {best - best_c:5.0f} ns (median {statistics.median(above):5.0f})"
        )
    return result


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--rounds", type=int, default=400)
    arguments.add_argument("--torch", action="store_true", help="fail when PyTorch is not there")
    given = arguments.parse_args()
    layer = kvcache.Layer(num_kv_heads=1, k_dim=8, dtype="float32")
    print(
        f"kvcache {kvcache.version()}, Python {sys.version.split()[0]}, NumPy {np.__version__}, {kvcache.device_caps().name}"
    )
    with kvcache.Cache(layers=[layer], num_pages=4, num_threads=1) as cache:
        cache.add(0)
        forward = cache.forward([0])
        arrays = [np.zeros((1, 1, 8), np.float32) for _ in range(4)]
        found = [measure(forward, "NumPy arrays", arrays, given.rounds)]
        try:
            import torch
        except ImportError:
            if given.torch:
                raise
            print("PyTorch: not installed")
        else:
            tensors = [torch.zeros((1, 1, 8)) for _ in range(4)]
            how = "exchange table" if hasattr(torch.Tensor, "__dlpack_c_exchange_api__") else "capsules"
            found.append(
                measure(forward, f"PyTorch {torch.__version__.split('+')[0]}, {how}", tensors, given.rounds)
            )
        found.append(measure(forward, "kvcache.Tensor", [kvcache.Tensor(x) for x in arrays], given.rounds))
        measure(forward, "capsules (others)", [Capsules(x) for x in arrays], given.rounds)
        forward.abort()
    slowest = max(cost for one in found for cost in one.values())
    print(f"slowest without capsules: {slowest:.0f} ns above C (goal: {LIMIT_NS})")
    return 0 if slowest <= LIMIT_NS else 1


if __name__ == "__main__":
    sys.exit(main())
