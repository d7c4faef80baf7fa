"""Programs that were compiled against earlier headers still run on this library.

Each folder of tests/abi/frozen is a version with the headers that it shipped. Its structs, fields and constants lie where they lay, and
client.c, compiled against it, runs on the library of today. The same client is compiled against a header whose structs are one field
shorter, as if that field had come later, so that shorter structs are exercised before a version has any.
Usage: frozen.py <C compiler> <folder that holds dlpack/dlpack.h> <folder that holds libkvcache.so>
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

import layout

ROOT = pathlib.Path(__file__).resolve().parents[2]
FROZEN = pathlib.Path(__file__).with_name("frozen")
STRUCT = re.compile(r"(typedef struct (kvc_\w+) \{\n  size_t struct_size;.*?)(\n\} \2;)", re.DOTALL)
# Shortened, these would not be what they are: the error's message, an event's hashes, and sets of functions.
WHOLE = {"kvc_error", "kvc_event", "kvc_api", "kvc_allocator", "kvc_executor"}


def shortened(header):
    """`header` without the last field of every struct that starts with its size, and the names of these structs."""
    names = []

    def cut(match):
        body = re.sub(r"/\*.*?\*/", "", match.group(1), flags=re.DOTALL).rstrip()
        fields = body.split(";")[:-1]
        # A last `reserved` of four bytes fills a word: without it there would be padding, whose bytes C leaves to chance.
        if match.group(2) in WHOLE or len(fields) < 3 or re.search(r"int32_t reserved$", fields[-1]):
            return match.group(0)
        names.append(match.group(2))
        return ";".join(fields[:-1]) + ";" + match.group(3)

    return STRUCT.sub(cut, header), names


def headers_of(folder):
    """name -> text of the public headers in `folder`."""
    return {path.name: path.read_text() for path in sorted(folder.glob("*.h"))}


def run_client(compiler, dlpack, library, headers, folder, label, *options):
    folder = pathlib.Path(folder) / label
    folder.mkdir()
    for name, text in headers.items():
        (folder / name).write_text(text)
    program = folder / "client"
    subprocess.run([compiler, "-std=c11", "-Wall", "-Wextra", "-Werror", *options, "-I", folder, "-isystem", dlpack, FROZEN / "client.c",
                    "-o", program, f"-L{library}", "-lkvcache", "-lm"], check=True)
    done = subprocess.run([program], capture_output=True, text=True, timeout=600, env={**os.environ, "LD_LIBRARY_PATH": str(library)})
    if done.returncode:
        return [f"{label}: the client ends with {done.returncode}: {done.stdout}{done.stderr}"]
    print(f"{label}: {done.stdout.strip()}")
    return []


def moved(old, new):
    """What of an earlier layout lies elsewhere, or has another value, in a later one."""
    for name, struct in old["structs"].items():
        now = new["structs"].get(name)
        if now is None:
            yield f"{name} is gone"
            continue
        if now["size"] < struct["size"]:
            yield f"{name} has {now['size']} bytes, it had {struct['size']}"
        for field, place in struct["fields"].items():
            if now["fields"].get(field) != place:
                yield f"{name}.{field} is [offset, bytes] {now['fields'].get(field)}, it was {place}"
    for name, value in old["constants"].items():
        # The minor version counts additions.
        if name != "KVC_ABI_VERSION_MINOR" and new["constants"].get(name) != value:
            yield f"{name} is {new['constants'].get(name)}, it was {value}"


def main():
    compiler, dlpack, library = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3]).resolve()
    present = layout.measure(compiler, dlpack)
    findings = []
    versions = sorted(path for path in FROZEN.iterdir() if path.is_dir())
    with tempfile.TemporaryDirectory() as folder:
        for version in versions:
            findings += [f"{version.name}: {line}" for line in moved(layout.measure(compiler, dlpack, version), present)]
            findings += run_client(compiler, dlpack, library, headers_of(version), folder, version.name)
        headers = headers_of(ROOT / "include")
        headers["kvcache.h"], names = shortened(headers["kvcache.h"])
        if len(names) < 15:
            findings.append(f"only {len(names)} structs could be shortened: {names}")
        findings += run_client(compiler, dlpack, library, headers, folder, "shorter", "-DSHORTER_STRUCTS")
    for finding in findings:
        print(finding)
    print(f"frozen: {len(findings)} finding(s)" if findings else
          f"frozen: ok, {len(versions)} version(s), {len(names)} structs one field shorter")
    sys.exit(1 if findings or not versions else 0)


if __name__ == "__main__":
    main()
