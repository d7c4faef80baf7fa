"""The objects of one instruction set share no inline function with the rest of the library.

A weak symbol (an inline function, a template) exists once in the linked library, and the linker keeps any copy: it could keep the one that
was compiled for AVX-512 and run it on a machine without. Usage: weak_symbols.py <folder with the objects>
"""

import pathlib
import subprocess
import sys

import tree


def main():
    objects = sorted(pathlib.Path(sys.argv[1]).rglob("isa_*.o"))
    findings = [] if objects else [f"no isa_*.o below {sys.argv[1]}"]
    for path in objects:
        listing = subprocess.run(["nm", "-C", str(path)], capture_output=True, text=True, check=True).stdout
        for line in listing.splitlines():
            kind, _, name = line[17:].partition(" ")
            if kind in ("W", "V", "u", "w", "v") and not line.startswith(" "):
                findings.append(f"{path.name}: weak symbol {name}")
    tree.finish("weak_symbols", findings)


if __name__ == "__main__":
    main()
