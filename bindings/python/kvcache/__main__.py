"""`python -m kvcache`: the command that the package carries (info, demo, plan, replay, bench), and `config` for builds against it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from . import package
from ._library import package_file

_CONFIG = {
    "--libdir": lambda: os.path.dirname(package.lib_path()),
    "--includedir": package.get_include,
    "--cmakedir": package.get_cmake_dir,
    "--pkgconfigdir": package.get_pkgconfig_dir,
    "--lib": package.lib_path,
}


def _config(options: Sequence[str]) -> int:
    if not options or any(option not in _CONFIG for option in options):
        print(f"usage: kvcache config {' '.join(f'[{option}]' for option in _CONFIG)}", file=sys.stderr)
        return 2
    for option in options:
        print(_CONFIG[option]())
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns only for `config`, and when the command is missing."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments[:1] == ["config"]:
        return _config(arguments[1:])
    tool = package_file("bin", "kvcache")
    if tool is None:
        print(
            "kvcache: this installation carries no command (bin/kvcache); it was built from a library without tools",
            file=sys.stderr,
        )
        return 1
    sys.stdout.flush()
    os.execv(tool, ["kvcache", *arguments])


if __name__ == "__main__":
    sys.exit(main())
