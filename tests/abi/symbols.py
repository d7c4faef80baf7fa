"""What the shared library exports and what it needs, against what is stored and what the header declares.

Usage: symbols.py <libkvcache.so>
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
STORED = pathlib.Path(__file__).with_name("symbols.txt")
SONAME = "libkvcache.so.0"
# The C and C++ run time and nothing else: no GPU library, no OpenMP, no framework.
ALLOWED = re.compile(r"^(libc|libm|libstdc\+\+|libgcc_s|ld-linux-[\w-]+)\.so\.\d+$")
sys.path.insert(0, str(ROOT / "tests" / "lint"))
import header  # noqa: E402


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def exported(library):
    """Names of all defined dynamic symbols but the version node itself."""
    names = set()
    for line in output("nm", "-D", "--defined-only", library).splitlines():
        _, kind, name = line.split()
        if kind != "A":
            names.add(name.split("@")[0])
    return names


def main():
    library = sys.argv[1]
    names = exported(library)
    findings = []
    for where, wanted in (("tests/abi/symbols.txt", set(STORED.read_text().split())), ("include", set(header.functions()))):
        findings += [f"exported, but not in {where}: {name}" for name in sorted(names - wanted)]
        findings += [f"in {where}, but not exported: {name}" for name in sorted(wanted - names)]

    dynamic = output("readelf", "-dW", library)
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
    findings += [f"needs {name}" for name in needed if not ALLOWED.match(name)]
    if f"[{SONAME}]" not in dynamic:
        findings.append(f"the SONAME is not {SONAME}")
    if "NODELETE" not in dynamic:
        findings.append("not linked with -z nodelete")
    if "RPATH" in dynamic or "RUNPATH" in dynamic:
        findings.append("carries a library path of the build machine")
    for line in output("ldd", library).splitlines():
        name = pathlib.Path(line.split()[0]).name
        if not ALLOWED.match(name) and not name.startswith("linux-vdso"):
            findings.append(f"loads {name}")
    for finding in findings:
        print(finding)
    print(f"symbols: {len(findings)} finding(s)" if findings else f"symbols: ok, {len(names)} functions, needs {' '.join(needed)}")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
