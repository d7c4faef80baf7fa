"""Writes the shims of the Go module whose form follows from the declaration of their function.

A shim takes what Go may pass to C: numbers, tensors in pieces, addresses of outputs. What needs a
struct with pointers inside is written by hand in bindings/go/shim*.h; a function that is called
there gets no shim here.
"""

import re

import c
import describe

FOLDER = describe.ROOT / "bindings" / "go"
PATH = "bindings/go/shim_abi.h"
WIDTH = 100
TENSOR = re.compile(r"(const )?DLTensor \*")
POINTED = re.compile(r"(?:const )?(?:struct )?(\w+) (\*+)")


def called_by_hand():
    texts = [path.read_text() for path in FOLDER.glob("shim*.h") if path.name != "shim_abi.h"]
    return set(re.findall(r"->(\w+)\(", "".join(texts)))


class Shims:
    def __init__(self, description):
        named = [one for one in description["declarations"] if "name" in one]
        self.handles = {one["name"] for one in named if one["kind"] == "handle"}
        self.handles.add("DLManagedTensorVersioned")
        self.numbers = {one["name"]: one["type"] for one in named
                        if one["kind"] in ("alias", "enum") and one["name"] != "kvc_stream"}
        self.sized = {one["name"] for one in c.structs_of(description, "struct_size")}
        self.other = {one["name"] for one in named if one["kind"] in ("struct", "callback")}

    def number(self, kind):
        """The type without the names that kvcache.h gives to numbers; bytes for void."""
        kind = re.sub(r"\bvoid\b", "uint8_t", kind)
        return re.sub(r"\bkvc_\w+", lambda name: self.numbers.get(name.group(), name.group()), kind)

    def parameter(self, name, kind):
        """(parameters of the shim, lines before the call, argument, lines behind it), or None."""
        if kind == "kvc_stream":
            return f"uintptr_t {name}", [], f"(kvc_stream){name}", []
        if TENSOR.fullmatch(kind):
            return f"SHIM_TENSOR({name})", [f"SHIM_DL({name});"], f"{name}_dl", []
        base, stars = POINTED.fullmatch(kind).groups() if POINTED.fullmatch(kind) else (kind, "")
        if base in self.handles and stars == "*":
            return f"uintptr_t {name}", [], f"({base} *){name}", []
        if base in self.handles and stars == "**":
            made = f"{name}_made"
            return (f"uintptr_t *{name}", [f"{base} *{made} = NULL;"], f"&{made}",
                    [f"*{name} = (uintptr_t){made};"])
        if base in self.sized and stars == "*" and not kind.startswith("const"):
            return (f"{base} *{name}", [f"{name}->struct_size = sizeof *{name};"], name, [])
        if base in self.other or "*" in stars[1:]:
            return None
        spelled = self.number(kind)
        if "kvc_" in spelled:
            return None
        return f"{spelled}{'' if spelled.endswith('*') else ' '}{name}", [], name, []

    def shim(self, member, function):
        """The code of a shim, None where it cannot follow from the declaration."""
        fallible = function["returns"] == "kvc_status"
        names = [one["name"] for one in function["parameters"]]
        if fallible != ("err" in names) or any(not isinstance(one["type"], str)
                                               for one in function["parameters"]):
            return None
        parts = [self.parameter(one["name"], one["type"]) for one in function["parameters"]
                 if one["name"] != "err"]
        if None in parts:
            return None
        returns = "kvc_error *" if fallible else self.number(function["returns"])
        returns = function["returns"] if "void" in function["returns"] else returns
        head = f"static inline {returns}{'' if returns.endswith('*') else ' '}"
        head += f"shim_{function['name'].removeprefix('kvc_')}("
        lines = c.aligned(head, ["uintptr_t api"] + [part[0] for part in parts], ") {")
        before = ["SHIM_ERROR;"] * fallible + [line for part in parts for line in part[1]]
        behind = [line for part in parts for line in part[3]]
        arguments = [part[2] for part in parts] + ["&err"] * fallible
        lines += ["  " + line for line in before]
        call = f"SHIM_API(api)->{member}("
        if fallible:
            lines += c.aligned(f"  const kvc_status status = {call}", arguments, ");")
            lines += ["  " + line for line in behind] + ["  return shim_result(status, &err);"]
        else:
            result = "" if function["returns"] == "void" else "return "
            lines += c.aligned(f"  {result}{call}", arguments, ");")
        return "\n".join(lines + ["}", ""])


def files(description, slots):
    """{path: content}"""
    shims, by_hand = Shims(description), called_by_hand()
    found = [shims.shim(member, function) for member, function in slots if member not in by_hand]
    code = "".join(one for one in found if one)
    return {PATH: "/* {note} */\n#ifndef KVCACHE_GO_SHIM_ABI_H_\n#define KVCACHE_GO_SHIM_ABI_H_\n\n"
                  f'#include "shim.h"\n\n/* clang-format off */\n{code}/* clang-format on */\n\n'
                  "#endif /* KVCACHE_GO_SHIM_ABI_H_ */\n"}
