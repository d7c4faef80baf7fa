"""What the checks of this folder share: the files of the tree, C sources without comments, and the way a finding is reported."""

import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED_FOLDERS = {".git", ".deps", "build", "build-cuda", "__pycache__", "target", ".venv", ".cache"}


def all_files():
    """Paths relative to the root, as text with forward slashes: what git tracks or would track, else all but build products."""
    if (ROOT / ".git").exists():
        command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, capture_output=True)
        if listed.returncode == 0:
            paths = sorted(set(listed.stdout.decode().split("\0")) - {""})
            return [path for path in paths if (ROOT / path).is_file()]
    found = []
    for folder, subfolders, names in os.walk(ROOT):
        subfolders[:] = sorted(name for name in subfolders if name not in SKIPPED_FOLDERS)
        found += [os.path.relpath(os.path.join(folder, name), ROOT) for name in sorted(names)]
    return found


def c_files(*folders):
    """C and C++ files below the folders (all when none is given)."""
    suffixes = (".cc", ".c", ".h", ".cu", ".cuh")
    return [path for path in all_files()
            if path.endswith(suffixes) and (not folders or path.startswith(tuple(f + "/" for f in folders)))]


def is_frozen(path):
    """A header of an earlier version: kept as it was."""
    return path.startswith("tests/abi/frozen/") and path.endswith(".h")


def text(path):
    return (ROOT / path).read_text(encoding="utf-8")


_TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)


def code_only(source, keep_strings=False):
    """C source with comments (and the insides of strings) blanked; line numbers stay."""
    def blank(match):
        token = match.group()
        if token[0] in "\"'":
            return token if keep_strings else token[0] + token[-1]
        return re.sub(r"[^\n]", " ", token)
    # A digit separator (1'000) is not a character literal.
    return _TOKEN.sub(blank, re.sub(r"(?<=[0-9a-fA-F])'(?=[0-9a-fA-F])", "", source))


def lines_of(source):
    return enumerate(source.split("\n"), start=1)


def finish(name, findings):
    for finding in findings:
        print(finding)
    print(f"{name}: {len(findings)} finding(s)" if findings else f"{name}: ok")
    sys.exit(1 if findings else 0)
