"""Writes the C mirrors of the interface: the function table, and the lists of structs for SWIG and
for the Python module."""

import ctype

WIDTH = 100
TABLE_HEADER = "include/kvcache_api.h"
TABLE_FRAME = """/* {note} */
/*
 * kvcache_api.h - the function table of libkvcache, for programs that load the library at run time.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A program that links libkvcache needs kvcache.h alone. One that loads the library does this:
 *
 *   void *library = dlopen("libkvcache.so.0", RTLD_NOW | RTLD_LOCAL);
 *   const kvc_api *(*get_api)(uint32_t) = dlsym(library, "kvc_get_api");    (in C: by memcpy)
 *   const kvc_api *api = get_api(KVC_ABI_VERSION);
 *   api->plan_create(&config, &plan, &err);
 *
 * 1. Check every step for NULL. kvc_get_api is NULL when the library is too old for this header.
 * 2. A slot is the function of kvcache.h without the prefix kvc_, with the same contract.
 *    kvc_abi_version is get_abi_version here, because a field has the other name.
 * 3. The table is append-only: a slot never moves, and new slots come at the end.
 * 4. Do not unload the library (dlclose) while tensors that it exported live.
 */
#ifndef KVCACHE_API_H_
#define KVCACHE_API_H_

#include "kvcache.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Every function of kvcache.h, in the order in which they came into being. */
typedef struct kvc_api {
  size_t struct_size;   /* Bytes that the library has filled. */
  uint32_t abi_version; /* ABI of the library, as kvc_abi_version returns it. */
  uint32_t reserved;    /* 0 */
{functions}
} kvc_api;

{doc} */
KVC_API const kvc_api *kvc_get_api(uint32_t abi_version) KVC_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif /* KVCACHE_API_H_ */
"""


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


def aligned(head, words, after):
    """Lines of a parameter list, which go on below the opening parenthesis."""
    lines, line = [], head
    for at, word in enumerate(words):
        part = word + (after if at == len(words) - 1 else ",")
        space = 0 if line == head else 1
        if len(line) + space + len(part) > WIDTH and space:
            lines.append(line)
            line = " " * len(head) + part
        else:
            line += " " * space + part
    return lines + [line + (after if not words else "")]


def slot(member, function):
    returns = function["returns"]
    head = f"  {returns}{'' if returns.endswith('*') else ' '}(*{member})("
    words = [marked(one) for one in function["parameters"]] or ["void"]
    return "\n".join(aligned(head, words, ");"))


def table_header(description, slots):
    """include/kvcache_api.h"""
    members = dict(slots)
    by_function = {function["name"]: member for member, function in slots}
    lines = []
    for since, names in description["table"].items():
        lines.append(f"  /* Functions of version {since}. */")
        lines += [slot(by_function[name], members[by_function[name]]) for name in names]
        lines.append(f"  /* End of version {since}. */")
    get_api = next(one for one in description["declarations"] if one.get("name") == "kvc_get_api")
    doc = "".join(f" * {line}".rstrip() + "\n" for line in get_api["doc"]).strip()
    head, rest = TABLE_FRAME.split("{functions}\n")
    return head + "\n".join(lines) + "\n" + rest.replace("{doc}", "/" + doc)


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
    return {TABLE_HEADER: table_header(description, slots),
            "src/capi/api_table.inc": table_entries(description),
            "bindings/python/src/abi_structs.h": python_structs(description),
            "bindings/swig/abi_structs.i": swig_structs(description)}
