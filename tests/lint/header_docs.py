"""Every function of the C interface says how it may be threaded and what it does to a device, and has its slot in the table; the public
headers have lines of at most 100 columns."""

import header
import tree

GETTER = "kvc_get_api"
TABLE = "kvc_api"
# A slot is the function's name without kvc_. One is not: a member may not be called like the field that holds the version.
SLOT_OF = {"kvc_abi_version": "get_abi_version"}
COLUMNS = 100
HEAD = {"struct_size", "abi_version", "reserved"}


def check():
    findings = []
    functions = header.functions()
    for name, (place, comment) in functions.items():
        for word in ("Threading:", "Device:"):
            if word not in comment:
                findings.append(f"{place}: the comment of {name} has no '{word}'")
    slots = [field for field in header.structs()[TABLE] if field not in HEAD]
    wanted = [SLOT_OF.get(name, name.removeprefix("kvc_")) for name in functions if name != GETTER]
    findings += [f"{TABLE} has no slot '{slot}'" for slot in wanted if slot not in slots]
    findings += [f"slot '{slot}' of {TABLE} has no function" for slot in slots if slot not in wanted]
    if len(slots) != len(set(slots)):
        findings.append(f"{TABLE} has a slot twice")
    for path in header.PATHS:
        findings += [f"{path}:{number}: {len(line)} columns, at most {COLUMNS}"
                     for number, line in tree.lines_of(tree.text(path)) if len(line) > COLUMNS]
    return findings


if __name__ == "__main__":
    tree.finish("header_docs", check())
