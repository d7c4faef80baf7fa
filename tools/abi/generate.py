"""Writes every mirror of the C interface from include/kvcache.h, or checks that all are up to date.

  generate.py --write   what `make abi` runs: the description, then every file that follows from it
  generate.py           compares the files with the stored description; needs Python only
  generate.py --header  compares the stored description with the header; needs clang

Usage: generate.py [--write | --header] [--dlpack <folder that holds dlpack/dlpack.h>]
"""

import argparse
import difflib
import json
import pathlib
import sys

import c
import ctype
import describe
import go
import rust

ROOT = describe.ROOT
SKIPPED = 77
HEAD = [{"name": "struct_size", "type": "size_t"}, {"name": "abi_version", "type": "uint32_t"},
        {"name": "reserved", "type": "uint32_t"}]


def slots_of(description):
    """[(member of kvc_api, function)], in the order of the table."""
    functions = {one["name"]: one for one in description["declarations"]
                 if one["kind"] == "function"}
    taken = [field["name"] for field in HEAD]
    result = []
    for names in description["table"].values():
        for name in names:
            member = name.removeprefix("kvc_")
            member = "get_" + member if member in taken else member
            result.append((member, functions[name]))
    return result


def layouts_of(description, slots):
    """Layouts by name: the structs of the header, the function table, DLPack's structs."""
    fields = HEAD + [{"name": member, "type": "void *"} for member, _ in slots]
    api = {"kind": "struct", "name": "kvc_api", "fields": fields}
    declarations = description["declarations"] + [api]
    found = ctype.Layouts({**description, "declarations": declarations}).structs
    order = [one["name"] for one in declarations + description["dlpack"]
             if one["kind"] == "struct"]
    return {name: found[name] for name in order}


def layout_json(description, layouts):
    """tests/abi/layout.json: one struct or constant per line, so that a change reads well."""
    constants = {value["name"]: value["value"] for one in description["declarations"]
                 for value in one.get("values", [])}
    constants.update(zip(describe.VERSION, description["abi_version"]))
    structs = ",\n".join(f"{json.dumps(name)}: {json.dumps(one)}" for name, one in layouts.items())
    numbers = ",\n".join(f"{json.dumps(name)}: {value}" for name, value in constants.items())
    return f'{{\n"generated": "{{note}}",\n"structs": {{\n{structs}\n}},\n"constants": {{\n{numbers}\n}}\n}}\n'


def symbols(description):
    """tests/abi/symbols.txt: every function that the library exports."""
    return "".join(sorted(f"{one['name']}\n" for one in description["declarations"]
                          if one["kind"] == "function"))


def copies():
    """Headers that the Go module carries, because cgo has to find them inside of it."""
    headers = sorted((ROOT / "include").glob("kvcache*.h"))
    return {f"bindings/go/internal/headers/{path.name}": path.read_text() for path in headers}


def generated(description):
    """{path: content} of every generated file but the description and Go's copies."""
    slots = slots_of(description)
    layouts = layouts_of(description, slots)
    found = {"tests/abi/layout.json": layout_json(description, layouts),
             "tests/abi/symbols.txt": symbols(description),
             **rust.files(description, slots, layouts), **c.files(description, slots),
             **go.files(description, slots)}
    return {path: text.replace("{note}", describe.NOTE, 1) for path, text in found.items()}


def differing(wanted):
    """Prints what is not as wanted; the number of such files."""
    wrong = 0
    for path, text in wanted.items():
        stored = (ROOT / path).read_text() if (ROOT / path).exists() else ""
        if stored != text:
            wrong += 1
            lines = difflib.unified_diff(stored.splitlines(), text.splitlines(), path, "generated",
                                         lineterm="", n=1)
            print("\n".join(list(lines)[:12]))
    return wrong


def write(wanted):
    for path, text in wanted.items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        if not (ROOT / path).exists() or (ROOT / path).read_text() != text:
            (ROOT / path).write_text(text)
            print(f"abi: wrote {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--header", action="store_true")
    parser.add_argument("--dlpack", type=pathlib.Path, default=ROOT / ".deps" / "include")
    options = parser.parse_args()
    stored = describe.load()
    described = str(describe.STORED.relative_to(ROOT))
    if options.write:
        description = describe.describe(options.dlpack, stored)
        write({described: describe.as_text(description), **generated(description)})
        write(copies())
        return
    if options.header:
        try:
            description = describe.describe(options.dlpack, stored)
        except describe.NoClang as missing:
            print(f"abi: skipped, {missing}")
            sys.exit(SKIPPED)
        wanted = {described: describe.as_text(description)}
    else:
        wanted = {**generated(stored), **copies()}
    wrong = differing(wanted)
    print(f"abi: {wrong} of {len(wanted)} generated file(s) differ; run `make abi`" if wrong else
          f"abi: ok, {len(wanted)} generated file(s)")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
