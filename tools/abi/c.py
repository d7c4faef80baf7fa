"""Writes the C mirrors of the interface: the function table, and the lists of structs for SWIG and
for the Python module."""

import re

import ctype
import describe

WIDTH = 100
TABLE_HEADER = "include/kvcache_api.h"


def filled(words, indent, separator=" "):
    """The words in lines of at most WIDTH columns."""
    lines, line = [], indent + words[0]
    for word in words[1:]:
        if len(line) + len(separator) + len(word) > WIDTH - 2:
            lines.append(line + separator.rstrip())
            line = indent + word
        else:
            line += separator + word
    return lines + [line]


def marked(parameter):
    """The declaration of a parameter, with the header's mark where it may be NULL."""
    kind = parameter["type"]
    if not parameter.get("nullable"):
        return ctype.declaration(parameter["name"], kind)
    if parameter["nullable"] == 2:
        kind = kind[:-1] + "KVC_NULLABLE *"
    return f"{kind}{'' if kind.endswith('*') else ' '}KVC_NULLABLE {parameter['name']}"


def slot(member, function):
    returns = function["returns"]
    head = f"  {returns}{'' if returns.endswith('*') else ' '}(*{member})("
    words = [marked(one) for one in function["parameters"]] or ["void"]
    line = f"{head}{', '.join(words)});"
    if len(line) <= WIDTH:
        return line
    lines, line = [], head
    for at, word in enumerate(words):
        part = word + (");" if at == len(words) - 1 else ",")
        if len(line) + len(part) + 1 > WIDTH:
            lines.append(line)
            line = " " * len(head) + part
        else:
            line += part if line == head else " " + part
    return "\n".join(lines + [line])


def table_header(description, slots):
    """include/kvcache_api.h"""
    members = dict(slots)
    by_function = {function["name"]: member for member, function in slots}
    lines = []
    for since, names in description["table"].items():
        lines.append(f"  /* {since} */")
        lines += [slot(by_function[name], members[by_function[name]]) for name in names]
        lines.append(f"  /* end of {since} */")
    get_api = next(one for one in description["declarations"] if one.get("name") == "kvc_get_api")
    doc = "\n * ".join(get_api["doc"])
    newline = "\n"
    return f"""/*
 * {{note}}
 *
 * The function table of libkvcache, for programs that load the library at run time: dlopen with
 * RTLD_NOW | RTLD_LOCAL, look up kvc_get_api, and call through the table that it returns. Do not
 * dlclose the library while exported tensors live.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef KVCACHE_API_H_
#define KVCACHE_API_H_

#include "kvcache.h"

#ifdef __cplusplus
extern "C" {{
#endif

/* Each member is the function of kvcache.h with `kvc_` before its name; get_abi_version is
 * kvc_abi_version. The table only grows at its end: a program reads struct_size before it uses a
 * member that its oldest library lacks. */
typedef struct kvc_api {{
  size_t struct_size;
  uint32_t abi_version; /* of the library */
  uint32_t reserved;
{newline.join(lines)}
}} kvc_api;

/* {doc} */
KVC_API const kvc_api *kvc_get_api(uint32_t abi_version) KVC_NOEXCEPT;

#ifdef __cplusplus
}}
#endif

#endif /* KVCACHE_API_H_ */
"""


def table_entries(description):
    """The functions in the order of their slots, for the table of src/capi/api_table.cc."""
    lines = [f"    {name}," for names in description["table"].values() for name in names]
    return "// {note}\n" + "\n".join(lines) + "\n"


def structs_of(description, first_field=None):
    return [one for one in description["declarations"] if one["kind"] == "struct"
            and first_field in (None, one["fields"][0]["name"])]


def python_structs(description):
    """Names of all structs and of their fields, as macros that apply another one to each."""
    found = structs_of(description) + description["dlpack"]
    kinds = " \\\n".join(f"  X({one['name']})" for one in found)
    parts = []
    for one in found:
        words = [f"F({one['name']}, {field['name']})" for field in one["fields"]]
        lines = filled(words, "  ")
        parts.append(f"#define KVCPY_FIELDS_{one['name']}(F) \\\n" + " \\\n".join(lines) + "\n")
    return ("/* {note} */\n#ifndef KVCACHE_PYTHON_ABI_STRUCTS_H_\n"
            "#define KVCACHE_PYTHON_ABI_STRUCTS_H_\n\n/* clang-format off */\n"
            "/* X of each struct. */\n#define KVCPY_STRUCTS(X) \\\n" + kinds
            + "\n\n/* F of each struct and field. */\n" + "\n".join(parts)
            + "/* clang-format on */\n\n#endif\n")


def swig_structs(description):
    """The structs that know their size; an error is made by SWIG's own typemaps."""
    names = [one["name"] for one in structs_of(description, "struct_size")]
    lines = "".join(f"KVC_SIZED({name})\n" for name in names if name != "kvc_error")
    return "/* {note} */\n" + lines


def files(description, slots):
    """{path: content}"""
    # As long as kvcache.h itself declares the table, there is no header of its own for it.
    declared = re.search(r"struct kvc_api \{", describe.HEADER.read_text())
    header = {} if declared else {TABLE_HEADER: table_header(description, slots)}
    return {**header,
            "src/capi/api_table.inc": table_entries(description),
            "bindings/python/src/abi_structs.h": python_structs(description),
            "bindings/swig/abi_structs.i": swig_structs(description)}
