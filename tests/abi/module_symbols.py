"""What a module exports: the one function that returns its table.

Usage: module_symbols.py <module> <function>
"""

import subprocess
import sys


def main():
    module, function = sys.argv[1:]
    lines = subprocess.run(["nm", "-D", "--defined-only", module], check=True, capture_output=True, text=True).stdout.splitlines()
    # A unique symbol is of a template in a header of the C++ library, which no module names.
    names = {line.split()[-1] for line in lines if line.split()[-2] != "u"}
    if names != {function}:
        sys.exit(f"module_symbols: {module} exports {' '.join(sorted(names))}, expected {function} alone")
    print(f"module_symbols: ok: {function}")


if __name__ == "__main__":
    main()
