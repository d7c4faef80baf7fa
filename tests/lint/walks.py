"""ARCHITECTURE.md names files and functions that exist."""

import re

import tree

CODE = re.compile(r"`([^`\s]+)`")
FILE = re.compile(r"^[\w./*-]+\.(?:h|cc|cu|cuh|py|md|txt)$")
NAME = re.compile(r"^(?:\w+::)*(\w+)(?:\(\))?$")


def check():
    files = set(tree.all_files())
    words = set()
    for path in tree.c_files("src", "kernels", "include", "tools", "bench", "tests"):
        words.update(re.findall(r"\w+", tree.text(path)))
    findings = []
    present = tree.text("ARCHITECTURE.md").split("| retired | now |")[0]
    for number, line in tree.lines_of(present):
        for code in CODE.findall(line):
            if FILE.match(code):
                pattern = re.compile(r"(?:.*/)?" + re.escape(code).replace(r"\*", "[^/]*"))
                known = any(pattern.fullmatch(path) for path in files)
            else:
                name = NAME.match(code)
                known = name is None or "_" not in code and "::" not in code or name.group(1) in words
            if not known:
                findings.append(f"ARCHITECTURE.md:{number}: there is no {code}")
    return findings


if __name__ == "__main__":
    tree.finish("walks", check())
