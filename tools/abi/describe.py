"""Describes the C interface that include/kvcache.h declares, as a C compiler reads it.

The header is written by hand and is the only source of the interface. Clang says what it declares:
names, types, values and their order. Comments, the names of callbacks' parameters and the mark
KVC_NULLABLE mean nothing to a compiler, so they are taken from the text at the places that clang
names. The result is bindings/abi.json, from which tools/abi/generate.py writes every mirror.

The function table lists the functions in the order of their slots. A slot never moves, so the
order is that of the stored description; a function that the table lacks gets the next slot.
"""

import json
import pathlib
import re
import shutil
import subprocess
import tempfile

import ctype

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADER = ROOT / "include" / "kvcache.h"
STORED = ROOT / "bindings" / "abi.json"
NOTE = "Generated from include/kvcache.h by `make abi`. Do not edit."
DLPACK_STRUCTS = ("DLDevice", "DLDataType", "DLTensor", "DLPackVersion",
                  "DLManagedTensorVersioned")  # in an order in which each needs only earlier ones
VERSION = ("KVC_ABI_VERSION_MAJOR", "KVC_ABI_VERSION_MINOR")
# The table and the function that hands it out follow from the functions of the header.
TABLE = ("kvc_api", "kvc_get_api")
GET_API = {"kind": "function", "name": "kvc_get_api",
           "doc": ["Returns the table for a program that was compiled against `abi_version`: pass"
                   " KVC_ABI_VERSION.", "",
                   "The table has static storage. NULL: the library cannot serve that version,"
                   " because the major", "version differs or the minor version is newer than the"
                   " library's.", "", "Threading: any. Device: host only."],
           "returns": "const kvc_api *",
           "parameters": [{"name": "abi_version", "type": "uint32_t"}]}


class NoClang(Exception):
    """This machine has no clang."""


def syntax_tree(dlpack, header):
    """The declarations of `header`, as clang's JSON."""
    clang = shutil.which("clang")
    if not clang:
        raise NoClang("clang is not installed (make deps)")
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "header.c"
        versions = "".join(f", value_of_{name} = {name}" for name in VERSION)
        source.write_text(f'#include "{header}"\nenum {{ first_value{versions} }};\n')
        command = [clang, "-std=c11", "-isystem", str(dlpack), "-fsyntax-only", "-Xclang",
                   "-ast-dump=json", str(source)]
        return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def begin(node):
    place = node["range"]["begin"]
    return place.get("expansionLoc", place)["offset"]


def end(node):
    place = node["range"]["end"]
    place = place.get("expansionLoc", place)
    return place["offset"] + place["tokLen"]


def lines_of(comment):
    """The lines of a block comment without the stars at their left."""
    body = comment.removeprefix("/*").removesuffix("*/")
    lines = [re.sub(r"^\s*\* ?", "", line).rstrip() for line in body.split("\n")]
    # Lines without a star are aligned below the words of the first one.
    starred = all(re.match(r"\s*\*", line) for line in body.split("\n")[1:])
    lines = lines if starred else [line.strip() for line in lines]
    lines[0] = lines[0].strip()
    while lines and not lines[-1]:
        lines.pop()
    while lines and not lines[0]:
        lines.pop(0)
    return lines


class Header:
    """The text of the header, by the byte offsets that clang names."""

    def __init__(self, text):
        self.text = text

    def slice(self, first, last):
        return self.text[first:last].decode()

    def comment_above(self, offset):
        """Lines of the comment that ends in the line before the declaration at `offset`."""
        before = self.slice(0, offset)
        code = before.rstrip()
        if not code.endswith("*/") or before[len(code):].count("\n") > 1:
            return []
        opened = code.rindex("/*")
        # Behind code it belongs to that code; a rule of "=" is the heading of a chapter.
        if code[code.rfind("\n", 0, opened) + 1:opened].strip() or "/* ===" in code[opened:]:
            return []
        return lines_of(code[opened:])

    def comment_behind(self, offset, between):
        """Lines of the comment in the line of `offset`, with at most `between` before it."""
        rest = self.slice(offset, len(self.text))
        match = re.match(rf"{between}[ \t]*(/\*.*?\*/)", rest, re.DOTALL)
        return lines_of(match.group(1)) if match else []

    def doc(self, first, last, between="[ \t]*;?"):
        return self.comment_above(first) + self.comment_behind(last, between)

    def declaration(self, node):
        """(text without comments and marks, how many marks it had)."""
        text = re.sub(r"/\*.*?\*/", "", self.slice(begin(node), end(node)), flags=re.DOTALL)
        marks = len(re.findall(r"\bKVC_NULLABLE\b", text))
        if marks and not re.search(rf"KVC_NULLABLE\s+{node['name']}\b", text):
            raise SystemExit(f"describe: KVC_NULLABLE is not before the name in '{text}'")
        return text.replace("KVC_NULLABLE", " "), marks


