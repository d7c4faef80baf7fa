"""Asks the test program for a GPU, where there is none, what tests it holds.

device_tests.py PROGRAM
"""

import re
import subprocess
import sys

# Suites that have to run on a device: kernels, the runtime, caches, captured steps and replays.
WANTED = {
    "CudaCache",
    "CudaGraphs",
    "CudaGraphStates",
    "CudaGraphStreams",
    "CudaRuntime",
    "CudaStep",
    "CudaView",
    "CudaAngles",
    "CudaPlannerDevice",
    "CudaAppend",
    "CudaCopyPages",
    "CudaMoveRows",
    "CudaLinear",
    "CudaConv",
    "CudaStateView",
    "CudaCombine",
    "CudaMerge",
    "CudaAttnSimt",
    "AttnMma",
    "AttnWgmma",
    "AttnLatent",
}


def main():
    listed = subprocess.run(
        [sys.argv[1], "--gtest_list_tests"], capture_output=True, text=True, timeout=300
    )
    if listed.returncode:
        sys.exit(f"device_tests: status {listed.returncode}: {listed.stderr}")
    suites, tests = set(re.findall(r"^(\S+)\.", listed.stdout, re.MULTILINE)), len(
        re.findall(r"^  \S", listed.stdout, re.MULTILINE)
    )
    missing = WANTED - suites
    for name in sorted(missing):
        print(f"device_tests: no suite of {name}")
    print(f"device_tests: {tests} tests in {len(suites)} suites")
    sys.exit(1 if missing else 0)


if __name__ == "__main__":
    main()
