"""Runs what README.md shows: its C and Python snippets against the build's library.

Usage: readme.py <build folder> <C compiler> <DLPack include folder>
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(command, **options):
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120, **options)
    if result.returncode:
        sys.exit(f"readme: failed: {' '.join(str(part) for part in command)}\n{result.stdout}{result.stderr}")
    return result.stdout


def main():
    build, compiler, dlpack = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    blocks = re.findall(r"^```(c|python)\n(.*?)^```", (ROOT / "README.md").read_text(), re.S | re.M)
    counts = {"c": 0, "python": 0}
    environment = {**os.environ, "LD_LIBRARY_PATH": str(build)}
    with tempfile.TemporaryDirectory() as scratch:
        for language, text in blocks:
            counts[language] += 1
            source = pathlib.Path(scratch) / f"snippet{len(text)}.{ {'c': 'c', 'python': 'py'}[language] }"
            source.write_text(text)
            if language == "c":
                program = source.with_suffix("")
                run([compiler, "-std=c11", "-Wall", "-Wextra", "-Werror", source, "-o", program, f"-I{ROOT / 'include'}", f"-I{dlpack}",
                     f"-L{build}", "-lkvcache"])
                print(run([program], env=environment))
            else:
                print(run([sys.executable, source], env=environment))
    if not all(counts.values()):
        sys.exit(f"readme: expected a snippet of each language, found {counts}")


if __name__ == "__main__":
    main()
