"""The library prints nothing, ends no process, and reads no environment variable."""

import re

import tree

FORBIDDEN = re.compile(r"(?<![\w.>:])(?<!void )(?:std::)?"
                       r"(printf|fprintf|vprintf|vfprintf|puts|fputs|putchar|perror|abort|exit|_exit|quick_exit|terminate|"
                       r"getenv|secure_getenv|setenv|putenv|assert)\s*\(|\bstd::(cout|cerr|clog)\b|\b(stdout|stderr)\b")
# UCX takes some settings from the environment alone, when its module is loaded.
EXPECTED = {("src/transfer/module.cc", "setenv(")}
INCLUDES = re.compile(r"#\s*include\s*<(iostream|cassert|assert\.h)>")


def check():
    findings = []
    for path in tree.c_files("src", "kernels"):
        for number, line in tree.lines_of(tree.code_only(tree.text(path))):
            match = FORBIDDEN.search(line) or INCLUDES.search(line)
            if match and (path, match.group().strip()) not in EXPECTED:
                findings.append(f"{path}:{number}: {match.group().strip()} does not belong in the library")
    return findings


if __name__ == "__main__":
    tree.finish("no_print", check())
