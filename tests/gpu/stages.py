"""What run.py does one after the other. A stage returns its result, or raises Skipped or Failed with the reason."""

import concurrent.futures
import ctypes
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

# What a rehearsal on the emulator takes from the test programs.
REHEARSED = {
    "unit": "CudaCache.*:CudaGraphs.MayBe*:CudaGraphs.HoldPrefills*:CudaGraphStates.See*",
    "conformance": "*decode*",
}

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SANITIZER_ERROR = 9
NO_TIME, NOT_FINISHED = "no time", "not finished"


class Skipped(Exception):
    """Something that the stage needs is not here."""


class Failed(Exception):
    def __init__(self, why, result=None):
        super().__init__(why)
        self.result = result


def execute(run, name, command, most_seconds, **environment):
    """(exit status or None when it did not finish, what it printed); the log stays in OUT/<name>.log."""
    log = run.out / f"{name}.log"
    # Libraries and programs were carried here, perhaps; what is in the folder comes first.
    libraries = os.pathsep.join(filter(None, [str(run.build), os.environ.get("LD_LIBRARY_PATH")]))
    with log.open("w") as output:
        try:
            status = subprocess.run(
                [str(word) for word in command],
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env={**os.environ, "LD_LIBRARY_PATH": libraries, **environment},
                timeout=run.left(most_seconds),
            ).returncode
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


def emulated_device(library):
    """The same facts of the emulator, of which no figure is one of a GPU."""
    runtime = ctypes.CDLL(str(library))

    def attribute(number):
        value = ctypes.c_int()
        if runtime.cudaDeviceGetAttribute(ctypes.byref(value), number, 0):
            raise Failed(f"{library}: no attribute {number}")
        return value.value

    # cudaDeviceAttr has the driver's numbers.
    return {
        "name": "Emulated device",
        "arch": 10 * attribute(75) + attribute(76),
        "multiprocessors": attribute(16),
        "l2_bytes": attribute(38),
        "clock_mhz": attribute(13) // 1000,
        "memory_bytes": 0,
        "driver_cuda": "none",
        "driver": None,
    }


def device(run):
    """Facts from the driver itself: no toolkit and no framework is needed for them."""
    return emulated_device(run.rehearsal) if run.rehearsal else machine_facts()


def machine_facts():
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
    return {
        "name": name.value.decode(),
        "arch": 10 * attribute(75) + attribute(76),
        "multiprocessors": attribute(16),
        "l2_bytes": attribute(38),
        "clock_mhz": attribute(13) // 1000,
        "memory_bytes": memory.value,
        "driver_cuda": f"{version.value // 1000}.{version.value % 1000 // 10}",
        "driver": driver_release(),
    }


def driver_release():
    if not shutil.which("nvidia-smi"):
        return None
    answer = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
    )
    return answer.stdout.strip().split("\n")[0] if answer.returncode == 0 else None


def build(run):
    """Uses what is there (built before, or carried here by tests/gpu/carry.sh); else builds it."""
    if run.library.exists() and (run.build / "libkvcache_cuda.so").exists():
        return {"built": False, "folder": run.build.name}
    missing = [tool for tool in ("cmake", "ninja", "g++") if not shutil.which(tool)]
    if missing:
        raise Skipped(
            f"nothing built in {run.build} and no {', '.join(missing)} here (tests/gpu/carry.sh on a machine with them)"
        )
    status, text = execute(run, "configure", ["cmake", "--preset", "cuda", "-B", run.build], 60)
    if status:
        raise Failed("cmake: " + tail(text))
    status, text = execute(run, "build", ["cmake", "--build", run.build, "-j", os.cpu_count()], 400)
    if status is None or status:
        raise Failed("build: " + ("not finished" if status is None else tail(text)))
    return {"built": True, "folder": run.build.name}


# ---- Correctness


