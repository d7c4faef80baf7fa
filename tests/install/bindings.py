"""What a user of a binding does first: a program of its own, the binding by a local path, the ten lines of the README.

Usage: bindings.py rust|go <build folder> <scratch folder>
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
GO_MODULE = "github.com/libkvcache/libkvcache/bindings/go"


def run(command, folder, **environment):
    print("$", *command)
    result = subprocess.run(command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, timeout=900)
    if result.returncode:
        sys.exit(f"install: failed in {folder}\n{result.stdout}{result.stderr}")
    return result.stdout


def ten_lines(language):
    return re.search(rf"^```{language}\n(.*?)^```", (ROOT / "README.md").read_text(), re.S | re.M).group(1)


def rust(build, project):
    environment = {"KVCACHE_LIB_DIR": str(build), "LD_LIBRARY_PATH": str(build), "CARGO_TARGET_DIR": str(project / "target")}
    run(["cargo", "init", "--quiet", "--vcs", "none", "--name", "consumer"], project)
    run(["cargo", "add", "--quiet", "--path", ROOT / "bindings/rust/kvcache"], project)
    lines = ten_lines("rust")
    (project / "src/main.rs").write_text(
        f'fn main() -> Result<(), kvcache::Error> {{\n{lines}\nassert_eq!(cache.length(1)?, 5);\nprintln!("shared");\nOk(())\n}}\n'
    )
    assert run(["cargo", "run", "--quiet"], project, **environment) == "shared\n"


def go(build, project):
    environment = {"KVCACHE_LIB": str(build / "libkvcache.so"), "GOPROXY": "off"}
    run(["go", "mod", "init", "consumer"], project)
    run(["go", "mod", "edit", f"-replace={GO_MODULE}={ROOT / 'bindings/go'}"], project)
    run(["go", "get", f"{GO_MODULE}@v0.0.0"], project, **environment)
    check = "func check(err error) {\n\tif err != nil {\n\t\tpanic(err)\n\t}\n}\n"
    (project / "main.go").write_text(
        f'package main\n\nimport (\n\t"fmt"\n\n\tkvcache "{GO_MODULE}"\n)\n\n{check}\nfunc main() {{\n{ten_lines("go")}}}\n'
    )
    printed = run(["go", "run", "."], project, **environment)
    assert printed == "127 pages available, 6 tokens in two sequences\n", printed


def main():
    language, build, project = sys.argv[1], pathlib.Path(sys.argv[2]).resolve(), pathlib.Path(sys.argv[3]).resolve()
    shutil.rmtree(project, ignore_errors=True)
    project.mkdir(parents=True)
    {"rust": rust, "go": go}[language](build, project)


if __name__ == "__main__":
    main()
