"""A small reader of the public headers, shared by the checks: functions with their comments, structs, constants, table slots.

It understands the regular C of these two files, no more, and fails loudly on what it does not know.
"""

import re

import tree

PATHS = ("include/kvcache.h", "include/kvcache_api.h")
_FUNCTION = re.compile(r"KVC_API\s+([^;{}]*?)\b(kvc_\w+)\s*\(([^;]*)\)\s*([A-Z_\s]*);", re.DOTALL)
_STRUCT = re.compile(r"typedef struct (kvc_\w+) \{(.*?)\n\} \1;", re.DOTALL)
_ENUM = re.compile(r"\benum\s+\w+(?:\s+KVC_INT32_ENUM)?\s*\{(.*?)\}\s*;", re.DOTALL)


def source():
    return "".join(tree.text(path) for path in PATHS)


def functions():
    """name -> ("path:line", comment directly above or '')."""
    result = {}
    for path in PATHS:
        whole = tree.text(path)
        found = list(_FUNCTION.finditer(whole))
        for match in found:
            before = whole[:match.start()].rstrip()
            comment = ""
            if before.endswith("*/"):
                comment = before[before.rindex("/*"):]
            result[match.group(2)] = (f"{path}:{whole.count(chr(10), 0, match.start()) + 1}", comment)
        declared = len(re.findall(r"^KVC_API\b", whole, re.MULTILINE))
        if declared != len(found):
            raise SystemExit(f"{path}: {declared} KVC_API declarations, but {len(found)} understood")
    return result


def structs(text=None):
    """name -> list of field names, in order; of the public headers, or of `text`."""
    whole = tree.code_only(text or source())
    result = {}
    for match in _STRUCT.finditer(whole):
        fields = []
        for declaration in match.group(2).split(";"):
            declaration = declaration.replace("KVC_NULLABLE", " ").strip()
            if not declaration:
                continue
            pointer = re.search(r"\(\*\s*(\w+)\)\s*\(", declaration)
            if pointer:
                fields.append(pointer.group(1))
                continue
            # int32_t a, b; char message[488]; const struct kvc_ext *next
            for part in declaration.split(","):
                name = re.search(r"(\w+)\s*(?:\[[^\]]*\]\s*)*$", part)
                if not name:
                    raise SystemExit(f"struct {match.group(1)}: cannot read '{declaration}'")
                fields.append(name.group(1))
        result[match.group(1)] = fields
    declared = len(re.findall(r"typedef struct kvc_\w+ \{", whole))
    if declared != len(result):
        raise SystemExit(f"public headers: {declared} structs, but {len(result)} understood")
    return result


def constants(text=None):
    """Names of all enumerators, in order; of the public headers, or of `text`."""
    names = []
    for match in _ENUM.finditer(tree.code_only(text or source())):
        names += re.findall(r"\b(KVC_\w+)\s*=", match.group(1))
    return names