def gtest(run, name, program, most_seconds, **environment):
    """Runs every suite in a process of its own: a fault of the device ends that process's work.

    Several run beside each other, because oracles on the host take most of the time. If a process
    dies, each test of its suite runs again by itself.
    """
    rehearsed = [f"--gtest_filter={REHEARSED[name]}"] if run.rehearsal else []
    status, text = execute(
        run, f"{name}-list", [program, "--gtest_list_tests", *rehearsed], 30, **environment
    )
    if status:
        raise Failed(f"{program.name} does not list its tests: {tail(text)}")
    suites = {}
    for line in text.splitlines():
        if re.match(r"\S+\.", line):
            suite = line.split()[0]
            suites[suite] = []
        elif line.startswith("  "):
            suites[suite].append(line.split()[0])
    end = time.monotonic() + run.left(most_seconds)

    def process(label, tests):
        """(counts, or None of a process that did not live to write them; why)."""
        if time.monotonic() > end:
            return None, NO_TIME
        of = f"{name}-{label.rstrip('.').replace('/', '-')}"
        counts = run.out / f"{of}-counts.json"
        counts.unlink(missing_ok=True)
        status, text = execute(
            run,
            of,
            [
                program,
                "--gtest_brief=1",
                f"--gtest_output=json:{counts}",
                "--gtest_filter=" + ":".join(tests),
            ],
            end - time.monotonic(),
            **environment,
        )
        found = json.loads(counts.read_text()) if counts.exists() else None
        return found, NOT_FINISHED if status is None else tail(text)

    def run_suite(suite):
        """Each process that counts: (label, counts, why)."""
        tests = suites[suite]
        counts, why = process(suite, [suite + test for test in tests])
        done = [(suite, counts, why)]
        if counts is None and why not in (NO_TIME, NOT_FINISHED):
            done += [(suite + test, *process(suite + test, [suite + test])) for test in tests]
        return done

    result, bad = {"tests": 0, "failures": 0, "suites": {}}, []
    with concurrent.futures.ThreadPoolExecutor(max(1, min(8, os.cpu_count() // 2))) as pool:
        for suite, done in zip(suites, pool.map(run_suite, suites), strict=True):
            for label, counts, why in done:
                if counts is None or counts["failures"]:
                    bad.append(f"{label}: {why}")
            # The first of several died: its tests count one by one.
            for _, counts, _ in done[1:] or done:
                add(result, suite, counts)
    if bad:
        raise Failed("; ".join(bad)[:1500], result)
    if not result["tests"]:
        raise Failed(f"{program.name} ran no test", result)
    return result


def add(result, suite, counts):
    of = result["suites"].setdefault(suite.rstrip("."), {"tests": 0, "failures": 0})
    for each in (result, of):
        each["tests"] += counts["tests"] if counts else 1
        each["failures"] += counts["failures"] if counts else 1


def unit(run):
    return gtest(run, "unit", need(run.build / "tests" / "cuda_device_test"), 300)


def conformance(run):
    program = need(run.build / "tests" / "conformance_test")
    scenarios = {"KVC_CASE_DIR": str(ROOT / "tests" / "conformance" / "cases")}
    # A program that does not read the variable would pass on the CPU and prove nothing.
    status, text = execute(
        run,
        "conformance-probe",
        [program, "--gtest_filter=*decode_sees*"],
        60,
        KVC_TEST_DEVICE="nowhere:0",
        **scenarios,
    )
    if status == 0:
        raise Skipped("this conformance_test does not read KVC_TEST_DEVICE")
    if "KVC_TEST_DEVICE" not in text:
        raise Failed("conformance_test does not start: " + tail(text))
    return gtest(run, "conformance", program, 180, KVC_TEST_DEVICE="cuda:0", **scenarios)


def on_torch(run):
    """What Python programs are told of the device."""
    if not importlib.util.find_spec("torch"):
        raise Skipped("no torch")
    return [f"emulated:{run.rehearsal}", "--tiny"] if run.rehearsal else ["cuda:0"]


def graphs(run):
    status, text = execute(
        run, "graphs", [sys.executable, HERE / "graphs.py", need(run.library), *on_torch(run)], 120
    )
    if status == 77:
        raise Skipped(tail(text, 1))
    if status is None or status:
        raise Failed("not finished" if status is None else tail(text))
    return {"text": tail(text, 1)}


def sanitizers(run):
    if run.rehearsal:
        raise Skipped("a rehearsal has no device that a sanitizer could watch")
    tool = shutil.which("compute-sanitizer") or shutil.which(
        "/usr/local/cuda/bin/compute-sanitizer"
    )
    if not tool:
        raise Skipped("no compute-sanitizer")
    program = need(run.build / "tests" / "cuda_device_test")
    result, bad = {}, []
    for check in ("memcheck", "racecheck"):
        status, text = execute(
            run,
            check,
            [
                tool,
                "--tool",
                check,
                "--error-exitcode",
                SANITIZER_ERROR,
                program,
                "--gtest_brief=1",
            ],
            200,
            KVC_TEST_SCALE="0.05",
        )
        result[check] = (
            "not finished" if status is None else "clean" if status == 0 else tail(text, 3)
        )
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
    status, text = execute(
        run,
        "bench",
        [program, "bench", "--device", "cuda", "--json", *(["--tiny"] if run.rehearsal else [])],
        120,
    )
    if status is None or status:
        raise Failed("not finished" if status is None else tail(text))
    try:
        return json.loads(text)
    except ValueError:
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def peers(run):
    device, *more = on_torch(run)
    found = run.out / f"peers-{run.key()}.json"
    seconds = run.left(300)
    status, text = execute(
        run,
        "peers",
        [
            sys.executable,
            HERE / "peers.py",
            need(run.library),
            found,
            "--device",
            device,
            *more,
            "--seconds",
            seconds * 0.8,
        ],
        seconds,
    )
    result = json.loads(found.read_text()) if found.exists() else None
    if status is None or status:
        raise Failed(
            "not finished, what is measured stays" if status is None else tail(text), result
        )
    if result.get("left_out"):
        raise Failed(
            f"no time for {', '.join(result['left_out'])}: run again, what is measured stays",
            result,
        )
    return result


# Correctness, figures, and last what takes all the time that it is given.
ALL = {
    "device": device,
    "build": build,
    "unit": unit,
    "conformance": conformance,
    "graphs": graphs,
    "peers": peers,
    "bench": bench,
    "sanitizers": sanitizers,
}
