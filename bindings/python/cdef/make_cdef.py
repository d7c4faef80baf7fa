"""Flatten include/kvcache_api.h (with kvcache.h and the DLPack header that it includes) into plain C declarations, for cffi's `ffi.cdef` and its like.

The C compiler preprocesses the header with nothing predefined, so attributes and export macros vanish, and with empty
system headers, so int32_t, size_t and the like stay names that every reader knows. The version constants are the only
directives left.
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
# Constants that the header defines as macros; enumerators need no help.
VERSION_MACROS = ("KVC_ABI_VERSION_MAJOR", "KVC_ABI_VERSION_MINOR")


def preprocess(header, dlpack, compiler):
    """The text of the declarations, one blank line between them at most."""
    with tempfile.TemporaryDirectory() as empty:
        for name in SYSTEM_HEADERS:
            pathlib.Path(empty, name).touch()
        include = [f"-I{empty}", f"-I{dlpack}"]
        command = [compiler, "-E", "-P", "-undef", "-nostdinc", "-xc", *include, str(header)]
        result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"make_cdef: {' '.join(command)} failed:\n{result.stderr}")
    return re.sub(r"\n\s*\n+", "\n", result.stdout).strip() + "\n"


def version_defines(header):
    """`#define NAME number` for the version macros, whose values are plain numbers in kvcache.h."""
    text = header.with_name("kvcache.h").read_text()
    for name in VERSION_MACROS:
        value = re.search(rf"^#define {name} (\d+)$", text, re.MULTILINE)
        if not value:
            sys.exit(f"make_cdef: {header} does not define {name} as a number")
        yield f"#define {name} {value.group(1)}\n"


def flatten(header, dlpack, compiler="cc"):
    head = "/* Generated from kvcache_api.h and kvcache.h: their declarations without comments, attributes and macros. Do not edit. */\n"
    return head + "".join(version_defines(header)) + preprocess(header, dlpack, compiler)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--header", type=pathlib.Path, default=ROOT / "include" / "kvcache_api.h")
    parser.add_argument("--dlpack", type=pathlib.Path, default=ROOT / ".deps" / "include")
    parser.add_argument("--cc", default="cc")
    options = parser.parse_args()
    text = flatten(options.header, options.dlpack, options.cc)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(text)


if __name__ == "__main__":
    main()
