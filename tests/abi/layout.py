"""Sizes, offsets and constants of the C interface as the C compiler sees them, against the stored layout.json.

Bindings that declare the structs in their own language compare themselves with the same file. `make abi` computes that file from the
description of the interface; here the compiler of the library measures it. The list of structs and fields is read from the header, so
none can be forgotten.
Usage: layout.py <C compiler> <folder that holds dlpack/dlpack.h>
"""

import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
STORED = pathlib.Path(__file__).with_name("layout.json")
sys.path.insert(0, str(ROOT / "tests" / "lint"))
import header  # noqa: E402

# DLPack's structs are part of this interface as well.
DLPACK = {"DLDevice": ["device_type", "device_id"],
          "DLDataType": ["code", "bits", "lanes"],
          "DLTensor": ["data", "device", "ndim", "dtype", "shape", "strides", "byte_offset"],
          "DLPackVersion": ["major", "minor"],
          "struct DLManagedTensorVersioned": ["version", "manager_ctx", "deleter", "flags", "dl_tensor"]}


def program(structs, constants):
    """A C program that prints the layout as JSON."""
    lines = ["#include <kvcache_api.h>", "#include <stdio.h>", "int main(void) {", r'  printf("{\n\"structs\": {");']
    for index, (name, fields) in enumerate(structs.items()):
        key = name.removeprefix("struct ")
        lines.append(rf'  printf("%s\n\"{key}\": {{\"size\": %zu, \"align\": %zu, \"fields\": {{", "{"," if index else ""}", '
                     rf'sizeof({name}), _Alignof({name}));')
        for position, field in enumerate(fields):
            lines.append(rf'  printf("%s\"{field}\": [%zu, %zu]", "{", " if position else ""}", offsetof({name}, {field}), '
                         rf'sizeof((({name} *)0)->{field}));')
        lines.append('  printf("}}");')
    lines.append(r'  printf("},\n\"constants\": {");')
    for index, name in enumerate(constants):
        lines.append(rf'  printf("%s\"{name}\": %lld", "{", " if index else ""}", (long long){name});')
    return "\n".join(lines + [r'  printf("}\n}\n");', "  return 0;", "}", ""])


def measure(compiler, dlpack, folder=ROOT / "include"):
    """The layout of the public headers in `folder`."""
    text = "".join((folder / pathlib.Path(path).name).read_text() for path in header.PATHS)
    structs = {**header.structs(text), **DLPACK}
    constants = header.constants(text) + ["KVC_ABI_VERSION_MAJOR", "KVC_ABI_VERSION_MINOR"]
    with tempfile.TemporaryDirectory() as scratch:
        source = pathlib.Path(scratch) / "layout.c"
        source.write_text(program(structs, constants))
        subprocess.run([compiler, "-std=c11", "-I", str(folder), "-isystem", dlpack, str(source), "-o", f"{scratch}/layout"],
                       check=True)
        return json.loads(subprocess.run([f"{scratch}/layout"], check=True, capture_output=True, text=True).stdout)


def differences(stored, measured):
    for part in ("structs", "constants"):
        for name in sorted(stored[part].keys() | measured[part].keys()):
            if stored[part].get(name) != measured[part].get(name):
                yield f"{name}: stored {json.dumps(stored[part].get(name))}, measured {json.dumps(measured[part].get(name))}"


def padded_tails(layout):
    """A field appended into the padding at the end would not change the size that callers send, so no such padding may exist."""
    for name, struct in layout["structs"].items():
        end = max(offset + size for offset, size in struct["fields"].values())
        if name.startswith("kvc_") and end != struct["size"]:
            yield f"{name}: {struct['size'] - end} bytes of padding at the end; add a reserved field"


def main():
    measured = measure(sys.argv[1], sys.argv[2])
    moved = list(differences(json.loads(STORED.read_text()), measured))
    found = moved + list(padded_tails(measured))
    for line in found:
        print(line)
    if moved:
        print("layout: differs from tests/abi/layout.json. Released fields and values never move; `make abi` stores a new one")
    elif not found:
        print(f"layout: ok, {len(measured['structs'])} structs, {len(measured['constants'])} constants")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
