"""What the disassembler says of a CUDA object file: per kernel and architecture the registers and how often instructions occur."""

import collections
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "kernels" / "cuda" / "tools"))
from compile import demangled  # noqa: E402  the same plain names as in the reports

ARCH = re.compile(r"^\s*(?:arch = sm_|code for sm_)(\w+)")
FUNCTION = re.compile(r"^\s*Function\s*:?\s+([^\s:]+):?")
RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)")

# Instructions that are counted by name.
COUNTED = {"HMMA", "HGMMA", "IMMA", "QGMMA", "UTMALDG", "UTMASTG", "UBLKCP", "LDSM", "STSM", "LDL", "STL", "BAR", "ATOMG", "RED", "CALL"}
# Accesses that are counted by width, in bits.
BY_WIDTH = {"LDG", "STG", "LDGSTS"}


def width(opcode):
    parts = opcode.split(".")
    for bits in ("256", "128", "64"):
        if bits in parts:
            return bits
    for bits in ("16", "8"):
        if f"U{bits}" in parts or f"S{bits}" in parts:
            return bits
    return "32"


def counter(opcode):
    """The name that an instruction is counted under, or None."""
    name = opcode.partition(".")[0]
    if name in BY_WIDTH:
        return f"{name}.{width(opcode)}"
    return name if name in COUNTED else None


def total(figures, what):
    """LDG: of every width; LDG.<128: of all below."""
    name, _, limit = what.partition(".<")
    if limit:
        return sum(count for key, count in figures.items() if key.startswith(name + ".") and int(key.partition(".")[2]) < int(limit))
    return figures.get(what, 0) + sum(count for key, count in figures.items() if key.startswith(what + "."))


def read_sass(text):
    """{(mangled name, arch): Counter}. Only instructions before the padding count: a branch to itself ends each function."""
    counts = {}
    arch, current = None, None
    for line in text.split("\n"):
        if match := INSTRUCTION.match(line):
            if current is None:
                continue
            opcode = match.group(1)
            if opcode.startswith("NOP"):
                continue
            current["instructions"] += 1
            key = counter(opcode)
            if key:
                current[key] += 1
        elif match := ARCH.match(line):
            arch, current = match.group(1), None
        elif match := FUNCTION.match(line):
            current = counts.setdefault((match.group(1), arch), collections.Counter())
    return counts


def read_resources(text):
    registers = {}
    arch, name = None, None
    for line in text.split("\n"):
        if match := RESOURCES.search(line):
            registers[name, arch] = int(match.group(1))
        elif match := ARCH.match(line):
            arch = match.group(1)
        elif match := FUNCTION.match(line):
            name = match.group(1)
    return registers


def dump(tool, what, path):
    return subprocess.run([tool, what, str(path)], capture_output=True, text=True, check=True).stdout


def kernels_of(path, tool):
    """{plain name: {arch: figures}} of one object file."""
    counts = read_sass(dump(tool, "-sass", path))
    registers = read_resources(dump(tool, "-res-usage", path))
    names = demangled(sorted({name for name, _ in counts}))
    kernels = {}
    for (name, arch), found in counts.items():
        figures = {"registers": registers.get((name, arch), 0), "instructions": found.pop("instructions", 0)}
        figures.update(sorted(found.items()))
        kernels.setdefault(names[name], {})[arch] = figures
    return kernels
