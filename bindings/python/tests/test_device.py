"""Caches on a GPU, on the emulated one of the library's own tests: a process that is told where its back end lies."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

import kvcache

EMULATED = pathlib.Path(os.environ.get("KVCACHE_EMULATED_CUDA", "-"))  # the build folder of the library


@pytest.mark.skipif(not (EMULATED / "cudasim" / "libkvcache_cuda.so").exists(), reason="the library was built without its tests")
def test_steps_swaps_and_graphs_on_a_gpu_agree_with_the_cpu():
    (runtime,) = EMULATED.glob("tests/cudasim/libkvc_cudasim.so")
    program = pathlib.Path(__file__).with_name("device_steps.py")
    done = subprocess.run(
        [sys.executable, str(program), str(runtime), str((EMULATED / "cudasim").resolve())],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0 and "all steps agree" in done.stdout, done.stdout + done.stderr


def test_streams_are_ignored_on_the_cpu_and_devices_have_names(cache):
    cache.add(1)
    with cache.forward([1], stream=12345, partial=True):
        pass
    assert kvcache.Config(layers=[], device="cuda:3").as_dict()["device"] == (2, 3)
    assert kvcache.Config(layers=[], device="cpu").as_dict()["device"] == (1, 0)
    with pytest.raises(kvcache.InvalidArgument, match="device: 'tpu'"):
        kvcache.Config(layers=[], device="tpu").as_dict()