def checked(kind, node):
    """`kind`, if it is what the compiler sees in `node`."""
    seen = ctype.spelled(node["type"]["qualType"])
    if ctype.spelled(ctype.unnamed(kind)) != seen:
        raise SystemExit(f"describe: {node['name']} was read as '{ctype.unnamed(kind)}', "
                         f"but the compiler says '{seen}'")
    return kind


def variable(header, node, name):
    """A parameter or field: its name, its type, and "nullable" where the header says so.

    1: the pointer may be NULL. 2: what it points at is a pointer that may be NULL as well.
    """
    text, nullable = header.declaration(node)
    pointer = ctype.function_pointer(text)
    kind = checked(pointer[1], node) if pointer else ctype.spelled(node["type"]["qualType"])
    return {"name": name, "type": kind, **({"nullable": nullable} if nullable else {})}


def fields(header, node):
    result = []
    for one in node["inner"]:
        if one["kind"] == "FieldDecl":
            doc = header.doc(begin(one), end(one), "[^\n;/]*;")
            result.append({**variable(header, one, one["name"]), "doc": doc})
    return result


def number_of(node):
    """The value of an enumerator, None when it has none of its own."""
    values = [one["value"] for one in node.get("inner", []) if "value" in one]
    return int(values[0]) if values else None


def values(header, node):
    result = []
    for one in node["inner"]:
        if one["kind"] == "EnumConstantDecl":
            doc = header.doc(begin(one), end(one), "[ \t]*,?")
            result.append({"name": one["name"], "value": number_of(one), "doc": doc})
    return result


def function(header, node):
    parameters = [variable(header, one, one["name"]) for one in node.get("inner", [])
                  if one["kind"] == "ParmVarDecl"]
    returns = ctype.spelled(node["type"]["qualType"].split("(")[0])
    return {"kind": "function", "name": node["name"], "doc": header.comment_above(begin(node)),
            "returns": returns, "parameters": parameters}


def typedef(header, node):
    """An alias or a callback; None for the name of a struct, which its record describes."""
    kind = ctype.spelled(node["type"]["qualType"])
    if kind.startswith("struct ") and kind.removeprefix("struct ") == node["name"]:
        return None
    doc = header.doc(begin(node), end(node))
    pointer = ctype.function_pointer(header.declaration(node)[0].removeprefix("typedef"))
    if pointer:
        return {"kind": "callback", "name": node["name"], "type": checked(pointer[1], node),
                "doc": doc}
    return {"kind": "alias", "name": node["name"], "type": kind, "doc": doc}


def names(found):
    return [one.get("name") for one in found]


def structs_of_dlpack(tree):
    """The structs that DLPack's header gives to this interface, without its words."""
    found, record = [], None
    for node in tree["inner"]:
        if node.get("completeDefinition"):
            record = node
        # Most of them have a name through their typedef only.
        named = node.get("name") in DLPACK_STRUCTS
        if named and node["kind"] == "TypedefDecl" and node["name"] not in names(found):
            members = [{"name": one["name"], "type": ctype.spelled(one["type"]["qualType"])}
                       for one in record["inner"] if one["kind"] == "FieldDecl"]
            for member in members:  # What a callback takes has no part in the layout.
                member["type"] = "void *" if "(*)" in member["type"] else member["type"]
            found.append({"kind": "struct", "name": node["name"], "fields": members})
    return sorted(found, key=lambda one: DLPACK_STRUCTS.index(one["name"]))


