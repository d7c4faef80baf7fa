"""Flatten include/kvcache_api.h (with kvcache.h and the DLPack header that it includes) into plain C declarations, for cffi's
`ffi.cdef`, LuaJIT's `ffi.cdef`, PHP's `FFI::cdef` and their like.

The C compiler preprocesses the header with nothing predefined, so attributes and export macros vanish, and with empty
system headers, so int32_t, size_t and the like stay names that every reader knows. No line begins with `#`: constants
that the headers define as macros are enumerators here.
Usage: make_cdef.py <output> [--header include/kvcache_api.h] [--dlpack <folder of dlpack/dlpack.h>] [--cc cc]
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
SYSTEM_HEADERS = ("stdint.h", "stddef.h")
CASTS_AND_SUFFIXES = re.compile(r"\(\w+_t\)|(?<=\d)[uUlL]+")
ENUMERATOR_MAX = 2**31 - 1
SYSTEM_FOLDERS = (pathlib.Path("/usr/local/include"), pathlib.Path("/usr/include"))


def is_new_enough(folder):
    """Whether the folder holds dlpack/dlpack.h >= 1.0."""
    path = folder / "dlpack" / "dlpack.h"
    return path.is_file() and re.search(r"^#define DLPACK_MAJOR_VERSION [1-9]", path.read_text(), re.MULTILINE) is not None


def configured(build):
    """The folder of DLPack that CMake found or fetched for a build folder, as a list of at most one."""
    cache = build / "CMakeCache.txt"
    return [pathlib.Path(found) for found in
            re.findall(r"^KVCACHE_DLPACK_INCLUDE_DIR:\w+=(.+)$", cache.read_text() if cache.is_file() else "", re.MULTILINE)]


def find_dlpack(header, output):
    """The folder of dlpack/dlpack.h: of an installed header, of a configured build folder, of `make deps`, of the system."""
    candidates = [header.parent, *configured(output.resolve().parent), *configured(ROOT / "build"), ROOT / ".deps" / "include",
                  *SYSTEM_FOLDERS]
    for folder in candidates:
        if is_new_enough(folder):
            return folder
    sys.exit("make_cdef: no dlpack/dlpack.h >= 1.0 in " + ", ".join(map(str, candidates))
             + ": configure a build folder (cmake -B build), or name the folder that holds dlpack/ with --dlpack")


def run(compiler, header, dlpack, *options):
    with tempfile.TemporaryDirectory() as empty:
        for name in SYSTEM_HEADERS:
            pathlib.Path(empty, name).touch()
        include = [f"-I{empty}", f"-I{dlpack}"]
        command = [compiler, "-E", *options, "-undef", "-nostdinc", "-xc", *include, str(header)]
        result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"make_cdef: {' '.join(command)} failed:\n{result.stderr}")
    return result.stdout


def macro_constants(macros):
    """[(name, value)] of the macros KVC_* and DLPACK_* that are numbers, by name."""
    texts = dict(re.findall(r"^#define ((?:KVC|DLPACK)_\w+) (.+)$", macros, re.MULTILINE))
    result = []
    for name, text in texts.items():
        previous = None
        while text != previous:
            previous, text = text, re.sub(r"\b(?:KVC|DLPACK)_\w+\b", lambda word: texts.get(word.group(0), word.group(0)), text)
        text = CASTS_AND_SUFFIXES.sub("", text)
        if re.fullmatch(r"[\d\s()<|]+", text) and re.search(r"\d", text):
            result.append((name, eval(text)))  # Digits, shifts and ors alone.
    return sorted(result)


def enumerators(constants):
    too_large = [name for name, value in constants if value > ENUMERATOR_MAX]
    if too_large:
        sys.exit(f"make_cdef: {', '.join(too_large)} does not fit in an enumerator: document its value and leave it out by name")
    lines = ",\n".join(f"  {name} = {value}" for name, value in constants)
    return f"enum kvc_header_constant {{\n{lines}\n}};\n"


def flatten(header, dlpack, compiler="cc"):
    head = "/* Generated from kvcache_api.h and kvcache.h: their declarations without comments, attributes and macros. Do not edit. */\n"
    text = run(compiler, header, dlpack, "-P")
    return head + enumerators(macro_constants(run(compiler, header, dlpack, "-dM"))) + re.sub(r"\n\s*\n+", "\n", text).strip() + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--header", type=pathlib.Path, default=ROOT / "include" / "kvcache_api.h")
    parser.add_argument("--dlpack", type=pathlib.Path, help="default: beside the header, of a build folder, of the system")
    parser.add_argument("--cc", default="cc")
    options = parser.parse_args()
    dlpack = options.dlpack or find_dlpack(options.header.resolve(), options.output)
    text = flatten(options.header, dlpack, options.cc)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(text)


if __name__ == "__main__":
    main()
