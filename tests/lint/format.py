"""clang-format, with the one version whose output the tree holds. --fix rewrites the files.

The public headers are laid out by hand, like the manual they are, and so are their frozen copies.
"""

import shutil
import subprocess
import sys

import tree

VERSION = "14"
BY_HAND = {"include/kvcache.h", "include/kvcache_api.h"}
SKIPPED = 77


def clang_format():
    for name in (f"clang-format-{VERSION}", "clang-format"):
        path = shutil.which(name)
        if path and f"version {VERSION}." in subprocess.run([path, "--version"], capture_output=True, text=True).stdout:
            return path
    return None


def main():
    tool = clang_format()
    if not tool:
        print(f"format: skipped, clang-format {VERSION} is not installed (make deps)")
        sys.exit(SKIPPED)
    paths = [path for path in tree.c_files() if path not in BY_HAND and not tree.is_frozen(path)]
    if not paths:
        tree.finish("format", [])
    mode = ["-i"] if "--fix" in sys.argv[1:] else ["--dry-run", "-Werror"]
    result = subprocess.run([tool, *mode, *paths], cwd=tree.ROOT, capture_output=True, text=True)
    wrong = sorted({line.split(":")[0] for line in result.stderr.splitlines() if "error: code should be" in line})
    if result.returncode and not wrong:
        wrong = result.stderr.splitlines()
    tree.finish("format", [f"{path}: not formatted (make format)" for path in wrong])


if __name__ == "__main__":
    main()
