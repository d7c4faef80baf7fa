"""What checks keep outside of a clone, so that the next clone finds it: environments of Python, the CUDA compiler, cargo's
compiled dependencies, and which checks passed. Everything here can be deleted at any time; CONTRIBUTING.md says what else is
cached where.

    cache.py venv FOLDER [PACKAGE... | -r FILE...]   an environment of Python at FOLDER, with these packages
    cache.py packages NAME [PIP-ARGUMENT...]         prints a folder of installed packages (pip install --target)
    cache.py folder NAME [FILE...]                   prints a folder of that name, another one for other contents of FILEs

The cache is $XDG_CACHE_HOME/libkvcache, by default ~/.cache/libkvcache. Where it cannot be written, the clone's build/cache
takes its place.
"""

import contextlib
import fcntl
import functools
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
KEPT_DAYS = 30
# A folder that grows with every clone is made anew beyond this size.
MOST_BYTES = 6 << 30


@functools.cache
def root():
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = pathlib.Path(home) / "libkvcache"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f"probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
        return folder
    except OSError as error:
        instead = ROOT / "build" / "cache"
        print(f"cache: {folder} cannot be written ({error.strerror}); {instead} serves this clone alone", file=sys.stderr)
        instead.mkdir(parents=True, exist_ok=True)
        return instead


@contextlib.contextmanager
def locked(name):
    """One process at a time, also of another clone. The lock goes with its process."""
    with open(root() / f"{name}.lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"cache: waiting for another process that makes {name}", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def digest(*parts):
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def clear_old():
    limit = time.time() - KEPT_DAYS * 86400
    for stamp in root().glob("*/ready"):
        if stamp.stat().st_mtime < limit:
            shutil.rmtree(stamp.parent, ignore_errors=True)


def shared(name, key, make):
    """The folder NAME-KEY, which `make(folder)` fills where it is not whole. It counts as whole once it holds `ready`."""
    folder = root() / f"{name}-{key}"
    ready = folder / "ready"
    with locked(name):
        if not ready.exists():
            print(f"cache: making {folder.name}", file=sys.stderr)
            clear_old()
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
        ready.touch()
    return folder


def pip(python, *arguments):
    environment = dict(os.environ, PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_ROOT_USER_ACTION="ignore")
    environment.pop("PYTHONPATH", None)
    subprocess.run([python, "-m", "pip", "install", "--quiet", *arguments], check=True, env=environment)


def contents(arguments):
    """Pip's arguments, files by what they hold."""
    return [pathlib.Path(word).read_text() if os.path.isfile(word) else word for word in arguments]


def site_packages(venv):
    return venv / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def make_venv(folder, arguments):
    """An environment of this clone that sees the packages of a shared one, so that what the clone installs stays its own."""
    def fill(venv):
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        # Each list by itself: the pins of one may contradict what another asks for.
        words, lists = [], []
        for word in arguments:
            if lists and lists[-1] is None:
                lists[-1] = word
            elif word == "-r":
                lists.append(None)
            else:
                words.append(word)
        for name in lists:
            pip(venv / "bin" / "python", "--no-deps", "-r", name)
        if words:
            pip(venv / "bin" / "python", *words)

    base = shared("venv", digest(sys.version, os.path.realpath(sys.executable), *contents(arguments)), fill)
    made = folder / "shared"
    if made.exists() and made.read_text() == str(base):
        return
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site_packages(folder) / "shared.pth").write_text(f"{site_packages(base)}\n")
    interpreter = f"#!{base}/bin/python".encode()
    for program in (base / "bin").iterdir():
        here = folder / "bin" / program.name
        if here.exists() or program.is_dir():
            continue
        data = program.read_bytes()
        if data.startswith(interpreter):
            here.write_bytes(f"#!{folder}/bin/python".encode() + data[len(interpreter):].lstrip(b"0123456789."))
            here.chmod(0o755)
        else:
            here.symlink_to(program)
    made.write_text(str(base))


def packages(name, arguments):
    return shared(name, digest(sys.version, *contents(arguments)),
                  lambda folder: pip(sys.executable, "--no-compile", "--target", folder / "packages", *arguments)) / "packages"


def size_of(folder):
    return sum(entry.stat().st_size for entry in folder.rglob("*") if entry.is_file() and not entry.is_symlink())


def plain_folder(name, files):
    key = digest(*contents(files))
    ready = root() / f"{name}-{key}" / "ready"
    # Nobody uses it now, if nobody began to in the last hours.
    if ready.exists() and time.time() - ready.stat().st_mtime > 7200 and size_of(ready.parent) > MOST_BYTES:
        ready.unlink()
    return shared(name, key, lambda made: None)


def main():
    command, name, *rest = sys.argv[1:]
    if command == "venv":
        make_venv(pathlib.Path(name).absolute(), rest)
    elif command == "packages":
        print(packages(name, rest))
    elif command == "folder":
        print(plain_folder(name, rest))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
