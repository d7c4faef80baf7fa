"""C types as the compiler spells them: taken apart, and laid out on a 64-bit machine.

A type is text ("const kvc_plan *const *", "char[488]"), or, for a pointer to a function, a
dictionary {"returns": type, "parameters": [{"name", "type"}, ...]}.
"""

import re

# Bytes of the scalar types that kvcache.h uses, on every 64-bit machine that the library serves.
SCALARS = {"char": 1, "int8_t": 1, "uint8_t": 1, "int16_t": 2, "uint16_t": 2, "int32_t": 4,
           "uint32_t": 4, "int64_t": 8, "uint64_t": 8, "size_t": 8, "float": 4, "double": 8,
           "DLDeviceType": 4}
POINTER = 8


def spelled(text):
    """`text` with the compiler's spacing, so that two spellings of one type are equal."""
    text = re.sub(r"\s+", " ", text.replace("*", " * ")).strip()
    text = re.sub(r"\s*\[\s*(\d+)\s*\]", r"[\1]", text)
    text = re.sub(r"\* (?=\*)", "*", text)
    return re.sub(r"\* (?=const)", "*", re.sub(r"\(\s*\*\s*", "(*", text))


def split_parameters(text):
    """The parts of `text` between commas that no parenthesis encloses."""
    parts, depth, begin = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append(text[begin:at])
            begin = at + 1
    parts.append(text[begin:])
    return [part.strip() for part in parts if part.strip() not in ("", "void")]


def closing(text, opened):
    """Position of the parenthesis that closes the one at `opened`."""
    depth = 0
    for at in range(opened, len(text)):
        depth += (text[at] == "(") - (text[at] == ")")
        if depth == 0:
            return at
    raise ValueError(f"no closing parenthesis in '{text}'")


def function_pointer(text):
    """(name, type) of "returns (*name)(parameters)", name or not. None for other types."""
    match = re.match(r"(.*?)\(\s*\*\s*(\w*)\s*\)\s*\(", text, re.DOTALL)
    if not match:
        return None
    inside = text[match.end():closing(text, match.end() - 1)]
    parameters = [declared(part) for part in split_parameters(inside)]
    named = [{"name": name, "type": kind} for name, kind in parameters]
    return match.group(2), {"returns": spelled(match.group(1)), "parameters": named}


def declared(text):
    """(name, type) of the declaration of a parameter or a field, with its name."""
    pointer = function_pointer(text)
    if pointer:
        return pointer
    match = re.fullmatch(r"(.*?)(\w+)\s*((?:\[\s*\w+\s*\])*)", text.strip(), re.DOTALL)
    return match.group(2), spelled(match.group(1) + match.group(3))


def unnamed(kind):
    """`kind` as the compiler prints it, which leaves out the names of parameters."""
    if isinstance(kind, str):
        return kind
    inside = ", ".join(unnamed(one["type"]) for one in kind["parameters"]) or "void"
    returns = kind["returns"]
    return f"{returns}{'' if returns.endswith('*') else ' '}(*)({inside})"


def declaration(name, kind):
    """C code that declares `name` with that type."""
    if not isinstance(kind, str):
        inside = ", ".join(declaration(one["name"], one["type"]) for one in kind["parameters"])
        return declaration(f"(*{name})({inside or 'void'})", kind["returns"])
    base, bracket, count = kind.partition("[")
    return f"{base}{'' if base.endswith('*') else ' '}{name}{bracket}{count}"


def array(kind):
    """(element type, count) of an array, (kind, 1) of anything else."""
    match = isinstance(kind, str) and re.fullmatch(r"(.*?)\[(\d+)\]", kind)
    return (match.group(1), int(match.group(2))) if match else (kind, 1)


class Layouts:
    """Sizes, alignments and offsets of the structs of a description."""

    def __init__(self, description):
        self.aliases = {one["name"]: one["type"] for one in description["declarations"]
                        if one["kind"] in ("alias", "callback", "enum")}
        self.structs = {}
        for one in description["dlpack"] + description["declarations"]:
            if one["kind"] == "struct":
                self.structs[one["name"]] = self._struct(one["fields"])

    def _size_and_alignment(self, kind):
        element, count = array(kind)
        if not isinstance(element, str) or element.endswith(("*", "*const")):
            return POINTER * count, POINTER
        name = element.removeprefix("const ").removeprefix("struct ")
        if name in self.aliases:
            size, alignment = self._size_and_alignment(self.aliases[name])
        elif name in self.structs:
            size, alignment = self.structs[name]["size"], self.structs[name]["align"]
        else:
            size = alignment = SCALARS[name]
        return size * count, alignment

    def _struct(self, fields):
        at, largest, places = 0, 1, {}
        for field in fields:
            size, alignment = self._size_and_alignment(field["type"])
            at = -(-at // alignment) * alignment
            places[field["name"]] = [at, size]
            at += size
            largest = max(largest, alignment)
        return {"size": -(-at // largest) * largest, "align": largest, "fields": places}
