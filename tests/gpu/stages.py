"""What run.py does one after the other. A stage returns its result, or raises Skipped or Failed with the reason."""

import ctypes
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SANITIZER_ERROR = 9


class Skipped(Exception):
    """Something that the stage needs is not here."""


class Failed(Exception):
    def __init__(self, why, result=None):
        super().__init__(why)
        self.result = result


def execute(run, name, command, most_seconds, **environment):
    """(exit status or None when it did not finish, what it printed); the log stays in OUT/<name>.log."""
    log = run.out / f"{name}.log"
    with log.open("w") as output:
        try:
            status = subprocess.run([str(word) for word in command], stdout=output, stderr=subprocess.STDOUT, cwd=ROOT,
                                    env={**os.environ, **environment}, timeout=run.left(most_seconds)).returncode
        except subprocess.TimeoutExpired:
            status = None
    return status, log.read_text(errors="replace")


def tail(text, lines=6):
    return " | ".join(line.strip() for line in text.strip().splitlines()[-lines:])[-600:]


def need(path):
    if not path.exists():
        raise Skipped(f"no {path.name} in {path.parent}")
    return path


# ---- The machine

def device(_run):
    """Facts from the driver itself: no toolkit and no framework is needed for them."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise Skipped("no driver (libcuda.so.1)") from None
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or count.value == 0:
        raise Skipped("a driver, but no device")

    def attribute(number):
        value = ctypes.c_int()
        driver.cuDeviceGetAttribute(ctypes.byref(value), number, 0)
        return value.value
    name, memory, version = ctypes.create_string_buffer(256), ctypes.c_size_t(), ctypes.c_int()
    driver.cuDeviceGetName(name, 256, 0)
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), 0)
    driver.cuDriverGetVersion(ctypes.byref(version))
    # CUdevice_attribute: multiprocessors 16, L2 bytes 38, clock in kHz 13, compute capability 75 and 76.
    return {"name": name.value.decode(), "arch": 10 * attribute(75) + attribute(76), "multiprocessors": attribute(16),
            "l2_bytes": attribute(38), "clock_mhz": attribute(13) // 1000, "memory_bytes": memory.value,
            "driver_cuda": f"{version.value // 1000}.{version.value % 1000 // 10}", "driver": driver_release()}


def driver_release():
    if not shutil.which("nvidia-smi"):
        return None
    answer = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True)
    return answer.stdout.strip().split("\n")[0] if answer.returncode == 0 else None


def build(run):
    """Uses what is there (built before, or carried here by tests/gpu/carry.sh); else builds it."""
    if run.library.exists() and (run.build / "libkvcache_cuda.so").exists():
        return {"built": False, "folder": run.build.name}
    missing = [tool for tool in ("cmake", "ninja", "g++") if not shutil.which(tool)]
    if missing:
        raise Skipped(f"nothing built in {run.build} and no {', '.join(missing)} here (tests/gpu/carry.sh on a machine with them)")
    status, text = execute(run, "configure", ["cmake", "--preset", "cuda", "-B", run.build], 60)
    if status:
        raise Failed("cmake: " + tail(text))
    status, text = execute(run, "build", ["cmake", "--build", run.build, "-j", os.cpu_count()], 400)
    if status is None or status:
        raise Failed("build: " + ("not finished" if status is None else tail(text)))
    return {"built": True, "folder": run.build.name}


# ---- Correctness

def unit(run):
    program = need(run.build / "tests" / "cuda_device_test")
    counts = run.out / "unit-counts.json"
    status, text = execute(run, "unit", [program, "--gtest_brief=1", f"--gtest_output=json:{counts}"], 180)
    result = {what: json.loads(counts.read_text())[what] for what in ("tests", "failures")} if counts.exists() else None
    if status is None:
        raise Failed("not finished", result)
    if status:
        raise Failed(tail(text), result)
    return result


def conformance(run):
    program = need(run.build / "tests" / "conformance_test")
    scenarios = {"KVC_SCENARIO_DIR": str(ROOT / "tests" / "conformance" / "scenarios")}
    # A program that does not read the variable would pass on the CPU and prove nothing.
    status, _ = execute(run, "conformance-probe", [program, "--gtest_filter=*decode_sees*"], 60, KVC_TEST_DEVICE="nowhere:0", **scenarios)
    if status == 0:
        raise Skipped("this conformance_test does not read KVC_TEST_DEVICE")
    counts = run.out / "conformance-counts.json"
    status, text = execute(run, "conformance", [program, "--gtest_brief=1", f"--gtest_output=json:{counts}"], 120,
                           KVC_TEST_DEVICE="cuda:0", **scenarios)
    result = {what: json.loads(counts.read_text())[what] for what in ("tests", "failures")} if counts.exists() else None
    if status is None or status:
        raise Failed("not finished" if status is None else tail(text), result)
    return result


def graphs(run):
    if not importlib.util.find_spec("torch"):
        raise Skipped("no torch")
    status, text = execute(run, "graphs", [sys.executable, HERE / "graphs.py", need(run.library)], 60)
    if status == 77:
        raise Skipped(tail(text, 1))
    if status is None or status:
        raise Failed("not finished" if status is None else tail(text))
    return {"text": tail(text, 1)}


def sanitizers(run):
    tool = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if not tool:
        raise Skipped("no compute-sanitizer")
    program = need(run.build / "tests" / "cuda_device_test")
    result, bad = {}, []
    for check in ("memcheck", "racecheck"):
        status, text = execute(run, check, [tool, "--tool", check, "--error-exitcode", SANITIZER_ERROR, program, "--gtest_brief=1"], 90,
                               KVC_TEST_SCALE="0.05")
        result[check] = "not finished" if status is None else "clean" if status == 0 else tail(text, 3)
        if "Device not supported" in text:
            result[check] = "device not supported by the tool"
        elif status:
            bad.append(f"{check}: {tail(text, 3)}")
    if bad:
        raise Failed("; ".join(bad), result)
    return result


# ---- Measurements

def bench(run):
    program = need(run.build / "bin/kvcache")
    status, text = execute(run, "bench", [program, "bench", "--device", "cuda", "--json"], 90)
    if status and re.search(r"not expected|--device", text):
        raise Skipped("this kvcache bench has no --device")
    if status is None or status:
        raise Failed("not finished" if status is None else tail(text))
    try:
        return json.loads(text)
    except ValueError:
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def peers(run):
    if not importlib.util.find_spec("torch"):
        raise Skipped("no torch")
    found = run.out / f"peers-{run.key()}.json"
    seconds = run.left(300)
    status, text = execute(run, "peers", [sys.executable, HERE / "peers.py", need(run.library), found, "--seconds", seconds * 0.8], seconds)
    result = json.loads(found.read_text()) if found.exists() else None
    if status is None or status:
        raise Failed("not finished, what is measured stays" if status is None else tail(text), result)
    if result.get("left_out"):
        raise Failed(f"no time for {', '.join(result['left_out'])}: run again, what is measured stays", result)
    return result


ALL = {"device": device, "build": build, "unit": unit, "conformance": conformance, "graphs": graphs, "sanitizers": sanitizers,
       "bench": bench, "peers": peers}
