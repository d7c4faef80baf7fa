"""A small reader of include/kvcache.h, shared by the checks: functions with their comments, structs, constants, table slots.

It understands the regular C of that one file, no more, and fails loudly on what it does not know.
"""

import re

import tree

PATH = "include/kvcache.h"
_FUNCTION = re.compile(r"KVC_API\s+([^;{}]*?)\b(kvc_\w+)\s*\(([^;]*)\)\s*([A-Z_\s]*);", re.DOTALL)
_STRUCT = re.compile(r"typedef struct (kvc_\w+) \{(.*?)\n\} \1;", re.DOTALL)
_ENUM = re.compile(r"\benum\s*\{(.*?)\}\s*;", re.DOTALL)


def source():
    return tree.text(PATH)


def functions():
    """name -> (line number, comment directly above or '')."""
    whole = source()
    result = {}
    for match in _FUNCTION.finditer(whole):
        before = whole[:match.start()].rstrip()
        comment = ""
        if before.endswith("*/"):
            comment = before[before.rindex("/*"):]
        result[match.group(2)] = (whole.count("\n", 0, match.start()) + 1, comment)
    declared = len(re.findall(r"^KVC_API\b", whole, re.MULTILINE))
    if declared != len(result):
        raise SystemExit(f"{PATH}: {declared} KVC_API declarations, but {len(result)} understood")
    return result


def structs(text=None):
    """name -> list of field names, in order; of kvcache.h, or of `text`."""
    whole = tree.code_only(text or source())
    result = {}
    for match in _STRUCT.finditer(whole):
        fields = []
        for declaration in match.group(2).split(";"):
            declaration = declaration.replace("KVC_NULLABLE", " ").strip()
            if not declaration:
                continue
            pointer = re.search(r"\(\*(\w+)\)\s*\(", declaration)
            if pointer:
                fields.append(pointer.group(1))
                continue
            # int32_t a, b; char message[488]; const struct kvc_ext *next
            for part in declaration.split(","):
                name = re.search(r"(\w+)\s*(?:\[[^\]]*\]\s*)*$", part)
                if not name:
                    raise SystemExit(f"{PATH}: struct {match.group(1)}: cannot read '{declaration}'")
                fields.append(name.group(1))
        result[match.group(1)] = fields
    declared = len(re.findall(r"typedef struct kvc_\w+ \{", whole))
    if declared != len(result):
        raise SystemExit(f"{PATH}: {declared} structs, but {len(result)} understood")
    return result


def constants(text=None):
    """Names of all enumerators, in order; of kvcache.h, or of `text`."""
    names = []
    for match in _ENUM.finditer(tree.code_only(text or source())):
        names += re.findall(r"\b(KVC_\w+)\s*=", match.group(1))
    return names
