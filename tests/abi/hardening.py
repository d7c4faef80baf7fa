"""How a shared library was built: what makes a defect in it harder to exploit, and that it does not read the environment.

Usage: hardening.py <library> <C compiler> [--module]    --module: of the CUDA back end, whose runtime reads variables of its own
SECURITY.md says what is promised. Not for sanitizer or Debug builds.
"""

import platform
import re
import subprocess
import sys

ENDBR64 = b"\xf3\x0f\x1e\xfa"
FORTIFIED = re.compile(r"^__\w+_chk$")
ENVIRONMENT = {"getenv", "secure_getenv", "__secure_getenv", "environ", "__environ"}


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def linkage(library):
    headers, dynamic = output("readelf", "-lW", library), output("readelf", "-dW", library)
    if "GNU_RELRO" not in headers:
        yield "no GNU_RELRO segment: link with -z relro"
    if not re.search(r"\(FLAGS_1\).*\bNOW\b", dynamic):
        yield "symbols are bound lazily: link with -z now"
    if "TEXTREL" in dynamic:
        yield "relocations in code (TEXTREL)"
    stack = re.search(r"GNU_STACK\s+(?:\S+\s+){5}([RWE ]+?)\s+0x", headers)
    if not stack or "E" in stack.group(1):
        yield "the stack is executable, or the library does not say that it is not"


def imports(library, is_module):
    names = {line.split()[-1].split("@")[0] for line in output("nm", "-D", "--undefined-only", library).splitlines()}
    if "__stack_chk_fail" not in names:
        yield "no __stack_chk_fail: compile with -fstack-protector-strong"
    if not any(FORTIFIED.match(name) for name in names):
        yield "no fortified function: compile with _FORTIFY_SOURCE"
    if not is_module:
        yield from (f"reads the environment: {name}" for name in sorted(names & ENVIRONMENT))


def text_section(library):
    """Address, file offset and size of .text."""
    match = re.search(r"\.text\s+PROGBITS\s+([0-9a-f]+)\s+([0-9a-f]+)\s+([0-9a-f]+)", output("readelf", "-SW", library))
    return [int(number, 16) for number in match.groups()]


def indirect_targets(library, compiler):
    if platform.machine() not in ("x86_64", "AMD64"):
        return
    address, offset, size = text_section(library)
    with open(library, "rb") as file:
        file.seek(offset)
        code = file.read(size)
    for line in output("nm", "-D", "--defined-only", library).splitlines():
        value, kind, name = line.split()
        begin = int(value, 16) - address
        if kind == "T" and code[begin:begin + len(ENDBR64)] != ENDBR64:
            yield f"{name.split('@')[0]} does not begin with endbr64: compile with -fcf-protection=full"
    # The linker marks a library only where all its parts are marked, and the C library's start-up files come with the toolchain.
    start = output(compiler, "-print-file-name=crti.o").strip()
    if "IBT" in output("readelf", "-nW", start) and "IBT" not in output("readelf", "-nW", library):
        yield "not marked for IBT and SHSTK, though crti.o is"


def main():
    library, compiler = sys.argv[1:3]
    findings = [*linkage(library), *imports(library, "--module" in sys.argv), *indirect_targets(library, compiler)]
    for finding in findings:
        print(finding)
    print(f"hardening: {len(findings)} finding(s)" if findings else "hardening: ok")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
