"""Runs the C of README.md against the build's library, and compares its snippets in other languages with those of the bindings, whose tests run them.

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


def snippets(path, language):
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / path).read_text(), re.S | re.M)


def main():
    build, compiler, dlpack = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    programs = snippets("README.md", "c")
    if not programs:
        sys.exit("readme: README.md has no snippet in C")
    with tempfile.TemporaryDirectory() as scratch:
        for number, text in enumerate(programs):
            source = pathlib.Path(scratch) / f"snippet{number}.c"
            source.write_text(text)
            program = source.with_suffix("")
            run([compiler, "-std=c11", "-Wall", "-Wextra", "-Werror", source, "-o", program, f"-I{ROOT / 'include'}", f"-I{dlpack}",
                 f"-L{build}", "-lkvcache"])
            print(run([program], env={**os.environ, "LD_LIBRARY_PATH": str(build)}))
    for language in ("python", "rust", "go"):
        shown, tested = snippets("README.md", language), snippets(f"bindings/{language}/README.md", language)
        if not shown or any(text not in tested for text in shown):
            sys.exit(f"readme: the {language} of README.md is not that of bindings/{language}/README.md")


if __name__ == "__main__":
    main()
