"""No file names a place on somebody's machine, leaves a note for later, or has stray white space."""

import re

import tree

# Put together from halves, so that this file passes its own check.
MACHINE_PATH = re.compile(r"(?<![\w.\]})/-])/(?:ho" + r"me|ro" + r"ot|wo" + r"rk|Us" + r"ers)/[\w.]")
NOTE = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX|HA" + r"CK|W" + r"IP)\b")
CONFLICT = re.compile(r"^(?:<{7}|>{7}|={7})(?:\s|$)")
BINARY = (".png", ".jpg", ".gif", ".pdf", ".gz", ".bin", ".safetensors")
FREE_OF_RULES = {"LICENSE"}


def check():
    findings = []
    for path in tree.all_files():
        if path.endswith(BINARY) or path in FREE_OF_RULES:
            continue
        try:
            content = tree.text(path)
        except UnicodeDecodeError:
            findings.append(f"{path}: not UTF-8 text")
            continue
        for number, line in tree.lines_of(content):
            for what, pattern in (("a path of one machine", MACHINE_PATH), ("a note for later", NOTE), ("a merge conflict", CONFLICT)):
                match = pattern.search(line)
                if match:
                    findings.append(f"{path}:{number}: {what}: {match.group()}")
            if line.endswith((" ", "\t", "\r")):
                findings.append(f"{path}:{number}: white space at the end of the line")
        if content and not content.endswith("\n"):
            findings.append(f"{path}: no newline at the end")
    return findings


if __name__ == "__main__":
    tree.finish("tree_text", check())