def declarations(tree, header):
    """Everything that kvcache.h declares, in its order, but the function table."""
    result, previous = [], None
    for node in tree["inner"]:
        name = node.get("name", "")
        if node["kind"] == "EnumDecl" and node["inner"][0]["name"].startswith("KVC_"):
            numbers = values(header, node)
            if not name:  # Generators of bindings find an enum by its name.
                raise SystemExit(f"describe: the enum of {numbers[0]['name']} has no name")
            # An enum right behind an integer type of its own lists the values of that type.
            if previous and previous["kind"] == "alias" and previous["type"].endswith("int32_t"):
                seen = node.get("fixedUnderlyingType", {}).get("qualType", "uint32_t")
                if seen != previous["type"]:
                    raise SystemExit(f"describe: the values of enum {name} are {seen}, but"
                                     f" {previous['name']} is {previous['type']}"
                                     " (KVC_INT32_ENUM)")
                previous.update(kind="enum", values=numbers)
                continue
            doc = header.comment_above(begin(node))
            previous = {"kind": "constants", "doc": doc, "values": numbers}
        elif not name.startswith("kvc_") or name in TABLE:
            continue
        elif node["kind"] == "FunctionDecl":
            previous = function(header, node)
        elif node["kind"] == "TypedefDecl":
            previous = typedef(header, node)
        elif node.get("completeDefinition"):
            doc = header.comment_above(begin(node) - len("typedef "))
            previous = {"kind": "struct", "name": name, "doc": doc, "fields": fields(header, node)}
        else:
            doc = header.doc(begin(node) - len("typedef "), end(node), r"[ \t]*\w+;")
            previous = {"kind": "handle", "name": name, "doc": doc}
        if previous:
            result.append(previous)
    return result


def table(functions, stored, version):
    """{version: functions whose slots it added}, in the order of the slots."""
    slots = {since: list(names) for since, names in stored.items()}
    known = [name for names in slots.values() for name in names]
    gone = [name for name in known if name not in functions]
    if gone:
        raise SystemExit(f"describe: the function table has {', '.join(gone)}, which kvcache.h does"
                         " not declare. A released slot never goes; take one that was never"
                         " released out of \"table\" in bindings/abi.json by hand")
    new = [name for name in functions if name not in known]
    if new:
        slots.setdefault(version, []).extend(new)
    return slots


def describe(dlpack, stored, path=HEADER):
    """The description as a dictionary. `stored` is the one before, which fixes the slots."""
    tree, header = syntax_tree(dlpack, path), Header(path.read_bytes())
    numbers = {one["name"]: number_of(one) for node in tree["inner"] if node["kind"] == "EnumDecl"
               for one in node["inner"]}
    major, minor = (numbers[f"value_of_{name}"] for name in VERSION)
    found = declarations(tree, header)
    functions = [one["name"] for one in found if one["kind"] == "function"]
    return {"generated": NOTE,
            "abi_version": [major, minor],
            "dlpack": structs_of_dlpack(tree),
            "declarations": found + [GET_API],
            "table": table(functions, stored.get("table", {}), f"{major}.{minor}")}


def load():
    return json.loads(STORED.read_text()) if STORED.exists() else {}


def as_text(description):
    """JSON with one line per parameter, field, value and line of a comment."""
    def one(value, indent):
        if isinstance(value, dict):
            value = {key: part for key, part in value.items() if key != "doc" or part}
        flat = json.dumps(value, ensure_ascii=False)
        if not isinstance(value, (dict, list)) or not value or len(indent) + len(flat) <= 96:
            return flat
        inner = indent + " "
        if isinstance(value, list):
            parts = [one(part, inner) for part in value]
        else:
            parts = [f"{json.dumps(key)}: {one(part, inner)}" for key, part in value.items()]
        opened, closed = ("[", "]") if isinstance(value, list) else ("{", "}")
        return f"{opened}\n{inner}" + f",\n{inner}".join(parts) + f"\n{indent}{closed}"
    return one(description, "") + "\n"
