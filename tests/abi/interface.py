"""The binary interface that a header declares, as libabigail reads it, against the interface of an earlier header.

Every function of the header becomes a function of a small library that does nothing, built with debug information. What abidw sees in it
is the public interface and nothing else: no private type, no instruction set, no build option. The library itself has the same types,
because it includes the header, and the same names, which tests/abi/symbols.py checks.

Usage: interface.py <C compiler> <folder that holds dlpack/dlpack.h> [--write]

The stored interface is tests/abi/interface.abi. Each difference from it needs a line in CHANGELOG.md under "Unreleased" that names the
function or struct: `api:` or `abi:` for what is new, `abi:` for what changed or went. --write, which asks for the same lines, stores the
present interface and keeps its header as that of its ABI version: see CONTRIBUTING.md, "Binary interface".
"""

import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
STORED = pathlib.Path(__file__).with_name("interface.abi")
FROZEN = pathlib.Path(__file__).with_name("frozen")
SKIPPED = 77
HEADERS = ("kvcache.h", "kvcache_api.h")
# name(parameters) of a declaration behind the visibility attribute, in preprocessed text.
DECLARATION = re.compile(r'__attribute__\s*\(\(visibility\("default"\)\)\)\s*([^;{}]*?\bkvc_\w+\s*\([^;]*?\))\s*'
                         r'(?:__attribute__\s*\(\([\w, ]+\)\)\s*)?;', re.DOTALL)


def run(*command):
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout


def stub(compiler, dlpack, header, folder):
    """A library in `folder` with a body for every function that `header`, a kvcache_api.h beside its kvcache.h, declares."""
    header, folder = pathlib.Path(header), pathlib.Path(folder)
    included = ["-I", header.parent, "-isystem", dlpack]
    declared = sum((header.parent / name).read_text().count("\nKVC_API ") for name in HEADERS)
    functions = DECLARATION.findall(run(compiler, "-E", "-P", *included, header))
    if len(functions) != declared:
        raise SystemExit(f"interface: {header} has {declared} functions, but {len(functions)} were understood")
    source = folder / "stub.c"
    source.write_text(f'#include "{header.name}"\n' + "".join(f"{one} {{ __builtin_trap(); }}\n" for one in functions))
    library = folder / "libkvcache.so.0"
    run(compiler, "-std=c11", "-g", "-O0", "-fPIC", "-shared", "-w", *included, source, "-o", library, "-Wl,-soname,libkvcache.so.0")
    return library


def describe(library):
    """The interface as XML, without paths and line numbers."""
    text = run("abidw", "--no-corpus-path", "--no-comp-dir-path", "--no-show-locs", "--type-id-style", "hash", library)
    # The folder of the source is another one each time.
    return re.sub(r" path='[^']*/stub\.c'", " path='stub.c'", text)


def compare(stored, library):
    """(added, changed): names of functions and structs. Lists of what abidiff reports, per leaf type."""
    result = subprocess.run(["abidiff", "--leaf-changes-only", "--no-show-locs", str(stored), str(library)],
                            capture_output=True, text=True)
    if result.returncode & 3:
        raise SystemExit(f"interface: abidiff failed: {result.stdout}{result.stderr}")
    added, changed = set(), set()
    section = ""
    for line in result.stdout.splitlines():
        heading = re.match(r"(\d+) (Added|Removed|Changed) ", line) or re.match(r"(\d+) (added|removed|changed) (?:type|function|variable)", line)
        if heading:
            section = heading.group(2).lower()
        function = re.match(r"\s+\[[AD]\] '(?:function|variable) [^']*?\b(kvc_\w+)\(", line)
        kind = re.match(r"\s+\[([ADC])\] '(?:struct|union|enum|typedef)?\s*(\w+)", line)
        leaf = re.match(r"'(?:struct|union|enum|typedef)?\s*(\w+)[^']*' changed:", line.strip())
        called = re.match(r"\s+\[C\] '(?:function|variable) [^']*?\b(kvc_\w+)\(", line)
        if called:
            changed.add(called.group(1))
        elif function:
            (added if "[A]" in line else changed).add(function.group(1))
        elif leaf:
            changed.add(leaf.group(1))
        elif kind:
            (added if kind.group(1) == "A" else changed).add(kind.group(2))
    if result.returncode and not added and not changed:
        raise SystemExit(f"interface: cannot read what abidiff says:\n{result.stdout}")
    return added, changed, result.stdout


def unreleased(changelog):
    """Entries under "Unreleased": one string each, continuation lines joined."""
    part = re.search(r"^## Unreleased\n(.*?)(?=^## |\Z)", changelog, re.S | re.M)
    return [" ".join(entry.split()) for entry in re.findall(r"^- (.*?)(?=^- |^#|\Z)", part.group(1), re.S | re.M)] if part else []


def undocumented(added, changed, entries):
    """A sentence per name that no entry of the right kind has."""
    def named(name, kinds):
        return any(entry.startswith(kinds) and re.search(rf"\b{re.escape(name)}\b", entry) for entry in entries)

    findings = [f"{name} is new, and no line `api:` or `abi:` of CHANGELOG.md under Unreleased names it"
                for name in sorted(added - changed) if not named(name, ("api:", "abi:"))]
    return findings + [f"{name} changed or went, and no line `abi:` of CHANGELOG.md under Unreleased names it"
                       for name in sorted(changed) if not named(name, ("abi:",))]


def freeze(include):
    """Keeps the headers of a version, for tests/abi/frozen.py."""
    major, minor = (re.search(rf"#define KVC_ABI_VERSION_{part} (\d+)", (include / "kvcache.h").read_text()).group(1) for part in ("MAJOR", "MINOR"))
    kept = FROZEN / f"{major}.{minor}"
    kept.mkdir(exist_ok=True)
    for name in HEADERS:
        shutil.copyfile(include / name, kept / name)


def main():
    if not shutil.which("abidiff"):
        print("interface: skipped, abidiff is not installed (Debian: abigail-tools)")
        sys.exit(SKIPPED)
    if platform.machine() not in ("x86_64", "AMD64"):
        print("interface: skipped, the stored interface is that of x86-64")
        sys.exit(SKIPPED)
    compiler, dlpack = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as folder:
        header = ROOT / "include" / "kvcache_api.h"
        library = stub(compiler, dlpack, header, folder)
        added, changed, report = compare(STORED, library)
        findings = undocumented(added, changed, unreleased((ROOT / "CHANGELOG.md").read_text()))
        if "--write" in sys.argv and not findings:
            STORED.write_text(describe(library))
            freeze(header.parent)
            return
    for finding in findings:
        print(finding)
    if findings:
        print(report)
    print(f"interface: {len(findings)} finding(s)" if findings else
          f"interface: ok, {len(added)} new and {len(changed)} changed names since tests/abi/interface.abi, all in CHANGELOG.md")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
