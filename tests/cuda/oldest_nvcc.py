"""Compiles kernels without a register to spare by the oldest nvcc that is served: a spill fails.

oldest_nvcc.py [--all]    --all: every kernel file, which takes minutes
"""

import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
NVCC = ROOT / ".deps" / "cuda-oldest" / "nvidia" / "cu13" / "bin" / "nvcc"
# Those whose launch bounds leave no register.
TIGHT = ["step/step.cu"]
HOPPER = ("attn/wgmma", "attn/latent")
FLAGS = ["-std=c++20", "-O3", "-I.", "-DNDEBUG", '-DKVC_LIBRARY_VERSION="0"', "-lineinfo"]


def compile_one(source, release, folder):
    """What went wrong, as text; empty: nothing."""
    archs = "90a" if source.rpartition("/")[0] in HOPPER else "80,90a"
    name = source.replace("/", "-")
    done = subprocess.run(
        [
            sys.executable,
            "kernels/cuda/tools/compile.py",
            "--nvcc",
            NVCC,
            "--release",
            release,
            "--archs",
            archs,
            "--root",
            ROOT,
            "--source",
            f"kernels/cuda/{source}",
            "--object",
            folder / f"{name}.o",
            "--depfile",
            folder / f"{name}.d",
            "--report",
            folder / f"{name}.json",
            "--exceptions",
            ROOT / "kernels" / "cuda" / source.rpartition("/")[0] / "ptxas_exceptions.json",
            "--",
            *FLAGS,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    return done.stdout + done.stderr if done.returncode else ""


def main():
    installed = subprocess.run([ROOT / ".ci" / "deps-cuda", "--oldest"], cwd=ROOT)
    if installed.returncode:
        sys.exit("oldest_nvcc: the compiler could not be installed")
    said = subprocess.run([NVCC, "--version"], capture_output=True, text=True, check=True).stdout
    release = re.search(r"release [0-9.]+, V([0-9.]+)", said)[1]
    kernels = ROOT / "kernels" / "cuda"
    sources = (
        sorted(str(path.relative_to(kernels)) for path in kernels.rglob("*.cu"))
        if "--all" in sys.argv
        else TIGHT
    )
    findings = []
    with tempfile.TemporaryDirectory() as folder:
        for source in sources:
            text = compile_one(source, release, pathlib.Path(folder))
            if text:
                findings.append(f"{source}: {text.strip()}")
    for finding in findings:
        print(finding)
    print(f"oldest_nvcc: {len(sources)} file(s) with nvcc {release}, {len(findings)} that fail")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
